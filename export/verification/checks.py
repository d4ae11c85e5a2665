"""The checks that graphs must pass, each a measured error with its tolerance.

Rows are ragged, stand in the first rows of larger buffers, and the buffers are full of garbage, because a server's are.
Every check compares with PyTorch where it is simplest (`export.verification.torch_reference`), or a row in a batch
with the same row alone,
bit for bit. A graph that cannot be run fails the check that tried.

A quantised graph is compared with a PyTorch model that rounds what it rounds
(`export.verification.emulated_quantization`), its integers with the
checkpoint's weights, and its logits with those of the float32 model as well, which shows less and assumes nothing.

How a graph is run is `export.verification.verifier`'s business; what the results mean for a bundle is
`export.to_onnx`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from export.bundle import PAD_MULTIPLE, WORD_MULTIPLE, Golden, Quantization, Role
from export.verification.emulated_quantization import Roundings, SeenProduct, emulated_model, products_off, weights_off
from export.verification.inputs import Ids, Samples
from export.verification.torch_reference import Expected
from model.architectures import GenerativeModel
from model.reference.greedy import greedy, next_logits

GARBAGE = 37.0  # what buffers hold before they are written: large, and finite, so that a weight of 0 makes it 0
INT8_GARBAGE = -128  # the same of int8 caches, whose largest value is 127 times their step
GREEDY_TOKENS = 24
TOP_K = (16, 1, 0)  # how many best tokens are asked for, in turns

# Largest error of an output, as a share of its largest value. fp32: some 50 times what models of 20 million parameters
# show. fp16 is held against the float32 model, and the liveliest random model shows half of it.
# int8, int4: the root of the mean squared error of a row as a share of the row's standard deviation, against the model
# with the same roundings. Most rows show 1e-6, but a sum that differs in its last bit can fall on the other side of
# half a step, and what follows moves by a step: of 20 random models the liveliest shows 0.07, most show 0.01.
TOLERANCES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 0.15, "int4": 0.15}
# The same measure, of logits against the model without any rounding, in the median row. The liveliest random models
# show half of it: they are decided by little. A graph that says the same of every token shows 1.
PLAIN_TOLERANCES = {"int8": 0.6, "int4": 0.9}
TIES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 5e-2, "int4": 5e-2}  # gaps between two tokens of which either is right
# Of one product of integers, the same measure: models show 1e-6, and some 1e-5 where a value that lies between two
# integers is rounded otherwise.
PRODUCT_TOLERANCE = 1e-3
HALF_A_STEP = 0.501  # between a weight and its integer: half, and what float32 adds
SURE_CHOICES = {"fp32": 1e-3, "fp16": 0.5, "int8": 1e-2, "int4": 1e-2}  # gaps that other processors decide alike
# Of logits of a row's own words, against the same states times the checkpoint's weights: seven bits show 0.02.
WORD_TOLERANCES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 0.1, "int4": 0.1}
FEWEST_WORDS = 16
ONE_TOLERANCE = 5e-5  # of the sum of a row's probabilities, in any precision: log-softmax is always computed in float32
DTYPES = {"fp32": "float32", "fp16": "float16"}

Array = NDArray[Any]
Arrays = dict[str, Array]


class Prediction(NamedTuple):
    """What `decode` says of the next token of each row, or behind each token that it was asked for, and what `logprobs`
    makes of that; fields are named like their outputs."""

    logits: Array  # float32 (rows, V)
    logprobs: Array  # float32 (rows, V)
    normaliser: Array  # float32 (rows,): logits = logprobs + normaliser
    top_logprobs: Array  # float32 (rows, N), best first
    top_ids: Array  # int64 (rows, N)

    @property
    def normalised(self) -> Array:
        """The logits from the normaliser, float32 (rows, V)."""
        logits: Array = self.logprobs + self.normaliser[:, None]
        return logits

    def row(self, i: int) -> Prediction:
        """One row alone: still arrays of rows."""
        return Prediction(*(array[i : i + 1] for array in self))


class WordPrediction(NamedTuple):
    """What a step says of rows that choose among words of their own: the first W of each row's, in their order."""

    states: Array  # float32 (rows, M), which logits are made of
    logprobs: Array  # float32 (rows, W), -inf behind a row's own words
    normaliser: Array  # float32 (rows,)
    top_logprobs: Array  # float32 (rows, N), best first
    top_ids: Array  # int64 (rows, N)


