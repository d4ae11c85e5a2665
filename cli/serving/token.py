"""`glossa token`: a bearer token for a client, and its line for the server's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.terminal import UsageError, report_errors


def token(
    tenant: Annotated[str, typer.Argument(help="whose calls are made with it, such as acme")],
    file: Annotated[Path, typer.Option(help="file of the server (--tokens) that gets a line; made if there is none")],
    any_tenant: Annotated[
        bool, typer.Option("--any-tenant", help="it may call as any tenant that a call names: for a proxy")
    ] = False,
    admin: Annotated[bool, typer.Option("--admin", help="it may exchange the server's models: `glossa admin`")] = False,
) -> None:
    """Make a token and print it, the only time: the file gets its SHA-256. A server that runs takes it over."""
    from service.edge.security.tokens import ADMIN, ANY_TENANT, Holder, line_of, new_token, read_tokens
    from service.errors import StartupError
    from service.settings.setting_types import TENANT_NAME

    with report_errors(StartupError):
        if not TENANT_NAME.fullmatch(tenant):
            raise UsageError(f"tenant: must be 1..128 letters, digits and . _ : / + = @ -, got {tenant!r}")
        if file.exists() and file.stat().st_size:
            read_tokens(file)
        made = new_token()
        file.touch(mode=0o600)
        with file.open("r+", encoding="utf-8") as stream:
            has_end = stream.read()[-1:] in ("", "\n")
            rights = frozenset(right for right, given in ((ANY_TENANT, any_tenant), (ADMIN, admin)) if given)
            line = line_of(made, Holder(tenant, rights))
            stream.write(f"{line}\n" if has_end else f"\n{line}\n")
    typer.echo(made)
