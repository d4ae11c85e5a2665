"""A server's settings and manifests → the numbers of `service.memory.memory_prediction`, and what to do about the
result."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from export.bundle.manifest import Manifest, Variant
from service.attention_request import Lengths, computed_bytes
from service.edge.models.process_plan import (
    OPENING_BYTES,
    ProcessMemory,
    ProcessPlan,
    may_use_gpu,
    opening_bytes,
    plan_processes,
    weight_bytes,
)
from service.edge.models.served_model import ServedModel
from service.edge.observability import logs
from service.edge.requests.request_limits import MAX_ATTENTION_BYTES
from service.machine.cgroups import memory_limit
from service.machine.execution_choice import (
    LAZY_ROLES,
    SINGLE_ENGINE_MIN_BYTES,
    cpu_precision,
    cuda_precision,
    single_engine_role,
)
from service.machine.processors import MAX_SINGLE_ENGINE_THREADS, Processors, processors
from service.memory.engine_limits import EngineLimits
from service.memory.memory_prediction import EdgeLimits, ModelPlan, ModelShape, Prediction, predict
from service.memory.model_sizes import shape_of
from service.options import MAX_WIDTH
from service.settings.config import ServerSettings

LIMIT_FACTOR = 2
"""Of the prediction, to which OPENING_BYTES are added: what a process may allocate. The prediction is of resident
memory; stacks of threads, and what allocators keep, count for the limit as well."""

NO_VARIANT = Variant(precision="none", graphs={}, states=())
SETTINGS = {  # those that lower a part
    "messages": "--max-requests or --max-message-bytes",
    "requests": "--request-memory-bytes",
    "answers": "--answer-cache-bytes",
    "parked": "--parking-bytes",
    "prefix_cache": "--prefix-cache-bytes",
    "kv_cache": "--kv-cache-bytes or --max-rows",
    "outputs": "--max-rows",
    "program": "--engines",
    "weights": "--engines or a larger --engines-per-process",
}


def predict_memory(
    settings: ServerSettings,
    models: Iterable[tuple[Manifest, ProcessPlan]],
    found: Processors,
    *,
    on_device: Container[int] = (),
) -> Prediction:
    """The peak of a server with these models on these processors. on_device: the places of those that compute on a
    device in all of their processes."""
    edge = EdgeLimits(
        calls=settings.max_requests,
        message_bytes=settings.max_message_bytes,
        metadata_bytes=settings.max_metadata_bytes,
        request_bytes=settings.request_memory_bytes,
        kept_bytes=settings.answer_cache_bytes,
    )
    plans = [
        model_plan(settings, manifest, plan, found, on_device=place in on_device)
        for place, (manifest, plan) in enumerate(models)
    ]
    return predict(plans, edge)


def process_memory(settings: ServerSettings, manifest: Manifest, plan: ProcessPlan, found: Processors) -> ProcessMemory:
    """The limits of each process of a model. By default they stop a graph that computes without end, and no request
    that admission lets in."""
    if (limit := settings.process_memory_bytes) is None:
        peak = predict_memory(settings, [(manifest, plan)], found).process_peak(0)
        limit = 0 if may_use_gpu(settings) else LIMIT_FACTOR * peak + OPENING_BYTES
    return ProcessMemory(opening_bytes(settings, manifest), limit)


def predict_open(
    settings: ServerSettings, models: Sequence[ServedModel], more: Sequence[Manifest] = (), *, on_device: bool = False
) -> Prediction:
    """The peak of a server with these open models, and with bundles that are yet to be opened. on_device: these are to
    compute on a device."""
    plans = [(one.manifest, ProcessPlan(one.processes, -(-one.engines // one.processes))) for one in models]
    places = [place for place, model in enumerate(models) if model.choice.on_device]
    for manifest in more:
        places += [len(plans)] if on_device else []
        plans.append((manifest, plan_processes(settings, manifest, processors())))
    return predict_memory(settings, plans, processors(), on_device=places)


def tell_memory(settings: ServerSettings, models: Sequence[ServedModel]) -> int:
    """Logs how much memory the server may come to need, and warns if its cgroups allow less. Returns the bytes."""
    prediction = predict_open(settings, models)
    limit = memory_limit()
    fields: dict[str, Any] = {"peak_bytes": prediction.total, "limit_bytes": limit}
    each = {model.name: prediction.process_peak(place) for place, model in enumerate(models)}
    logs.event("memory_predicted", {**fields, "engine_process_bytes": each})
    if limit is not None and limit < prediction.total:
        fix = f"raise the limit, or lower {advice(prediction)}"
        logs.event("memory_limit_below_prediction", {**fields, "fix": fix}, level=logs.WARNING)
    return prediction.total


def model_plan(
    settings: ServerSettings, manifest: Manifest, plan: ProcessPlan, found: Processors, *, on_device: bool = False
) -> ModelPlan:
    """One model. One that has no graphs for the CPU is counted by its first variant."""
    return ModelPlan(
        shape=device_shape(settings, manifest) if on_device else model_shape(settings, manifest, found),
        engine=EngineLimits.of(settings).share(plan.engines),
        processes=plan.processes,
        engines_per_process=plan.engines_per_process,
        on_device=on_device,
    )


def device_shape(settings: ServerSettings, manifest: Manifest) -> ModelShape:
    """The sizes of a model as these settings serve it on a device."""
    precision = cuda_precision(manifest, settings.precision)
    assert precision is not None, "the model is on a device"
    variant = manifest.variant(precision).without_windows()
    sizes = {role: manifest.graph_bytes(graph) for role, graph in variant.graphs.items()}
    later = sum(size for role, size in sizes.items() if role in LAZY_ROLES)
    opened = sum(sizes.values()) - later
    return shape_of(manifest, variant, opened=opened, opened_later=later, attention=_attention_bytes(manifest))


def model_shape(settings: ServerSettings, manifest: Manifest, found: Processors) -> ModelShape:
    """The sizes of a model as these settings serve it."""
    precision = cpu_precision(manifest, settings.precision)
    variant = next(iter(manifest.variants), NO_VARIANT) if precision is None else manifest.variant(precision)
    graphs, opened, later = variant.graphs, weight_bytes(manifest, settings.precision), 0
    role = single_engine_role(graphs) if graphs else ""
    second = manifest.graph_bytes(graphs[role]) if role else 0
    threads = settings.single_engine_threads
    if threads > 1:
        opened += second
    elif not threads and min(found.usable, MAX_SINGLE_ENGINE_THREADS) > 1 and second >= SINGLE_ENGINE_MIN_BYTES:
        later += second
    later += sum(manifest.graph_bytes(graph) for name, graph in graphs.items() if name in LAZY_ROLES)
    return shape_of(manifest, variant, opened=opened, opened_later=later, attention=_attention_bytes(manifest))


def _attention_bytes(manifest: Manifest) -> int:
    """Of all weights that one request may ask for: cross-attention of its answer, or the attention of a pass."""
    limits = manifest.limits
    lengths = Lengths(limits.max_source_len, limits.max_target_len)
    sizes = [computed_bytes(manifest.attention_maps, lengths)]
    if spec := manifest.alignment:
        sizes.append(4 * MAX_WIDTH * spec.layers * spec.heads * lengths.source * lengths.target)
    return min(MAX_ATTENTION_BYTES, max(sizes))


def advice(prediction: Prediction) -> str:
    """The settings that lower the three largest parts, with their bytes."""
    sizes = {"requests": prediction.requests, **prediction.edge}
    for count, parts in zip(prediction.counts, prediction.processes, strict=True):
        for name, size in parts.items():
            sizes[name] = sizes.get(name, 0) + count * size
    largest = sorted((name for name in sizes if name in SETTINGS), key=lambda name: -sizes[name])[:3]
    return "; ".join(f"{SETTINGS[name]} ({name.replace('_', ' ')}, {sizes[name] / 1e6:,.0f} MB)" for name in largest)
