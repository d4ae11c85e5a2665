"""A bundle directory → engines: files checked, sessions opened, the golden decode repeated.

It runs in the process that will serve the bundle, so what a bundle does to a process it does to that one.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from export.bundle.directory import BundleError, CheckedBundle, check_bundle
from export.bundle.manifest import TOKENIZER, Manifest
from model.tokenizer import Tokenizer, TokenizerError
from service.decoding.prompt_form import ContextPlace, PromptForm
from service.decoding.vocabulary import Vocabulary
from service.engine.engine import Engine
from service.engine.golden_check import check_golden_decode, is_batch_invariant
from service.engine_process.device_limits import limits_on_device
from service.errors import StartupError
from service.machine.execution_choice import CPU, CUDA, SINGLE_ENGINE_MIN_BYTES, ExecutionChoice
from service.machine.processors import MAX_SINGLE_ENGINE_THREADS, processors
from service.measurements import Measure, not_measured
from service.memory.engine_limits import EngineLimits
from service.runtime.model_sessions import BusyEngines
from service.runtime.onnx_model import OnnxModel
from service.runtime.runner import OnnxRunner
from service.settings.engine_settings import EngineSettings

OpenModel = Callable[..., OnnxModel]
"""`OnnxModel.open`, or what acts like it."""


@dataclass(frozen=True, kw_only=True)
class OpenedEngines:
    """Engines that are not started yet, and what is known of their bundle.

    open_attention: opens the session of attention weights, which may take seconds. memory_bytes: allocated, by kind.
    """

    engines: Sequence[Engine]
    choice: ExecutionChoice
    bundle_sha256: str
    is_batch_invariant: bool
    open_attention: Callable[[], object]
    memory_bytes: Callable[[], dict[str, int]]


def open_engines(
    path: Path,
    settings: EngineSettings,
    *,
    busy_engines: BusyEngines | None = None,
    new_measure: Callable[[], Measure] = lambda: not_measured,
    bundle_sha256: str = "",
    checks_batches: bool = True,
    name: str = "engine",
    open_model: OpenModel = OnnxModel.open,
) -> OpenedEngines:
    """Opens a bundle. Blocks for seconds. Raises StartupError.

    busy_engines: tracks the engines of all models that share the processors. new_measure: called for each engine.
    bundle_sha256, checks_batches: see `service.wire.messages.Start`. open_model: for tests.

    The device `auto` means CUDA where it gives the first answers right, and else the CPU.
    """
    try:
        return _open(path, settings, busy_engines, new_measure, bundle_sha256, checks_batches, name, open_model)
    except (BundleError, TokenizerError) as error:
        raise StartupError(str(error)) from error
    except StartupError:
        raise
    except Exception as error:  # what a device's libraries raise has no common class
        raise StartupError(
            f"a first answer could not be computed: {error}; fix: free memory, or use --device cpu"
        ) from error


def _open(
    path: Path,
    settings: EngineSettings,
    busy_engines: BusyEngines | None,
    new_measure: Callable[[], Measure],
    bundle_sha256: str,
    checks_batches: bool,
    name: str,
    open_model: OpenModel,
) -> OpenedEngines:
    bundle = check_bundle(path)
    manifest, sha256 = bundle.manifest, bundle.sha256
    if bundle_sha256 not in ("", sha256):
        raise StartupError(f"{path} has another manifest than when the server started; fix: restart the server")
    tokenizer = Tokenizer.load(path / TOKENIZER, **manifest.limits.vocab_sizes).target  # the edge tokenizes sources
    model, runners, limits, is_invariant = _open_checked(bundle, settings, open_model, checks_batches)
    if busy_engines is not None:
        model.busy_engines = busy_engines  # only now: the checks must not depend on what other models do
    vocabulary = Vocabulary.of(tokenizer, eos_ids=manifest.tokens.ends)
    return OpenedEngines(
        engines=[
            Engine(
                runner,
                tokenizer,
                limits,
                new_measure(),
                vocabulary=vocabulary,
                form=_prompt_form(manifest),
                name=f"{name}-{index}",
            )
            for index, runner in enumerate(runners)
        ],
        choice=model.choice,
        bundle_sha256=sha256,
        is_batch_invariant=is_invariant,
        open_attention=model.open_attend,
        memory_bytes=partial(_memory_bytes, model, runners),
    )


def _prompt_form(manifest: Manifest) -> PromptForm:
    """What precedes an answer of the model."""
    template, context = manifest.template, manifest.context
    counted = len(template.target_prefix) - 1 if manifest.task == "translation" else 0
    place = ContextPlace(len(template.source_prefix), context.separator) if context is not None else None
    return PromptForm(counted, place)


class _Checked(NamedTuple):
    """A model whose first answers are right, and a runner and the limits of each of its engines."""

    model: OnnxModel
    runners: list[OnnxRunner]
    limits: EngineLimits
    is_invariant: bool


def _open_checked(
    bundle: CheckedBundle, settings: EngineSettings, open_model: OpenModel, checks_batches: bool
) -> _Checked:
    """Where CUDA is not required but its first answers fail, the model is opened on the CPU, and the choice says why.
    Raises StartupError."""
    cause = ""
    model = _open_model(bundle, settings, open_model)
    try:
        return _check(model, bundle, settings, checks_batches)
    except _CudaFailure as failure:
        if model.stream is not None and model.stream.runtime.lasting_error():
            _LOST.append(model)
        if settings.device == "cuda":
            raise StartupError(f"device cuda is required, but {failure}, or ask for device auto or cpu") from None
        cause = str(failure)
    del model
    gc.collect()  # sessions and device memory of the failed model: its traceback held them until here
    model = _open_model(bundle, replace(settings, device="cpu", precision="auto"), open_model)
    model.choice = replace(
        model.choice, requested=settings.device, fallback=True, reason=f"{cause}, or ask for device cpu"
    )
    return _check(model, bundle, settings, checks_batches)


_LOST: list[OnnxModel] = []
"""Models whose devices failed for good. The destructor of a captured step would end the process then."""


class _CudaFailure(Exception):
    """CUDA opened the model and cannot serve it; the message has cause and fix."""


def _open_model(bundle: CheckedBundle, settings: EngineSettings, open_model: OpenModel) -> OnnxModel:
    model = open_model(
        bundle.path,
        bundle.manifest,
        device=settings.device,
        precision=settings.precision,
        single_engine_threads=settings.single_engine_threads or min(processors().usable, MAX_SINGLE_ENGINE_THREADS),
        single_engine_min_bytes=0 if settings.single_engine_threads else SINGLE_ENGINE_MIN_BYTES,
        single_engine_eagerly=settings.single_engine_threads > 1,
    )
    bundle.check_unchanged()
    return model


def _check(model: OnnxModel, bundle: CheckedBundle, settings: EngineSettings, checks_batches: bool) -> _Checked:
    """Raises StartupError, and _CudaFailure for whatever fails on CUDA."""
    is_cpu = model.choice.provider == CPU
    limits = settings.limits.share(settings.model_engines if is_cpu else 1)  # a device has memory of its own
    if model.stream is not None:
        try:
            limits = limits_on_device(model, model.stream, limits, settings.cuda_memory_bytes)
        except StartupError as error:
            raise _CudaFailure(str(error)) from None
    try:
        limit = limits.kv_cache_bytes
        runners = [
            model.runner(max_rows=limits.max_rows, kv_cache_bytes=limit, draft_tokens=limits.draft_tokens)
            for _ in range(settings.engines if is_cpu else 1)
        ]
        _check_answers(model, runners[0])
        # On the CPU one of its own: the outputs of all rows need not stay, 16 MB with 32,000 words.
        probe = model.runner(max_rows=limits.max_rows) if is_cpu and checks_batches else runners[0]
        is_invariant = not checks_batches or is_batch_invariant(probe, bundle.manifest, kv_cache_bytes=limit)
    except Exception as error:  # what a device's libraries raise has no common class
        if model.choice.provider != CUDA:
            raise
        problem = str(error) or type(error).__name__
        if not isinstance(error, StartupError):
            problem = f"{problem}; fix: free memory of the device, and check it with nvidia-smi -q"
        raise _CudaFailure(f"the first answers on CUDA failed: {problem}") from None
    return _Checked(model, runners, limits, is_invariant)


def _check_answers(model: OnnxModel, runner: OnnxRunner) -> None:
    """Repeats the golden decode in all sessions: those of a single busy engine, and those that engines share."""
    check_golden_decode(runner, model.manifest, model.choice.precision)  # the only busy engine
    if model.single_engine_sessions:
        model.busy_engines.mark_busy(model)
        check_golden_decode(runner, model.manifest, model.choice.precision)
        model.busy_engines.mark_idle(model)


def _memory_bytes(model: OnnxModel, runners: Sequence[OnnxRunner]) -> dict[str, int]:
    total = Counter({"weights": model.weight_bytes})
    for runner in runners:
        total.update(runner.memory_bytes())
    return dict(total)
