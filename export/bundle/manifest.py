"""The contract between exporter and server: the dataclasses of a bundle's manifest and shortlist, and the conditions
under which verification covers its graphs.

The annotation of a field is its type and its range (`export.bundle.manifest_fields`); `export.bundle.manifest_parser`
reads and checks the JSON. This module uses the standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from export.bundle.confidence import Calibration
from export.bundle.manifest_fields import (
    MAX_FILE_BYTES,
    MAX_IDS,
    MAX_SIZE,
    Axis,
    Dtype,
    Figure,
    Heads,
    Id,
    Identifier,
    Ids,
    Items,
    Labels,
    Language,
    Languages,
    Layers,
    Length,
    Line,
    Lineage,
    Name,
    Names,
    Parity,
    Prompts,
    Range,
    Rate,
    Scheme,
    Sha256,
    Share,
    Time,
    Width,
)
from export.bundle.windows import places_of

FORMAT_VERSION = 16
MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.sha256"  # beside it: one line as `sha256sum` writes it
TOKENIZER = "tokenizer.json"
SHORTLIST = "shortlist.json"
LEAST_WORDS = 4  # candidates kept for every source token
MOST_WORDS = 256  # tokens in a shortlist: BLEU 23.01 on Tatoeba en-de, 22.93 with 192, 23.03 unbounded (989 at most)
FILE_NAME = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*\.(?:json|onnx|data)")

# Session settings. Verification covers graphs under exactly these settings, and servers use the same.
SESSION_THREADS = 1  # intra-op; one engine per core is faster than several threads per step
SESSION_OPTIMIZATION = "ORT_ENABLE_ALL"
SESSION_MEM_PATTERN = False  # it plans memory for one shape, but shapes may differ between steps
SESSION_CONFIG: Mapping[str, str] = types.MappingProxyType(
    {
        # The fused kernel is a scalar loop on CPUs (84 against 14 microseconds at 32x512) and computes E[x²]-mean².
        "optimization.disable_specified_optimizers": "SkipLayerNormFusion;BiasSkipLayerNormFusion",
        "session.intra_op.allow_spinning": "0",
    }
)
# Sources are padded to a multiple of SOURCE_MULTIPLE and first blocks to one of PAD_MULTIPLE, so that the bits of a row
# do not depend on the other rows of its batch: kernels compute a single remaining row in a different order. Padding
# sources further changes no bit (0 of 240 rows with up to 12 more positions, encoders in fp32, static and by row).
PAD_MULTIPLE = 16
SOURCE_MULTIPLE = 4
WORD_MULTIPLE = 64  # shortlist capacities are a multiple of this; other sizes change the last bits of the softmax


@functools.cache  # read several times a step
def capacity_for(length: int) -> int:
    """Return the capacity that holds `length` positions: 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, …

    Attention over a roomy cache costs up to four times as much in every step, growing copies once: hence small steps.
    """
    eights = max(8, -(-length // 8) * 8)
    power = 1 << (eights - 1).bit_length()
    return power * 3 // 4 if eights <= power * 3 // 4 else power


def largest_capacity(max_target_len: int) -> int:
    """Return the largest capacity of a self-attention cache, and so the largest `total_length` that `decode` gets: the
    last block of a row may be padded."""
    return capacity_for(-(-max_target_len // PAD_MULTIPLE) * PAD_MULTIPLE)


StateKind = Literal["self_kv", "cross_kv", "recurrent", "shortlist"]
Role = Literal["encode", "embed", "decode", "logprobs", "align", "attend", "project_shortlist", "shortlist_logprobs"]
Pooling = Literal["mean", "cls", "max", "last", "mean_sqrt_len", "weighted_mean"]
AttentionKind = Literal["encoder", "decoder", "cross"]
Architecture = Literal["encoder_decoder", "decoder", "encoder", "recurrent"]  # as `model.config` has them
Task = Literal["translation", "generation", "encoding"]
SourceUnit = Literal["sentence", "text"]  # of a translation: what the model was trained to read at a time


@dataclass(frozen=True, kw_only=True)
class StateSpec:
    """One tensor kept between calls. Symbolic axes of `shape` are strings.

    self_kv: `decode` reads "past.NAME" and writes "present.NAME", which a runner binds to the same memory. With a
    `stride` of s its growing axis has one entry for every s positions, rounded up. With a `window` of w > 0 `decode`
    reads no more than w positions of it, those of `window_lengths`, so that a runner may keep only the last ones
    (`export.bundle.windows`).
    cross_kv: `encode` writes NAME and `decode` reads it. The initial states of a recurrent decoder are of this kind and
    have no source axis.
    recurrent: `decode` reads "past.NAME" and replaces it by "present.NAME" in every step, also in the same memory: it
    reads the old value before it writes the new one. The content at position 0 does not matter.
    shortlist: `project_shortlist` writes NAME and `shortlist_logprobs` reads it; its growing axis is the shortlist.
    Any output "ANYTHING.NAME" of `decode` is bound to that memory too: an operator may require a read-only cache to be
    an output as well.
    """

    name: Name
    kind: StateKind
    dtype: Dtype
    shape: Annotated[tuple[Width | Axis, ...], Items(5, least=2)]
    stride: Annotated[int, Range(1, 1 << 12)] = 1
    window: Length = 0

    def places(self, positions: int) -> int:
        """Return the length of the growing axis for a number of positions."""
        return -(-positions // self.stride)

    def kept_places(self, positions: int) -> int:
        """Return the same for a runner that keeps no more than a window needs."""
        places = self.places(positions)
        return min(places, places_of(self.window)) if self.window else places


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    role: Role
    file: Name
    inputs: Names
    outputs: Names


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The quantization of a variant."""

    scheme: Scheme  # "w8a8-dynamic", "w8a8-static-kv8", …: the exporter's name for the combination of all other fields
    weight_bits: Annotated[int, Range(1, 32)]
    block_size: Annotated[int, Range(0, MAX_SIZE)]  # inputs that share a scale; 0: all inputs of an output channel
    activations: Literal["dynamic", "static", "block", "float16"]  # what shares a scale: a row, a product, a block
    kv_cache: Literal["float32", "float16", "int8"]
    batch_invariant: bool  # a request's result has the same bits in every batch


