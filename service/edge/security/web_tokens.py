"""JSON Web Tokens (RFC 7519) of one issuer, as OpenID Connect and OAuth 2.0 (RFC 9068) have them: whose a call is.

PyJWT verifies signatures, with asymmetric algorithms alone. Claims are checked here, so that an error names the claim
and the rule; none repeats a part of the token. A verification takes the event loop some 0.2 ms, so what a token proved
is kept by its digest: until the token expires, the keys change or MAX_KEPT others came.
"""

from __future__ import annotations

import base64
import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from service.edge.security.signing_keys import ALGORITHMS, SigningKey, SigningKeys
from service.edge.security.tokens import NOT_KNOWN, RIGHTS, Holder, Tokens, bearer_token, digest_of
from service.errors import PermissionDenied, Unauthenticated
from service.settings.config import ServerSettings
from service.settings.setting_types import CLAIMS, TENANT_NAME

MAX_LENGTH, MAX_KEPT = 8192, 4096
MAX_SUBJECT = 128  # characters, in the log
ALL_ALGORITHMS = tuple(name for names in ALGORITHMS.values() for name in names)


class _Proven(NamedTuple):
    """What a token proved. until_s: seconds since 1970."""

    holder: Holder
    until_s: float


class WebTokens:
    """The tokens of an issuer. Event-loop thread only."""

    def __init__(self, settings: ServerSettings, keys: SigningKeys, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since 1970."""
        self._issuer, self._audience = settings.oidc_issuer, settings.oidc_audience
        self._claims, self._leeway_s = {**CLAIMS, **settings.oidc_claims}, settings.oidc_leeway_s
        self._keys, self._clock = keys, clock
        self._kept = dict[bytes, _Proven]()
        self._kept_of: Mapping[str, SigningKey] = {}  # the keys that verified them

    def holder(self, token: str) -> Holder:
        """Whose a token is. Raises Unauthenticated; PermissionDenied for one that names no tenant."""
        if len(token) > MAX_LENGTH:
            raise Unauthenticated(f"the token has {len(token)} characters, and may have {MAX_LENGTH}")
        if self._kept_of is not self._keys.current:
            self._kept_of = self._keys.current
            self._kept.clear()
        digest = digest_of(token)
        if (proven := self._kept.get(digest)) is None:
            claims = self._verified(token)
            proven = _Proven(self._holder_of(claims), claims["exp"] + self._leeway_s)
            if len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[digest] = proven
        elif self._clock() >= proven.until_s:
            raise _refused("exp", "it has expired")
        return proven.holder

    def _verified(self, token: str) -> dict[str, Any]:
        """The claims of a token that the issuer signed for this server and for now."""
        import jwt

        key = self._key_of(token)
        try:
            claims = json.loads(_signatures().decode(token, key.key, key.algorithms))
        except jwt.InvalidSignatureError:
            raise Unauthenticated("the signature of the token is not by the key that its header names") from None
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Unauthenticated("the token is no signed JSON Web Token") from None
        if not isinstance(claims, dict):
            raise Unauthenticated("the token has no claims")
        self._check(claims)
        return claims

    def _key_of(self, token: str) -> SigningKey:
        """The key that must have signed a token, by its header alone."""
        try:
            part = token.partition(".")[0]
            header = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
            algorithm, kid = header.get("alg"), header.get("kid", "")
        except (ValueError, AttributeError, RecursionError):
            raise Unauthenticated("the token is no signed JSON Web Token") from None
        if algorithm not in ALL_ALGORITHMS:
            raise Unauthenticated(f"the token's header alg must be one of {', '.join(ALL_ALGORITHMS)}")
        keys = self._keys.current
        found = next(iter(keys.values())) if kid == "" and len(keys) == 1 else None
        if isinstance(kid, str):
            found = keys.get(kid, found)
        if found is None:
            self._keys.miss()
            raise Unauthenticated(
                f"the token's header kid names no key that {self._issuer} publishes; a new key is known within half a "
                "minute"
            )
        if algorithm not in found.algorithms:
            raise Unauthenticated(f"the token's header alg must be {' or '.join(found.algorithms)}, as its key has it")
        return found

    def _check(self, claims: dict[str, Any]) -> None:
        now_s, leeway_s = self._clock(), self._leeway_s
        if claims.get("iss") != self._issuer:
            raise _refused("iss", f"must be {self._issuer}")
        audiences = claims.get("aud")
        if self._audience not in (audiences if isinstance(audiences, list) else (audiences,)):
            raise _refused("aud", f"must name {self._audience}")
        for name, is_needed in (("exp", True), ("nbf", False), ("iat", False)):
            value = claims.get(name)
            if (value is not None or is_needed) and not _is_time(value):
                raise _refused(name, "must be there, in seconds since 1970" if is_needed else "must be a time")
        if now_s >= claims["exp"] + leeway_s:
            raise _refused("exp", "it has expired")
        for name in ("nbf", "iat"):
            if (claims.get(name) or 0) > now_s + leeway_s:
                raise _refused(name, "it is not valid yet")

    def _holder_of(self, claims: Mapping[str, Any]) -> Holder:
        tenant, rights = _claim(claims, self._claims["tenant"]), _claim(claims, self._claims["rights"])
        if not isinstance(tenant, str) or not TENANT_NAME.fullmatch(tenant):
            rule = "must be a tenant of 1..128 letters, digits and . _ : / + = @ -"
            raise PermissionDenied(f"the token's claim {self._claims['tenant']} {rule}")
        given = rights.split() if isinstance(rights, str) else rights if isinstance(rights, list) else ()
        subject = claims.get("sub", "")
        return Holder(tenant, frozenset(one for one in RIGHTS if one in given), str(subject)[:MAX_SUBJECT])


class Identities:
    """Whose a call is, by a token of the file or else of the issuer."""

    def __init__(self, tokens: Tokens | None, web_tokens: WebTokens) -> None:
        self._tokens, self._web_tokens = tokens, web_tokens

    def holder(self, metadata: Iterable[tuple[str, str | bytes]]) -> Holder:
        """See `Holders`."""
        token = bearer_token(metadata)
        if self._tokens is not None and (found := self._tokens.find(token)) is not None:
            return found
        if token.count(".") != 2:
            raise Unauthenticated(NOT_KNOWN)
        return self._web_tokens.holder(token)


@functools.cache
def _signatures() -> Any:
    """What verifies signatures. Made once: that takes as long as a verification."""
    import jwt

    return jwt.PyJWS(algorithms=ALL_ALGORITHMS)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by the names that lead into it, with dots between. None: there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _refused(claim: str, rule: str) -> Unauthenticated:
    return Unauthenticated(f"the token's claim {claim}: {rule}")
