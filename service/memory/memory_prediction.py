"""Predicts the peak of a server's resident memory from plain numbers: what admission lets in at most.

Each part is bounded by something that the server enforces: caches and parked rows by admission in the engine, messages
and answers by admission in the edge, activations by the largest batch. `service.edge.versions.memory_plan` takes the
numbers from settings and manifests. Nothing here measures. Of a model on a device main memory alone is predicted:
weights, caches and activations are in the device's (`service.memory.device_memory`).

Constants are resident memory on Python 3.11, onnxruntime 1.31.1, grpcio 1.85.1, glibc 2.36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from export.bundle.manifest import capacity_for
from service.memory.cache_layout import CacheLayout, row_capacity_for, shortlist_capacity_for
from service.memory.engine_limits import EngineLimits

MB = 1_000_000

# A process without a bundle, and code and read-only data in files, which processes share: 45 + 37 MB of the edge, 37 +
# 44 MB of an engine process, 58 MB of files together.
EDGE_BYTES, PROCESS_BYTES, CODE_BYTES = 50 * MB, 42 * MB, 60 * MB
# While a session opens, its weights are there as a file, as they were read, and packed for matrix products: 2.2 to 2.5
# times; afterwards packed, and tables that stay in their file: 1.2 to 1.35 (12 MB of int8, 39 MB of fp32).
OPENING_FACTOR, OPEN_FACTOR = 2.6, 1.4
TOKENIZER_FACTOR = 30  # for each byte of its file; 13 to 22 with 0.5 MB
ARENA_FACTOR = 2  # ONNX Runtime's arena of a session grows in powers of two, and keeps what it has
BINDINGS_BYTES = 12 * MB  # of an engine: 4 caches of 256 bindings, 10 KB each
HUGE_PAGES_BYTES = 8 * MB  # of an engine: a few blocks, rounded up to huge pages of 2 MB
HEADERS_BYTES = 28 << 10  # of a call whose message has not come; 25 KB, without long metadata
MESSAGE_COPIES = 2.2  # of a message: gRPC's pieces, which glibc keeps once they are freed, and then its bytes; 2.1
LOG_BYTES = 10 * MB  # 10,000 lines that nobody reads
FLOOD_BYTES = 64 * MB  # calls beyond admission until they are refused, connections, and what glibc keeps of both
ATTENTION_FACTOR = 4  # for each byte of attention: by count, of the graph, the message, its memory file, the response
# Of a process with a device: its libraries and what they keep in main memory. An allowance, which no GPU was there to
# measure.
DEVICE_PROGRAM_BYTES = 1000 * MB
STAGING_BYTES = 4 * MB  # pinned: 1 MB, and more in turns that read or write more
FLOAT = 4
RANKED_TOKENS = 128  # best tokens of a line
ENCODER_TOKENS, PREFILL_ROWS = 256, 8  # of a batch; of first chunks
PASS_TOKENS = 1024  # of either, on a device
EXTRA_LINES = 15  # greedy steps in one turn


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of one model. Lengths are positions, 0 without an encoder or decoder; the others bytes or numbers.

    width, inner: of the residual stream, and of feed-forward layers. opened, opened_later: bytes of the graphs that are
    opened at the start, once for each session; and of those that may be opened while requests run. chat_tokenizer: of
    the edge's second tokenizer, for chats. attention: of all weights that a request may ask for.
    """

    layout: CacheLayout
    vocab_size: int
    width: int
    inner: int
    heads: int
    max_source_len: int
    max_target_len: int
    chunk_tokens: int
    shortlist_len: int
    opened: int
    opened_later: int
    tokenizer: int
    chat_tokenizer: int = 0
    attention: int = 0


@dataclass(frozen=True, kw_only=True)
class EdgeLimits:
    """What the edge may have: open calls, bytes of the message and the metadata of each, and of what calls may take
    after their messages were parsed, in all processes together; and of answers that are kept."""

    calls: int
    message_bytes: int
    metadata_bytes: int
    request_bytes: int
    kept_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """A model and its processes. on_device: whether all of them compute on a device."""

    shape: ModelShape
    engine: EngineLimits
    processes: int
    engines_per_process: int
    on_device: bool = False


