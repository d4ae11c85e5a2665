"""`glossa web`: a page and LibreTranslate's HTTP API in front of a running server, as a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.connection import Connection, with_connection
from cli.terminal import UsageError, report_errors


@with_connection("connection")
def web(
    host: Annotated[str, typer.Option(help="address to listen on", envvar="GLOSSA_WEB_HOST")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page and the API; 0: a free one")] = 5000,
    ops: Annotated[str, typer.Option(help="HOST:PORT of the server's ops port, for live figures")] = "",
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="other site whose pages may send requests, such as https://example.org, or *; repeatable"),
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(min=1024, help="largest body of a request")] = 5 << 20,
    *,
    connection: Connection,
) -> None:
    """Serve a page, and LibreTranslate's HTTP API, in front of a server. Needs the extra `web`."""
    with report_errors(ValueError):
        try:
            from glossa.web.app import Settings
            from glossa.web.server import serve
        except ModuleNotFoundError as error:
            raise UsageError(f"needs {error.name}, which is not installed; fix: pip install 'glossa[web]'") from None
        given = connection.settings
        settings = Settings(
            address=connection.address,
            token=given.pop("token"),
            connection=given,
            ops=ops,
            origins=tuple(allow_origin or ()),
            max_body_bytes=max_body_bytes,
        )
        serve(settings, host, port, lambda page: typer.echo(f"{page} for the server at {connection.address}"))
