"""The manifest of a bundle and its shortlist: the dataclasses that mirror their JSON.

`export.manifest_parser` reads and checks them; the rest of the project imports them from `export.bundle`. Standard
library only.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

FORMAT_VERSION = 9
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SHORTLIST = "shortlist.json"
LEAST_WORDS = 4  # of every source token
MOST_WORDS = 256  # of an answer: BLEU 23.01 on Tatoeba en-de, 22.93 with 192, 23.03 without a bound (989 at most)
FILE_NAME = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*\.(?:json|onnx|data)")

StateKind = Literal["self_kv", "cross_kv", "recurrent", "shortlist"]
Role = Literal["encode", "decode", "logprobs", "align", "attend", "project_shortlist", "shortlist_logprobs"]
AttentionKind = Literal["encoder", "decoder", "cross"]
Task = Literal["translation", "generation", "encoding"]


@dataclass(frozen=True, kw_only=True)
class StateSpec:
    """One tensor kept between calls. Symbolic axes of `shape` are strings.

    self_kv: `decode` reads "past.NAME" and writes "present.NAME", which a runner binds to the same memory. With a
    `stride` of s its growing axis has one place for every s positions, rounded up.
    cross_kv: `encode` writes NAME and `decode` reads it; its first states of a recurrent decoder have no source axis.
    recurrent: `decode` reads "past.NAME" and replaces it by "present.NAME" in every step, in the same memory too: it
    has read the one before it writes the other. What is there at position 0 does not matter.
    shortlist: `project_shortlist` writes NAME, `shortlist_logprobs` reads it; its growing axis is the shortlist.
    Any output "ANYTHING.NAME" of `decode` is bound to that memory too: an operator may insist on handing through a
    cache that it only reads.
    """

    name: str
    kind: StateKind
    dtype: str
    shape: tuple[int | str, ...]
    stride: int = 1

    def places(self, positions: int) -> int:
        """Of the growing axis, that so many positions take."""
        return -(-positions // self.stride)


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    role: Role
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """How a variant with fewer bits computes."""

    scheme: str  # "w8a8-dynamic", "w8a8-static-kv8", …: the exporter's name for all of the following
    weight_bits: int
    block_size: int  # inputs that share a scale; 0: all of an output's
    activations: Literal["dynamic", "static", "block"]  # what shares a scale: a row, a product, a block
    kv_cache: Literal["float32", "int8"]
    batch_invariant: bool  # an answer is the same, bit for bit, alone and in any batch


@dataclass(frozen=True, kw_only=True)
class SchemeMeasurement:
    """What an exporter measured of one form, to choose among several; fp32 stands beside them. None: not of such a
    model, or not without references."""

    scheme: str
    evaluation_samples: int  # that were answered, or texts that were read
    exact_match: float | None  # share of greedy answers equal to those of fp32
    bleu: float | None  # against references
    bleu_loss: float | None  # fp32 minus this
    nats_per_token: float | None  # of texts, for models that continue them
    nats_loss: float | None  # this minus fp32
    equal_tokens: float | None  # share of best next tokens equal to those of fp32, the text before them given
    tokens_per_s: float  # of decode steps of 32 rows
    single_stream_tokens_per_s: float  # of one row
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The graphs of one precision."""

    precision: str
    graphs: dict[str, GraphSpec]  # by role
    states: tuple[StateSpec, ...]
    quantization: Quantization | None = None
    comparison: tuple[SchemeMeasurement, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Limits:
    vocab_size: int
    max_source_len: int  # tokens, end token included; 0: the model has no source
    max_target_len: int  # positions of the decoder: prompt and new tokens together; 0: the model has no decoder
    max_block: int  # tokens of one `decode` call: 1, or 0 for any number


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Special ids; some may coincide. extra_eos: other tokens that end an answer as eos does."""

    pad: int
    bos: int
    eos: int
    unk: int
    extra_eos: tuple[int, ...] = ()

    @property
    def ends(self) -> tuple[int, ...]:
        """All that end an answer."""
        return self.eos, *self.extra_eos


SOURCE_LANGUAGE, TARGET_LANGUAGE = "source_language", "target_language"


@dataclass(frozen=True, kw_only=True)
class SpecialTokenTemplate:
    """What stands around the ids of a text: ids, and SOURCE_LANGUAGE and TARGET_LANGUAGE for those of the languages
    that a request names. The decoder reads `target_prefix` first; of a model without a source it precedes every
    prompt.

    languages: the id of each code; none, where requests name no languages.
    """

    source_prefix: tuple[int | str, ...] = ()
    source_suffix: tuple[int | str, ...] = ()
    target_prefix: tuple[int | str, ...] = ()
    languages: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def source_special_tokens(self) -> tuple[int | str, ...]:
        return (*self.source_prefix, *self.source_suffix)


@dataclass(frozen=True, kw_only=True)
class AlignmentSpec:
    """What `align` tells of: every head of every decoder layer."""

    layers: int
    heads: int
    default_layer: int  # the first is 1


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """What `encode` tells of a text beside the state of each token."""

    width: int  # of a state
    has_pooler: bool = False  # "pooled": one vector of the text
    mask: int | None = None  # the token that may be filled: "place_logprobs" of the places that "places" names
    labels: tuple[str, ...] = ()  # of "label_logits"
    multi_label: bool = False  # each label has a probability of its own (sigmoid), instead of all together (softmax)
    has_token_weights: bool = False  # "token_weights": how much each token had to say about the labels


@dataclass(frozen=True, kw_only=True)
class GoldenVector:
    """The mean of the states of a text over its tokens, as one variant computes it."""

    values: tuple[float, ...]
    tolerance: float  # of the largest difference on another machine, as a share of the largest value


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """What the output "KIND_attention" of `attend` tells: every head of so many layers."""

    kind: AttentionKind
    layers: int
    heads: int


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A question and its greedy answer, end token included: repeated by a server before it says it is ready.

    A model without a decoder has no prompt and no output, but by precision what it makes of the source.
    """

    source: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    vectors: dict[str, GoldenVector] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FileDigest:
    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """manifest.json. `files` lists every other file by its path with "/" inside the bundle."""

    format_version: int = FORMAT_VERSION
    architecture: str
    task: Task
    tokens: Tokens
    template: SpecialTokenTemplate
    limits: Limits
    variants: tuple[Variant, ...]
    golden: Golden
    lineage: dict[str, Any]
    parity: dict[str, Any]
    created: str  # ISO 8601, UTC
    alignment: AlignmentSpec | None = None  # None: no variant has an `align` graph
    encoding: Encoding | None = None  # None: no variant has an `encode` graph, or nothing is known of its states
    attention_maps: tuple[AttentionMaps, ...] = ()  # (): no variant has an `attend` graph
    shortlist: str = (
        ""  # a file of `files`; "": none, and no variant has the graphs `project_shortlist` and `shortlist_logprobs`
    )
    files: dict[str, FileDigest] = dataclasses.field(default_factory=dict)

    def variant(self, precision: str) -> Variant:
        for variant in self.variants:
            if variant.precision == precision:
                return variant
        raise KeyError(f"no {precision} graphs here; there are: {', '.join(v.precision for v in self.variants)}")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True, kw_only=True)
class Shortlist:
    """shortlist.json: the target tokens that are worth a look, given the source.

    An answer restricted to them is chosen among hundreds of tokens instead of the whole vocabulary.
    """

    always: tuple[int, ...]
    by_source: dict[int, tuple[int, ...]]  # of a source token, best first

    def allowed(self, source: Sequence[int], given: Iterable[int] = (), most: int = MOST_WORDS) -> frozenset[int]:
        """What an answer to `source` may consist of: what is always allowed or given, the source's tokens themselves,
        because names and numbers are copied, and what these tokens stand for: of all of them the best, then of all of
        them the second best, …, while there are fewer than `most` altogether; of long sources LEAST_WORDS of each."""
        found = {*self.always, *source, *given}
        lists = [self.by_source[token] for token in dict.fromkeys(source) if token in self.by_source]
        for place, ranked in enumerate(itertools.zip_longest(*lists)):
            for target in ranked:
                if len(found) >= most and place >= LEAST_WORDS:
                    return frozenset(found)
                if target is not None:
                    found.add(target)
        return frozenset(found)

    def to_json(self) -> str:
        by_source = {str(token): ids for token, ids in self.by_source.items()}
        return json.dumps({"always": self.always, "by_source": by_source}, separators=(",", ":")) + "\n"