@dataclass(frozen=True)
class Prediction:
    """Bytes. edge, processes: the parts of the edge, and of one engine process of each model, by name; counts: how many
    processes a model has. requests: of all processes together, so that any of them may have it beside its parts.
    start: of the whole server, until the first request."""

    edge: Mapping[str, int]
    processes: Sequence[Mapping[str, int]]
    counts: Sequence[int]
    requests: int
    start: int

    @property
    def total(self) -> int:
        """The peak of all processes together. Code is in memory once."""
        engines = sum(count * sum(parts.values()) for count, parts in zip(self.counts, self.processes, strict=True))
        return CODE_BYTES + self.requests + sum(self.edge.values()) + engines

    def process_peak(self, model: int) -> int:
        """The peak of one engine process of a model, as its resident memory shows it."""
        return CODE_BYTES + self.requests + sum(self.processes[model].values())


def predict(models: Sequence[ModelPlan], edge: EdgeLimits) -> Prediction:
    """The peak of a server with these models."""
    headers = HEADERS_BYTES + edge.metadata_bytes
    opening = [model.processes * (_program(model) + _opening(model.shape)) for model in models]
    tokenizers = sum(TOKENIZER_FACTOR * (model.shape.tokenizer + model.shape.chat_tokenizer) for model in models)
    return Prediction(
        edge={
            "program": EDGE_BYTES,
            "tokenizer": tokenizers,
            "messages": edge.calls * int(headers + MESSAGE_COPIES * edge.message_bytes),
            "floods": FLOOD_BYTES,
            "log": LOG_BYTES,
            "answers": edge.kept_bytes,
        },
        processes=[process_parts(model) for model in models],
        counts=[model.processes for model in models],
        # One call larger than the limit may have it for itself.
        requests=max([edge.request_bytes, *(ATTENTION_FACTOR * model.shape.attention for model in models)]),
        start=CODE_BYTES + EDGE_BYTES + tokenizers + sum(opening),
    )


def _opening(shape: ModelShape) -> int:
    return TOKENIZER_FACTOR * shape.tokenizer + int(OPENING_FACTOR * shape.opened)


def _program(model: ModelPlan) -> int:
    return PROCESS_BYTES + (DEVICE_PROGRAM_BYTES if model.on_device else 0)


def device_process_parts(model: ModelPlan) -> dict[str, int]:
    """The parts of one engine process on a device, in main memory. What is freed once weights are on the device is not
    given back."""
    shape, limits = model.shape, model.engine
    # Of each row the best tokens, and its distribution where a request wants that; outputs of an encoder.
    rows = limits.max_rows * (limits.draft_tokens + 2 if limits.draft_tokens else 1)
    outputs = rows * (12 * RANKED_TOKENS + FLOAT * shape.vocab_size) if shape.max_target_len else 0
    encoded = _encoded(shape) * FLOAT * max(shape.width, shape.vocab_size if not shape.max_target_len else 0)
    return {
        "program": _program(model),
        "tokenizer": TOKENIZER_FACTOR * shape.tokenizer,
        "opening": int(OPENING_FACTOR * (shape.opened + shape.opened_later)),
        "outputs": 2 * (outputs + encoded) + STAGING_BYTES,
        "bindings": BINDINGS_BYTES + HUGE_PAGES_BYTES,
    }


def process_parts(model: ModelPlan) -> dict[str, int]:
    """The parts of one engine process."""
    if model.on_device:
        return device_process_parts(model)
    shape, count = model.shape, model.engines_per_process
    engines = {name: count * size for name, size in engine_parts(shape, model.engine).items()}
    more = OPENING_FACTOR - OPEN_FACTOR
    return {
        "program": PROCESS_BYTES,
        "tokenizer": TOKENIZER_FACTOR * shape.tokenizer,
        "weights": int(OPEN_FACTOR * (shape.opened + shape.opened_later)),
        # At the start there are no requests yet: what is opened then may have their place.
        "opening": max(int(more * shape.opened_later), int(more * shape.opened) - sum(engines.values()), 0),
        **engines,
    }


