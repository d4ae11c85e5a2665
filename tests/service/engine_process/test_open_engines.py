import gc
import re
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from export.bundle.directory import load_bundle
from model.config import SpecialTokenTemplate
from service.decoding.prompt_form import PLAIN, ContextPlace, PromptForm
from service.engine.golden_check import check_golden_decode
from service.engine_process.open_engines import open_engines
from service.errors import StartupError
from service.machine.execution_choice import CPU, CUDA
from service.machine.processors import Processors
from service.runtime.cuda_memory import CudaRuntime
from service.runtime.onnx_model import OnnxModel
from service.runtime.sessions import graph_opener
from service.settings.engine_settings import EngineSettings
from tests.fakes import FakeCuda
from tests.tiny import tiny_config, tiny_model


def test_a_directory_without_a_bundle_is_rejected(tmp_path):
    with pytest.raises(StartupError, match=r"manifest\.json"):
        open_engines(tmp_path, EngineSettings())


def test_the_check_of_batches_leaves_no_memory(tiny_translation_bundle):
    settings = EngineSettings(device="cpu")
    sizes = [
        open_engines(tiny_translation_bundle, settings, checks_batches=checks).memory_bytes()
        for checks in (False, True)
    ]
    assert sizes[0] == sizes[1]


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


@pytest.fixture(scope="module")
def half_bundle(exported):
    """Path of a bundle with float32 and float16 graphs."""
    return exported(tiny_model(tiny_config("decoder", num_decoder_layers=1)), precisions=("fp32", "fp16"))


def test_engines_know_the_form_of_their_models_prompts(tiny_translation_bundle, exported):
    one_layer = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    template = SpecialTokenTemplate(source_suffix=(2,), target_prefix=(1, 5))
    config = tiny_config(
        context_sentences=2, separator_id=4, extra_eos_ids=(4,), special_token_template=template, **one_layer
    )
    form = PromptForm(1, ContextPlace(0, 4))
    for path, expected in ((tiny_translation_bundle, PLAIN), (exported(tiny_model(config)), form)):
        (engine,) = open_engines(path, EngineSettings(device="cpu")).engines
        assert engine._form == expected


def test_no_token_of_a_text_to_continue_counts_in_scores(tiny_generation_bundle):
    (engine,) = open_engines(tiny_generation_bundle, EngineSettings(device="cpu")).engines
    assert engine._form == PLAIN


class FailingCuda:
    """CUDA whose sessions open, and whose runs fail with `error`. opened: a reference to each session."""

    def __init__(self, path: Path, error: Exception, **device: Any):
        self.runtime, self.error = FakeCuda(**device), error
        self.opened: list[weakref.ref[Any]] = []
        self.left_when_cpu_opened: list[Any] = []
        self._open = graph_opener(path, load_bundle(path))

    def open_graph(self, file: Path, providers: list[Any]) -> Any:
        if providers == [CPU]:
            self.left_when_cpu_opened += [*filter(None, [session() for session in self.opened]), *self.runtime.live]
            return self._open(file, providers)
        session = FailingSession(self.error)
        self.opened.append(weakref.ref(session))
        return session

    @property
    def open_model(self) -> Any:
        return partial(
            OnnxModel.open,
            available=[CUDA, CPU],
            open_graph=self.open_graph,
            check_cuda=lambda _: CudaRuntime(self.runtime),
        )


class FailingSession:
    def __init__(self, error: Exception):
        self.error = error

    def get_providers(self):
        return [CUDA, CPU]

    def get_provider_graph_assignment_info(self):
        return []

    def get_inputs(self):
        return []

    get_outputs = get_inputs

    def io_binding(self):
        raise type(self.error)(*self.error.args)  # a new one: a traceback keeps what its frames had


OUT_OF_MEMORY = RuntimeError("CUDA failure 2: out of memory")