class Graphs(Protocol):
    """The graphs of one variant, run as a server runs them. Buffers belong to the caller; calls write into them."""

    @property
    def roles(self) -> Collection[str]:
        """Which graphs there are."""
        ...

    def roundings(self, *roles: Role) -> Roundings:
        """What the graphs of these roles round, where they exist."""
        ...

    def seen_products(
        self, sources: Sequence[Ids], tokens: Sequence[int], starts: Sequence[int], buffers: Arrays, cross: Arrays
    ) -> list[SeenProduct]:
        """What the products of `encode` and of a step of `decode` read and gave."""
        ...

    def encode(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        """All outputs of `encode` for a ragged batch, by name. places: of each source those that are to be told, where
        the graph tells any."""
        ...

    def buffers(self, rows: int, capacity: int) -> Arrays:
        """Self-attention caches full of garbage, (rows, K, capacity, D), by the names of the states."""
        ...

    def decode(
        self,
        blocks: Sequence[Sequence[int]],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        top_k: int = 1,
        asked: Sequence[tuple[int, int]] | None = None,
    ) -> Prediction:
        """What follows each row's block; `buffers` and `cross` hold exactly these rows.

        cross: source_lengths and the source's keys and values, or nothing. Blocks of more than one token are a prefill,
        with starts of 0, or of a single row. top_k: how many best tokens of each row to name. asked: tokens, each by
        its row and its place in the block, behind which to predict instead, for models that read blocks; if none,
        nothing is ranked.
        """
        ...

    def shortlist_logprobs(
        self,
        words: Sequence[Ids],
        tokens: Sequence[int],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        width: int,
    ) -> WordPrediction:
        """What follows one token of each row among the row's own words, in buffers of them that have room for `width`
        and are full of garbage; `decode` is asked for no logits."""
        ...

    def align(self, targets: Sequence[Ids], cross: Mapping[str, Array]) -> Array:
        """How much each position of the targets attends to each of the source, float32 (L, B, H, T, S), T and S padded.

        targets: as fed to the decoder, bos first. cross: as for `decode`.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison. `max_error`: the largest difference of any output, as a share of that output's largest value, or
    for quantised graphs the largest error of any row as a share of its deviation; for checks of equality the number of
    values or sequences that differ, and tolerance 0."""

    name: str
    precision: str
    inputs: str
    max_error: float
    tolerance: float
    passed: bool
    note: str = ""


@dataclass(frozen=True)
class RightAnswer:
    """A greedy answer that the reference gives as well, and whether another processor would give it for sure."""

    golden: Golden
    is_sure: bool
    smallest_gap: float

    @property
    def merit(self) -> tuple[bool, int, float]:
        """The richest answer of those that would be the same on another processor is the best."""
        return self.is_sure, len(set(self.golden.output)), self.smallest_gap


@dataclass(frozen=True)
class Verification:
    checks: tuple[Check, ...]
    answers: tuple[RightAnswer, ...] = ()  # at most one for each question

    @property
    def golden(self) -> Golden | None:
        """The best answer; None when none was right."""
        return common_golden([self])


def common_golden(verifications: Sequence[Verification]) -> Golden | None:
    """A question that all variants answered right and alike, or as far as they answer it alike; None if there is none.

    Variants of fewer bits answer some questions otherwise than float32, and rightly: the beginning of an answer is a
    question of its own. Whole answers come first, then those that are richest and decided most clearly.
    """
    questions = [
        {(a.golden.source, a.golden.prompt): a for a in verification.answers} for verification in verifications
    ]
    best: tuple[tuple[bool, tuple[bool, int, float]], Golden] | None = None
    for key in set(questions[0]).intersection(*questions[1:]):
        answers = [answered[key] for answered in questions]
        outputs = [answer.golden.output for answer in answers]
        is_whole = len(set(outputs)) == 1
        output = common_start(outputs)
        if not output:
            continue
        merged = RightAnswer(
            Golden(source=key[0], prompt=key[1], output=output),
            all(answer.is_sure for answer in answers),
            min(answer.smallest_gap for answer in answers),
        )
        if best is None or (is_whole, merged.merit) > best[0]:
            best = (is_whole, merged.merit), merged.golden
    return best[1] if best else None


def common_start(sequences: Sequence[Ids]) -> Ids:
    """The tokens with which all of them begin."""
    places = zip(*sequences, strict=False)
    return tuple(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, places))


@dataclass(frozen=True)
class Answer:
    """New tokens, eos included, and by how much the smallest choice was decided, as a share of the largest
    log-probability."""

    tokens: Ids
    smallest_gap: float


def encode_for_decode(served: Graphs, sources: Sequence[Ids]) -> Arrays:
    """What `decode` wants to know of sources: their keys, values and lengths."""
    cross = {**served.encode(sources), "source_lengths": lengths(sources)}
    cross.pop("encoder_states")
    return cross


