"""How long the answers of each tenant take (`TenantPaces`): one that asks for beams must not make the plain requests of
others look slow, and be refused for it.

Nothing here decides: `service.answer_pace` has the rule.
"""

from __future__ import annotations

from service.answer_pace import AnswerPace
from service.answer_time import AnswerTimes
from service.edge.admission.tenant_shares import TenantShares
from service.request import Caller, Finished

MAX_TENANTS = 256  # that are remembered; for others the pace of all counts


class TenantPaces:
    """The pace of one engine process for each tenant that it answered lately. pace: of all its answers."""

    def __init__(self, pace: AnswerPace) -> None:
        self._pace = pace
        self._tenants = AnswerTimes[str](MAX_TENANTS)

    def learn(self, tenant: str, finished: Finished, rows: int) -> None:
        """Takes in how long an answer took, as `AnswerTime.learn`."""
        self._pace.time.learn(finished, rows)
        self._tenants[tenant].learn(finished, rows)

    def predicted_s(self, caller: Caller, shares: TenantShares, rows: int, max_tokens: int = 0) -> float:
        """Seconds until the answer to one more request of a caller, as `AnswerPace.predicted_s`.

        Only the unfinished requests that go before it count: engines take the rows of others for it. Waiting for these
        takes the pace of all, the answer itself that of its tenant. A tenant without an unfinished request is given the
        better of both: otherwise what it learned in a slow time would keep it from learning more.
        """
        before = shares.before(caller)
        busy = min(before + 1, rows)
        service_s = self._pace.time.seconds(busy, max_tokens)
        if own := self._tenants.get(caller.tenant):
            own_s = own.seconds(busy, max_tokens)
            service_s = own_s if shares.unfinished(caller.tenant) else min(own_s, service_s)
        return self._pace.predicted_s(before, rows, service_s=service_s)
