import asyncio
import dataclasses
import errno
import hashlib
import os

import pytest

from service.edge.observability.metrics import Metrics
from service.edge.versions import open_model
from service.edge.versions.open_model import MAX_MORE_VERSIONS, ModelOpener
from service.errors import StartupError
from service.request import Finished
from service.settings.config import ServerSettings
from tests.e2e.process import engine_pids
from tests.edge import decoding_request
from tests.fakes import ask
from tests.tiny import TEXTS


def opener(path, **settings):
    models = {"en": path, "more": path}
    return ModelOpener(ServerSettings(models=models, device="cpu", engines=2, **settings), Metrics())


async def test_a_directory_without_a_bundle_is_refused_by_the_edge_in_the_models_name(tmp_path):
    with pytest.raises(StartupError, match=r"^model en: .*manifest\.json"):
        await opener(tmp_path).open("en", tmp_path)


async def test_a_bundle_that_no_descriptor_is_left_for_is_refused(tmp_path, monkeypatch):
    def none_left(path, only):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(open_model, "check_bundle", none_left)
    with pytest.raises(StartupError, match=r"^model en: .*Too many open files"):
        await opener(tmp_path).open("en", tmp_path)


async def test_processes_that_are_not_ready_in_time_do_not_stay(tiny_generation_bundle):
    opening = opener(tiny_generation_bundle, process_start_timeout_s=0.01)
    with pytest.raises(StartupError, match=r"^model en: its engine process was not ready within 0\.01 s; fix: raise "):
        await opening.open("en", tiny_generation_bundle, "v2")
    assert engine_pids(os.getpid()) == []
    assert b"glossa_rows_used{" not in opening._metrics.render(), "nor do its series"


@pytest.mark.slow
async def test_versions_have_processes_of_their_own_names_and_leave_nothing(tiny_generation_bundle, tmp_path):
    opening = opener(tiny_generation_bundle, admin_socket=tmp_path / "admin", engines_per_process=1)
    names = []
    for _ in range(2):
        first, second = [await opening.open("en", tiny_generation_bundle) for _ in range(2)]
        names.append((set(first.pool.processes), set(second.pool.processes)))
        await first.aclose()
        await second.aclose()
    assert names == [({"en-0", "en-1"}, {"en-2", "en-3"})] * 2
    assert engine_pids(os.getpid()) == []


async def test_there_is_a_limit_of_open_versions(tiny_generation_bundle, tmp_path):
    opening = opener(tiny_generation_bundle, admin_socket=tmp_path / "admin")
    taken = [opening._free.pop() for _ in range(2 + MAX_MORE_VERSIONS)]
    with pytest.raises(StartupError, match="16 more versions are open; fix: stop one of them first"):
        await opening.open("en", tiny_generation_bundle)
    opening._free = taken[:1]
    for _ in range(3):  # what could not be opened takes no place
        with pytest.raises(StartupError, match="is not a bundle"):
            await opening.open("en", tmp_path)


async def test_a_start_that_is_given_up_leaves_no_process(tiny_generation_bundle):
    opening = asyncio.create_task(opener(tiny_generation_bundle).open("en", tiny_generation_bundle))
    async with asyncio.timeout(60):
        while not engine_pids(os.getpid()):
            await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert engine_pids(os.getpid()) == []


async def test_models_of_one_server_answer_from_processes_of_their_own(tiny_generation_bundle, caplog):
    caplog.set_level("INFO", "glossa")
    opening = opener(tiny_generation_bundle, engines_per_process=1)
    first, second = await asyncio.gather(
        opening.open("en", tiny_generation_bundle), opening.open("more", tiny_generation_bundle, "v2")
    )
    try:
        assert (first.processes, first.engines, len(engine_pids(os.getpid()))) == (2, 2, 4)
        manifest = (tiny_generation_bundle / "manifest.json").read_bytes()
        assert first.bundle_sha256 == hashlib.sha256(manifest).hexdigest()
        assert first.choice.precision == "fp32"
        assert set(second.pool.processes) == {"more-0", "more-1"}
        for model in (first, second):
            asked = dataclasses.replace(decoding_request(model, TEXTS[0]), deadline_s=None)
            (sink,) = await ask(model.pool, asked)
            assert isinstance(sink.finals[0], Finished)
    finally:
        assert b'glossa_rows_used{model="more",version="v2"}' in opening._metrics.render()
        await first.aclose()
        await second.aclose()
    assert engine_pids(os.getpid()) == []
    assert b"glossa_rows_used{" not in opening._metrics.render()
    lines = [record.fields for record in caplog.records if record.getMessage() == "starting_engines"]
    assert sorted(lines, key=lambda fields: fields["model"]) == [
        {"model": name, "processes": 2, "engines_per_process": 1} for name in ("en", "more")
    ]
