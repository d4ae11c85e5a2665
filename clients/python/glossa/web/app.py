"""The application: the page, its calls, and LibreTranslate's API, in front of one Glossa server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from glossa.client import AsyncClient, ClientError
from glossa.web.calls import Gone
from glossa.web.figures import Figures
from glossa.web.gate import Gate
from glossa.web.libretranslate import LibreTranslate
from glossa.web.page_calls import PageCalls
from glossa.web.refusals import Refused, of_http, response_of
from glossa.web.upstream import Upstream

PAGE = Path(__file__).parent / "page"
CONNECTIONS = 4  # one carries 256 calls at a time


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How this process reaches its server, and who may use it."""

    address: str  # of the server, as AsyncClient has it
    token: str = ""  # of the calls of those who send none
    connection: Mapping[str, Any] = field(default_factory=dict)  # further arguments of AsyncClient
    ops: str = ""  # HOST:PORT of the server's ops port; empty: no live figures
    origins: tuple[str, ...] = ()  # of other sites whose pages may send requests
    max_body_bytes: int = 5 << 20  # above the 4 MiB of a document


def application(settings: Settings) -> Starlette:
    """The application. Made inside the event loop that runs it. Raises ValueError as AsyncClient does."""
    client = AsyncClient(settings.address, retries=False, connections=CONNECTIONS, **settings.connection)
    client.with_token(settings.token)  # refuses one in plaintext to another machine
    upstream = Upstream(client, settings.address, settings.token)

    async def failed(request: Request, error: Exception) -> Response:
        return response_of(error, settings.address)

    async def nobody(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # read by no one

    async def page(request: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await client.close()

    routes = [*PageCalls(upstream, Figures(settings.ops)).routes, *LibreTranslate(upstream).routes]
    return Starlette(
        routes=[Route("/", page), *routes, Mount("/page", StaticFiles(directory=PAGE))],
        middleware=[
            Middleware(Gate, max_body_bytes=settings.max_body_bytes, origins=settings.origins),
            Middleware(
                CORSMiddleware,
                allow_origins=settings.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["content-type", "authorization"],
            ),
        ],
        exception_handlers={ClientError: failed, Refused: failed, Gone: nobody, HTTPException: of_http},
        lifespan=lifespan,
    )
