"""The invariants of a scheduler between two turns, as one function for tests and simulations."""

from __future__ import annotations

from collections.abc import Iterator

from service.engine.scheduler import Scheduler
from service.sequence import Sequence


def check_invariants(scheduler: Scheduler) -> list[str]:
    """Every violated invariant of the scheduler's state, between two turns; [] if all hold."""
    broken: list[str] = []
    limits, live, waiting = scheduler.limits, scheduler.live, scheduler.waiting
    rows, reserved = len(scheduler.rows), scheduler.capacity.reserved
    if len(set(live) | set(waiting)) != len(live) + len(waiting):
        broken.append("a sequence is in two places")
    if any(sequence not in live for sequence, _ in scheduler.rows):
        broken.append("a row belongs to a sequence that is not live")
    for sequence in live:
        if sequence.outcome is None:  # the rows of ended ones are free from the next plan on
            broken += [f"{sequence.request.request_id}: {what}" for what in _of_sequence(sequence, limits.draft_tokens)]
    if sorted(row for sequence in live for row in sequence.rows) != list(range(rows)):
        broken.append(f"rows {[sequence.rows for sequence in live]} are not the prefix of {rows}")
    if any(sequence.rows or sequence.outcome is not None for sequence in waiting):
        broken.append("a waiting sequence has a row or an outcome")
    parked = sorted(sequence.slot for sequence in waiting if sequence.slot is not None)
    if parked != sorted(scheduler.parking.slots) or any(sequence.slot is not None for sequence in live):
        broken.append(f"slots {sorted(scheduler.parking.slots)} are in use, those of waiting sequences are {parked}")
    if scheduler.parking.used_bytes > limits.parking_bytes:
        broken.append(f"{scheduler.parking.used_bytes} bytes are parked of {limits.parking_bytes}")
    if rows > limits.max_rows or reserved.rows > limits.max_rows:
        broken.append(f"{rows} rows, {reserved.rows} reserved, of {limits.max_rows}")
    if rows > reserved.rows:
        broken.append(f"{rows} rows are used, {reserved.rows} reserved")
    if scheduler.capacity.reserved_bytes > limits.kv_cache_bytes:
        broken.append(f"{scheduler.capacity.reserved_bytes} bytes reserved of {limits.kv_cache_bytes}")
    if (used := scheduler.capacity.used_bytes(live)) > scheduler.capacity.reserved_bytes:
        broken.append(f"{used} bytes are used, {scheduler.capacity.reserved_bytes} reserved")
    return broken


def _of_sequence(sequence: Sequence, draft_tokens: int) -> Iterator[str]:
    """Those of one live sequence."""
    request, hypotheses, drafted = sequence.request, sequence.hypotheses, sequence.draft_tokens
    expected = max(0, sequence.num_computed - len(request.prompt) + 1) - sequence.unread
    if any(len(hypothesis.tokens) != expected for hypothesis in hypotheses):
        yield f"hypotheses must have {expected} tokens"
    if not hypotheses:
        yield "goes on without a hypothesis"
    if len(hypotheses) > sequence.width:
        yield f"{len(hypotheses)} hypotheses, reserved are {sequence.width} rows"
    if any(hypothesis.row not in sequence.rows for hypothesis in hypotheses):
        yield "a hypothesis continues a row of another sequence"
    if len(drafted) > draft_tokens or (drafted and len(sequence.rows) != 1):
        yield f"drafts {len(drafted)} tokens in rows {sequence.rows}"
    positions = len(request.prompt) + request.max_tokens - 1  # the very last token is never an input
    if expected > request.max_tokens or sequence.num_computed > positions:
        yield "is longer than it may be"
    committed = sequence.committed_tokens
    if any(hypothesis.tokens[: len(committed)] != committed for hypothesis in hypotheses):
        yield "a hypothesis contradicts the committed tokens"
