"""Beam search: the best hypotheses are extended together, and finished ones are kept in a pool.

In each step every live hypothesis proposes its best tokens. Of all candidates the best 2B are considered, where B is
the beam size: the B best unfinished ones are the next live hypotheses; finished ones enter the pool if they are among
the first B (as in `transformers` 5). The pool has B * patience slots (Kasai et al. 2022) and is ranked by the
length-normalised score. Two candidates per slot suffice with one end token, because at most B of the 2B end; each
further end token requires one more candidate per slot. Where constraints or stop strings end more hypotheses, the beam
is temporarily narrower.

Diverse groups (Vijayakumar et al. 2016) are separate beams; each is penalised for tokens that earlier groups selected
in the same step. Lexical constraints (Post & Vilar 2018) add candidates that make progress, and divide the beam among
hypotheses with equal progress.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items

from service.decoding.lexical_constraints import ConstraintState, LexicalConstraints, allocate
from service.decoding.token_selection import TokenSelector, unsatisfiable
from service.draws import Draws
from service.request import FinishReason
from service.sequence import Hypothesis, Sequence
from service.step import Predictions, Ranked, Scored

Candidate = tuple[float, int, int, float]
"""Negated score of the hypothesis, rank of the hypothesis it continues, token, score of the token. Sorted ascending,
the best comes first, and ties are decided."""


class _Group:
    """One beam: live hypotheses ordered by score, finished ones (the pool) ordered by normalised score."""

    __slots__ = ("is_done", "live", "pool")

    def __init__(self, root: Hypothesis) -> None:
        self.live = [root]
        self.pool: list[Hypothesis] = []
        self.is_done = False


class BeamSearch:
    """Beam search of one request."""

    def __init__(self, selector: TokenSelector) -> None:
        options = selector.options
        self._selector, self._options = selector, options
        # at most one object, for all phrases
        self._constraints = next((one for one in selector.processors if isinstance(one, LexicalConstraints)), None)
        self._state_index = selector.processors.index(self._constraints) if self._constraints is not None else -1
        self._width = options.beam_size // options.num_beam_groups
        self._pool_size = options.max_finished // options.num_beam_groups
        # without processors, prefix, stop strings and alternatives
        self._is_plain = selector.is_plain and not (selector.stops or options.top_logprobs)
        self._groups: list[_Group] = []
        self.draws: Draws = None
        self.is_greedy, self.needs_rows = False, not selector.is_plain or options.num_beam_groups > 1
        self._candidates_per_slot = max(2, 1 + len(selector.eos_ids))
        self.top_k = max(self._candidates_per_slot * options.beam_size, options.top_logprobs) + selector.spare

    def start(self) -> Hypothesis:
        """Returns the hypothesis without tokens, with which each group starts."""
        root = self._selector.start()
        self._groups = [_Group(root) for _ in range(self._options.num_beam_groups)]
        return root

    def advance(self, sequence: Sequence, output: Predictions) -> None:
        """Extends the beam of each group by one token. Raises Unsatisfiable if every group ends without an answer."""
        assert isinstance(output, Ranked)
        sequence.steps += 1
        sequence.num_generated += 1
        is_free = sequence.steps > len(sequence.request.prefix)
        taken = dict[int, int]()  # how often earlier groups selected each token in this step
        for group in self._groups:
            if not group.is_done:
                self._advance(group, output, taken)
                if is_free and len(self._groups) > 1:  # no group can avoid a forced token
                    for hypothesis in group.live:
                        taken[hypothesis.tokens[-1]] = 1 + taken.get(hypothesis.tokens[-1], 0)
                group.is_done = self._is_done(group, sequence.steps)
        running = [group for group in self._groups if not group.is_done]
        sequence.hypotheses = [hypothesis for group in running for hypothesis in group.live]
        if running:
            sequence.width = self._width * len(running)
            if sequence.request.is_streamed:
                extend_common_prefix(sequence.committed_tokens, [*sequence.hypotheses, *self._finished()[:1]])
        elif finished := self._finished():
            sequence.width = 1
            sequence.finish_with(finished[: self._options.num_hypotheses])
        else:
            raise unsatisfiable(sequence.steps - 1)

    def _finished(self) -> list[Hypothesis]:
        """The pools of all groups, best first."""
        finished = [hypothesis for group in self._groups for hypothesis in group.pool]
        return sorted(finished, key=lambda hypothesis: -hypothesis.normalised)

    def _advance(self, group: _Group, output: Ranked, taken: dict[int, int]) -> None:
        """One step of one group. taken: how often earlier groups selected each token."""
        candidates = self._candidates(group, output, taken)
        constraints, states = self._constraints, dict[Candidate, ConstraintState]()
        if constraints is not None:
            before = self._states(group)
            states = {one: constraints.next_state(before[one[1]], one[2]) for one in candidates}
        unfinished: list[Candidate] = []
        ending: list[tuple[Candidate, FinishReason]] = []
        complete, width, selector, live = 0, self._width, self._selector, group.live
        any_may_end = bool(selector.stops) or len(live[0].tokens) + 1 >= selector.request.max_tokens
        for candidate in candidates:
            is_complete = constraints is None or constraints.is_done(states[candidate])
            _, rank, token, _ = candidate
            reason = selector.finish_reason(live[rank], token) if any_may_end or token in selector.eos_ids else None
            if reason is None:
                unfinished.append(candidate)
                if constraints is None and len(unfinished) == width:
                    break  # no later candidate may end
            elif is_complete and complete < width:
                ending.append((candidate, reason))
            complete += is_complete
        if constraints is not None:
            banks = [(-candidate[0], constraints.num_met(states[candidate])) for candidate in unfinished]
            unfinished = [unfinished[index] for index in sorted(allocate(banks, width))]
        for candidate, reason in ending:
            hypothesis = self._child(group, candidate, output)
            hypothesis.reason = reason
            self._selector.normalise(hypothesis, hypothesis.row, output.deferred)
            group.pool.append(hypothesis)
        if ending:
            group.pool.sort(key=lambda finished: -finished.normalised)  # stable: of equal ones the earlier stays first
            del group.pool[self._pool_size :]
        group.live = [self._child(group, candidate, output) for candidate in unfinished[:width]]

    def _candidates(self, group: _Group, output: Ranked, taken: dict[int, int]) -> list[Candidate]:
        """The best continuations of all live hypotheses, best first. With constraints, also the best one of each
        hypothesis and all that make progress."""
        penalty, count = self._options.diversity_penalty, self._candidates_per_slot * self._width
        if taken or self._constraints is not None:
            progressing: list[Collection[int]] = [()] * len(group.live)
            if self._constraints is not None:
                progressing = [self._constraints.next_tokens(state) for state in self._states(group)]
            candidates = [
                (penalty * taken.get(token, 0) - score - hypothesis.score, rank, token, score)
                for rank, hypothesis in enumerate(group.live)
                for token, score in self._selector.best_tokens(
                    hypothesis, output, count + len(taken), progressing[rank]
                )
            ]
            candidates.sort()
        else:
            candidates = self._best_by_score(group, output, count)
        if self._constraints is None:
            return candidates[:count]
        kept, seen = list[Candidate](), set[int]()
        for index, candidate in enumerate(candidates):
            _, rank, token, _ = candidate
            if index < count or rank not in seen or token in progressing[rank]:
                kept.append(candidate)
            seen.add(rank)
        return kept

    def _best_by_score(self, group: _Group, output: Ranked, count: int) -> list[Candidate]:
        """The `count` best continuations without penalties, possibly followed by others. The continuations of each
        hypothesis come best first, so those of later hypotheses mostly end at the first one that is too bad."""
        candidates: list[Candidate] = []
        worst = math.inf  # negated score of the last of `count` continuations of the first hypothesis
        for rank, hypothesis in enumerate(group.live):
            so_far = hypothesis.score
            best: Iterable[Scored]
            if self._selector.is_plain:
                row = hypothesis.row
                best = zip(output.top_ids[row][:count], output.top_logprobs[row][:count], strict=True)
            else:
                best = self._selector.best_tokens(hypothesis, output, count)
            for token, score in best:
                negated = -score - so_far
                if negated > worst:
                    break
                candidates.append((negated, rank, token, score))
            if rank == 0 and len(candidates) == count:
                worst = candidates[-1][0]
        candidates.sort()
        return candidates

    def _states(self, group: _Group) -> list[ConstraintState]:
        """The state of the constraints of each live hypothesis."""
        return [hypothesis.processor_states[self._state_index] for hypothesis in group.live]

    def _child(self, group: _Group, candidate: Candidate, output: Ranked) -> Hypothesis:
        negated, rank, token, score = candidate
        parent = group.live[rank]
        if self._is_plain:
            tokens, logprobs = [*parent.tokens, token], [*parent.logprobs, score]
            return Hypothesis((), parent.stop, tokens, logprobs, [], -negated, parent.row)
        child = parent.fork()
        self._selector.append(child, token, output, score)
        child.score = -negated
        return child

    def _is_done(self, group: _Group, steps: int) -> bool:
        """Whether no hypothesis is live, or none is expected to beat the worst of a full pool."""
        if not group.live:
            return True
        if len(group.pool) < self._pool_size:
            return False
        if self._options.early_stopping == "true":
            return True
        longest = self._selector.request.max_tokens
        is_never = self._options.early_stopping == "never" and self._options.length_penalty > 0
        best_possible = group.live[0].score / self._selector.length_norm(longest if is_never else steps)
        return best_possible <= group.pool[-1].normalised


def extend_common_prefix(common: list[int], hypotheses: Items[Hypothesis]) -> None:
    """Appends to a common prefix of all hypotheses the tokens that they share after it.

    The common prefix of all live hypotheses and the best finished one begins the answer: the answer is that one, or
    continues a live one.
    """
    first, *others = [hypothesis.tokens for hypothesis in hypotheses]
    for position in range(len(common), min(map(len, (first, *others)))):
        if any(tokens[position] != first[position] for tokens in others):
            break
        common.append(first[position])
