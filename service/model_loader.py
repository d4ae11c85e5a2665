"""A bundle directory → a model that answers: files checked, sessions opened, golden decode repeated, engines started.

Ports and gRPC are not known here; `server` opens its models with this.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from export.bundle import BundleError, load_bundle, load_shortlist
from export.manifest import MANIFEST, TOKENIZER
from model.tokenizer import Tokenizer, TokenizerError
from service.config import MAX_SINGLE_ENGINE_THREADS, ServerSettings, processors
from service.decoding.vocabulary import Vocabulary
from service.edge.metrics import Metrics
from service.edge.served_model import ServedModel
from service.engine.engine import Engine, EngineConfig
from service.engine.golden_check import check_golden_decode, is_batch_invariant
from service.engine.pool import EnginePool
from service.engine.scheduler import SchedulerConfig
from service.errors import StartupError
from service.options import MAX_WIDTH
from service.runtime.model_sessions import SINGLE_ENGINE_MIN_BYTES, BusyEngines
from service.runtime.runner import OnnxModel, OnnxRunner
from service.runtime.sessions import CPU, give_back_memory


def open_model(
    name: str, path: Path, settings: ServerSettings, metrics: Metrics, *, busy_engines: BusyEngines | None = None
) -> ServedModel:
    """A model that answers. Blocks for seconds.

    busy_engines: tracks the engines of all models that share the processors. Raises StartupError naming the model and
    what is wrong with it.
    """
    try:
        return _open(name, path, settings, metrics, busy_engines)
    except (BundleError, TokenizerError, StartupError) as error:
        raise StartupError(f"model {name}: {error}") from error
    except Exception as error:  # what a device's libraries raise has no common class
        raise StartupError(
            f"model {name}: a first answer could not be computed: {error}; fix: free memory, or use --device cpu"
        ) from error


def _open(
    name: str, path: Path, settings: ServerSettings, metrics: Metrics, busy_engines: BusyEngines | None
) -> ServedModel:
    manifest = load_bundle(path)
    limits = manifest.limits
    tokenizer = Tokenizer.load(path / TOKENIZER, vocab_size=limits.vocab_size)
    shortlist = load_shortlist(path / manifest.shortlist, vocab_size=limits.vocab_size) if manifest.shortlist else None
    cpus = processors().usable
    model = OnnxModel.open(
        path,
        manifest,
        device=settings.device,
        precision=settings.precision,
        single_engine_threads=settings.single_engine_threads or min(cpus, MAX_SINGLE_ENGINE_THREADS),
        single_engine_min_bytes=0 if settings.single_engine_threads else SINGLE_ENGINE_MIN_BYTES,
        single_engine_eagerly=settings.single_engine_threads > 1,
        busy_engines=busy_engines,
    )
    engines = (settings.engines or cpus) if model.choice.provider == CPU else 1
    runners = [model.runner(max_rows=settings.max_rows) for _ in range(engines)]
    _check_answers(model, runners[0])
    draft_tokens = settings.draft_tokens if limits.max_block != 1 else 0
    report = metrics.model(name, manifest, model.choice)
    config = EngineConfig(
        scheduler=SchedulerConfig(
            max_rows=settings.max_rows,
            kv_cache_bytes=max(1, settings.kv_cache_bytes // engines),
            max_prefill_tokens=settings.max_prefill_tokens,
            prefix_cache_bytes=settings.prefix_cache_bytes // engines,
            draft_tokens=draft_tokens,
        ),
        max_queue=math.ceil(settings.max_queue / engines),
    )
    vocabulary = Vocabulary.of(tokenizer, eos_ids=manifest.tokens.ends)
    pool = EnginePool(
        [
            Engine(runner, tokenizer, config, report, vocabulary=vocabulary, name=f"engine-{name}-{index}")
            for index, runner in enumerate(runners)
        ]
    )
    report.measure(lambda: [engine.snapshot for engine in pool.engines], partial(_memory_bytes, model, runners))
    served = ServedModel(
        name=name,
        manifest=manifest,
        choice=model.choice,
        bundle_sha256=hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest(),
        tokenizer=tokenizer,
        pool=pool,
        shortlist=shortlist,
        max_hypotheses=min(MAX_WIDTH, settings.max_rows),
        draft_tokens=draft_tokens,
        is_batch_invariant=is_batch_invariant(runners[0], manifest, kv_cache_bytes=config.scheduler.kv_cache_bytes),
        open_attention=model.open_attend if manifest.attention_maps else None,
    )
    pool.start()
    give_back_memory()
    return served


def _check_answers(model: OnnxModel, runner: OnnxRunner) -> None:
    """Repeats the golden decode in all sessions: those of a single busy engine, and those that engines share."""
    check_golden_decode(runner, model.manifest, model.choice.precision)  # the only busy engine, at most
    if model.single_engine_sessions:
        model.busy_engines.mark_busy(model)
        check_golden_decode(runner, model.manifest, model.choice.precision)
        model.busy_engines.mark_idle(model)


def _memory_bytes(model: OnnxModel, runners: Sequence[OnnxRunner]) -> dict[str, int]:
    total = Counter({"weights": model.weight_bytes})
    for runner in runners:
        total.update(runner.memory_bytes())
    return dict(total)
