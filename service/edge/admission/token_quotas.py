"""How many tokens a tenant may use in a minute (`TokenQuotas`): a bucket for each tenant that has a quota.

A bucket holds the tokens of one minute and fills at that pace, so a tenant may use a minute's tokens at once. A request
takes what it may come to use before an engine gets it: its prompt and its longest answer; at its end the difference to
what it has used is put back. Nothing here knows gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from service.errors import InvalidRequest, RequestError, TokensSpent
from service.request import Cancel, Event, EventSink, Finished, Request, TextDelta

MINUTE_S = 60.0


class TokenQuotas:
    """Those of a server. per_minute: tokens by tenant. clock: seconds. Event-loop thread only."""

    def __init__(self, per_minute: Mapping[str, int], clock: Callable[[], float]) -> None:
        self._quotas = {tenant: TokenQuota(tenant, tokens, clock) for tenant, tokens in per_minute.items()}

    def of(self, tenant: str) -> TokenQuota | None:
        """That of a tenant; None: it may use as many as it can."""
        return self._quotas.get(tenant)


class TokenQuota:
    """The quota of one tenant."""

    def __init__(self, tenant: str, per_minute: int, clock: Callable[[], float]) -> None:
        self._tenant, self._per_minute, self._clock = tenant, per_minute, clock
        self._left, self._filled_s = float(per_minute), clock()

    @property
    def left(self) -> float:
        """Tokens in the bucket; below 0 after a request that used more than it had taken."""
        now_s = self._clock()
        self._left = min(self._per_minute, self._left + (now_s - self._filled_s) * self._per_minute / MINUTE_S)
        self._filled_s = now_s
        return self._left

    def refusal(self, tokens: int) -> TokensSpent | InvalidRequest | None:
        """Why a request that may use so many tokens gets none; None if it does."""
        most = self._per_minute
        if tokens > most:
            problem = f"must be so small that prompt and answer have at most {most} tokens, the quota of tenant"
            return InvalidRequest("options.max_tokens", f"{problem} {self._tenant!r} for a minute, got {tokens}")
        missing = tokens - self.left
        if missing <= 0:
            return None
        return TokensSpent(self._tenant, retry_after_s=missing * MINUTE_S / most, limit=most)

    def submit(self, request: Request, sink: EventSink, submit: Callable[[EventSink], Cancel]) -> Cancel:
        """Takes a request's tokens, and submits it. Raises a `refusal`, or what `submit` raises."""
        taken = most_tokens(request)
        if refusal := self.refusal(taken):
            raise refusal
        self._change(-taken)

        def settle(event: Event) -> None:
            if not isinstance(event, TextDelta):
                self._change(taken - used_tokens(event))
            sink(event)

        try:
            return submit(settle)
        except BaseException:
            self._change(taken)
            raise

    def _change(self, tokens: int) -> None:
        self._left = min(self._per_minute, self.left + tokens)


def most_tokens(request: Request) -> int:
    """Tokens that a request may use: of its source and prompt, and of its longest answers."""
    options = request.options
    answers = max(1, options.num_hypotheses, options.num_sequences)
    return len(request.source) + len(request.prompt) + answers * request.max_tokens


def used_tokens(end: Finished | RequestError) -> int:
    """Tokens that a request has used when it ends; none of one that no engine got, or that was lost with its engine."""
    if isinstance(end, RequestError):
        return end.progress.prompt_tokens + end.progress.generated_tokens if end.progress else 0
    return end.prompt_tokens + end.generated_tokens
