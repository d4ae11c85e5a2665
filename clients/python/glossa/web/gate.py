"""What holds for every request: who may send it, how large it may be, and what a browser may do with the answer."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glossa.client.channel import is_loopback
from glossa.web.refusals import Refused

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Gate:
    """Refuses pages of other sites, which could use a server that only this machine reaches, and bodies that are too
    large; adds the headers of security to every answer."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, origins: Sequence[str]) -> None:
        """origins: of the sites whose pages may send requests, beside this one; `*`: of all."""
        self._app, self._limit, self._origins = app, max_body_bytes, frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found.setdefault(name, value)
            await send(message)

        problem = self._renamed(scope, headers) or self._foreign(headers) or self._too_large(headers)
        if problem:
            return await _refuse(problem)(scope, receive, send_with_headers)
        await self._app(scope, self._limited(receive), send_with_headers)

    def _renamed(self, scope: Scope, headers: Headers) -> Refused | None:
        """A stranger's page may be of this site for a browser: its name may be changed to point to this machine. So a
        request that comes by way of this machine alone needs a name of it, or an allowed one."""
        host, (own, _) = headers.get("host", ""), scope["server"] or ("", None)
        if not is_loopback(own) or is_loopback(host) or "*" in self._origins:
            return None
        if host in (urlsplit(origin).netloc for origin in self._origins):
            return None
        return Refused(f"host {host}: is not this machine's; --allow-origin https://{host} lets it name this page", 403)

    def _foreign(self, headers: Headers) -> Refused | None:
        origin = headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return None
        if urlsplit(origin).netloc == headers.get("host"):
            return None
        return Refused(f"origin {origin}: its pages may not use this server; --allow-origin {origin} lets them", 403)

    def _too_large(self, headers: Headers) -> Refused | None:
        length = headers.get("content-length", "")
        return self._refused(int(length)) if length.isdigit() and int(length) > self._limit else None

    def _refused(self, size: int) -> Refused:
        return Refused(f"the body has {size} bytes or more; at most {self._limit} (--max-body-bytes)", 413)

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that ends a body without a length at the limit."""
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:
                raise self._refused(size)
            return message

        return limited


def _refuse(problem: Refused) -> JSONResponse:
    return JSONResponse({"error": problem.message}, problem.status, {"connection": "close"})