def engine_parts(shape: ModelShape, limits: EngineLimits) -> dict[str, int]:
    """The parts of one engine."""
    rows, layout = limits.max_rows, shape.layout
    has_decoder = shape.max_target_len > 0
    # A decoder that depends on a source, or whose state has no positions, has no prefix cache.
    caches_prefixes = shape.chunk_tokens and layout.bytes_per(1) and not (layout.source_bytes or layout.row_bytes)
    return {
        "kv_cache": kv_cache_bytes(shape, limits),
        "prefix_cache": limits.prefix_cache_bytes if caches_prefixes else 0,
        "parked": limits.parking_bytes if has_decoder else 0,
        "outputs": output_bytes(shape, limits) if has_decoder else 0,
        "activations": ARENA_FACTOR * activation_bytes(shape, rows) + 2 * _encoded(shape) * layout.source_bytes,
        "bindings": BINDINGS_BYTES + HUGE_PAGES_BYTES,
    }


def kv_cache_bytes(shape: ModelShape, limits: EngineLimits) -> int:
    """Caches of all rows at full length, or as many as admission reserves. Where a buffer grows, the old one and the
    new one exist side by side, one buffer after the other."""
    layout, rows = shape.layout, row_capacity_for(limits.max_rows, limits.max_rows)
    kinds = (
        layout.bytes_per(capacity_for(shape.max_target_len + shape.chunk_tokens)) if shape.max_target_len else 0,
        layout.source_bytes * capacity_for(shape.max_source_len) if shape.max_source_len else 0,
        layout.shortlist_bytes * shortlist_capacity_for(shape.shortlist_len),
        layout.row_bytes,
    )
    return min(rows * (sum(kinds) + max(kinds)), 2 * limits.kv_cache_bytes)


def output_bytes(shape: ModelShape, limits: EngineLimits) -> int:
    """Logits, log-probabilities and best tokens of each line, and the old block of one of them while it grows."""
    lines = limits.max_rows + (limits.max_rows * (limits.draft_tokens + 1) if limits.draft_tokens else EXTRA_LINES)
    return lines * (3 * FLOAT * shape.vocab_size + 12 * RANKED_TOKENS + FLOAT * shape.width)


def activation_bytes(shape: ModelShape, rows: int) -> int:
    """What the graphs have at a time in one pass: encoder, prefill, a step of all rows, and log-probabilities. Each
    session keeps its own."""
    # Input, normalised input, queries, keys, values, output of attention; inner layer before and after its activation,
    # and the same as integers with their scales in quantized graphs.
    per_token = FLOAT * (6 * shape.width + 3 * shape.inner)
    encoded = _encoded(shape)
    encoder = encoded * (per_token + 2 * FLOAT * shape.heads * shape.max_source_len)
    keys = max(capacity_for(shape.max_target_len), capacity_for(shape.max_source_len))
    step = rows * (per_token + 2 * FLOAT * shape.heads * keys)
    chunks = max(PREFILL_ROWS * shape.chunk_tokens, PASS_TOKENS if shape.layout.tiers and shape.chunk_tokens else 0)
    prefill = chunks * (per_token + FLOAT * shape.heads * keys)
    logprobs = 2 * FLOAT * rows * shape.vocab_size if shape.max_target_len else 0
    return encoder + max(step, prefill) + logprobs if shape.max_target_len else encoder


def _encoded(shape: ModelShape) -> int:
    """Tokens of the largest batch of sources."""
    tokens = PASS_TOKENS if shape.layout.tiers else ENCODER_TOKENS
    return max(tokens, shape.max_source_len) if shape.max_source_len else 0
