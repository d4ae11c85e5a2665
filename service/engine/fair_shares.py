"""Fair shares of an engine's time: whose requests go first, and which live ones give way.

What a tenant has used is the engine's time: the seconds of every turn, split evenly among its rows, and those of
choosing the tokens of its own requests (grammars and wide beams take long), divided by the tenant's weight, and
forgotten with a half-life. (Decay-usage scheduling, as in Hellerstein, "Achieving service rate objectives with decay
usage scheduling", 1993. Tokens times rows, as in Sheng et al., "Fairness in serving large language models", 2024, would
count a row that steps alone like one of sixty that step together, whose step takes five times as long.) Waiting
tenants go in the order of their usage.

A guest is a lane that has more than it is due while others are there: one of a lower class, or of a tenant that used
more than GUEST_RATIO times the mean, and not by a few requests alone. Few rows of guests never matter. More of them
run only in slices: every second in which no guest but those few runs allows GUEST_SHARE seconds of the others, so a
host's answer takes at most a tenth longer. When only guests are left, nothing holds them back.

Besides, whoever they belong to, sequences of many rows leave them after ROWS_SLICE_S to smaller ones that wait.

Pure: turns are reported with their times. One engine's thread uses it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Items

from service.request import Request
from service.sequence import Lane, Sequence

HALF_LIFE_S = 1.0
"""Short: until a tenant that sends too much is found out, its rows are those of a host. On a core that is 91 % busy,
simulated, one that begins to send 20 times its share took the others' p99 from 40 to 190 ms within the 1.4 s that this
takes with 10 s and a margin of 0.1 s."""
GUEST_RATIO, GUEST_MARGIN_S = 1.5, 0.01
GUEST_ROWS = 2
"""Rows that guests may always have, together. In small models each costs a tenth of a step."""
GUEST_SHARE = 0.1
SLICE_S = 0.01
"""Time that guests save up before they run, so that parking and resuming them cost little beside it."""
ROWS_SLICE_S = 0.05
"""Time of the engine that a sequence of many rows has for itself before it leaves them to smaller ones that wait."""
BURDEN_WEIGHT = 0.1
MAX_TENANTS = 1024
"""Tenants that are remembered; those that used least are forgotten first."""
FORGET_S, NEGLIGIBLE_S = 10.0, 0.001
"""So often tenants are forgotten that used less than this: the mean is that of those that used the engine lately."""


class FairShares:
    """What the tenants of one engine have used.

    row_s: seconds that a row which was always live would have had so far. guests: of the last `meet`.
    """

    def __init__(self) -> None:
        self.row_s = 0.0
        # Seconds, times `_scale` at the time of their use: later ones count more than earlier ones.
        self._used: dict[str, float] = {}
        self._weights: dict[str, float] = {}  # of the same tenants
        self._total = self._weight = 0.0  # sums of both
        self._burdens: dict[str, float] = {}  # ordinary rows that one of a tenant's costs
        self._start_s: float | None = None
        self._scale = 1.0  # doubles with every half-life
        self._credit_s = 0.0
        self._guests_run = self._is_single = False
        self.guests: frozenset[Lane] = frozenset()

    def at(self, now_s: float) -> None:
        """Moves the time on."""
        if self._start_s is None:
            self._start_s = now_s
        elif now_s - self._start_s > FORGET_S:
            fade = 2.0 ** ((self._start_s - now_s) / HALF_LIFE_S)
            self._keep({tenant: used * fade for tenant, used in self._used.items() if used * fade > NEGLIGIBLE_S})
            self._start_s = now_s
        self._scale = 2.0 ** (max(0.0, now_s - self._start_s) / HALF_LIFE_S)

    def _keep(self, used: dict[str, float]) -> None:
        self._used = used
        self._weights = {tenant: self._weights[tenant] for tenant in used}
        self._burdens = {tenant: self._burdens[tenant] for tenant in used}
        self._total, self._weight = sum(used.values()), sum(self._weights.values())

    def used_s(self, tenant: str) -> float:
        """Seconds that a tenant has used, decayed, over its weight."""
        return self._used[tenant] / self._weights[tenant] / self._scale if tenant in self._used else 0.0

    def record(self, seconds: float, live: Items[Sequence], own_s: Mapping[Sequence, float]) -> None:
        """Charges a turn to the tenants of its live sequences. seconds: of what was computed for all rows together.
        own_s: of the choice of tokens, by sequence."""
        rows = sum([len(sequence.rows) for sequence in live])
        if not rows:
            return
        share_s = seconds / rows
        self.row_s += share_s
        if self._is_single:
            self._charge(live[0].request, seconds + sum(own_s.values()))
            return
        guests_s, guest_rows = 0.0, 0.0
        for sequence in live:
            count = len(sequence.rows)
            used_s = count * share_s + own_s.get(sequence, 0.0)
            self._charge(sequence.request, used_s)
            tenant = sequence.request.tenant
            if count and share_s:  # rows that were parked before the turn was read are no longer its own
                rows_per_row = max(1.0, used_s / (count * share_s))
                self._burdens[tenant] += BURDEN_WEIGHT * (rows_per_row - self._burdens[tenant])
            if sequence.lane in self.guests:
                guests_s += used_s
                guest_rows += self.rows_of(sequence)
        if self.guests:
            self._balance(seconds + sum(own_s.values()), guests_s if guest_rows > GUEST_ROWS else 0.0)

    def _charge(self, request: Request, seconds: float) -> None:
        tenant, used = request.tenant, seconds * self._scale
        self._burdens.setdefault(tenant, 1.0)
        self._weight += request.weight - self._weights.get(tenant, 0.0)
        self._weights[tenant] = request.weight
        self._used[tenant] = self._used.get(tenant, 0.0) + used
        self._total += used
        if len(self._used) > MAX_TENANTS:
            most = sorted(self._used, key=self._used.__getitem__, reverse=True)[: MAX_TENANTS // 2]
            self._keep({kept: self._used[kept] for kept in {*most, tenant}})

    def rows_of(self, sequence: Sequence) -> float:
        """How many rows a sequence counts as: more than it has if choosing its tenant's tokens takes long."""
        return sequence.width * self._burdens.get(sequence.request.tenant, 1.0)

    def _balance(self, seconds: float, guests_s: float) -> None:
        """Guests pay with what they saved while their hosts ran alone."""
        self._credit_s += -guests_s if guests_s else GUEST_SHARE * seconds
        self._credit_s = min(SLICE_S, self._credit_s)
        self._guests_run = self._credit_s > 0.0 and (self._guests_run or self._credit_s >= SLICE_S)

    def order(self, lanes: Collection[Lane]) -> list[Lane]:
        """Lanes in the order in which they get free rows."""
        if len(lanes) < 2:
            return list(lanes)
        return sorted(lanes, key=lambda lane: (lane[0], self.used_s(lane[1]), lane[1]))

    def meet(self, lanes: Collection[Lane]) -> None:
        """Finds the guests among all lanes with unfinished requests."""
        self._is_single = len(lanes) < 2
        found = frozenset() if self._is_single else self._find_guests(lanes)
        self.guests = found if len(found) < len(lanes) else frozenset()
        if not self.guests:  # those that meet hosts again begin without credit
            self._credit_s, self._guests_run = 0.0, False

    def _find_guests(self, lanes: Collection[Lane]) -> frozenset[Lane]:
        first = min([priority for priority, _ in lanes])
        tenants = {tenant for priority, tenant in lanes if priority == first}
        limit_s = math.inf
        if len(tenants) > 1:
            weight = self._weight + len(tenants - self._used.keys())
            limit_s = GUEST_RATIO * self._total / self._scale / weight + GUEST_MARGIN_S
        return frozenset([lane for lane in lanes if lane[0] > first or self.used_s(lane[1]) > limit_s])

    @property
    def rows_for_guests(self) -> float:
        """Rows that guests may have in the next turn, all together."""
        return math.inf if self._guests_run else GUEST_ROWS

    def makes_room(self, one: Sequence, other: Sequence) -> bool:
        """Whether a live sequence leaves its rows to one that waits: guests to hosts, and those of many rows, once they
        had their slice, to those of no more than half as many."""
        if self.is_guest_of(one, other):
            return True
        is_narrow = other.lane[0] <= one.lane[0] and 2 * other.width <= one.width
        return is_narrow and len(one.rows) * (self.row_s - one.row_s) >= ROWS_SLICE_S

    def is_guest_of(self, one: Sequence, other: Sequence) -> bool:
        """Whether one is a guest, and the other is none."""
        return one.lane in self.guests and other.lane not in self.guests