def answer_greedily(
    served: Graphs, sources: Sequence[Ids], prompts: Sequence[Sequence[int]], ends: Sequence[int], max_tokens: int
) -> list[Answer]:
    """Greedy answers of a batch: every row runs until the last one has ended; `sources` may be empty.

    prompts: with sources all of one length, because then they are read token by token.
    """
    cross: Arrays = {}
    if sources:
        cross = encode_for_decode(served, sources)
    buffers = served.buffers(len(prompts), round_up(max(map(len, prompts)) + max_tokens, PAD_MULTIPLE))
    starts, blocks = [0] * len(prompts), [list(prompt) for prompt in prompts]
    if sources:
        *firsts, last = zip(*prompts, strict=True)
        for place, column in enumerate(firsts):
            served.decode([[token] for token in column], [place] * len(prompts), buffers, cross, top_k=0)
        starts, blocks = [len(firsts)] * len(prompts), [[token] for token in last]
    answers, gaps = [list[int]() for _ in prompts], [list[float]() for _ in prompts]
    for _ in range(max_tokens):
        best = served.decode(blocks, starts, buffers, cross, top_k=2)
        starts = [start + len(block) for start, block in zip(starts, blocks, strict=True)]
        blocks = best.top_ids[:, :1].tolist()
        for row, answer in enumerate(answers):
            if not answer or answer[-1] not in ends:
                first, second = best.top_logprobs[row]
                answer.append(blocks[row][0])
                gaps[row].append(float((first - second) / np.abs(best.logprobs[row]).max()))
        if all(answer[-1] in ends for answer in answers):
            break
    return [Answer(tuple(answer), min(gap)) for answer, gap in zip(answers, gaps, strict=True)]


class ErrorTracker:
    """The largest error of any output so far, and where it was."""

    def __init__(self, *, by_deviation: bool = False) -> None:
        """by_deviation: the root of an output's mean squared error as a share of its standard deviation, instead of
        its largest error as a share of its largest value."""
        self.error, self.note, self.by_deviation = 0.0, "", by_deviation

    def add(self, name: str, actual: Array, expected: Array) -> None:
        if actual.shape != expected.shape:
            error, note = float("inf"), f"{name}: shape {actual.shape} instead of {expected.shape}"
        elif not expected.size:
            error, note = 0.0, ""
        else:
            difference = np.abs(actual.astype(np.float64) - expected)
            if self.by_deviation:
                deviation = expected.std() if expected.size > 1 else np.abs(expected).max()
                size, scale = float(np.sqrt(np.square(difference).mean())), float(deviation)
            else:
                size, scale = float(difference.max()), float(np.abs(expected).max())
            error, note = size / max(scale, 1e-6), f"worst in {name}"
        if not error <= self.error:  # also when it is not a number
            self.error, self.note = error if np.isfinite(error) else float("inf"), note


@dataclass(frozen=True)
class _Played:
    """Predictions of single rows by (row, position), and the buffers at the end."""

    predictions: dict[tuple[int, int], Prediction]
    buffers: Arrays


class Checker:
    """How the checks of one variant are made, whatever they are of."""

    def __init__(self, precision: str, samples: Samples, quantization: Quantization | None) -> None:
        self.precision, self.samples, self.quantization = precision, samples, quantization
        self.tolerance = TOLERANCES[precision]
        is_invariant = quantization is None or quantization.batch_invariant
        self.alone_tolerance = 0.0 if is_invariant else self.tolerance

    def worst(self) -> ErrorTracker:
        return ErrorTracker(by_deviation=self.quantization is not None)

    def check(self, name: str, measure: Callable[[], tuple[float, str]], tolerance: float) -> Check:
        try:
            error, note = measure()
        except Exception as failure:  # whatever the runtime raises for a graph it cannot run is a failed check
            error, note = float("inf"), f"{type(failure).__name__}: {failure!s:.200}"
        return Check(
            name=name,
            precision=self.precision,
            inputs=self.samples.describe(),
            max_error=min(error, 1e30),  # JSON has no infinity
            tolerance=tolerance,
            passed=error <= tolerance,
            note=note,
        )

    def alone(self, pairs: Iterable[tuple[Array, Array]]) -> tuple[float, str]:
        """How far rows in a batch are from the same rows alone: in how many values, unless a form is known for it."""
        if not self.alone_tolerance:
            return float(sum(differing(*pair) for pair in pairs)), "values that differ in any bit"
        worst, differ = self.worst(), 0
        for together, alone in pairs:
            worst.add("a row", together, alone)
            differ += differing(together, alone)
        assert self.quantization is not None
        note = f"bits not compared: answers in blocks of {self.quantization.block_size} may depend on the batch"
        return worst.error, f"{note}; {differ} values differ"


