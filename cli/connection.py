"""How a verb reaches a server: the flags of the connection, the client made of them, and what an error means."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.flags import with_fields
from cli.local_server import process_at, serving
from cli.terminal import UsageError, report_errors

if TYPE_CHECKING:
    from glossa.client import Client

PANEL = "Connection, before or after a verb that calls a server"


def _flag(help: str, variable: str) -> Any:
    return typer.Option(help=help, envvar=variable, rich_help_panel=PANEL)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Where a server is and how to call it; each field is a flag."""

    address: Annotated[
        str, _flag("HOST:PORT of the server; of `admin` (GLOSSA_ADMIN_ADDRESS) also unix:PATH", "GLOSSA_ADDRESS")
    ] = "127.0.0.1:50051"
    tls: Annotated[bool, _flag("connect with TLS", "GLOSSA_TLS")] = False
    tls_ca: Annotated[
        Path | None, _flag("PEM file of the certificate authorities to trust; implies --tls", "GLOSSA_TLS_CA")
    ] = None
    client_cert: Annotated[
        Path | None,
        _flag("PEM file of your certificate, for servers that ask for one; implies --tls", "GLOSSA_CLIENT_CERT"),
    ] = None
    client_key: Annotated[Path | None, _flag("PEM file of its key", "GLOSSA_CLIENT_KEY")] = None
    token: Annotated[str, _flag("bearer token of every call; better given as the variable", "GLOSSA_TOKEN")] = ""
    metadata: Annotated[
        list[str] | None, _flag("NAME=VALUE sent with every call; may be repeated", "GLOSSA_METADATA")
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of both clients. Raises UsageError."""
        pairs = [text.partition("=") for text in self.metadata or ()]
        for name, separator, value in pairs:
            if not (name and separator):
                raise UsageError(f"--metadata: must be NAME=VALUE, got {name + separator + value!r}")
        metadata = {name: value for name, _, value in pairs}
        if (self.client_cert is None) != (self.client_key is None):
            raise UsageError("--client-cert and --client-key: must be given together, got one of them")
        tls: Any = self.tls_ca or self.tls
        if self.client_cert is not None and self.client_key is not None:
            from glossa.client import tls_credentials

            tls = tls_credentials(authority=self.tls_ca, certificate=self.client_cert, key=self.client_key)
        return {"tls": tls, "token": self.token, "metadata": metadata}

    def client(self) -> Client:
        """A client for blocking calls."""
        from glossa.client import Client

        return Client(self.address, **self.settings)

    def explain(self, error: Any) -> str:
        """The message of a ClientError; of a server that cannot be reached with the cause and the fix."""
        if error.code != "UNAVAILABLE" or error.reason:
            return str(error)
        if error.hint:
            return f"{self.address}: {error.message}"
        host, _, port = self.address.rpartition(":")
        if host.strip("[]") not in ("localhost", "127.0.0.1", "::1") or not port.isdigit():
            found = "check the address and the network"
        elif process := process_at(int(port)):
            found = f"{process} listens there, but does not answer as a Glossa server"
        else:
            found = "nothing listens on that port"
        return (
            f"no server at {self.address}: {found}; start one with `glossa serve NAME=BUNDLE`, or name another with "
            f"--address or GLOSSA_ADDRESS ({error})"
        )


def with_connection(parameter: str, *, without: str = "") -> Callable[[Any], Any]:
    """Add the flags of the connection, but for one, to a verb, which gets a Connection as that keyword argument."""
    return with_fields(parameter, Connection, lambda values: Connection(**values), without=without)


@contextlib.contextmanager
def reached(subject: str, connection: Connection, *, is_bundle: bool) -> Iterator[Connection]:
    """The connection to a server: a temporary one for a bundle, which is plain whatever `connection` is for others."""
    if not is_bundle:
        yield dataclasses.replace(connection, address=subject)
        return
    with serving(Path(subject)) as (address, _):
        yield Connection(address=address)


@contextlib.contextmanager
def report_call_errors(connection: Connection, *types: type[Exception]) -> Iterator[None]:
    """`report_errors` for calls: a ClientError is explained, and an argument that is no UTF-8."""
    from glossa.client import ClientError

    with report_errors(ValueError, *types):
        try:
            yield
        except ClientError as error:
            raise UsageError(connection.explain(error)) from error
        except UnicodeEncodeError as error:
            raise UsageError(_explained(error)) from error


@contextlib.contextmanager
def at_line(number: int) -> Iterator[None]:
    """Adds the number of its input line to a ClientError, unless the server cannot be reached."""
    from glossa.client import ClientError

    try:
        yield
    except ClientError as error:
        if error.code == "UNAVAILABLE":
            raise
        raise UsageError(f"line {number}: {error}") from error


def _explained(error: UnicodeEncodeError) -> str:
    """What cannot be encoded. Python reads a byte of an argument that is no UTF-8 as a surrogate (PEP 383)."""
    byte = ord(error.object[error.start]) - 0xDC00
    if not 0x80 <= byte <= 0xFF:
        return str(error)
    before = error.object[max(0, error.start - 20) : error.start]
    return f"arguments: must be UTF-8, got the byte 0x{byte:02x} after {before!r}; convert it, e.g. with iconv"


def with_client(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of the connection to a verb, and pass it an open client as its keyword argument `client`."""

    @functools.wraps(verb)
    def run(*, client: Connection, **given: Any) -> None:
        with report_call_errors(client), client.client() as opened:
            verb(client=opened, **given)

    added: Callable[..., None] = with_connection("client")(run)
    return added