@dataclass(frozen=True, kw_only=True)
class SchemeMeasurement:
    """The exporter's measurements of one scheme, used to choose among several; fp32 is listed with them. None: not
    applicable to the model, or no references available."""

    scheme: Scheme
    evaluation_samples: Annotated[int, Range(0, (1 << 31) - 1)]  # texts with a generated answer, or texts scored
    exact_match: Share | None = None  # share of greedy answers, or of readings by an encoder, equal to those of fp32
    bleu: Figure | None = None  # against references
    bleu_loss: Figure | None = None  # fp32 minus this scheme
    nats_per_token: Figure | None = None  # of given texts, for decoder-only models
    nats_loss: Figure | None = None  # this scheme minus fp32
    equal_tokens: Share | None = (
        None  # share of most likely next tokens equal to those of fp32, given the same preceding text
    )
    tokens_per_s: Rate  # of decode steps with 32 rows
    single_stream_tokens_per_s: Rate  # of decode steps with one row
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The graphs of one precision."""

    precision: Identifier
    graphs: dict[Identifier, GraphSpec]  # by role
    states: Annotated[tuple[StateSpec, ...], Items(1 << 13)]
    quantization: Quantization | None = None
    comparison: Annotated[tuple[SchemeMeasurement, ...], Items(32)] = ()

    def slots(self, positions: int) -> int:
        """Return the length of the caches with one entry for several positions; 0 if the variant has none."""
        return next((state.places(positions) for state in self.states if state.stride > 1), 0)

    def without_windows(self) -> Variant:
        """Return the same variant for a runner whose caches hold all positions."""
        return dataclasses.replace(self, states=tuple(dataclasses.replace(state, window=0) for state in self.states))


@dataclass(frozen=True, kw_only=True)
class Limits:
    vocab_size: Annotated[int, Range(1, MAX_IDS)]
    source_vocab_size: Annotated[int, Range(0, MAX_IDS)] = 0  # of sources with ids of their own; 0: those of targets
    max_source_len: Length  # tokens, end token included; 0: the model has no source
    max_target_len: Length  # decoder positions, prompt and new tokens together; 0: the model has no decoder
    max_block: Annotated[int, Range(0, 1)]  # tokens of one `decode` call: 1, or 0 for any number

    @property
    def source_ids(self) -> int:
        """The number of ids that sources have."""
        return self.source_vocab_size or self.vocab_size

    @property
    def vocab_sizes(self) -> dict[str, int]:
        """Both sizes by name, as readers of tokenizers and shortlists take them."""
        return {"vocab_size": self.vocab_size, "source_vocab_size": self.source_vocab_size}


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Special ids; some may coincide. extra_eos: other tokens that end a response as eos does."""

    pad: Id
    bos: Id
    eos: Id
    unk: Id
    extra_eos: Ids = ()

    @property
    def ends(self) -> tuple[int, ...]:
        """All ids that end a response."""
        return self.eos, *self.extra_eos


SOURCE_LANGUAGE, TARGET_LANGUAGE = "source_language", "target_language"


SpecialTokens = Annotated[tuple[Id | Identifier, ...], Items(1 << 12)]


@dataclass(frozen=True, kw_only=True)
class SpecialTokenTemplate:
    """Special tokens around the ids of a text: ids, and SOURCE_LANGUAGE and TARGET_LANGUAGE for the languages that a
    request names. The decoder reads `target_prefix` first; for a decoder-only model it precedes every prompt.

    languages: the id of each language code; empty when requests name no languages.
    """

    source_prefix: SpecialTokens = ()
    source_suffix: SpecialTokens = ()
    target_prefix: SpecialTokens = ()
    languages: Languages = dataclasses.field(default_factory=dict)

    @property
    def source_special_tokens(self) -> tuple[int | str, ...]:
        return (*self.source_prefix, *self.source_suffix)


