"""Bearer tokens: who may call, and as which tenant.

The file has a line for each token, its SHA-256 and the name of its tenant, never the token itself:

    # digest                                                           tenant  rights
    2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae   acme
    fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9   proxy   any-tenant

A tenant may have several tokens, so that one can be exchanged. Tokens of `glossa token` have 256 random bits, which
cannot be guessed: hence one round of SHA-256 is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from service.errors import StartupError, Unauthenticated
from service.settings.setting_types import TENANT_NAME

AUTHORIZATION, SCHEME = "authorization", "bearer "  # in any case (RFC 9110, 11.1)
ANY_TENANT, ADMIN = "any-tenant", "admin"
RIGHTS = (ANY_TENANT, ADMIN)
DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_FILE_BYTES, MAX_TOKEN_LENGTH = 1 << 20, 4096
FIX = "make one with `glossa token TENANT`"
NOT_KNOWN = "the token is not known here; ask the operator of this server for one"


class Holder(NamedTuple):
    """Whose a token is. rights: `any-tenant`: it may call as any tenant that it names, such as a proxy;
    `admin`: it may exchange the server's models. subject: whom an issuer gave it to, for the log."""

    tenant: str
    rights: frozenset[str] = frozenset()
    subject: str = ""


class Holders(Protocol):
    """Knows whose tokens are."""

    def holder(self, metadata: Iterable[tuple[str, str | bytes]]) -> Holder:
        """Whose the token of a call is. Raises Unauthenticated; PermissionDenied for one that names no tenant."""


UNKNOWN = bytes(32), Holder("")


class Tokens:
    """The tokens of a file. `read` may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._holders: dict[bytes, tuple[bytes, Holder]] = {}

    def read(self) -> None:
        """Takes over what the file contains now. Raises StartupError, and then nothing has changed."""
        self._holders = {digest: (digest, holder) for digest, holder in read_tokens(self.file).items()}

    @property
    def tenants(self) -> frozenset[str]:
        """All that have a token."""
        return frozenset(holder.tenant for _, holder in self._holders.values())

    def holder(self, metadata: Iterable[tuple[str, str | bytes]]) -> Holder:
        """Whose the token of a call is. Raises Unauthenticated."""
        if (found := self.find(bearer_token(metadata))) is None:
            raise Unauthenticated(NOT_KNOWN)
        return found

    def find(self, token: str) -> Holder | None:
        """Whose a token is; None: it is not of the file. Digests are compared in constant time, and a wrong token takes
        as long as a right one."""
        digest = digest_of(token[: MAX_TOKEN_LENGTH + 1])
        known, holder = self._holders.get(digest, UNKNOWN)
        return holder if hmac.compare_digest(known, digest) else None


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token of a call. Raises Unauthenticated."""
    values = {value for key, value in metadata if key == AUTHORIZATION}  # Riva's client repeats it
    if not values:
        raise Unauthenticated("the call has no token; send the metadata authorization: Bearer TOKEN")
    value = values.pop()
    if values or not isinstance(value, str) or value[: len(SCHEME)].lower() != SCHEME:
        raise Unauthenticated("authorization must be given once, as Bearer TOKEN")
    return value[len(SCHEME) :]


def digest_of(token: str) -> bytes:
    """The SHA-256 of a token, 32 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def new_token() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def line_of(token: str, holder: Holder) -> str:
    """The line of a file for a token."""
    return " ".join((digest_of(token).hex(), holder.tenant, *sorted(holder.rights)))


def read_tokens(file: Path) -> dict[bytes, Holder]:
    """The holders of all tokens of a file, by digest. Raises StartupError."""

    def refused(problem: str, fix: str) -> StartupError:
        return StartupError(f"tokens: {file}: {problem}; fix: {fix}")

    try:
        with file.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            data = stream.read(MAX_FILE_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise refused(f"cannot be read: {error.strerror}", "check the path and its rights") from None
    except UnicodeDecodeError:
        raise refused("is not text", FIX) from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise refused(f"others may write it (mode {mode:04o})", f"chmod go-w {file}")
    if len(data) > MAX_FILE_BYTES:
        raise refused(f"is larger than {MAX_FILE_BYTES} bytes", "remove tokens that are not used")
    found: dict[bytes, Holder] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (words := line.partition("#")[0].split()):
            continue
        digest, tenant, *rights = *words, *[""] * (2 - len(words))
        if not DIGEST.fullmatch(digest):
            raise refused(f"line {number} has no SHA-256 of 64 hexadecimal digits in front", FIX)
        if not TENANT_NAME.fullmatch(tenant):
            problem = f"line {number} needs a tenant of 1..128 letters, digits and . _ : / + = @ - after the digest"
            raise refused(problem, "name it")
        if unknown := set(rights).difference(RIGHTS):
            raise refused(f"line {number} has an unknown right, {min(unknown)}", f"give {', '.join(RIGHTS)} or none")
        if bytes.fromhex(digest) in found:
            raise refused(f"line {number} has the token of an earlier line", "remove one of the two")
        found[bytes.fromhex(digest)] = Holder(tenant, frozenset(rights))
    if not found:
        raise refused("has no token, so every call would be refused", FIX)
    return found
