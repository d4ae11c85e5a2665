"""Golden outputs, which a server must reproduce: a greedy answer, or a vector of an encoder-only model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from export.bundle.manifest import PAD_MULTIPLE, Golden, GoldenVector
from export.verification.inputs import Ids
from export.verification.measure import Array, Arrays
from export.verification.ort_graphs import OrtGraphs, lengths, round_up

# The largest difference of a vector on another machine, as a share of its largest value. Quantized graphs can differ by
# a step where a value lies between two integers.
VECTOR_TOLERANCES = {"fp32": 1e-3, "fp16": 3e-2, "int8": 0.1, "int4": 0.1, "w4a16": 3e-2}
DIGITS = 6  # significant digits of a golden vector's values


@dataclass(frozen=True)
class Answer:
    """New tokens, eos included; the margin between the two best tokens of each step, as a share of the largest
    log-probability; and the log-probability of each token."""

    tokens: Ids
    gaps: tuple[float, ...]
    logprobs: tuple[float, ...] = ()


def encode_for_decode(graphs: OrtGraphs, sources: Sequence[Ids]) -> Arrays:
    """The inputs of `decode` that depend on sources: keys, values and lengths, and the encoder states."""
    return {**graphs.encode(sources), "source_lengths": lengths(sources)}


def answer_greedily(
    graphs: OrtGraphs, sources: Sequence[Ids], prompts: Sequence[Sequence[int]], ends: Sequence[int], max_tokens: int
) -> list[Answer]:
    """Greedy answers of a batch: every row runs until the last one has finished; `sources` may be empty.

    prompts: all of one length if there are sources, because they are then fed token by token.
    """
    cross = encode_for_decode(graphs, sources) if sources else {}
    buffers = graphs.buffers(len(prompts), round_up(max(map(len, prompts)) + max_tokens, PAD_MULTIPLE))
    starts, blocks = [0] * len(prompts), [list(prompt) for prompt in prompts]
    if sources:
        *firsts, last = zip(*prompts, strict=True)
        for position, column in enumerate(firsts):
            graphs.decode([[token] for token in column], [position] * len(prompts), buffers, cross, top_k=0)
        starts, blocks = [len(firsts)] * len(prompts), [[token] for token in last]
    answers, gaps = [list[int]() for _ in prompts], [list[float]() for _ in prompts]
    logprobs = [list[float]() for _ in prompts]
    for _ in range(max_tokens):
        best = graphs.decode(blocks, starts, buffers, cross, top_k=2)
        starts = [start + len(block) for start, block in zip(starts, blocks, strict=True)]
        blocks = best.top_ids[:, :1].tolist()
        for row, answer in enumerate(answers):
            if not answer or answer[-1] not in ends:
                first, second = best.top_logprobs[row]
                answer.append(blocks[row][0])
                logprobs[row].append(float(first))
                gaps[row].append(float((first - second) / np.abs(best.logprobs[row]).max()))
        if all(answer[-1] in ends for answer in answers):
            break
    return [
        Answer(tuple(answer), tuple(gap), tuple(scores))
        for answer, gap, scores in zip(answers, gaps, logprobs, strict=True)
    ]


@dataclass(frozen=True)
class RightAnswer:
    """A greedy answer that equals the reference's, and whether another processor is certain to return it too."""

    golden: Golden
    is_sure: bool
    smallest_gap: float

    @property
    def merit(self) -> tuple[bool, int, float]:
        """Sort key: answers that other processors reproduce come first, then those with the most distinct tokens."""
        return self.is_sure, len(set(self.golden.output)), self.smallest_gap


def common_golden(variants: Sequence[Sequence[RightAnswer]]) -> Golden | None:
    """An input and an answer, or the start of one, that all variants give correctly and alike; None if there is none.

    variants: the right answers of each, at most one per input. Variants of fewer bits legitimately answer some inputs
    differently from float32; then the common start of their answers can serve. Complete answers are preferred, then the
    richest, then those with the clearest choices.
    """
    by_input = [{(a.golden.source, a.golden.prompt): a for a in answers} for answers in variants]
    best: tuple[tuple[bool, tuple[bool, int, float]], Golden] | None = None
    for source, prompt in set(by_input[0]).intersection(*by_input[1:]):
        answers = [variant[source, prompt] for variant in by_input]
        outputs = [answer.golden.output for answer in answers]
        is_whole = len(set(outputs)) == 1
        output = common_start(outputs)
        if not output:
            continue
        merged = RightAnswer(
            Golden(source=source, prompt=prompt, output=output),
            all(answer.is_sure for answer in answers),
            min(answer.smallest_gap for answer in answers),
        )
        if best is None or (is_whole, merged.merit) > best[0]:
            best = (is_whole, merged.merit), merged.golden
    return best[1] if best else None


def common_start(sequences: Sequence[Ids]) -> Ids:
    """The longest common prefix of the sequences."""
    columns = zip(*sequences, strict=False)
    return tuple(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def mean_state(graphs: OrtGraphs, source: Ids) -> Array:
    """The mean of the states of a text over its tokens, float32 (M,)."""
    states_SM = graphs.encode([source])["encoder_states"][0, : len(source)]
    mean: Array = states_SM.astype(np.float32).mean(0)
    return mean


def golden_vector(graphs: OrtGraphs, source: Ids) -> GoldenVector:
    """The vector of a text that a server must reproduce."""
    values = tuple(float(f"{value:.{DIGITS}g}") for value in mean_state(graphs, source))
    return GoldenVector(values=values, tolerance=VECTOR_TOLERANCES[graphs.variant.precision])


def vector_difference(vector: GoldenVector, values: Array) -> float:
    """The largest difference, as a share of the vector's largest value."""
    expected = np.array(vector.values)
    return float(np.abs(values - expected).max() / max(float(np.abs(expected).max()), 1e-6))
