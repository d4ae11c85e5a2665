"""Whose a call is: the only place where identity is decided (`Tenants`).

With tokens, of a file or of an issuer, a call is its token's tenant's. Without, a call names its tenant itself, which
proves nothing: where clients are not trusted, a proxy has to set it. Priorities are named by calls in both cases;
weights and rights come from the settings.
"""

from __future__ import annotations

from collections.abc import Iterable

from service.edge.security.tokens import ADMIN, ANY_TENANT, Holder, Holders
from service.errors import InvalidRequest, PermissionDenied, Unauthenticated
from service.request import Caller, Priority
from service.settings.config import ServerSettings
from service.settings.setting_types import TENANT_NAME

TENANT, PRIORITY = "x-glossa-tenant", "x-glossa-priority"
ANONYMOUS = ""
SHOWN = 40  # characters of an invalid value
PRIORITIES = {priority.name.lower(): priority for priority in Priority}


class Tenants:
    """The tenants of one server, by its settings. tokens: without one no call is anybody's; None: calls need none."""

    def __init__(self, settings: ServerSettings, tokens: Holders | None = None) -> None:
        self._tokens = tokens
        self._weights = settings.tenant_weights
        self._known = {*settings.tenant_weights, *settings.tenant_tokens_per_minute}
        self._shares_unknown = settings.unknown_tenants == "shared"
        self._highest = PRIORITIES[settings.unknown_tenant_priority]  # of tenants without a weight of their own

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Whose a call with this metadata is. Raises InvalidRequest, Unauthenticated and PermissionDenied."""
        metadata = tuple(metadata)
        tenant, priority = ANONYMOUS, None
        for key, value in metadata:
            if key == TENANT:
                named = _checked(value)
                if tenant not in (ANONYMOUS, named):
                    raise InvalidRequest(TENANT, f"must be given once, got {tenant} and {named}")
                tenant = named
            elif key == PRIORITY:
                priority = str(value)
        if self._tokens is not None:
            tenant = self._proven(self._tokens, metadata, tenant)
        highest = Priority.HIGH if tenant in self._weights else self._highest
        wanted = max(Priority.NORMAL, highest)
        if priority is not None:
            if priority not in PRIORITIES:
                raise InvalidRequest(PRIORITY, f"must be one of {', '.join(PRIORITIES)}, got {priority[:SHOWN]!r}")
            wanted = PRIORITIES[priority]
            if wanted < highest:
                problem = f"must be {highest.name.lower()} or below for tenants without a weight in the settings"
                raise InvalidRequest(PRIORITY, f"{problem}, got {priority}")
        if tenant not in self._known and self._shares_unknown:
            tenant = ANONYMOUS
        return Caller(tenant, self._weights.get(tenant, 1.0), wanted)

    def check_admin(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Raises Unauthenticated, and PermissionDenied for a token without the right to administer the server."""
        if self._tokens is None:
            raise PermissionDenied("this server has no tokens, so that nobody may administer it here")
        if ADMIN not in self._tokens.holder(metadata).rights:
            raise PermissionDenied(f"the token has not the right {ADMIN}; ask the operator of this server for one")

    def holder(self, metadata: Iterable[tuple[str, str | bytes]]) -> Holder | None:
        """Whose the token of a call is; None: nobody's that is known."""
        try:
            return None if self._tokens is None else self._tokens.holder(metadata)
        except (Unauthenticated, PermissionDenied):
            return None

    @staticmethod
    def _proven(tokens: Holders, metadata: tuple[tuple[str, str | bytes], ...], named: str) -> str:
        """The tenant of a call's token, or the one that it names if its holder may name any."""
        holder = tokens.holder(metadata)
        if not named or named == holder.tenant:
            return holder.tenant
        if ANY_TENANT not in holder.rights:
            raise PermissionDenied(f"{TENANT}: must be {holder.tenant}, as the token is, or be left out, got {named}")
        return named


def _checked(value: str | bytes) -> str:
    if isinstance(value, str) and TENANT_NAME.fullmatch(value):
        return value
    problem = "must be 1..128 letters, digits and characters of . _ : / + = @ -"
    raise InvalidRequest(TENANT, f"{problem}, got {len(value)}: {value[:SHOWN]!r}")
