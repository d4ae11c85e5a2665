"""ONNX Runtime sessions of a bundle: which graphs, on which provider, under which settings.

The only module of the service that imports ONNX Runtime. `service.runtime.runner` decides what the sessions compute.
"""

from __future__ import annotations

import collections
import contextlib
import io
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime as ort

from export.bundle.directory import operators_of, read_graph
from export.bundle.manifest import (
    SESSION_CONFIG,
    SESSION_MEM_PATTERN,
    SESSION_OPTIMIZATION,
    SESSION_THREADS,
    Manifest,
    Variant,
)
from service.errors import StartupError
from service.machine.execution_choice import (
    CPU,
    CPU_PRECISIONS,
    CUDA,
    CUDA_PRECISIONS,
    LAZY_ROLES,
    ExecutionChoice,
    GraphNodes,
    cpu_precision,
    cuda_precision,
    single_engine_role,
)
from service.machine.process_memory import give_back_memory
from service.runtime.cuda_device import check_device, load_runtime
from service.runtime.cuda_memory import CudaRuntime, CudaStream
from service.settings.engine_settings import Device, Precision

log = logging.getLogger(__name__)

WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
RECORDED_NODES = "session.record_ep_graph_assignment_info"  # for `nodes_of`; costs nothing that can be measured
CPU_ONLY_CONFIG = ("optimization.disable_specified_optimizers",)
"""Settings of SESSION_CONFIG whose reasons hold on the CPU alone: CUDA has kernels for the fusions they switch off."""
FLASH_AND_EFFICIENT_ATTENTION = 1 | 2
"""Kernels of attention that need no preparation. Those of cuDNN, which Hopper would prefer, are built anew for every
number of rows and every capacity, which takes 10 to 100 ms, and are kept without a bound."""

SPIN_US = 1000
"""How long an intra-op thread spins before it sleeps. Without spinning, every matrix product starts with a wake-up: a
step of one row, 6+6 layers, d512, static int8 on two Zen 4 cores takes 3.9 ms on one thread, 3.4 on two without, 2.5 to
2.7 with 20 to 5,000 microseconds. The gap between two steps must not be longer: on two Zen 3 cores 100 microseconds
make answers 3 to 8 % slower than 1,000, and the gaps of a stream 17 ms at p99 instead of 12."""

LEAST_FOR_CUDA = (1, 31)
"""Earlier versions end the process with a segmentation fault at the first step of a model with cross-attention, whose
node has a past and no present."""
LEAST_CUDA = 13  # of those versions

CAPTURED_ROLES = ("decode", "logprobs")

WAITING_OPERATORS = {"NonZero", "LSTM", "GRU", "RNN"}
"""NonZero has an output whose size the device computes; recurrent operators copy lengths to main memory."""

Sessions = dict[str, Any]  # by role


class Opened(NamedTuple):
    """The sessions of a bundle. stream: on which all of them compute, on CUDA."""

    choice: ExecutionChoice
    sessions: Sessions
    stream: CudaStream | None = None


Open = Callable[[Path, list[Any]], Any]
CheckCuda = Callable[[int], CudaRuntime]
"""The CUDA runtime; raises StartupError when this machine cannot hold weights of so many bytes there."""


