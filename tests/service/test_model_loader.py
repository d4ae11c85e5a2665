import pytest

from service.config import Processors
from service.edge.metrics import Metrics
from service.engine.golden_check import check_golden_decode
from service.errors import StartupError
from service.model_loader import open_model
from tests.edge import settings


def test_a_directory_without_a_bundle_is_rejected_by_name(tmp_path):
    with pytest.raises(StartupError, match=r"^model en-de: .*manifest\.json"):
        open_model("en-de", tmp_path, settings(models={"en-de": tmp_path}), Metrics())


@pytest.mark.parametrize(("single_engine_threads", "checks"), [(1, 1), (2, 2)])
def test_the_golden_answer_is_repeated_in_every_session(
    tiny_translation_bundle, monkeypatch, single_engine_threads, checks
):
    checked = []

    def noting(runner, manifest, precision):
        check_golden_decode(runner, manifest, precision)
        checked.append(runner._passes is runner._single_engine)

    monkeypatch.setattr("service.model_loader.check_golden_decode", noting)
    configured = settings(
        models={"en-de": tiny_translation_bundle}, single_engine_threads=single_engine_threads, device="cpu"
    )
    model = open_model("en-de", tiny_translation_bundle, configured, Metrics())
    model.pool.close()
    assert checked == [True, False][-checks:]


@pytest.mark.parametrize(
    ("threads", "least", "divides", "eagerly"),
    [(0, 0, True, False), (0, 1 << 40, False, False), (2, 1 << 40, True, True), (1, 0, False, False)],
)
def test_a_small_model_has_one_thread_unless_more_are_configured(
    tiny_translation_bundle, monkeypatch, threads, least, divides, eagerly
):
    opened = []
    monkeypatch.setattr("service.model_loader.processors", lambda: Processors(allowed=2, cores=2, quota=None))
    monkeypatch.setattr("service.model_loader.SINGLE_ENGINE_MIN_BYTES", least)
    monkeypatch.setattr("service.model_loader.check_golden_decode", lambda runner, *_: opened.append(runner.model))
    configured = settings(models={"en-de": tiny_translation_bundle}, single_engine_threads=threads, device="cpu")
    open_model("en-de", tiny_translation_bundle, configured, Metrics()).pool.close()
    assert {bool(model.single_engine_sessions) for model in opened} == {eagerly}
    assert {model._open_late is not None for model in opened} == {divides and not eagerly}
