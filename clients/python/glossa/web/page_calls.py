"""What the page asks: calls of the client by name, with its keyword arguments as an object of JSON.

Answers are the client's results; those of streams are lines of JSON. The client checks names and types of arguments,
the server their values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from glossa.client.documents import Format
from glossa.version import VERSION
from glossa.web.calls import answer, json_object, streamed, while_present
from glossa.web.figures import Figures
from glossa.web.refusals import Refused, argument_errors
from glossa.web.upstream import Upstream, bearer, described

UNARY = ("translate", "attend", "count_tokens", "count_chat_tokens")
STREAMS = ("stream_translate", "stream_generate", "stream_translate_document")
ALIASES = {"htm": "html", "xlf": "xliff", "txt": "text"}  # suffixes of files that are no names of formats


def formats() -> dict[str, str]:
    """The formats of documents by the suffixes of files, without a dot."""
    known = get_args(Format)
    return {name: name for name in known} | {suffix: name for suffix, name in ALIASES.items() if name in known}


def format_of(name: str) -> str:
    """The format of a file by its name. Raises Refused."""
    suffix, known = Path(name).suffix.lower().removeprefix("."), formats()
    if suffix not in known:
        raise Refused(f"{name}: its suffix names no format; known: {', '.join(f'.{one}' for one in sorted(known))}")
    return known[suffix]


class PageCalls:
    """The routes of the page's calls."""

    def __init__(self, upstream: Upstream, figures: Figures) -> None:
        self._upstream, self._figures = upstream, figures
        self.routes = [
            Route("/api/server", self._server),
            Route("/api/pairs", self._pairs),
            Route("/api/figures", self._figures_now),
            Route("/api/{method}", self._call, methods=["POST"]),
        ]

    async def _server(self, request: Request) -> Response:
        models = await while_present(request, self._upstream.models(bearer(request)))
        found: dict[str, Any] = {"address": self._upstream.address, "version": VERSION, "formats": formats()}
        return answer({**found, "models": [described(model) for model in models]})

    async def _pairs(self, request: Request) -> Response:
        reply = self._upstream.client(bearer(request)).list_language_pairs(include_pivots=True)
        return answer(await while_present(request, reply))

    async def _figures_now(self, request: Request) -> Response:
        return answer(await while_present(request, self._figures.now()))

    async def _call(self, request: Request) -> Response:
        name = request.path_params["method"]
        if name not in (*UNARY, *STREAMS):
            raise Refused(f"no call {name!r}; known: {', '.join((*UNARY, *STREAMS))}", 404)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise Refused("content-type must be application/json", 415)
        arguments = await json_object(request)
        with argument_errors():
            reply = getattr(self._upstream.client(bearer(request)), name)(**arguments)
        if name in STREAMS:
            return await streamed(request, reply, self._upstream.address)
        return answer(await while_present(request, reply))
