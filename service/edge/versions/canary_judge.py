"""Whether a canary is good: figures in, a verdict out (`judge`). Knows no clock, metric or model.

A canary is judged by slices of its time, each a third of its patience or longer. Shares break a bound if they are above
it by more than chance (`is_above`), so that few calls decide nothing; three slices in a row that break the same bound
send it back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from service.edge.observability.traffic_series import PROMOTED, TOO_FEW
from service.errors import InvalidRequest

SLICES = 3  # of a patience; and in a row that send back
MIN_CALLS = 20  # of each version, in a slice
CHANCE = 0.01  # that a share which is at its bound is found above it
SLOWEST = 0.01  # the share of calls that are slower than the 99th percentile
MAX_SECONDS = 7 * 86400.0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a canary may be worse by. chrf, disagreement: None: no bound. See `CanaryBounds` in admin.proto."""

    failed: float = 0.01
    p99: float = 1.5
    chrf: float | None = None
    disagreement: float | None = None
    memory: float = 0.5

    def check(self, *, has_test_set: bool, has_shadow: bool) -> None:
        """Raises InvalidRequest for a value that is none, and for a bound whose figure nobody measures."""
        rules = {
            "failed": (0 <= self.failed < 1, "at least 0 and below 1"),
            "p99": (1 < self.p99 < math.inf, "above 1"),
            "chrf": (self.chrf is None or 0 <= self.chrf <= 100, "0..100"),
            "disagreement": (self.disagreement is None or 0 <= self.disagreement < 1, "at least 0 and below 1"),
            "memory": (0 < self.memory < math.inf, "above 0"),
        }
        for name, (is_good, rule) in rules.items():
            if not is_good:
                raise InvalidRequest(f"bounds.{name}", f"must be {rule}, got {getattr(self, name):g}")
        if self.chrf is not None and not has_test_set:
            raise InvalidRequest("bounds.chrf", f"{self.chrf:g} needs a test set, and there is none; send evaluation")
        if self.disagreement is not None and not has_shadow:
            problem = f"{self.disagreement:g} needs shadow answers to compare, and shadow_share is 0"
            raise InvalidRequest("bounds.disagreement", problem)


def check_times(duration_s: float, patience_s: float) -> None:
    """Raises InvalidRequest."""
    if not 0 < duration_s <= MAX_SECONDS:
        raise InvalidRequest("duration", f"must be above 0 and at most {MAX_SECONDS:g} s, got {duration_s:g} s")
    if not 0 < patience_s <= duration_s / 3:
        limit = f"at most a third of duration, {duration_s / 3:g} s"
        raise InvalidRequest("patience", f"must be above 0 and {limit}, got {patience_s:g} s")


class Slice(NamedTuple):
    """What was seen in a part of a canary's time.

    timed: its answers whose times are kept, 0 if the default version has none to compare with. slow: of these, those
    that took longer than `Bounds.p99` times the default version's 99th percentile. p99_s: seconds.
    is_down: no engine of it ran. compared, different: answers of shadows. memory: growth of resident memory since the
    first slice, 0.5: by half. chrf_loss: points, None while not known.
    """

    calls: int
    failed: int
    slow: int
    p99_s: float
    default_calls: int
    default_failed: int
    default_p99_s: float
    timed: int = 0
    is_down: bool = False
    compared: int = 0
    different: int = 0
    memory: float = 0.0
    chrf_loss: float | None = None


class Verdict(NamedTuple):
    """outcome: promoted, or the bound that sends a canary back; empty: it goes on. reason: in words."""

    outcome: str = ""
    reason: str = ""


GO_ON = Verdict()


def is_above(count: int, of: int, share: float) -> bool:
    """Whether `count` of `of` is a larger share than `share`, with a chance of at most CHANCE to say so of one that is
    equal (the tail of the binomial distribution)."""
    if not of or count <= share * of:
        return False
    if share <= 0:
        return True
    logs = (math.lgamma(of + 1) + k * math.log(share) + (of - k) * math.log1p(-share) for k in range(count))
    below = sum(math.exp(log - math.lgamma(k + 1) - math.lgamma(of - k + 1)) for k, log in enumerate(logs))
    return 1 - below <= CHANCE


def broken(part: Slice, bounds: Bounds) -> dict[str, str]:
    """The bounds that a slice breaks, each with how."""
    found = {}
    allowed = min(0.999, bounds.failed + part.default_failed / max(1, part.default_calls))
    if part.is_down:
        found["failed"] = "no engine of it ran"
    elif is_above(part.failed, part.calls, allowed):
        found["failed"] = f"it failed {part.failed} of {part.calls} requests, and {allowed:.2%} are allowed"
    if is_above(part.slow, part.timed, SLOWEST):
        found["p99"] = (
            f"{part.slow} of {part.timed} requests took longer than {bounds.p99:g} times the default version's p99 of "
            f"{1e3 * part.default_p99_s:.1f} ms, p99 {1e3 * part.p99_s:.1f} ms"
        )
    if bounds.chrf is not None and part.chrf_loss is not None and part.chrf_loss > bounds.chrf:
        found["chrf"] = f"its chrF is {part.chrf_loss:.2f} points worse, and {bounds.chrf:g} are allowed"
    if bounds.disagreement is not None and is_above(part.different, part.compared, bounds.disagreement):
        found["disagreement"] = (
            f"{part.different} of {part.compared} shadow answers differ, and {bounds.disagreement:.2%} may"
        )
    if part.memory > bounds.memory:
        found["memory"] = f"its resident memory grew by {part.memory:.0%}, and {bounds.memory:.0%} are allowed"
    return found


def judge(slices: Sequence[Slice], bounds: Bounds, *, left_s: float, patience_s: float) -> Verdict:
    """The verdict on a canary. slices: all so far. left_s: of its time, below 0 after it.

    At its end a canary without enough calls to judge goes back. One that has begun to break a bound goes on, for its
    patience at most, and then goes back.
    """
    last = [broken(part, bounds) for part in slices[-SLICES:]]
    if len(last) == SLICES:
        for name, how in last[-1].items():
            if all(name in each for each in last):
                return Verdict(name, how)
    if left_s > 0:
        return GO_ON
    if len(slices) < SLICES:
        least = f"{MIN_CALLS} requests of both versions in each of {SLICES} parts of its time"
        return Verdict(TOO_FEW, f"there were not {least}")
    if bounds.disagreement is not None and sum(part.compared for part in slices) < MIN_CALLS:
        return Verdict(TOO_FEW, f"fewer than {MIN_CALLS} shadow answers could be compared")
    if bounds.chrf is not None and slices[-1].chrf_loss is None:
        return GO_ON  # its test set is still being answered
    if not last[-1]:
        return Verdict(PROMOTED, "it broke no bound")
    if left_s > -patience_s:
        return GO_ON
    name, how = next(iter(last[-1].items()))
    return Verdict(name, f"{how}, at the end of its time")
