"""The two commands of docs/several-machines.md on two machines: two network namespaces with a cable between them."""

import contextlib
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.ranks import ROOT, ended, trained, write_preset

PAGE = ROOT / "docs" / "several-machines.md"
IP_IS_MISSING = "no network namespaces: install iproute2 and run this test as root"


def ip(*words):
    done = subprocess.run(("ip", *map(str, words)), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{IP_IS_MISSING}: {done.stderr}"


@contextlib.contextmanager
def machines():
    """The names of two namespaces, 10.0.0.1 and 10.0.0.2, whose only common network is eth0."""
    assert shutil.which("ip"), IP_IS_MISSING
    names = [f"glossa-{os.getpid()}-{number}" for number in range(2)]
    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "eth0", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.0.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names


def commands(preset, folders):
    """The commands of the page for two machines, with the files of this test."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (block,) = [text for text in blocks if "--nnodes" in text]
    lines = block.replace("\\\n", " ").splitlines()
    assert [line.split()[:5] for line in lines] == [
        ["torchrun", "--nnodes", "2", "--node-rank", str(number)] for number in range(2)
    ]
    return [
        line.replace("recipe.yaml", str(preset)).replace("--data train.tsv.gz ", "").replace("runs/big", str(folder))
        for line, folder in zip(lines, folders, strict=True)
    ]


@pytest.mark.slow
def test_two_machines_without_a_common_file_system_train_as_one(tmp_path):
    preset = write_preset(tmp_path / "copy.yaml")
    folders = [tmp_path / "first" / "run", tmp_path / "second" / "run"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
    }
    with machines() as names:
        processes = [
            subprocess.Popen(
                ("ip", "netns", "exec", name, *command.split()),
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for name, command in zip(names, commands(preset, folders), strict=True)
        ]
        printed = [ended(process) for process in processes]
    assert "checkpoint written to" in printed[0]
    assert "checkpoint" not in printed[1]
    assert not folders[1].parent.exists()
    trained(2, preset, "--out", tmp_path / "here")
    weights = [(folder / "model.safetensors").read_bytes() for folder in (folders[0], tmp_path / "here")]
    assert weights[0] == weights[1]
