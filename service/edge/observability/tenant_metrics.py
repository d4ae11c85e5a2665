"""The series by tenant (`TenantSeries`), and what counts in them (`TenantMetrics`).

Tenants of the settings have series of their own, all others share those of OTHER_TENANTS: no name of a client becomes a
label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from service.measurements import MetricDefinition, counter

OTHER_TENANTS, MAX_TENANTS, TOKEN_KINDS = "other", 100, ("prompt", "generated")
TENANT_BUCKETS = (0.1, 0.5, 2.0, 10.0)  # few: each is a series for each tenant
TENANT_CODES = (0, 1, 3, 4, 5, 7, 8, 9, 13, 14, 16)  # with which a call can end


class TenantSeries:
    tenant_tokens: Callable[..., Any] = counter(
        "glossa_tenant_tokens",
        "Tokens of answered requests, prompts and answers, by tenant: those of the settings, and other.",
        *("tenant", "kind"),
    )
    tenant_requests: Callable[..., Any] = counter(
        "glossa_tenant_requests",
        "Calls that ended, refused ones included, and items of calls with many, by tenant and status code.",
        *("tenant", "code"),
    )
    tenant_first_token: Any = MetricDefinition(
        "histogram",
        "glossa_tenant_time_to_first_token_seconds",
        "Time to the first token of an answered request, by tenant.",
        ("tenant",),
        TENANT_BUCKETS,
    )
    tenant_answered: Any = MetricDefinition(
        "histogram",
        "glossa_tenant_request_seconds",
        "Time from a request's start to its end, of requests that were answered, by tenant.",
        ("tenant",),
        TENANT_BUCKETS,
    )


class _Tenant(NamedTuple):
    """The series of one label. ended: by the number of a status code, see `TenantMetrics.know`."""

    ended: dict[int, Any]
    tokens: tuple[Any, ...]
    first_token: Any
    answered: Any


class TenantMetrics:
    """The tenants of one server. series: bound. code_names: of status codes, by number. Event-loop thread only."""

    def __init__(self, series: TenantSeries, code_names: tuple[str, ...]) -> None:
        self._series, self._code_names = series, code_names
        self._tenants: dict[str, _Tenant] = {}
        self.know(())

    def know(self, names: Iterable[str]) -> None:
        """The first MAX_TENANTS of these tenants have series of their own. Without any, requests and times are those of
        the server, and only tokens are counted."""
        known = sorted(set(names))[:MAX_TENANTS]
        self._are_apart = bool(known)
        self._tenants = {label: self._of(label) for label in (*known, OTHER_TENANTS)}

    def label(self, tenant: str) -> str:
        """The label of a tenant."""
        return tenant if tenant in self._tenants else OTHER_TENANTS

    def ended(self, tenant: str, code: int, count: int = 1) -> None:
        """Calls or items of a tenant ended. code: the number of a gRPC status."""
        if self._are_apart:
            self._tenants[self.label(tenant)].ended[code].inc(count)

    def answered(
        self, tenant: str, *, seconds: float, first_token_s: float, prompt_tokens: int, generated_tokens: int
    ) -> None:
        """A request of a tenant was answered. first_token_s: to its first token, if it has one."""
        found = self._tenants[self.label(tenant)]
        prompt, generated = found.tokens
        prompt.inc(prompt_tokens)
        generated.inc(generated_tokens)
        if not self._are_apart:
            return
        found.answered.observe(seconds)
        if generated_tokens:
            found.first_token.observe(first_token_s)

    def _of(self, label: str) -> _Tenant:
        series, tokens = self._series, tuple(self._series.tenant_tokens(label, kind) for kind in TOKEN_KINDS)
        if not self._are_apart:
            return _Tenant({}, tokens, None, None)
        ended = {code: series.tenant_requests(label, self._code_names[code]) for code in TENANT_CODES}
        return _Tenant(ended, tokens, series.tenant_first_token(label), series.tenant_answered(label))