def open_sessions(
    path: Path,
    manifest: Manifest,
    *,
    device: Device = "auto",
    precision: Precision = "auto",
    available: Sequence[str] | None = None,
    open_graph: Open | None = None,
    check_cuda: CheckCuda | None = None,
) -> Opened:
    """Opens the graphs of a bundle whose files were verified. Raises StartupError.

    precision: `auto` takes the first of CPU_PRECISIONS or CUDA_PRECISIONS that the bundle has. One of the CPU's implies
    the CPU. One of CUDA's implies CUDA; where that does not work, device auto serves on the CPU as with `auto`.
    available, open_graph, check_cuda: the installed providers, how a graph becomes a session, and what this machine's
        CUDA has, for tests.
    """
    open_graph, check_cuda = open_graph or graph_opener(path, manifest), check_cuda or check_cuda_of_machine
    available = available_providers() if available is None else available
    reason = ""
    # With an onnxruntime built for the CPU only, `auto` means the CPU, which is not a fallback.
    _check_precision(precision, device)
    is_cuda_wanted = precision in CUDA_PRECISIONS or (precision == "auto" and CUDA in available)
    if device == "cuda" or (device == "auto" and is_cuda_wanted):
        try:
            return _open_cuda(path, manifest, device, precision, available, open_graph, check_cuda)
        except StartupError as error:
            if device == "cuda":
                raise StartupError(f"device cuda is required, but {error}, or ask for device auto or cpu") from error
            reason = f"{error}, or ask for device cpu"
    taken, sessions = _open_cpu(path, manifest, precision, open_graph)
    give_back_memory()
    return Opened(ExecutionChoice(CPU, device, bool(reason), reason, taken, nodes=nodes_of(sessions)), sessions)


def open_single_engine_sessions(path: Path, manifest: Manifest, choice: ExecutionChoice, *, threads: int) -> Sessions:
    """A second session of the decoder, or of an encoder without one, with `threads` intra-op threads: for a single busy
    engine.

    Raises StartupError. The session packs its own copy of the weights. Matrix products divide their columns among
    threads and never a sum, so the results are bit-identical.
    """
    graphs = manifest.variant(choice.precision).graphs
    config = {"session.intra_op.allow_spinning": "1", "session.intra_op.spin_duration_us": str(SPIN_US)}
    role = single_engine_role(graphs)
    try:
        sessions = {role: graph_opener(path, manifest, threads=threads, config=config)(path / graphs[role].file, [CPU])}
    except Exception as error:  # ONNX Runtime has no common error class
        raise StartupError(
            f"{path}: a graph cannot be opened on {threads} threads: {error}; fix: single_engine_threads 1"
        ) from error
    give_back_memory()
    return sessions


def available_providers() -> list[str]:
    """The execution providers that this ONNX Runtime was built with, best first; they need not work here."""
    names: list[str] = ort.get_available_providers()
    return names


def nodes_of(sessions: Sessions) -> tuple[GraphNodes, ...]:
    """How many nodes of each graph run on which provider: as ONNX Runtime divided it, copies between devices not
    included."""
    counts = collections.Counter[tuple[str, str]]()
    for role, session in sessions.items():
        for part in session.get_provider_graph_assignment_info():
            counts[role, part.ep_name] += len(part.get_nodes())
    return tuple(GraphNodes(role, provider, nodes) for (role, provider), nodes in sorted(counts.items()))


def providers_of(provider: str, *, captures: bool = False, stream: CudaStream | None = None) -> list[Any]:
    """The providers argument of a session that runs on `provider`.

    captures: with CUDA graphs; see `run_options`. stream: on which CUDA computes; None: one of the session's own.
    """
    if provider != CUDA:
        return [CPU]
    options = {
        "arena_extend_strategy": "kSameAsRequested",  # instead of doubling
        "sdpa_kernel": str(FLASH_AND_EFFICIENT_ATTENTION),
        "use_tf32": "0",  # which would round the factors of float32 products to 10 bits
    }
    if stream is not None:
        options["user_compute_stream"] = str(stream.handle)
    if captures:
        options["enable_cuda_graph"] = "1"
    return [(CUDA, options), CPU]


def session_config(providers: Sequence[Any]) -> dict[str, str]:
    """The configuration of a session: what its graph was verified with, less what is for the CPU only."""
    on_cuda = any(provider[0] == CUDA for provider in providers if not isinstance(provider, str))
    return {key: value for key, value in SESSION_CONFIG.items() if not (on_cuda and key in CPU_ONLY_CONFIG)}


