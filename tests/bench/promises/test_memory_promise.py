"""The worst that admission lets in, in its smallest form, and the cgroup that it may run in."""

import argparse
import os

import pytest

from bench.load.memory_cgroup import NAME, limited
from bench.promises.memory_promise import memory_promise
from tests.tiny import pairs_file

SMALL = {
    "engines": 1,
    "engines_per_process": 0,
    "precision": "auto",
    "calls": 4,
    "headers": 240,
    "max_requests": 32,
    "max_message_bytes": 1 << 16,
    "request_memory_bytes": 1 << 24,
    "parking_bytes": 1 << 20,
    "prefix_cache_bytes": 1 << 20,
    "cgroup": None,
    "json": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["translation", "generation", "recurrent"])
def test_a_server_stays_within_its_prediction(request, tmp_path, capsys, kind):
    bundle = request.getfixturevalue(f"tiny_{kind}_bundle")
    with pytest.raises(SystemExit) as end:
        memory_promise(argparse.Namespace(bundle=bundle, data=pairs_file(tmp_path, times=8), **SMALL))
    printed = capsys.readouterr().out
    assert end.value.code in (0, 1), "1: far below the prediction, which a tiny server may be; a text: why it ended"
    assert "met  peak against the prediction: " in printed, printed
    assert "met  processes that ended: 0" in printed
    assert "met  calls that ended neither answered nor refused: 0" in printed
    assert "28 messages but their last byte, 28 of them answered" in printed


def test_a_group_is_entered_left_and_removed(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/a\n0::/here\n")
    mount = tmp_path / "sys/fs/cgroup/unified"
    (mount / "here").mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("memory")
    with limited(mount, 1000, tmp_path) as group:
        assert group.group == mount / NAME
        assert (group.group / "memory.max").read_text() == "1000"
        assert (group.group / "cgroup.procs").read_text() == str(os.getpid())
        (group.group / "memory.peak").write_text("900\n")
        (group.group / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
        assert (group.peak_bytes(), group.killed()) == (900, 2)
        for file in group.group.iterdir():  # those of a real group vanish with it
            file.unlink()
    assert (mount / "here/cgroup.procs").read_text() == str(os.getpid())
    assert not group.group.exists()
