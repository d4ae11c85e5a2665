"""The keys that an issuer of tokens signs with (JWKS, RFC 7517): from a file, or from an address and kept up to date.

An address is asked every REFRESH_S, and for a key that a call needs and that is not there at most every UNKNOWN_S.
While the issuer is away, the keys before stay. Nothing here reads a token.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from service.edge.observability import logs
from service.errors import StartupError

CHECK_S, REFRESH_S, UNKNOWN_S, TIMEOUT_S = 1.0, 300.0, 30.0, 5.0
MAX_BYTES, MAX_KEYS, MIN_RSA_BITS = 1 << 20, 100, 2048
# By the type of a key and its curve. Symmetric algorithms and `none` are in no place: whoever can verify could sign.
ALGORITHMS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
FIX = "give the JWKS that the issuer publishes as jwks_uri"


class SigningKey(NamedTuple):
    """A public key of `cryptography`, and the algorithms (`alg`) that it may verify."""

    key: Any
    algorithms: tuple[str, ...]


class SigningKeys:
    """The keys of one issuer. `read` and `refresh` may be called from any thread.

    current: by their ids (`kid`; empty: has none); replaced as a whole.
    """

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        """source: a file or an address. Reads nothing. clock: seconds."""
        self.source, self._clock = source, clock
        self.is_address = "://" in source
        self.current: Mapping[str, SigningKey] = {}
        self._data = b""
        self._asked_s = -REFRESH_S
        self._is_missed = False

    def read(self) -> None:
        """Takes over the keys that are there now. Raises StartupError, and then nothing has changed."""
        self._asked_s, self._is_missed = self._clock(), False
        data = _fetched(self.source) if self.is_address else _read(Path(self.source))
        if data != self._data:
            self.current, left_out = parse_keys(data, self.source)
            self._data = data
            logs.event("signing_keys", {"source": self.source, "keys": sorted(self.current), "left_out": left_out})

    def miss(self) -> None:
        """A token needs a key that is not here: the address is asked before its time."""
        self._is_missed = True

    def refresh(self) -> bool | None:
        """Asks the address if it is time to. Returns whether keys were taken over, or those before stay; None: there is
        nothing new."""
        if self._clock() - self._asked_s < (UNKNOWN_S if self._is_missed else REFRESH_S):
            return None
        before = self.current
        try:
            self.read()
        except StartupError as error:
            logs.event("refused_signing_keys", {"source": self.source, "reason": str(error)}, level=logs.ERROR)
            return False
        return None if self.current is before else True

    async def watch(self, on_change: Callable[[bool], object]) -> None:
        """Refreshes until it is cancelled, in threads. on_change: called with whether keys were taken over."""
        while True:
            await asyncio.sleep(CHECK_S)
            if (taken := await asyncio.to_thread(self.refresh)) is not None:
                on_change(taken)


def parse_keys(data: bytes, source: str) -> tuple[dict[str, SigningKey], dict[str, str]]:
    """The keys of a JWKS by their ids, and why others are left out. Raises StartupError if none can be used."""
    try:
        listed = json.loads(data)["keys"]
        named = [(str(key.get("kid") or ""), key) for key in listed[: MAX_KEYS + 1]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _refused(source, 'is no JWKS, a JSON object with the list "keys"', FIX) from None
    if len(named) > MAX_KEYS:
        raise _refused(source, f"has more than {MAX_KEYS} keys", "remove those that sign no tokens")
    keys, left_out = dict[str, SigningKey](), dict[str, str]()
    for number, (kid, key) in enumerate(named):
        if kid in keys:
            left_out[f"{kid} ({number})"] = "an earlier key has its kid"
        elif isinstance(found := _signing_key(key), str):
            left_out[kid or f"({number})"] = found
        else:
            keys[kid] = found
    if not keys:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "it is empty"
        raise _refused(source, f"has no key that verifies tokens: {reasons:.500}", FIX)
    return keys, left_out


def _signing_key(key: Mapping[str, Any]) -> SigningKey | str:
    """A key of a JWKS, or why it cannot be used."""
    import jwt

    try:
        kind = str(key.get("kty", "")), str(key.get("crv", ""))
        if (algorithms := ALGORITHMS.get(kind)) is None:
            return "its type is not RSA, EC or Ed25519"
        if "d" in key:
            return "it is a private key"
        if key.get("use", "sig") != "sig" or "verify" not in key.get("key_ops", ("verify",)):
            return "it is not for signatures"
        if (own := key.get("alg", algorithms[0])) not in algorithms:
            return f"its alg is not one of {', '.join(algorithms)}"
        found = jwt.PyJWK({**key, "alg": own}).key
    except (jwt.PyJWTError, TypeError, ValueError) as error:
        return f"it is malformed: {type(error).__name__}"
    if kind[0] == "RSA" and found.key_size < MIN_RSA_BITS:
        return f"RSA keys must have {MIN_RSA_BITS} bits, it has {found.key_size}"
    return SigningKey(found, (own,) if "alg" in key else algorithms)


def check_library(issuer: str) -> None:
    """Raises StartupError where tokens of an issuer cannot be verified."""
    try:
        import cryptography  # noqa: F401
        import jwt  # noqa: F401
    except ImportError as error:
        raise StartupError(
            f"oidc_issuer: {issuer}: needs PyJWT and cryptography ({error}); fix: pip install 'glossa[oidc]', or leave "
            "the setting out"
        ) from None


def _refused(source: str, problem: str, fix: str) -> StartupError:
    return StartupError(f"oidc_jwks: {source}: {problem}; fix: {fix}")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file, str(path))
    except OSError as error:
        raise _refused(str(path), f"cannot be read: {error.strerror}", "check the path and its rights") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An issuer's address is the settings' to choose, not that of who answers there."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _fetched(address: str) -> bytes:
    try:
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(urllib.request.Request(address, headers={"User-Agent": "glossa"}), timeout=TIMEOUT_S) as page:
            return _bounded(page, address)
    except urllib.error.HTTPError as error:
        error.close()
        raise _refused(address, f"answers {error.code}", FIX) from None
    except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: of an address with blanks
        cause = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise _refused(address, f"cannot be fetched: {cause}", "check the address, and the way there") from None


def _bounded(stream: Any, source: str) -> bytes:
    data: bytes = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _refused(source, f"is larger than {MAX_BYTES} bytes", FIX)
    return data