@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_auto_serves_on_the_cpu_when_the_first_answer_on_cuda_fails(half_bundle, monkeypatch, precision):
    cuda = FailingCuda(half_bundle, OUT_OF_MEMORY)
    opened = open_engines(half_bundle, EngineSettings(engines=2, precision=precision), open_model=cuda.open_model)
    choice = opened.choice
    assert (choice.provider, choice.requested, choice.fallback, choice.precision) == (CPU, "auto", True, "fp32")
    assert choice.reason == (
        "the first answers on CUDA failed: CUDA failure 2: out of memory; fix: free memory of the device, and check it "
        "with nvidia-smi -q, or ask for device cpu"
    )
    assert len(opened.engines) == 2


def test_nothing_of_cuda_is_left_when_the_cpu_takes_over(half_bundle, monkeypatch):
    cuda = FailingCuda(half_bundle, OUT_OF_MEMORY)
    open_engines(half_bundle, EngineSettings(), open_model=cuda.open_model)
    assert cuda.opened
    assert cuda.left_when_cpu_opened == []
    assert not cuda.runtime.live


def test_a_session_whose_device_failed_for_good_is_never_destroyed(half_bundle):
    """Its destructor would end the process, and the server would have no model instead of one on the CPU."""
    cuda = FailingCuda(half_bundle, OUT_OF_MEMORY, lost=700)
    assert open_engines(half_bundle, EngineSettings(), open_model=cuda.open_model).choice.provider == CPU
    gc.collect()
    assert all(session() is not None for session in cuda.opened)


def test_cuda_required_refuses_when_the_first_answer_fails(half_bundle, monkeypatch):
    cuda = FailingCuda(half_bundle, OUT_OF_MEMORY)
    with pytest.raises(
        StartupError, match=r"device cuda is required, but .*out of memory; fix: .* or ask for device auto or cpu"
    ):
        open_engines(half_bundle, EngineSettings(device="cuda"), open_model=cuda.open_model)


@pytest.mark.parametrize("limit", [0, 100_000_000])
def test_a_device_without_room_for_one_request_is_not_used(half_bundle, limit):
    cuda = FailingCuda(half_bundle, OUT_OF_MEMORY, free=8 << 30 if limit else 100_000_000)
    choice = open_engines(half_bundle, EngineSettings(cuda_memory_bytes=limit), open_model=cuda.open_model).choice
    assert (choice.provider, choice.fallback) == (CPU, True)
    allowed = "and --cuda-memory-bytes allows 100 MB in all, " if limit else ""
    free = "8,590" if limit else "100"
    assert re.fullmatch(
        rf"the device has {free} MB free of 8,590 MB beside the weights, 0 MB, {allowed}but the largest request takes "
        r"3\d\d MB; fix: end other programs on the device \(nvidia-smi lists them\), raise --cuda-memory-bytes, lower "
        r"--max-rows, or name another device with --cuda-devices, or ask for device cpu",
        choice.reason,
    )
    with pytest.raises(StartupError, match=r"cuda is required, but the device has .* largest request takes .* fix: "):
        open_engines(half_bundle, EngineSettings(device="cuda", cuda_memory_bytes=limit), open_model=cuda.open_model)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_wrong_golden_decode_on_cuda_is_a_failed_answer(half_bundle, monkeypatch, device):
    cuda = FailingCuda(half_bundle, StartupError("self-check failed: other tokens; fix: export again"))
    settings = EngineSettings(device=device)
    if device == "cuda":
        with pytest.raises(
            StartupError, match=r"but the first answers on CUDA failed: self-check failed: other tokens"
        ):
            open_engines(half_bundle, settings, open_model=cuda.open_model)
    else:
        choice = open_engines(half_bundle, settings, open_model=cuda.open_model).choice
        assert (choice.fallback, choice.reason.count("; fix: ")) == (True, 1)


def test_the_reason_is_the_servers_when_cuda_does_not_open(half_bundle, monkeypatch):
    """As on a machine whose onnxruntime is for CUDA, without a device."""

    def no_device(weight_bytes):
        raise StartupError("CUDA finds no device; fix: start the container with --gpus all")

    opened = open_engines(
        half_bundle, EngineSettings(), open_model=partial(OnnxModel.open, available=[CUDA, CPU], check_cuda=no_device)
    )
    assert (opened.choice.fallback, opened.choice.reason.startswith("CUDA finds no device; fix")) == (True, True)
