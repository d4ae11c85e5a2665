"""The calls of the page, against a server without engines."""

import asyncio
import json

import pytest

from cli.local_server import free_port
from glossa.web.page_calls import format_of, formats
from glossa.web.refusals import Refused
from service.edge.security.tokens import Holder, line_of
from service.errors import EngineUnavailable, Overloaded
from tests.clients.python.web.conftest import Site, in_front_of, site_of
from tests.edge import ANSWER, running

TEXT = {"model": "en-de", "text": "the small red house"}


async def test_a_translation_comes_in_pieces_and_whole(site):
    status, pieces = await site.ask("/api/stream_translate", TEXT)
    assert (status, "".join(piece["text"] for piece in pieces)) == (200, "zwei rote Häuser")
    assert pieces[-1]["answer"]["text"] == "zwei rote Häuser"
    status, whole = await site.ask("/api/translate", TEXT | {"beam_size": 2})
    assert (status, whole["text"], site.edge.pool.requests[-1].options.beam_size) == (200, "zwei rote Häuser", 2)


async def test_the_server_is_described_with_what_its_models_cannot_do(site):
    status, found = await site.ask("/api/server")
    assert (status, found["address"], found["formats"]["htm"]) == (200, site.edge.address, "html")
    translation = next(model for model in found["models"] if model["name"] == "en-de")
    assert (translation["translates"], translation["generates"]) == (True, False)
    assert translation["missing"].keys() == {"attention", "confidence", "chat"}
    site.edge.calibrate()
    async with in_front_of(site.edge.address) as address:
        _, found = await Site(site.edge, address).ask("/api/server")
    assert "confidence" not in found["models"][1]["missing"]


async def test_what_cannot_be_done_is_said_with_the_servers_message(site):
    for path, body, status, problem in [
        ("/api/translate", TEXT | {"beams": 2}, 400, "unknown option 'beams'; did you mean beam_size?"),
        ("/api/translate", TEXT | {"beam_size": "two"}, 400, "beam_size must be a whole number"),
        ("/api/translate", TEXT | {"beam_size": 99}, 400, "options.beam_size: must be 1..32, got 99"),
        ("/api/translate", TEXT | {"model": "fr-de"}, 404, "fr-de"),
        ("/api/translate", {}, 400, "missing 1 required positional argument: 'text'"),
        ("/api/translate", b"[1]", 415, "application/json"),
        ("/api/close", {}, 404, "no call 'close'; known: translate"),
        ("/api/attend", {"model": "en-de", "text": "a black cat"}, 400, "--attention"),
        ("/nothing", {}, 404, "/nothing"),
    ]:
        found, answer = await site.ask(path, body)
        assert (found, problem in answer["error"]) == (status, True), answer


async def test_a_pause_before_a_retry_is_passed_on(site):
    site.edge.pool.refuse = Overloaded("the queue is full", limit=4, retry_after_s=1.5)
    status, headers, body = await asyncio.to_thread(site.sent, "/api/translate", TEXT)
    assert (status, headers["retry-after"]) == (429, "2")
    assert json.loads(body).items() >= {"reason": "QUEUE_FULL", "retry_after_s": 1.5}.items()
    status, answer = await site.ask("/api/stream_translate", TEXT)
    assert (status, answer["code"]) == (429, "RESOURCE_EXHAUSTED")


async def test_an_error_after_the_first_piece_is_the_last_line(site):
    site.edge.pool.answer = (ANSWER[0], EngineUnavailable("the engine process ended", retry_after_s=1.0))
    status, (piece, problem) = await site.ask("/api/stream_translate", TEXT)
    assert (status, piece["text"], problem["reason"]) == (200, "zwei", "ENGINE_UNAVAILABLE")


@pytest.mark.parametrize("path", ["/api/translate", "/api/stream_translate"])
async def test_who_leaves_before_the_answer_cancels_the_call(site, path):
    site.edge.pool.hold = True
    async with site.left(path, TEXT):
        await site.edge.pool.until(lambda: site.edge.pool.requests)
    await site.edge.pool.until(lambda: site.edge.pool.cancelled)


async def test_who_leaves_a_stream_cancels_the_call(site):
    site.edge.pool.hold = True
    async with site.left("/api/stream_translate", TEXT) as reader:
        await site.edge.pool.until(lambda: site.edge.pool.requests)
        site.edge.pool.send(site.edge.pool.sinks[0], ANSWER[:1])
        assert json.loads((await reader.readuntil(b'"answer": null}\n')).splitlines()[-1])["text"] == "zwei"
        assert not site.edge.pool.cancelled
    await site.edge.pool.until(lambda: site.edge.pool.cancelled)


async def test_a_document_comes_segment_by_segment(site):
    given = {"model": "en-de", "text": "<p>the small red house</p>", "format": "html"}
    status, pieces = await site.ask("/api/stream_translate_document", given)
    assert (status, pieces[-1]["document"]["text"]) == (200, "<p>zwei rote Häuser</p>")


async def test_a_server_that_is_down_is_named_with_what_to_start():
    port = free_port()
    async with in_front_of(f"127.0.0.1:{port}") as address:
        status, answer = await Site(None, address).ask("/api/server")
        assert (status, answer["code"], answer["reason"]) == (503, "UNAVAILABLE", "")
        assert f"no server at 127.0.0.1:{port}; start one with `glossa serve NAME=BUNDLE`" in answer["error"]
        async with running(port=port) as edge:
            while (await Site(edge, address).ask("/api/server"))[0] == 503:
                pass


async def test_tokens_of_callers_come_before_that_of_the_page(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("".join(f"{line_of(token, Holder(token))}\n" for token in ("own", "ann")))
    file.chmod(0o600)
    async with site_of({"token": "own"}, tokens=file) as site:
        for headers, tenant in [({}, "own"), ({"authorization": "Bearer ann"}, "ann")]:
            assert (await site.ask("/api/translate", TEXT, **headers))[0] == 200
            assert site.edge.pool.requests[-1].caller.tenant == tenant
        status, answer = await site.ask("/api/translate", TEXT, authorization="Bearer eve")
        assert (status, answer["code"]) == (403, "UNAUTHENTICATED")


def test_formats_are_those_of_the_client():
    assert formats().items() >= {"text": "text", "txt": "text", "html": "html", "xlf": "xliff"}.items()
    assert format_of("A.B.HTM") == "html"
    with pytest.raises(Refused, match=r"a.doc: its suffix names no format; known: \.htm"):
        format_of("a.doc")
