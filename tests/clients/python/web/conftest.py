"""`glossa web` on a free port, in front of a server without engines."""

import asyncio
import contextlib
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from glossa.web.app import Settings, application
from tests.e2e.process import PATIENCE_S
from tests.edge import manifest, running


@dataclass
class Site:
    """The server, None if there is none, and what is in front of it."""

    edge: Any
    address: str

    def sent(self, path, body=None, form=None, **headers):
        """Status, headers and body of an answer. body: sent as JSON, unless it is bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if form is not None:
            data = urllib.parse.urlencode(form).encode()
        elif isinstance(body, dict):
            headers.setdefault("content_type", "application/json")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.address + path, data, named), timeout=60) as reply:
                return reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    async def ask(self, path, body=None, form=None, **headers):
        """Status and JSON of an answer; a list of values for lines of JSON."""
        status, found, data = await asyncio.to_thread(self.sent, path, body, form, **headers)
        if found.get_content_type() == "application/x-ndjson":
            return status, [json.loads(line) for line in data.splitlines()]
        return status, json.loads(data)

    @contextlib.asynccontextmanager
    async def left(self, path, body):
        """Posts JSON and closes the connection at the end of the block, without a look at the answer."""
        data, (host, port) = json.dumps(body).encode(), self.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        try:
            yield reader
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def in_front_of(address, **settings):
    """The page's address."""
    app = application(Settings(address=address, **settings))
    server = uvicorn.Server(
        uvicorn.Config(app, http="h11", ws="none", log_level="warning", timeout_graceful_shutdown=1)
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(running, PATIENCE_S)


@contextlib.asynccontextmanager
async def site_of(settings=None, **changes):
    """A Site. settings: of the page; changes: of the server."""
    async with running(**changes) as edge, in_front_of(edge.address, **(settings or {})) as address:
        edge.models["en-de"].manifest = manifest(source_language="en", target_language="de")
        yield Site(edge, address)


@pytest.fixture
async def site():
    async with site_of() as site:
        yield site
