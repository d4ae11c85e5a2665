"""Which provider and precision a bundle is served on, and the errors that name the fix."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import onnx
import onnxruntime as ort
import pytest

from export.bundle.directory import load_bundle
from export.bundle.manifest import SESSION_CONFIG
from service.errors import StartupError
from service.machine.execution_choice import CPU, CUDA, LAZY_ROLES
from service.runtime import sessions, token_draws
from service.runtime.cuda_device import check_device
from service.runtime.cuda_memory import CudaRuntime, CudaStream
from service.runtime.onnx_model import OnnxModel
from service.runtime.sessions import providers_of, session_config
from tests.fakes import FakeCuda, RecordingSession
from tests.tiny import tiny_config, tiny_model


def has_room(weight_bytes):
    """A machine on which CUDA works."""
    return CudaRuntime(FakeCuda())


class FakeSession(RecordingSession):
    def __init__(self, providers):
        super().__init__()
        self.providers = providers

    def get_providers(self):
        return self.providers


def with_precisions(manifest, *precisions):
    return replace(manifest, variants=tuple(replace(manifest.variants[0], precision=name) for name in precisions))


def opened(
    manifest,
    *,
    device,
    precision="auto",
    available=(CUDA, CPU),
    precisions=("fp32", "fp16"),
    got=None,
    check_cuda=has_room,
):
    """The choice made when sessions report that they run on `got`, or on what was requested."""

    def open_graph(file, providers):
        names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
        if isinstance(got, Exception) and CUDA in names:
            raise got
        return FakeSession(names if got is None or isinstance(got, Exception) else list(got))

    manifest = with_precisions(manifest, *precisions)
    model = OnnxModel.open(
        Path("bundle"),
        manifest,
        device=device,
        precision=precision,
        available=available,
        open_graph=open_graph,
        check_cuda=check_cuda,
    )
    return model.choice


@pytest.fixture
def manifest(tiny_generation_bundle):
    return load_bundle(tiny_generation_bundle)


def no_driver(weight_bytes):
    check_device(FakeCuda(driver=0), cuda_major=13, weight_bytes=weight_bytes)


def full(weight_bytes):
    check_device(FakeCuda(free=1000), cuda_major=13, weight_bytes=weight_bytes)


def old_runtime(weight_bytes):
    sessions.check_version("1.30.0")


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_cuda_is_taken_when_it_works(manifest, device):
    choice = opened(manifest, device=device)
    assert (choice.provider, choice.fallback, choice.precision) == (CUDA, False, "fp16")


def test_nodes_are_counted_by_graph_and_provider(tiny_generation_bundle):
    manifest = load_bundle(tiny_generation_bundle)
    opened = sessions.open_sessions(tiny_generation_bundle, manifest, device="cpu", precision="fp32")
    folder = tiny_generation_bundle / "fp32"
    assert {(one.graph, one.provider) for one in opened.choice.nodes} == {(role, CPU) for role in opened.sessions}
    for one in opened.choice.nodes:
        assert 1 < one.nodes <= len(onnx.load(folder / f"{one.graph}.onnx", load_external_data=False).graph.node)


def test_nodes_that_a_device_leaves_to_the_cpu_are_its_own():
    class Part(NamedTuple):
        ep_name: str
        size: int

        def get_nodes(self):
            return [object()] * self.size

    class Divided(RecordingSession):
        def get_provider_graph_assignment_info(self):
            return [Part(CUDA, 3), Part(CPU, 1), Part(CUDA, 4)]

    found = sessions.nodes_of({"encode": Divided(), "decode": RecordingSession()})
    assert found == (("encode", CPU, 1), ("encode", CUDA, 7))


def test_requested_cpu_is_not_a_fallback(manifest):
    choice = opened(manifest, device="cpu")
    assert (choice.provider, choice.fallback, choice.reason, choice.precision) == (CPU, False, "", "fp32")


OBSTACLES = [
    ({"available": [CPU]}, "no CUDA provider; fix: install onnxruntime-gpu"),
    ({"precisions": ["fp32"]}, "no fp16 or w4a16 graphs, only fp32; fix: export it again with --precision fp32,fp16"),
    ({"precision": "w4a16"}, "no w4a16 graphs, only fp32, fp16; fix: export it again with --precision fp32,fp16,w4a16"),
    ({"got": [CPU]}, "installed but did not load; fix: check the driver with nvidia-smi"),
    ({"got": RuntimeError("CUDA failure 35")}, r"refused the graphs \(CUDA failure 35\); fix: check driver"),
    ({"got": RuntimeError("CUDA failure 2: out of memory")}, "out of memory.; fix: end other programs on the device"),
    ({"got": RuntimeError("cuDNN is unavailable")}, "cuDNN is unavailable.; fix: install cuDNN .* recurrent layers"),
    ({"check_cuda": no_driver}, "no NVIDIA driver is installed; fix: install driver 580 or newer"),
    ({"check_cuda": full}, "the device has 0 MB free of 8,590 MB, and the weights take .* fix: end other programs"),
    ({"check_cuda": old_runtime}, "onnxruntime 1.30.0 crashes on CUDA.* fix: pip install 'onnxruntime-gpu>=1.31'"),
]


@pytest.mark.parametrize("precisions", [["int8", "fp32"], ["int4"]])
def test_cuda_refuses_a_bundle_by_the_graphs_that_it_has(manifest, precisions):
    there, missing = ", ".join(precisions), ",".join([*precisions, "fp16"])
    with pytest.raises(StartupError, match=f"no fp16 or w4a16 graphs, only {there}; fix: .* --precision {missing}"):
        opened(manifest, device="cuda", precisions=precisions)


def test_auto_on_an_onnxruntime_for_cpus_alone_falls_back_from_nothing(manifest):
    choice = opened(manifest, device="auto", available=[CPU])
    assert (choice.provider, choice.requested, choice.fallback, choice.reason) == (CPU, "auto", False, "")


@pytest.mark.parametrize(("circumstances", "why"), OBSTACLES[1:])
def test_auto_falls_back_and_reports_reason_and_fix(manifest, circumstances, why):
    choice = opened(manifest, device="auto", **circumstances)
    assert (choice.provider, choice.requested, choice.fallback, choice.precision) == (CPU, "auto", True, "fp32")
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(choice.reason)


@pytest.mark.parametrize(("circumstances", "why"), OBSTACLES)
def test_cuda_required_refuses_to_start_without_it(manifest, circumstances, why):
    with pytest.raises(StartupError, match="device cuda is required, but .*" + why):
        opened(manifest, device="cuda", **circumstances)


def test_a_bundle_without_graphs_for_the_cpu_is_refused(manifest):
    with pytest.raises(StartupError, match="no graphs for the CPU, only fp16, w4a16; fix: export"):
        opened(manifest, device="auto", precision="w4a16", precisions=["fp16", "w4a16"], available=[CPU])
    with pytest.raises(StartupError, match="no graphs for the CPU, only fp16; fix: export"):
        opened(manifest, device="cpu", precisions=["fp16"])


@pytest.mark.parametrize(
    ("precisions", "taken"),
    [(["fp32"], "fp32"), (["fp32", "int4"], "int4"), (["fp16", "int4", "fp32", "int8"], "int8")],
)
def test_the_cpu_takes_the_fastest_precision_there_is(manifest, precisions, taken):
    assert opened(manifest, device="cpu", precisions=precisions).precision == taken


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_precision_that_is_named_is_served_from_the_cpu(manifest, device, precision):
    choice = opened(manifest, device=device, precision=precision, precisions=["fp16", "fp32", "int8", "int4"])
    assert (choice.provider, choice.fallback, choice.precision) == (CPU, False, precision)


def test_a_named_precision_that_the_bundle_lacks_is_refused(manifest):
    with pytest.raises(StartupError, match="bundle: the bundle has no int8 graphs, only fp32, int4; fix: export it"):
        opened(manifest, device="cpu", precision="int8", precisions=["fp32", "int4"])


def test_a_precision_of_the_cpu_is_refused_where_cuda_is_required(manifest):
    with pytest.raises(StartupError, match="precision int8 is one of the CPU's, but device cuda is required"):
        opened(manifest, device="cuda", precision="int8", precisions=["int8", "fp16"])


@pytest.mark.parametrize(("precisions", "taken"), [(["fp32", "w4a16"], "w4a16"), (["int8", "w4a16", "fp16"], "fp16")])
def test_cuda_takes_the_precision_nearest_to_fp32_that_there_is(manifest, precisions, taken):
    assert opened(manifest, device="cuda", precisions=precisions).precision == taken


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize("precision", ["fp16", "w4a16"])
def test_a_precision_of_cuda_that_is_named_is_served_there(manifest, device, precision):
    choice = opened(manifest, device=device, precision=precision, precisions=["fp32", "fp16", "w4a16"])
    assert (choice.provider, choice.fallback, choice.precision) == (CUDA, False, precision)


def test_a_precision_of_cuda_falls_back_to_the_fastest_of_the_cpu(manifest):
    choice = opened(manifest, device="auto", precision="w4a16", precisions=["fp32", "int8", "w4a16"], available=[CPU])
    assert (choice.provider, choice.fallback, choice.precision) == (CPU, True, "int8")
    assert "no CUDA provider; fix: install onnxruntime-gpu" in choice.reason


def test_a_precision_of_cuda_is_refused_where_the_cpu_is_required(manifest):
    with pytest.raises(StartupError, match=r"precision w4a16 is one of CUDA's, .* device cpu is required, .* int8 or"):
        opened(manifest, device="cpu", precision="w4a16", precisions=["fp32", "w4a16"])


def test_a_graph_that_cannot_be_opened_is_a_startup_error(tmp_path, manifest):
    graph = tmp_path / manifest.variants[0].graphs["decode"].file
    graph.parent.mkdir()
    graph.write_bytes(b"no graph")
    with pytest.raises(StartupError, match=r"a graph cannot be opened: .*fix: export the bundle again"):
        OnnxModel.open(tmp_path, manifest, device="cpu")


def on_cuda(manifest, open_graph):
    return OnnxModel.open(
        Path("bundle"), manifest, device="cuda", available=[CUDA], open_graph=open_graph, check_cuda=has_room
    )


def test_a_runner_on_cuda_has_its_buffers_there(manifest, monkeypatch):
    monkeypatch.setattr(token_draws, "open_own_graph", lambda graph, stream: FakeSession([CUDA, CPU]))
    model = on_cuda(with_precisions(manifest, "fp16"), lambda file, providers: FakeSession([CUDA, CPU]))
    assert model.runner(max_rows=2).memory.device == "cuda"


def test_of_the_graphs_on_cuda_only_steps_and_their_log_probabilities_are_captured(manifest):
    asked = {}

    def open_graph(file, providers):
        asked[file.stem] = providers[0][1].get("enable_cuda_graph")
        return FakeSession([CUDA, CPU])

    model = on_cuda(with_precisions(manifest, "fp16"), open_graph)
    assert model.choice.captures
    assert asked == {role: "1" if role in ("decode", "logprobs") else None for role in model.sessions}


def test_graph_that_cannot_be_captured_runs_uncaptured(manifest, caplog):
    def open_graph(file, providers):
        if "enable_cuda_graph" in providers[0][1]:
            raise RuntimeError("not all nodes are on the device")
        return FakeSession([CUDA, CPU])

    model = on_cuda(with_precisions(manifest, "fp16"), open_graph)
    assert (model.choice.provider, model.choice.captures) == (CUDA, False)
    assert set(model.sessions) == set(model.variant.graphs) - set(LAZY_ROLES)
    assert "steps run without CUDA graphs: not all nodes are on the device" in caplog.text


def test_sessions_on_cuda_build_no_plan_per_shape_and_round_no_factors():
    (name, options), rest = providers_of(CUDA)
    assert (name, rest) == (CUDA, CPU)
    assert options == {
        "arena_extend_strategy": "kSameAsRequested",
        "sdpa_kernel": "3",
        "use_tf32": "0",
    }


def test_a_session_computes_on_the_stream_of_its_model():
    options = providers_of(CUDA, captures=True, stream=CudaStream(CudaRuntime(FakeCuda())))[0][1]
    wanted = {"user_compute_stream": str(0x5000), "enable_cuda_graph": "1"}
    assert wanted.items() <= options.items()


def test_fusions_that_are_slow_on_the_cpu_are_on_for_cuda():
    assert session_config([CPU]) == SESSION_CONFIG
    on_cuda = session_config(providers_of(CUDA))
    assert set(SESSION_CONFIG) - set(on_cuda) == {"optimization.disable_specified_optimizers"}
    assert on_cuda.items() <= SESSION_CONFIG.items()


def test_a_session_that_cannot_be_opened_on_its_provider_is_not_opened_on_another(tiny_generation_bundle, monkeypatch):
    """ONNX Runtime would print the error and go on."""

    create = ort.InferenceSession._create_inference_session

    def refuse_cuda(session, providers, *more):
        if providers != [CPU]:
            raise RuntimeError("no such device")
        create(session, providers, *more)

    monkeypatch.setattr(ort.InferenceSession, "_create_inference_session", refuse_cuda)
    manifest = load_bundle(tiny_generation_bundle)
    open_graph = sessions.graph_opener(tiny_generation_bundle, manifest)
    with pytest.raises(RuntimeError, match="no such device"):
        open_graph(tiny_generation_bundle / manifest.variants[0].graphs["decode"].file, providers_of(CUDA))


def test_a_machine_is_asked_before_a_session_is_opened(manifest):
    def open_graph(file, providers):
        raise AssertionError("a session was opened")

    with pytest.raises(StartupError, match=r"onnxruntime 1\.30\.0 crashes on CUDA.* ask for device auto or cpu"):
        OnnxModel.open(
            Path("bundle"),
            with_precisions(manifest, "fp16"),
            device="cuda",
            available=[CUDA],
            open_graph=open_graph,
            check_cuda=old_runtime,
        )


@pytest.mark.parametrize(("version", "works"), [("1.30.2", False), ("1.31.0", True), ("1.31.1", True), ("2.0.0", True)])
def test_onnxruntime_must_know_attention_without_present_outputs(version, works):
    if works:
        sessions.check_version(version)
    else:
        with pytest.raises(StartupError, match=f"onnxruntime {version} crashes on CUDA"):
            sessions.check_version(version)


def test_without_the_cuda_libraries_the_machine_has_no_cuda(monkeypatch, capsys):
    def preload_dlls():
        print("Failed to load libcudart.so.13")

    monkeypatch.setattr(ort, "__version__", "1.31.1")
    monkeypatch.setattr(ort, "cuda_version", "99.0")
    monkeypatch.setattr(ort, "preload_dlls", preload_dlls)
    with pytest.raises(StartupError, match=r"libraries of onnxruntime-gpu are missing \(libcudart.so.99: .* fix: inst"):
        sessions.check_cuda_of_machine(1)
    assert capsys.readouterr().out == ""


def test_a_step_that_waits_for_the_device_is_not_captured(exported):
    """ONNX Runtime would accept it."""
    path = exported(tiny_model(tiny_config("decoder", num_experts=2, num_decoder_layers=1)))
    graph = (path / load_bundle(path).variants[0].graphs["decode"].file).read_bytes()
    with pytest.raises(ValueError, match="NonZero computes on the device what the host must know"):
        sessions.check_capturable(graph)
