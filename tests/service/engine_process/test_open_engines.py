from typing import Any

import pytest

from service.engine.golden_check import check_golden_decode
from service.engine_process.open_engines import open_engines
from service.engine_settings import EngineSettings
from service.errors import StartupError
from service.processors import Processors


def test_a_directory_without_a_bundle_is_rejected(tmp_path):
    with pytest.raises(StartupError, match=r"manifest\.json"):
        open_engines(tmp_path, EngineSettings())


@pytest.mark.parametrize(("single_engine_threads", "checks"), [(1, 1), (2, 2)])
def test_the_golden_answer_is_repeated_in_every_session(
    tiny_translation_bundle, monkeypatch, single_engine_threads, checks
):
    checked = []

    def noting(runner, manifest, precision):
        check_golden_decode(runner, manifest, precision)
        checked.append(runner._passes is runner._single_engine)

    monkeypatch.setattr("service.engine_process.open_engines.check_golden_decode", noting)
    open_engines(
        tiny_translation_bundle, EngineSettings(single_engine_threads=single_engine_threads, device="cpu", engines=2)
    )
    assert checked == [True, False][-checks:]


@pytest.mark.parametrize(
    ("threads", "least", "divides", "eagerly"),
    [(0, 0, True, False), (0, 1 << 40, False, False), (2, 1 << 40, True, True), (1, 0, False, False)],
)
def test_a_small_model_has_one_thread_unless_more_are_configured(
    tiny_translation_bundle, monkeypatch, threads, least, divides, eagerly
):
    place = "service.engine_process.open_engines"
    monkeypatch.setattr(f"{place}.processors", lambda: Processors(allowed=2, cores=2, quota=None))
    monkeypatch.setattr(f"{place}.SINGLE_ENGINE_MIN_BYTES", least)
    opened = open_engines(tiny_translation_bundle, EngineSettings(single_engine_threads=threads, device="cpu"))
    runner: Any = opened.engines[0]._runner
    model = runner.model
    assert bool(model.single_engine_sessions) == eagerly
    assert (model._open_late is not None) == (divides and not eagerly)


def test_a_bundle_that_changed_since_the_server_started_is_refused(tiny_translation_bundle):
    digest = open_engines(tiny_translation_bundle, EngineSettings()).bundle_sha256
    open_engines(tiny_translation_bundle, EngineSettings(), bundle_sha256=digest)
    with pytest.raises(StartupError, match=r"another manifest than when the server started; fix: restart"):
        open_engines(tiny_translation_bundle, EngineSettings(), bundle_sha256="0" * 64)