def run_options(graph_id: int | None) -> Any:
    """Run options of a session on CUDA whose runs are put on its stream, and nothing waits for them. With an id the
    first run is captured and later ones replay it; None: an ordinary run."""
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1" if graph_id is None else str(graph_id))
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def graph_opener(
    path: Path, manifest: Manifest, *, threads: int = SESSION_THREADS, config: Mapping[str, str] | None = None
) -> Open:
    """Opens graphs of a bundle under the settings that it was verified with; `config` overrides them.

    The runtime gets bytes whose digest the manifest has, not a path that may lead to another file by then.
    """

    def open_graph(file: Path, providers: list[Any]) -> Any:
        graph = read_graph(path, manifest, file.relative_to(path).as_posix())
        return _open_session(graph, file.parent, providers, threads, {**session_config(providers), **(config or {})})

    return open_graph


def open_own_graph(graph: bytes, stream: CudaStream | None) -> Any:
    """A session on CUDA of a graph that no bundle has, whose runs may be captured."""
    providers = providers_of(CUDA, captures=True, stream=stream)
    return _open_session(graph, Path(), providers, SESSION_THREADS, session_config(providers))


def _open_session(graph: bytes, folder: Path, providers: list[Any], threads: int, config: Mapping[str, str]) -> Any:
    """folder: of the graph's weights. Raises ValueError when a graph to capture cannot be."""
    if providers[0] != CPU and "enable_cuda_graph" in providers[0][1]:
        check_capturable(graph)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, SESSION_OPTIMIZATION)
    options.log_severity_level = 3
    options.enable_mem_pattern = SESSION_MEM_PATTERN
    for key, value in {**config, WEIGHTS_FOLDER: str(folder), RECORDED_NODES: "1"}.items():
        options.add_session_config_entry(key, value)
    # A session that cannot be opened must raise, and not be opened on other providers; likewise a run that fails.
    session = ort.InferenceSession(graph, options, providers=providers, enable_fallback=0)
    session.disable_fallback()
    return session


def check_capturable(graph: bytes) -> None:
    """Raises ValueError for a graph with an operator that waits for the device, which ONNX Runtime does not refuse to
    capture."""
    if found := operators_of(graph) & WAITING_OPERATORS:
        raise ValueError(f"{', '.join(sorted(found))} computes on the device what the host must know")


def check_cuda_of_machine(weight_bytes: int) -> CudaRuntime:
    """The CUDA runtime of this process, if this ONNX Runtime can use a CUDA device of this machine with weights of so
    many bytes. Raises StartupError."""
    check_version(ort.__version__)
    major = int(str(ort.cuda_version).partition(".")[0] or LEAST_CUDA)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find, and `load_runtime` tells
        ort.preload_dlls()  # CUDA and cuDNN may be installed as wheels, where the dynamic linker does not search
    library = load_runtime(major)
    check_device(library, cuda_major=major, weight_bytes=weight_bytes)
    return CudaRuntime(library)


def check_version(version: str) -> None:
    """Raises StartupError when this version of ONNX Runtime must not compute on CUDA."""
    if tuple(map(int, version.split(".")[:2])) < LEAST_FOR_CUDA:
        least = ".".join(map(str, LEAST_FOR_CUDA))
        raise StartupError(
            f"onnxruntime {version} crashes on CUDA, where {least} is the first that works; "
            f"fix: pip install 'onnxruntime-gpu>={least}', which is in requirements/gpu.in"
        )


def _check_precision(precision: Precision, device: Device) -> None:
    """Raises StartupError when a precision is not one of the device that is required."""
    own = CUDA_PRECISIONS if device == "cuda" else CPU_PRECISIONS
    owner, other = ("the CPU's", "cpu") if device == "cuda" else ("CUDA's", "cuda")
    if device != "auto" and precision not in ("auto", *own):
        raise StartupError(
            f"precision {precision} is one of {owner}, but device {device} is required, and computes in "
            f"{' or '.join(own)}; fix: leave precision at auto, or ask for device {other}"
        )


