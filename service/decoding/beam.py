"""Beam search: the best few hypotheses are extended together, and those that end are kept in a pool.

In each step every live hypothesis proposes its best tokens; of all proposals the best 2B are looked at, where B is the
beam size: the B best that go on are the next live hypotheses, those that end enter the pool if they are among the first
B (as in `transformers` 5). The pool has B * patience places (Kasai et al. 2022) and is ranked by score over length. Two
candidates a place are enough where one token ends answers, because at most B of the 2B end; each other token that ends
answers takes another candidate a place. Where constraints or stop strings end more, the beam is narrower for a while.

Diverse groups (Vijayakumar et al. 2016) are beams of their own, each of which pays for tokens that earlier groups took
in the same step. Phrases that must appear (Post & Vilar 2018) add candidates that advance them, and divide the beam
among hypotheses that have come equally far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from collections.abc import Sequence as Items

from service.decoding.lexical_constraints import ConstraintState, allocate, constraints_of
from service.decoding.token_selection import TokenSelector, unsatisfiable
from service.request import FinishReason
from service.sequence import Hypothesis, Sequence
from service.step import StepOutput

Candidate = tuple[float, int, int, float]
"""Negated score, rank of the hypothesis it continues, token, and its score alone: sorted, the best comes first, and
ties are decided."""


class _Group:
    """A beam: live hypotheses in order of their scores, finished ones in order of their normalised scores."""

    __slots__ = ("is_done", "live", "pool")

    def __init__(self, root: Hypothesis) -> None:
        self.live = [root]
        self.pool: list[Hypothesis] = []
        self.is_done = False


class BeamSearch:
    """Beam search of one sequence."""

    def __init__(self, selector: TokenSelector) -> None:
        options = selector.options
        self._selector, self._options = selector, options
        self._phrases = constraints_of(selector.request)
        self._place = selector.rules.index(self._phrases) if self._phrases is not None else -1  # among the states
        self._width = options.beam_size // options.num_beam_groups
        self._places = options.max_finished // options.num_beam_groups
        self._groups: list[_Group] = []
        self.is_greedy, self.is_scored = False, True
        self._looked_at = max(2, 1 + len(selector.eos_ids))  # candidates a place
        self.top_k = max(self._looked_at * options.beam_size, options.top_logprobs)

    def start(self) -> Hypothesis:
        root = self._selector.start()
        self._groups = [_Group(root) for _ in range(self._options.num_beam_groups)]
        return root

    def advance(self, sequence: Sequence, output: StepOutput) -> None:
        sequence.steps += 1
        sequence.num_generated += 1
        is_free = sequence.steps > len(sequence.request.prefix)
        taken: Counter[int] = Counter()  # by earlier groups in this step
        for group in self._groups:
            if not group.is_done:
                self._advance(group, output, taken)
                if is_free and len(self._groups) > 1:  # nobody can avoid a forced token
                    taken.update(hypothesis.tokens[-1] for hypothesis in group.live)
                group.is_done = self._is_done(group, sequence.steps)
        running = [group for group in self._groups if not group.is_done]
        sequence.hypotheses = [hypothesis for group in running for hypothesis in group.live]
        if running:
            sequence.width = self._width * len(running)
            if sequence.request.is_streamed:
                agree(sequence.committed_tokens, [*sequence.hypotheses, *self._finished()[:1]])
        elif finished := self._finished():
            sequence.width = 1
            sequence.finish_with(finished[: self._options.num_hypotheses])
        else:
            raise unsatisfiable(sequence.steps - 1)

    def _finished(self) -> list[Hypothesis]:
        """Those of all groups, best first."""
        finished = [hypothesis for group in self._groups for hypothesis in group.pool]
        return sorted(finished, key=lambda hypothesis: -hypothesis.normalised)

    def _advance(self, group: _Group, output: StepOutput, taken: Counter[int]) -> None:
        """One step of one group. `taken`: how often earlier groups chose a token."""
        candidates = self._candidates(group, output, taken)
        phrases, progress = self._phrases, self._progress(group, candidates)
        going: list[Candidate] = []
        ending: list[tuple[Candidate, FinishReason]] = []
        complete, width, end = 0, self._width, self._selector.end
        for candidate in candidates:
            is_complete = phrases is None or phrases.is_done(progress[candidate])
            reason = end(group.live[candidate[1]], candidate[2])
            if reason is None:
                going.append(candidate)
                if phrases is None and len(going) == width:
                    break  # there were as many that may end
            elif is_complete and complete < width:
                ending.append((candidate, reason))
            complete += is_complete
        if phrases is not None:
            banks = [(-candidate[0], phrases.met(progress[candidate])) for candidate in going]
            going = [going[place] for place in sorted(allocate(banks, width))]
        for candidate, reason in ending:
            hypothesis = self._child(group, candidate, output)
            hypothesis.reason = reason
            self._finish(group, hypothesis, output)
        group.live = [self._child(group, candidate, output) for candidate in going[:width]]

    def _candidates(self, group: _Group, output: StepOutput, taken: Counter[int]) -> list[Candidate]:
        """The best continuations of all live hypotheses, best first. With phrases, each hypothesis's best one too,
        and all that bring it closer to having them."""
        penalty, count = self._options.diversity_penalty, self._looked_at * self._width
        if taken or self._phrases is not None:
            helpful = [self._helpful(hypothesis) for hypothesis in group.live]
            candidates = [
                (penalty * taken[token] - score - hypothesis.score, rank, token, score)
                for rank, hypothesis in enumerate(group.live)
                for token, score in self._selector.best(hypothesis, output, count + len(taken), helpful[rank])
            ]
            candidates.sort()
        else:
            candidates = self._likeliest(group, output, count)
        if self._phrases is None:
            return candidates[:count]
        kept, seen = list[Candidate](), set[int]()
        for place, candidate in enumerate(candidates):
            _, rank, token, _ = candidate
            if place < count or rank not in seen or token in helpful[rank]:
                kept.append(candidate)
            seen.add(rank)
        return kept

    def _likeliest(self, group: _Group, output: StepOutput, count: int) -> list[Candidate]:
        """The `count` best continuations by their scores alone, and perhaps others behind them. Each hypothesis's come
        best first, so most of those of later ones are left out after one look."""
        candidates: list[Candidate] = []
        worst = math.inf  # negated score of the last one that would be wanted of the first hypothesis alone
        for rank, hypothesis in enumerate(group.live):
            so_far = hypothesis.score
            for token, score in self._selector.best(hypothesis, output, count):
                negated = -score - so_far
                if negated > worst:
                    break
                candidates.append((negated, rank, token, score))
            if rank == 0 and len(candidates) == count:
                worst = candidates[-1][0]
        candidates.sort()
        return candidates

    def _helpful(self, hypothesis: Hypothesis) -> Collection[int]:
        """The tokens that bring a hypothesis closer to having all phrases."""
        return () if self._phrases is None else self._phrases.next_tokens(hypothesis.processor_states[self._place])

    def _progress(self, group: _Group, candidates: Items[Candidate]) -> dict[Candidate, ConstraintState]:
        """How far each candidate would have come with the phrases."""
        if self._phrases is None:
            return {}
        states = [hypothesis.processor_states[self._place] for hypothesis in group.live]
        return {candidate: self._phrases.next_state(states[candidate[1]], candidate[2]) for candidate in candidates}

    def _child(self, group: _Group, candidate: Candidate, output: StepOutput) -> Hypothesis:
        negated, rank, token, score = candidate
        child = group.live[rank].fork()
        self._selector.append(child, token, output, score)
        child.score = -negated
        return child

    def _finish(self, group: _Group, hypothesis: Hypothesis, output: StepOutput) -> None:
        self._selector.normalise(hypothesis, hypothesis.row, output)
        group.pool.append(hypothesis)
        group.pool.sort(key=lambda finished: -finished.normalised)  # stable: of equal ones the earlier stays first
        del group.pool[self._places :]

    def _is_done(self, group: _Group, steps: int) -> bool:
        """Nothing can go on, or nothing that goes on is expected to be better than what is in the full pool."""
        if not group.live:
            return True
        if len(group.pool) < self._places:
            return False
        if self._options.early_stopping == "true":
            return True
        longest = self._selector.request.max_tokens
        is_never = self._options.early_stopping == "never" and self._options.length_penalty > 0
        best_possible = group.live[0].score / self._selector.norm(longest if is_never else steps)
        return best_possible <= group.pool[-1].normalised


def agree(agreed: list[int], hypotheses: Items[Hypothesis]) -> None:
    """Appends to `agreed` what all hypotheses have in common behind it. What is common to all live hypotheses and the
    best finished one begins the answer, whatever happens: the answer is that one, or continues a live one."""
    first, *others = [hypothesis.tokens for hypothesis in hypotheses]
    for place in range(len(agreed), min(map(len, (first, *others)))):
        if any(tokens[place] != first[place] for tokens in others):
            break
        agreed.append(first[place])
