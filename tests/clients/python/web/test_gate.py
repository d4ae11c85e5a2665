"""Who may send requests, how large they may be, and what browsers are told."""

import asyncio
import re

import pytest

from glossa.web.app import PAGE
from tests.clients.python.web.conftest import site_of

TEXT = {"model": "en-de", "text": "a black cat"}


async def test_every_answer_forbids_what_the_page_does_not_need(site):
    for path in ("/", "/page/main.js", "/api/server", "/nothing", "/languages"):
        _, headers, _ = await asyncio.to_thread(site.sent, path)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("file", sorted(PAGE.glob("*.*")), ids=lambda path: path.name)
def test_the_page_has_no_file_from_elsewhere_and_makes_no_html_of_texts(file):
    text = file.read_text(encoding="utf-8")
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(| style=| on\w+=\"", text) == []


async def test_pages_of_other_sites_are_refused_unless_named():
    async with site_of({"origins": ("https://friend.example",)}) as site:
        own, friend = site.address, "https://friend.example"
        assert (await site.ask("/api/translate", TEXT, origin=own))[0] == 200
        status, headers, _ = await asyncio.to_thread(site.sent, "/languages", origin=friend)
        assert (status, headers["access-control-allow-origin"]) == (200, friend)
        status, answer = await site.ask("/translate", form={"q": "a"}, origin="https://foe.example")
        assert (status, "--allow-origin https://foe.example" in answer["error"]) == (403, True)
        assert len(site.edge.pool.requests) == 1


async def test_a_strangers_name_for_this_machine_is_refused_unless_allowed():
    async with site_of({"origins": ("https://translate.example",)}) as site:
        for host, status in (("localhost:5000", 200), ("translate.example", 200), ("foe.example:5000", 403)):
            origin = f"https://{host}"
            found, _ = await site.ask("/api/translate", TEXT, host=host, origin=origin)
            assert found == status, host
        _, answer = await site.ask("/languages", host="foe.example:5000")
        assert "--allow-origin https://foe.example:5000" in answer["error"]


async def test_bodies_above_the_limit_are_refused_with_and_without_a_length():
    async with site_of({"max_body_bytes": 2000}) as site:
        status, answer = await site.ask("/api/translate", TEXT | {"text": "a" * 2000})
        assert (status, "at most 2000 (--max-body-bytes)" in answer["error"]) == (413, True)
        host, port = site.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /api/translate HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        chunk = b"7d0\r\n" + b"a" * 2000 + b"\r\n"
        writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode() + 2 * chunk)
        assert b" 413 " in await reader.readline()
        writer.close()
