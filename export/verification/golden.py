"""Greedy answers of graphs, and which of them becomes the golden answer of a bundle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from export.bundle import PAD_MULTIPLE, Golden
from export.verification.graph_calls import Arrays, Graphs, lengths, round_up
from export.verification.inputs import Ids
from export.verification.measure import Check


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
