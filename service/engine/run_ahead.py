"""Turns that are planned before the last one was read: which sequences go on in them, and with which inputs.

A row that follows the most likely token, or one that the device draws, goes on: where its last token is, the device
takes it from there. All others repeat their last input, because live rows are a prefix, and go on one turn later. Where
all rows go on, a turn has several steps: the host takes as long for a turn as the device for some.

A drawn token may be a guess. When it turns out to be wrong, what the row has computed since is dropped, and it goes on
from the right one (`back_on_track`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from service.draws import Draw
from service.engine.row_assignment import Assigned
from service.sequence import Hypothesis
from service.sequence import Sequence as DecodedSequence
from service.step import DecodeStep, Ranked, TurnOutput

LAUNCHED_S = 0.0025
"""Seconds of steps in a turn that has more than one. A request that comes waits for two turns, so for 5 ms at most."""

Fed = tuple[tuple[int, int], ...]
"""See `service.step.DecodeStep.fed`."""


def is_free(sequence: DecodedSequence, *, can_repeat: bool) -> bool:
    """Whether a device can choose the tokens of a sequence. can_repeat: inputs, after a wrong guess."""
    return sequence.search.is_greedy or (can_repeat and sequence.search.draws is not None)


def goes_on(sequence: DecodedSequence, *, can_repeat: bool) -> bool:
    """Whether a sequence can take another step before its last turn is read."""
    is_short = sequence.steps + sequence.unread < sequence.request.max_tokens
    return is_short and is_free(sequence, can_repeat=can_repeat)


def held_back(live: Iterable[DecodedSequence], *, can_repeat: bool) -> frozenset[DecodedSequence]:
    """The sequences that repeat their input in a turn that is planned before the last one was read."""
    unread = [sequence for sequence in live if sequence.unread]
    return frozenset([sequence for sequence in unread if not goes_on(sequence, can_repeat=can_repeat)])


def can_run_ahead(live: Iterable[DecodedSequence], *, can_repeat: bool) -> bool:
    """Whether the next turn can be planned before the last one was read, and brings a sequence forward.

    can_repeat: inputs; state without positions would take them in twice.
    """
    unread = [sequence for sequence in live if sequence.unread and sequence.outcome is None]
    going_on = sum([goes_on(sequence, can_repeat=can_repeat) for sequence in unread])
    if not going_on or not (can_repeat or going_on == len(unread)):
        return False
    return not any(sequence.request.encoder_request for sequence in unread)


def more_steps(
    live: Iterable[DecodedSequence],
    held: Collection[DecodedSequence],
    *,
    step_s: float,
    most: int,
    can_repeat: bool,
) -> int:
    """Steps that a turn makes after its first one. step_s: of one, lately; 0: not known. most: of a turn."""
    count = min(most, int(LAUNCHED_S / step_s)) if step_s else 1
    for sequence in live:
        request, search = sequence.request, sequence.search
        tokens = sequence.steps + sequence.unread
        is_chosen = is_free(sequence, can_repeat=can_repeat) and tokens >= len(request.prefix)
        if not is_chosen or search.needs_rows or sequence.num_computed < len(request.prompt) - 1:
            return 0
        if sequence not in held:
            count = min(count, request.max_tokens - tokens)
    return max(0, count - 1)


def draws(
    live: Iterable[DecodedSequence], held: Collection[DecodedSequence], steps: int
) -> tuple[tuple[int, Draw], ...]:
    """How the tokens of a turn are drawn, by row. steps: of the turn."""
    found = []
    for sequence in live:
        ahead, forced, read = sequence.search.draws, len(sequence.request.prefix), sequence.steps
        first = read + sequence.unread - max(read, forced)
        if ahead is not None and first >= 0 and sequence not in held:
            found.append((sequence.rows[0], ahead(first, steps)))
    return tuple(found)


def back_on_track(
    advancing: Iterable[DecodedSequence], turn: TurnOutput, launched: DecodeStep | None
) -> frozenset[DecodedSequence]:
    """Of sequences that a turn with draws was to extend those that go on with another input than the turn behind it has
    taken, and are computed again from there. launched: of that turn; None: there is none."""
    found, fed = [], {row for row, _ in launched.fed} if launched is not None else set()
    for sequence in advancing:
        if sequence.outcome is not None or sequence.search.draws is None:
            continue
        row, place = sequence.rows[0], len(sequence.request.prompt) + sequence.steps - 1
        if sequence.unread and launched is not None and launched.starts[row] == place:
            burst, predictions = turn.bursts.get(row), turn.predictions
            assert isinstance(predictions, Ranked)
            taken = predictions.taken(burst.lines[-1] if burst else row) if row in fed else launched.tokens[row]
            if taken == sequence.hypotheses[0].tokens[-1]:
                continue
        sequence.go_back(place)
        found.append(sequence)
    return frozenset(found)


def inputs(rows: Sequence[Assigned], starts: Sequence[int], before: Sequence[Assigned]) -> tuple[tuple[int, ...], Fed]:
    """The tokens of rows at positions `starts`, 0 where only the last turn knows them, and of which of its rows these
    are. before: the rows of that turn."""
    if not any(sequence.unread for sequence, _ in rows):
        return tuple(
            [
                hypothesis.tokens[-1] if at >= len(prompt := sequence.request.prompt) else prompt[at]
                for at, (sequence, hypothesis) in zip(starts, rows, strict=True)
            ]
        ), ()
    tokens = [_input(*assigned, at) for assigned, at in zip(rows, starts, strict=True)]
    row_of = {hypothesis: row for row, (_, hypothesis) in enumerate(before)}
    fed = tuple([(row, row_of[rows[row][1]]) for row, token in enumerate(tokens) if token is None])
    return tuple([token or 0 for token in tokens]), fed


def place(turn: TurnOutput, rows: Sequence[Assigned], moved: Iterable[DecodedSequence]) -> None:
    """Gives the output of a turn by the rows that sequences have now, and drops what is about those that have ended.

    rows: of the turn. moved: the live sequences, if any of them has another row now.
    """
    if turn.non_finite:
        ended = {row for row, (sequence, _) in enumerate(rows) if sequence.outcome is not None}
        turn.non_finite = [line for line in turn.non_finite if line % len(rows) not in ended]
    if live := {sequence for sequence in moved if sequence.outcome is None}:
        lines = {hypothesis.row: line for line, (sequence, hypothesis) in enumerate(rows) if sequence in live}
        if turn.bursts:
            turn.bursts = {row: turn.bursts[line] for row, line in lines.items()}
        else:
            turn.predictions = turn.predictions.moved(lines)


def _input(sequence: DecodedSequence, hypothesis: Hypothesis, at: int) -> int | None:
    """The token at position `at` of a row; None: it was not read yet."""
    request, place = sequence.request, at - len(sequence.request.prompt)
    if place < 0:
        return request.prompt[at]
    if place < len(hypothesis.tokens):
        return hypothesis.tokens[place]
    return request.prefix[place] if place < len(request.prefix) else None