class GraphVerifier(Checker):
    """All checks of one variant. Rows of `sources` and `targets` are ordered so that steps can always use a prefix."""

    def __init__(
        self,
        served: Graphs,
        precision: str,
        model: GenerativeModel,
        samples: Samples,
        quantization: Quantization | None = None,
    ) -> None:
        super().__init__(precision, samples, quantization)
        self.served, self.plain_model, self.config = served, model, model.config
        sources = samples.sources or ((),) * len(samples.targets)
        # Some rows start with tokens of their own, so that rows stand at different positions when they step together.
        least = 1 if self.config.supports_chunked_prefill else 0
        heads = [max(least, len(target) * (i % 4) // 4) for i, target in enumerate(samples.targets)]
        order = sorted(range(len(heads)), key=lambda i: heads[i] - len(samples.targets[i]))
        self.sources = tuple(sources[i] for i in order)
        self.targets = tuple(samples.targets[i] for i in order)
        self.heads = tuple(heads[i] for i in order)
        self.top_k = tuple(min(count, self.config.vocab_size) for count in TOP_K)
        self.answers: list[RightAnswer] = []

    @cached_property
    def roundings(self) -> Roundings:
        return self.served.roundings("encode", "decode") if self.quantization else Roundings()

    @cached_property
    def aligning(self) -> Roundings:
        """Those of `align`, which keeps no caches of its own and reads what `encode` writes for `decode`."""
        found = self.served.roundings("encode", "align")
        found.steps |= {name: step for name, step in self.roundings.steps.items() if name.startswith("cross_")}
        return found

    @cached_property
    def model(self) -> GenerativeModel:
        """The model, with the roundings of the graphs if they have any."""
        return emulated_model(self.plain_model, self.roundings) if self.quantization else self.plain_model

    @cached_property
    def expected(self) -> Expected:
        return Expected(self.model)

    def run(self) -> Verification:
        checks: list[tuple[str, Callable[[], tuple[float, str]], float]] = []
        if self.config.supports_chunked_prefill:
            checks = [
                ("prefill against PyTorch", self.prefill, self.tolerance),
                ("prefill in a batch as alone", self.prefill_alone, self.alone_tolerance),
                ("prefill that nobody asks about", self.prefill_unasked, 0.0),
                ("block after a prefill against PyTorch", self.later_block, self.tolerance),
                ("several positions of a block against PyTorch", self.several_positions, self.tolerance),
            ]
        if self.config.has_encoder:
            checks = [
                ("encode against PyTorch", self.encode, self.tolerance),
                ("encode in a batch as alone", self.encode_alone, self.alone_tolerance),
            ]
        if self.quantization:
            checks = [
                ("weights against the checkpoint", self.weights, HALF_A_STEP),
                ("each product against its inputs", self.products, PRODUCT_TOLERANCE),
                ("logits against PyTorch without rounding", self.plain, PLAIN_TOLERANCES[self.precision]),
                *checks,
            ]
        checks += [
            ("cached steps against the full sequence", self.steps, self.tolerance),
            ("caches against PyTorch", self.caches, self.tolerance),
            ("caches written nowhere else", self.untouched, 0.0),
            ("steps in a batch as alone", self.steps_alone, self.alone_tolerance),
            ("normaliser against PyTorch", self.normaliser, self.tolerance),
            ("probabilities of a row add up to one", self.sums, ONE_TOLERANCE),
            ("best tokens are those of the sorted row", self.best, 0.0),
            ("last position against PyTorch", self.last_position, self.tolerance),
            ("greedy answers against the reference", self.greedy, 0.0),
        ]
        if "project_shortlist" in self.served.roles:
            checks += [
                ("own words against PyTorch", self.own_words, WORD_TOLERANCES[self.precision]),
                ("own words in a batch as alone", self.own_words_alone, self.alone_tolerance),
            ]
        if "align" in self.served.roles:
            checks += [
                ("attention against PyTorch", self.attention, self.tolerance),
                ("attention stays within the source", self.attention_within, 0.0),
            ]
        return Verification(tuple(self.check(*check) for check in checks), tuple(self.answers))

    # -- roundings

    def weights(self) -> tuple[float, str]:
        """Of every graph, `align` among them."""
        found = [weights_off(self.plain_model, self.roundings)]
        if "align" in self.served.roles:
            found.append(weights_off(self.plain_model, self.aligning, is_whole=False))
        return max(found)

    def products(self) -> tuple[float, str]:
        """Of all sources, and of a step at the end of each target."""
        rows, ends = range(len(self.targets)), [len(target) - 1 for target in self.targets]
        buffers = self.served.buffers(len(rows), _capacity(self.targets))
        for row, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            self._fill(buffers, row, source, target[: ends[row]])
        tokens = [target[-1] for target in self.targets]
        seen = self.served.seen_products(self.sources, tokens, ends, buffers, self.cross(rows))
        return products_off(self.plain_model, self.roundings, seen)

    def _fill(self, buffers: Arrays, row: int, source: Ids, target: Ids) -> None:
        """Writes PyTorch's caches of a target to a row; of an empty one there are none."""
        for name, cache in self.expected.caches(source, target).items() if target else ():
            _place(buffers[name][row], cache)[...] = self.roundings.kept(name, cache)

    def plain(self) -> tuple[float, str]:
        """Cached steps against the full sequence of a model that rounds nothing. The median, because in a random model
        some rows are decided by what is rounded away."""
        errors, expected = list[float](), Expected(self.plain_model)
        for row, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            logits = expected.logits(source, target)
            for position in self._positions(row):
                worst = self.worst()
                worst.add("logits", self.played.predictions[row, position].logits[0], logits[position])
                errors.append(worst.error)
        return float(np.median(errors)), f"median of {len(errors)} rows, worst {max(errors):.2g}"

    def _stride(self, name: str) -> int:
        """Positions that a state has one place for."""
        config = self.config
        return (
            config.compression_stride
            if config.compression_stride and config.is_compressed(int(name.rpartition(".")[2]))
            else 1
        )

    def _dtype(self, name: str) -> str:
        return "int8" if name in self.roundings.steps else DTYPES.get(self.precision, "float32")

    # -- encoder

    @cached_property
    def encoded(self) -> Arrays:
        return self.served.encode(self.sources)

    def encode(self) -> tuple[float, str]:
        """Ragged and padded against alone and unpadded in PyTorch, valid positions only; and the longest source."""
        worst = self.worst()
        for outputs, sources in (
            (self.encoded, self.sources),
            (self.served.encode([self.samples.longest_source]), [self.samples.longest_source]),
        ):
            for row, source in enumerate(sources):
                for name, expected in self.expected.source(source).items():
                    actual = self.roundings.values(name, outputs[name][row])
                    worst.add(name, _valid(actual, len(source)), expected[0])
        return worst.error, worst.note

    def encode_alone(self) -> tuple[float, str]:
        return self.alone(
            (_valid(self.encoded[name][row], len(source)), _valid(alone[0], len(source)))
            for row, source in enumerate(self.sources)
            for name, alone in self.served.encode([source]).items()
        )

    def cross(self, rows: Sequence[int]) -> Arrays:
        """PyTorch's keys and values of the sources of these rows, garbage behind their ends."""
        if not self.config.has_encoder:
            return {}
        sources = [self.sources[row] for row in rows]
        length = round_up(max(map(len, sources)), PAD_MULTIPLE)
        arrays: Arrays = {"source_lengths": lengths(sources)}
        for row, source in enumerate(sources):
            for name, array in self.expected.source(source).items():
                if name != "encoder_states":
                    size = (array.shape[1], length, array.shape[3]) if array[0].ndim > 1 else array.shape[1:]
                    if name not in arrays:
                        arrays[name] = garbage((len(rows), *size), self._dtype(name))
                    _place(arrays[name][row], array[0])[...] = self.roundings.kept(name, array[0])
        return arrays

    # -- decoder: prefill

    @cached_property
    def prefilled(self) -> tuple[Prediction, Arrays]:
        rows = len(self.targets)
        buffers = self.served.buffers(rows, _capacity(self.targets))
        return self.served.decode(self.targets, [0] * rows, buffers, {}, top_k=self.top_k[0]), buffers

    @cached_property
    def prefilled_alone(self) -> list[Prediction]:
        alone = [([target], self.served.buffers(1, _capacity([target]))) for target in self.targets]
        return [self.served.decode(block, [0], buffers, {}, top_k=self.top_k[1]) for block, buffers in alone]

    def prefill(self) -> tuple[float, str]:
        """A ragged, right-padded batch of prompts; and the longest prompt."""
        worst = self.worst()
        longest = [self.samples.longest_target]
        buffers = self.served.buffers(1, _capacity(longest))
        for (prediction, caches), targets in (
            (self.prefilled, self.targets),
            ((self.served.decode(longest, [0], buffers, {}), buffers), longest),
        ):
            for row, target in enumerate(targets):
                worst.add("logprobs", prediction.logprobs[row], self.expected.logprobs((), target)[-1])
                for name, expected in self.expected.caches((), target).items():
                    actual = self.roundings.values(name, _valid(caches[name][row], len(target)))
                    worst.add(f"present.{name}", actual, expected)
        return worst.error, worst.note

    def prefill_alone(self) -> tuple[float, str]:
        together = self.prefilled[0]
        return self.alone(
            pair for row, alone in enumerate(self.prefilled_alone) for pair in _pairs(together.row(row), alone)
        )

    def prefill_unasked(self) -> tuple[float, str]:
        """Prompts of which no logits are wanted: the same caches."""
        differ = 0
        for target in self.targets:
            asked, unasked = (self.served.buffers(1, _capacity([target])) for _ in range(2))
            self.served.decode([target], [0], asked, {})
            said = self.served.decode([target], [0], unasked, {}, asked=())
            differ += said.logits.size + sum(differing(unasked[name], array) for name, array in asked.items())
        return float(differ), "values of the caches that differ in any bit"

    def later_block(self) -> tuple[float, str]:
        """One row in two blocks: the second finds the first in the cache."""
        worst = self.worst()
        for target in self.targets:
            cut = max(1, len(target) // 3)
            if len(target) - cut > 1:
                buffers = self.served.buffers(1, _capacity([target]))
                self.served.decode([target[:cut]], [0], buffers, {})
                prediction = self.served.decode([target[cut:]], [cut], buffers, {})
                worst.add("logprobs", prediction.logprobs[0], self.expected.logprobs((), target)[-1])
        return worst.error, worst.note

    def several_positions(self) -> tuple[float, str]:
        """Behind every token of a ragged batch, the last row first; behind every token of a block with a past, as when
        a draft is verified, where the block before it was asked for a token in its midst."""
        worst = self.worst()
        asked = [(row, place) for row, target in enumerate(self.targets) for place in range(len(target))][::-1]
        buffers = self.served.buffers(len(self.targets), _capacity(self.targets))
        together = self.served.decode(self.targets, [0] * len(self.targets), buffers, {}, asked=asked)
        for line, (row, place) in enumerate(asked):
            expected = self.expected.logprobs((), self.targets[row])[place]
            worst.add(f"logprobs at {place} of row {row}", together.logprobs[line], expected)
        for target in self.targets:
            cut = max(1, len(target) // 3)
            if len(target) > cut:
                buffers = self.served.buffers(1, _capacity([target]))
                self.served.decode([target[:cut]], [0], buffers, {}, asked=[(0, cut // 2)])
                places = [(0, place) for place in range(len(target) - cut)]
                behind = self.served.decode([target[cut:]], [cut], buffers, {}, asked=places)
                worst.add("logprobs of a block", behind.logprobs, self.expected.logprobs((), target)[cut:])
        return worst.error, worst.note

    # -- decoder: steps

    def play(self, rows: Sequence[int], capacity: int, top_k: Sequence[int]) -> _Played:
        """Feeds the targets of these rows: first each row's head alone, then everything together, token by token, where
        rows that have ended drop off the end. One more row of the buffers belongs to nobody. The numbers of best tokens
        to name take turns."""
        predictions: dict[tuple[int, int], Prediction] = {}
        buffers, cross = self.served.buffers(len(rows) + 1, capacity), self.cross(rows)
        for i, row in enumerate(rows):
            head, place = self.targets[row][: self.heads[row]], (i, i + 1)
            blocks = [head] if self.config.supports_chunked_prefill else [[token] for token in head]
            for start, block in enumerate(blocks):
                predictions[row, start + len(block) - 1] = self.served.decode(
                    [block], [start], _rows(buffers, *place), _rows(cross, *place), top_k=top_k[start % len(top_k)]
                )
        for step in range(max(len(self.targets[row]) - self.heads[row] for row in rows)):
            live = [row for row in rows if self.heads[row] + step < len(self.targets[row])]
            starts = [self.heads[row] + step for row in live]
            blocks = [[self.targets[row][start]] for row, start in zip(live, starts, strict=True)]
            place = (0, len(live))
            some = self.served.decode(
                blocks, starts, _rows(buffers, *place), _rows(cross, *place), top_k=top_k[step % len(top_k)]
            )
            predictions |= {(row, start): some.row(i) for i, (row, start) in enumerate(zip(live, starts, strict=True))}
        return _Played(predictions, buffers)

    @cached_property
    def played(self) -> _Played:
        return self.play(range(len(self.targets)), _capacity(self.targets), self.top_k)

    @cached_property
    def played_alone(self) -> dict[tuple[int, int], Prediction]:
        """Every row in buffers of its own, of another capacity, and asked for other numbers of best tokens."""
        alone, capacity = dict[tuple[int, int], Prediction](), _capacity(self.targets) + 8
        for row in range(len(self.targets)):
            alone |= self.play([row], capacity, (*self.top_k[1:], self.top_k[0])).predictions
        return alone

    def steps(self) -> tuple[float, str]:
        worst = self.worst()
        for row, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            expected = self.expected.logprobs(source, target)
            for position in self._positions(row):
                actual = self.played.predictions[row, position].logprobs[0]
                worst.add(f"logprobs at {position}", actual, expected[position])
        return worst.error, worst.note

    def _positions(self, row: int) -> list[int]:
        return [position for own, position in self.played.predictions if own == row]

    def caches(self) -> tuple[float, str]:
        worst = self.worst()
        for row, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            for name, expected in self.expected.caches(source, target).items():
                actual = self.roundings.values(name, _place(self.played.buffers[name][row], expected))
                worst.add(f"present.{name}", actual, expected)
        return worst.error, worst.note

    def untouched(self) -> tuple[float, str]:
        differ = 0
        for name, array in self.played.buffers.items():
            stride = self._stride(name)
            for row, rest in enumerate(array):
                used = len(self.targets[row]) if row < len(self.targets) else 0
                if used and self.config.supports_chunked_prefill:  # the head's padding is written, and read by nobody
                    used = max(used, round_up(self.heads[row], PAD_MULTIPLE))
                behind = rest[:, -(-used // stride) :] if rest.ndim > 1 else rest[rest.size * bool(used) :]
                differ += differing(behind, garbage(behind.shape, rest.dtype))
        return float(differ), "values behind a row's end or in another row"

    def steps_alone(self) -> tuple[float, str]:
        return self.alone(
            pair for key, alone in self.played_alone.items() for pair in _pairs(self.played.predictions[key], alone)
        )

    def normaliser(self) -> tuple[float, str]:
        """What the normaliser is for, the logits from it and the log-probabilities; and the logits that there are."""
        worst = self.worst()
        for row, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            expected = self.expected.logits(source, target)
            for position in self._positions(row):
                prediction = self.played.predictions[row, position]
                worst.add(f"logits at {position}", prediction.logits[0], expected[position])
                worst.add(f"normalised logits at {position}", prediction.normalised[0], expected[position])
        return worst.error, worst.note

    def _predictions(self) -> list[Prediction]:
        """All there are, in a batch and alone, of one or more rows."""
        prefilled = [self.prefilled[0], *self.prefilled_alone] if self.config.supports_chunked_prefill else []
        return [*prefilled, *self.played.predictions.values(), *self.played_alone.values()]

    def sums(self) -> tuple[float, str]:
        sums = np.concatenate([np.exp(p.logprobs.astype(np.float64)).sum(-1) for p in self._predictions()])
        error = float(np.nan_to_num(np.abs(sums - 1), nan=np.inf).max())
        return error, f"worst of {len(sums)} rows"

    def best(self) -> tuple[float, str]:
        """Named in a batch and alone, one of them and several, against a sort by logits that keeps the order of equal
        values: whoever reads no more than the logits finds the same."""
        differ, counts = 0, set[int]()
        for prediction in self._predictions():
            counts.add(count := prediction.top_ids.shape[1])
            order = np.argsort(-prediction.logits, axis=-1, kind="stable")[:, :count]
            differ += differing(prediction.top_ids, order)
            differ += differing(prediction.top_logprobs, np.take_along_axis(prediction.logprobs, order, axis=-1))
        return float(differ), f"ids and log-probabilities of the best {' and '.join(map(str, sorted(counts)))}"

    def last_position(self) -> tuple[float, str]:
        """One step at the end of the longest target, over PyTorch's caches of what precedes it."""
        worst, target = self.worst(), self.samples.longest_target
        source, last = self.sources[0], len(target) - 1
        buffers = self.served.buffers(1, _capacity([target]))
        self._fill(buffers, 0, source, target[:last])
        prediction = self.served.decode([target[last:]], [last], buffers, self.cross([0]))
        worst.add(f"logprobs at {last}", prediction.logprobs[0], self.expected.logprobs(source, target)[last])
        return worst.error, worst.note

    # -- words of a row's own

    @cached_property
    def words(self) -> list[Ids]:
        """Words for each row, some more and some fewer, in ascending order; of very few an error says little."""
        draw, all_words = np.random.default_rng(1), self.config.vocab_size
        least = min(FEWEST_WORDS, all_words)
        sizes = [
            least + (len(target) * 7 + row * 5) % (all_words - least + 1) for row, target in enumerate(self.targets)
        ]
        return [tuple(sorted(draw.choice(all_words, size, replace=False).tolist())) for size in sizes]

    def _ranked(self, rows: Sequence[int], width: int) -> WordPrediction:
        """A step at the end of some targets."""
        targets = [self.targets[row] for row in rows]
        buffers = self.served.buffers(len(rows), _capacity(self.targets))
        for place, row in enumerate(rows):
            self._fill(buffers, place, self.sources[row], self.targets[row][:-1])
        tokens, starts = [target[-1] for target in targets], [len(target) - 1 for target in targets]
        words = [self.words[row] for row in rows]
        return self.served.shortlist_logprobs(words, tokens, starts, buffers, self.cross(rows), width=width)

    @cached_property
    def ranked(self) -> WordPrediction:
        return self._ranked(range(len(self.targets)), round_up(max(map(len, self.words)), WORD_MULTIPLE))

    def own_words(self) -> tuple[float, str]:
        """Logits against the product of the same states and the checkpoint's weight, and the best words against a
        sort."""
        worst, decoder = self.worst(), self.plain_model.decoder
        for row, own in enumerate(self.words):
            logprobs = self.ranked.logprobs[row]
            logits = decoder.unembedding(torch.from_numpy(self.ranked.states[row : row + 1])).detach().numpy()[0]
            worst.add(f"logits of row {row}", logprobs[: len(own)] + self.ranked.normaliser[row], logits[list(own)])
            worst.add(f"sum of row {row}", np.exp(logprobs.astype(np.float64)).sum(keepdims=True), np.ones(1))
            if not np.isneginf(logprobs[len(own) :]).all():
                return float("inf"), f"row {row} has words that are not its own"
            best = np.argsort(-logprobs[: len(own)], kind="stable")[: self.ranked.top_ids.shape[1]]
            named = self.ranked.top_ids[row, : len(best)], self.ranked.top_logprobs[row, : len(best)]
            if any(differing(*pair) for pair in zip(named, (np.array(own)[best], logprobs[best]), strict=True)):
                return float("inf"), f"the best words of row {row} are not those of the sorted row"
        return worst.error, worst.note

    def own_words_alone(self) -> tuple[float, str]:
        """With room for more words, too."""
        pairs, width = list[tuple[Array, Array]](), self.ranked.logprobs.shape[1] + WORD_MULTIPLE
        for row, own in enumerate(self.words):
            alone = self._ranked([row], width)
            pairs.append((self.ranked.logprobs[row, : len(own)], alone.logprobs[0, : len(own)]))
            pairs.append((self.ranked.normaliser[row : row + 1], alone.normaliser))
        return self.alone(pairs)

    # -- attention

    @cached_property
    def aligned(self) -> Array:
        """Of a ragged batch, whose sources have garbage behind their ends."""
        return self.served.align(self.targets, self.cross(range(len(self.targets))))

    def attention(self) -> tuple[float, str]:
        """Every layer and head; and the longest target alone, with a source that leaves it a choice."""
        worst, longest, expected = self.worst(), [self.samples.longest_target], self.expected
        if self.quantization:
            expected = Expected(emulated_model(self.plain_model, self.aligning))
        row = max(range(len(self.sources)), key=lambda row: len(self.sources[row]))
        for aligned, sources, targets in (
            (self.aligned, self.sources, self.targets),
            (self.served.align(longest, self.cross([row])), [self.sources[row]], longest),
        ):
            for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
                layers = expected.attention(source, target)
                for layer, weights in enumerate(layers):
                    actual = aligned[layer, row, :, : len(target), : len(source)]
                    worst.add(f"layer {layer + 1} of {len(layers)}", actual, weights)
        return worst.error, worst.note

    def attention_within(self) -> tuple[float, str]:
        behind = [self.aligned[:, row, :, :, len(source) :] for row, source in enumerate(self.sources)]
        return float(sum(differing(part, np.zeros_like(part)) for part in behind)), "weights behind a source's end"

    # -- whole answers

    def greedy(self) -> tuple[float, str]:
        """Whole answers, token by token; where the two best are closer than the tolerance, either is right."""
        limit = max(1, self.config.max_target_len // 2)
        start = len(self.config.template.target_prefix)
        prompts = [
            target[: limit if self.config.supports_chunked_prefill else max(start, 1)] for target in self.targets
        ]
        longest = self.config.max_target_len - max(map(len, prompts)) + 1
        max_tokens = min(GREEDY_TOKENS, longest)
        sources = self.sources if self.config.has_encoder else ()
        answers = answer_greedily(self.served, sources, prompts, self.config.eos_ids, max_tokens)
        wrong, ties = list[str](), list[str]()
        for source, prompt, answer in zip(self.sources, prompts, answers, strict=True):
            reference = tuple(greedy(self.model, prompt, source=source, max_tokens=max_tokens))
            if answer.tokens == reference:
                golden = Golden(source=source, prompt=prompt, output=reference)
                is_sure = answer.smallest_gap > SURE_CHOICES[self.precision]
                self.answers.append(RightAnswer(golden, is_sure, answer.smallest_gap))
                continue
            gap = self._gap(source, prompt, answer.tokens, reference)
            (ties if gap <= TIES[self.precision] else wrong).append(f"{gap:.1e}")
        closest = min(answer.smallest_gap for answer in answers)
        note = f"{len(answers)} answers of up to {max_tokens} tokens, closest choice {closest:.1e}"
        note += f"; near-ties: {', '.join(ties)}" if ties else ""
        return float(len(wrong)), note + (f"; wrong choices by: {', '.join(wrong)}" if wrong else "")

    def _gap(self, source: Ids, prompt: Ids, actual: Ids, reference: Ids) -> float:
        """By how much PyTorch prefers its own token where two answers part, as a share of its largest
        log-probability."""
        at = next(i for i, (a, b) in enumerate(zip(actual, reference, strict=False)) if a != b)
        logprobs = next_logits(self.model, [*prompt, *reference[:at]], source=source).log_softmax(-1)
        return float((logprobs[reference[at]] - logprobs[actual[at]]) / logprobs.abs().max())


def _valid(array: Array, length: int) -> Array:
    """The first `length` positions of states (S, M) or of keys or values (K, S, D); all of what has none (M,)."""
    return array[..., :length, :] if array.ndim > 1 else array


def _place(kept: Array, expected: Array) -> Array:
    """A view of the positions of a row's keys or values (K, T, D) of which something is expected; all of what has no
    positions (M,)."""
    return kept[:, : expected.shape[1]] if kept.ndim > 1 else kept


def _capacity(targets: Sequence[Ids]) -> int:
    return round_up(max(map(len, targets)), PAD_MULTIPLE)


def differing(actual: Array, expected: Array) -> int:
    return int((actual != expected).sum())


def _pairs(one: Prediction, other: Prediction) -> list[tuple[Array, Array]]:
    """What two predictions of a row must agree in; how many best tokens they name is their own affair."""
    return [(one.logits, other.logits), (one.logprobs, other.logprobs), (one.normaliser, other.normaliser)]


def garbage(shape: Sequence[int], dtype: Any) -> Array:
    """What buffers hold before they are written."""
    return np.full(shape, INT8_GARBAGE if np.dtype(dtype) == np.int8 else GARBAGE, dtype)


def _rows(arrays: Mapping[str, Array], start: int, stop: int) -> Arrays:
    """Rows of every array: views of the same memory."""
    return {name: array[start:stop] for name, array in arrays.items()}


def padded(rows: Sequence[Sequence[int]], length: int) -> Array:
    """Right-padded with id 0, int64 (rows, length)."""
    return np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int64)


def last_positions(blocks: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The last token of each row's block, by its row and its place there."""
    return [(row, len(block) - 1) for row, block in enumerate(blocks)]


def lengths(rows: Sequence[Sequence[int]]) -> Array:
    return np.array([len(row) for row in rows], np.int32)


def round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