def _open_cuda(
    path: Path,
    manifest: Manifest,
    device: Device,
    wanted: Precision,
    available: Sequence[str],
    open_graph: Open,
    check_cuda: CheckCuda,
) -> Opened:
    """Sessions on CUDA, and their stream. Raises StartupError."""
    if CUDA not in available:
        raise StartupError("this onnxruntime has no CUDA provider; fix: install onnxruntime-gpu instead of onnxruntime")
    precision = cuda_precision(manifest, wanted)
    if precision is None:
        there = [variant.precision for variant in manifest.variants]
        names = CUDA_PRECISIONS if wanted == "auto" else (wanted,)
        raise StartupError(
            f"the bundle has no {' or '.join(names)} graphs, only {', '.join(there)}; "
            f"fix: export it again with --precision {','.join([*there, names[0]])}"
        )
    variant = manifest.variant(precision)
    weights = sum(manifest.graph_bytes(graph) for role, graph in variant.graphs.items() if role not in LAZY_ROLES)
    runtime = check_cuda(weights)
    try:
        stream = CudaStream(runtime)
        sessions, obstacle = _open_capturing(path, variant, stream, open_graph)
        sessions |= _open_all(path, variant, providers_of(CUDA, stream=stream), open_graph, opened=sessions)
    except Exception as error:
        raise StartupError(f"the CUDA provider refused the graphs ({error}); fix: {_fix(str(error))}") from None
    # A provider whose libraries are missing is skipped with a log line: ask the session which one it has.
    if any(session.get_providers()[0] != CUDA for session in sessions.values()):
        raise StartupError(
            "the CUDA provider is installed but did not load; "
            "fix: check the driver with nvidia-smi, and that the CUDA libraries of this onnxruntime-gpu are installed"
        )
    if obstacle:
        log.warning("steps run without CUDA graphs: %s", obstacle)
    choice = ExecutionChoice(CUDA, device, False, "", precision, captures=not obstacle, nodes=nodes_of(sessions))
    return Opened(choice, sessions, stream)


def _fix(problem: str) -> str:
    """What to do about an error of the CUDA provider."""
    text = problem.lower()
    if "cudnn" in text:
        return "install cuDNN with pip install onnxruntime-gpu[cuda,cudnn]; recurrent layers need it"
    if any(sign in text for sign in ("out of memory", "available memory of", "failed to allocate")):
        return "end other programs on the device, or name another one with --cuda-devices"
    return "check driver, CUDA libraries and free memory"


def _open_capturing(path: Path, variant: Variant, stream: CudaStream, open_graph: Open) -> tuple[Sessions, str]:
    """`decode` and `logprobs` with CUDA graphs enabled; or why not, for example because a node has no CUDA kernel."""
    if "decode" not in variant.graphs:
        return {}, "there is no decoder"
    providers = providers_of(CUDA, captures=True, stream=stream)
    try:
        return {role: open_graph(path / variant.graphs[role].file, providers) for role in CAPTURED_ROLES}, ""
    except Exception as error:  # ONNX Runtime has no common error class
        return {}, str(error)


def _open_cpu(path: Path, manifest: Manifest, wanted: Precision, open_graph: Open) -> tuple[str, Sessions]:
    precision = cpu_precision(manifest, wanted)
    if precision is None:
        there = ", ".join(variant.precision for variant in manifest.variants)
        if wanted not in CPU_PRECISIONS:
            problem = f"the bundle has no graphs for the CPU, only {there}; fix: export it again with precision fp32"
        else:
            problem = (
                f"the bundle has no {wanted} graphs, only {there}; "
                f"fix: export it again with precision {wanted}, or leave precision at auto"
            )
        raise StartupError(f"{path}: {problem}")
    try:
        return precision, _open_all(path, manifest.variant(precision), [CPU], open_graph)
    except Exception as error:  # ONNX Runtime has no common error class
        raise StartupError(f"{path}: a graph cannot be opened: {error}; fix: export the bundle again") from error


def _open_all(
    path: Path, variant: Variant, providers: list[Any], open_graph: Open, *, opened: Container[str] = ()
) -> Sessions:
    """Sessions of all graphs but those that are `opened` already or opened on first use."""
    return {
        role: open_graph(path / graph.file, providers)
        for role, graph in variant.graphs.items()
        if role not in LAZY_ROLES and role not in opened
    }
