"""Greedy answers of graphs, and the choice of a bundle's golden answer among them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from export.manifest import PAD_MULTIPLE, Golden
from export.verification.graph_calls import Arrays, Graphs, lengths, round_up
from export.verification.inputs import Ids
from export.verification.measure import Check


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


@dataclass(frozen=True)
class Verification:
    checks: tuple[Check, ...]
    answers: tuple[RightAnswer, ...] = ()  # at most one per input

    @property
    def golden(self) -> Golden | None:
        """The best answer; None if no answer was correct."""
        return common_golden([self])


def common_golden(verifications: Sequence[Verification]) -> Golden | None:
    """An input and an answer, or the start of one, that all variants give correctly and alike; None if there is none.

    Variants of fewer bits legitimately answer some inputs differently from float32; then the common start of their
    answers can serve. Complete answers are preferred, then the richest, then those with the clearest choices.
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
    """The longest common prefix of the sequences."""
    places = zip(*sequences, strict=False)
    return tuple(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, places))


@dataclass(frozen=True)
class Answer:
    """New tokens, eos included, and the smallest margin between the two best tokens of a step, as a share of the
    largest log-probability."""

    tokens: Ids
    smallest_gap: float


def encode_for_decode(served: Graphs, sources: Sequence[Ids]) -> Arrays:
    """The inputs of `decode` that depend on sources: keys, values and lengths."""
    cross = {**served.encode(sources), "source_lengths": lengths(sources)}
    cross.pop("encoder_states")
    return cross


def answer_greedily(
    served: Graphs, sources: Sequence[Ids], prompts: Sequence[Sequence[int]], ends: Sequence[int], max_tokens: int
) -> list[Answer]:
    """Greedy answers of a batch: every row runs until the last one has finished; `sources` may be empty.

    prompts: all of one length if there are sources, because they are then fed token by token.
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
