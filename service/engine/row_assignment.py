"""Row assignment: which hypothesis computes in which row of the key-value cache, and what must be copied for that.

Every live hypothesis has a row, and live rows are the dense prefix [0, n). Rows are assigned anew only when hypotheses
came or went. The first hypothesis that continues a row keeps it; all others, and those whose row lies beyond the new
end, are copied into rows that no hypothesis continues. So a copy never reads what another one writes, and there are as
few copies as possible. A hypothesis is copied preferably into a row of its own request: there the source's keys and
values are right already, and so are all positions up to where the two hypotheses part. Pure: no buffers, no sessions.
"""

from __future__ import annotations

from typing import NamedTuple

from service.sequence import Hypothesis, Sequence
from service.step import Copy, Resumed

Assigned = tuple[Sequence, Hypothesis]


def is_settled(rows: list[Assigned], live: list[Sequence]) -> bool:
    """Whether every row is continued by the hypothesis that has it, and no live hypothesis lacks a row."""
    return sum([len(sequence.hypotheses) for sequence in live]) == len(rows) and all(
        hypothesis is rows[hypothesis.row][1] for sequence in live for hypothesis in sequence.hypotheses
    )


class Assignment(NamedTuple):
    """rows: by row. copies: what must be copied for that. resumed: what must be restored."""

    rows: list[Assigned]
    copies: tuple[Copy, ...] = ()
    resumed: tuple[Resumed, ...] = ()


def assign(rows: list[Assigned], live: list[Sequence], admitted: list[Sequence], resumed: list[Sequence]) -> Assignment:
    """Gives every live hypothesis a row of its own, and those of `admitted` and then of `resumed`, in their order, the
    rows that are left. rows: those of the last plan. admitted, resumed: the last ones of `live`."""
    entering = [(sequence, hypothesis) for sequence in (*admitted, *resumed) for hypothesis in sequence.hypotheses]
    assigned, displaced = _keep(live[: len(live) - len(admitted) - len(resumed)], len(entering))
    free = [row for row in range(len(assigned) + len(displaced) + len(entering)) if row not in assigned]
    own: dict[Sequence, list[int]] = {}  # free rows that hold the right source already
    for row in free:
        if row < len(rows):
            own.setdefault(rows[row][0], []).append(row)
    copies: list[Copy] = []
    elsewhere: list[Assigned] = []
    for sequence, hypothesis in displaced:
        if of_sequence := own.get(sequence):
            row = of_sequence.pop()
            start = _common_positions(sequence, rows[row][1], hypothesis)
            copies.append(Copy(hypothesis.row, row, start, sequence.num_computed, 0))
            assigned[row] = sequence, hypothesis
        else:
            elsewhere.append((sequence, hypothesis))
    left = [row for row in free if row not in assigned]
    for row, (sequence, hypothesis) in zip(left, elsewhere, strict=False):
        request = sequence.request
        copies.append(Copy(hypothesis.row, row, 0, sequence.num_computed, len(request.source), len(request.shortlist)))
        assigned[row] = sequence, hypothesis
    lines: dict[Sequence, dict[int, int]] = {sequence: {} for sequence in resumed}
    for row, (sequence, hypothesis) in zip(left[len(elsewhere) :], entering, strict=True):
        assigned[row] = sequence, hypothesis
        if sequence in lines:
            lines[sequence][row] = hypothesis.row
    restored = [Resumed(slot, by_row) for one, by_row in lines.items() if (slot := one.slot) is not None]
    return Assignment(_stored(assigned, live), tuple(copies), tuple(restored))


def _keep(live: list[Sequence], entering: int) -> tuple[dict[int, Assigned], list[Assigned]]:
    """The hypotheses that keep the row they continue, by row, and those that need another one: all but the first that
    continue a row, and those whose rows lie beyond the end of the prefix that is needed."""
    kept: dict[int, Assigned] = {}
    displaced: list[Assigned] = []
    for sequence in live:
        for hypothesis in sequence.hypotheses:
            if hypothesis.row in kept:
                displaced.append((sequence, hypothesis))
            else:
                kept[hypothesis.row] = sequence, hypothesis
    count = len(kept) + len(displaced) + entering
    displaced += [kept.pop(row) for row in sorted(kept) if row >= count]
    return kept, displaced


def _stored(assigned: dict[int, Assigned], live: list[Sequence]) -> list[Assigned]:
    """Records the assignment in hypotheses and sequences, and returns it by row."""
    rows_of: dict[Sequence, list[int]] = {sequence: [] for sequence in live}
    rows = [assigned[row] for row in range(len(assigned))]
    for row, (sequence, hypothesis) in enumerate(rows):
        hypothesis.row = row
        rows_of[sequence].append(row)
    for sequence, own in rows_of.items():
        sequence.rows = tuple(own)
    return rows


def _common_positions(sequence: Sequence, old: Hypothesis, new: Hypothesis) -> int:
    """How many positions the cache of `old`, which was in a row, has in common with that of `new`."""
    pairs = enumerate(zip(old.tokens, new.tokens, strict=False))  # the newest token is in no cache yet
    common = next((place for place, (one, other) in pairs if one != other), len(old.tokens))
    return len(sequence.request.prompt) + common
