"""Whose a call is: the only place where identity is decided (`Tenants`).

A call names its tenant and its priority in its metadata, which proves nothing: where clients are not trusted, a proxy
has to set both. Weights and rights come from the settings.
"""

from __future__ import annotations

from collections.abc import Iterable

from service.config import TENANT_NAME, ServerSettings
from service.errors import InvalidRequest
from service.request import Caller, Priority

TENANT, PRIORITY = "x-glossa-tenant", "x-glossa-priority"
ANONYMOUS = ""
SHOWN = 40  # characters of an invalid value
PRIORITIES = {priority.name.lower(): priority for priority in Priority}


class Tenants:
    """The tenants of one server, by its settings."""

    def __init__(self, settings: ServerSettings) -> None:
        self._weights = settings.tenant_weights
        self._shares_unknown = settings.unknown_tenants == "shared"
        self._highest = PRIORITIES[settings.unknown_tenant_priority]  # of tenants without a weight of their own

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Whose a call with this metadata is. Raises InvalidRequest."""
        tenant, priority = ANONYMOUS, None
        for key, value in metadata:
            if key == TENANT:
                if tenant:
                    raise InvalidRequest(TENANT, "must be given once, got it twice")
                tenant = _checked(value)
            elif key == PRIORITY:
                priority = str(value)
        highest = Priority.HIGH if tenant in self._weights else self._highest
        wanted = max(Priority.NORMAL, highest)
        if priority is not None:
            if priority not in PRIORITIES:
                raise InvalidRequest(PRIORITY, f"must be one of {', '.join(PRIORITIES)}, got {priority[:SHOWN]!r}")
            wanted = PRIORITIES[priority]
            if wanted < highest:
                problem = f"must be {highest.name.lower()} or below for tenants without a weight in the settings"
                raise InvalidRequest(PRIORITY, f"{problem}, got {priority}")
        if tenant not in self._weights and self._shares_unknown:
            tenant = ANONYMOUS
        return Caller(tenant, self._weights.get(tenant, 1.0), wanted)


def _checked(value: str | bytes) -> str:
    if isinstance(value, str) and TENANT_NAME.fullmatch(value):
        return value
    problem = "must be 1..128 letters, digits and characters of . _ : / + = @ -"
    raise InvalidRequest(TENANT, f"{problem}, got {len(value)}: {value[:SHOWN]!r}")