@dataclass(frozen=True, kw_only=True)
class Context:
    """Sentences before a text that the model was trained to read beside it.

    The source has each of them and the separator before the text; the decoder reads each of their translations and the
    separator after `SpecialTokenTemplate.target_prefix`.
    """

    sentences: Annotated[int, Range(1, 1 << 6)]  # at most
    separator: Id


@dataclass(frozen=True, kw_only=True)
class AlignmentSpec:
    """The output of `align`: the attention weights of every head of every decoder layer."""

    layers: Layers
    heads: Heads
    default_layer: Layers  # 1-based


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Outputs of `encode` for a text besides the state of each token, and how its states become one vector."""

    width: Width  # of a state
    has_pooler: bool = False  # "pooled": one vector per text
    pooling: Pooling = "mean"  # how states become the vector of a text, unless a request says otherwise
    dense_width: Length = 0  # of what `embed` makes of that vector, `pooled_vector` → `embedding`; 0: no such graph
    normalized: bool = False  # that vector, in the end, has length 1
    prompts: Prompts = dataclasses.field(default_factory=dict)  # by name: what a request may put before its text
    default_prompt: Line = ""  # the name of the one that stands there unless a request says otherwise; "": none
    pools_prompt: bool = True  # the pooling includes the tokens of a prompt, and special ones before them
    mask: Id | None = None  # the mask token; "place_logprobs" holds the positions listed in "places"
    labels: Labels = ()  # of "label_logits", or of "token_label_logits"
    multi_label: bool = False  # each label has an independent probability (sigmoid); otherwise softmax over all labels
    has_token_weights: bool = False  # "token_weights": the weight of each token in the label decision
    has_token_labels: bool = False  # the labels are those of each token


@dataclass(frozen=True, kw_only=True)
class GoldenVector:
    """The mean token state of a text, as one variant computes it."""

    values: Annotated[tuple[Figure, ...], Items(MAX_SIZE, least=1)]
    tolerance: Annotated[
        float, Range(1e-9, 1e3)
    ]  # largest difference allowed on another machine, relative to the largest value


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """The output "KIND_attention" of `attend`: every head of this number of layers."""

    kind: AttentionKind
    layers: Layers
    heads: Heads


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A sample request and its greedy response, end token included. A server repeats it before it reports ready.

    A model without a decoder has no prompt and no output; it has the golden vector of the source for each precision.
    """

    source: Ids
    prompt: Ids
    output: Ids
    vectors: dict[Identifier, GoldenVector] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FileDigest:
    sha256: Sha256
    bytes: Annotated[int, Range(0, MAX_FILE_BYTES)]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """manifest.json. `files` lists every other file by its path with "/" inside the bundle."""

    format_version: Annotated[int, Range(1, FORMAT_VERSION)] = FORMAT_VERSION
    architecture: Architecture
    task: Task
    tokens: Tokens
    template: SpecialTokenTemplate
    limits: Limits
    variants: Annotated[tuple[Variant, ...], Items(8, least=1)]
    golden: Golden
    lineage: Lineage
    parity: Parity
    created: Time  # ISO 8601, UTC
    source_unit: SourceUnit = "text"  # sentence: a service splits texts of several
    # The codes of the languages of a translation that requests need not name; "": unknown, or named (`template`).
    source_language: Language = ""
    target_language: Language = ""
    context: Context | None = None  # None: it reads each text alone
    alignment: AlignmentSpec | None = None  # None: no variant has an `align` graph
    encoding: Encoding | None = None  # None: no variant has an `encode` graph, or its states have no description
    attention_maps: Annotated[tuple[AttentionMaps, ...], Items(3)] = ()  # (): no variant has an `attend` graph
    # A path in `files`; "": no shortlist, and no variant has the graphs `project_shortlist` and `shortlist_logprobs`.
    shortlist: Name | Literal[""] = ""
    # By precision; {}: exported without development text to calibrate confidence with.
    calibrations: Annotated[dict[Identifier, Calibration], Items(8)] = dataclasses.field(default_factory=dict)
    files: Annotated[dict[Name, FileDigest], Items(1 << 8)] = dataclasses.field(default_factory=dict)

    def variant(self, precision: str) -> Variant:
        for variant in self.variants:
            if variant.precision == precision:
                return variant
        raise KeyError(f"no {precision} graphs here; there are: {', '.join(v.precision for v in self.variants)}")

    def graph_bytes(self, graph: GraphSpec) -> int:
        """Return the bytes of a graph's files, external weights included."""
        return sum(
            digest.bytes
            for name, digest in self.files.items()
            if name == graph.file or name.startswith(graph.file + ".")
        )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
