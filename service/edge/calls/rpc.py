"""Who calls what, and until when (`Rpc`). Nothing here changes."""

from __future__ import annotations

import math
from typing import NamedTuple

from service.edge.observability.metrics import Method
from service.request import Caller

EARLY_S = 0.05  # by so much a client's timer may ring before the server's, which starts when the call is read
EARLY_PART = 0.25


def is_late(now_s: float, started_s: float, deadline_s: float) -> bool:
    """Whether a call that ends now ends by its deadline: a client resets a call whose deadline passes, and the reset
    may come a moment before the deadline passes here."""
    return now_s >= deadline_s - min(EARLY_S, EARLY_PART * (deadline_s - started_s))


class Rpc(NamedTuple):
    """One call, or one item of a call. Times are seconds on the server's clock.

    deadline_s: the server's own, if that comes first. client_deadline_s: infinite if the client has set none. peer: the
    connection, as gRPC names it. trace_id: of the client's distributed trace, or empty. exemplar: the trace that
    metrics refer to; empty if there is none to be found. cache: what the client says about the answer cache.
    """

    method: Method
    request_id: str
    caller: Caller
    started_s: float
    deadline_s: float
    client_deadline_s: float = math.inf
    peer: str = ""
    trace_id: str = ""
    exemplar: str = ""
    cache: str = ""

    def item(self, number: int, started_s: float, answer_s: float) -> Rpc:
        """One of its items. number: among its items, from 0. answer_s: as of `started_at`."""
        return self._replace(request_id=f"{self.request_id}/{number}").started_at(started_s, answer_s, self.deadline_s)

    def started_at(self, started_s: float, answer_s: float, latest_s: float) -> Rpc:
        """The same, begun at another time. answer_s: from then to its deadline, if `latest_s` does not come first."""
        return self._replace(started_s=started_s, deadline_s=min(latest_s, started_s + answer_s))
