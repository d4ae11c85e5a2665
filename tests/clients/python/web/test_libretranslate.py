"""LibreTranslate's API, as its clients, unmodified, and others use it."""

import asyncio
import dataclasses
import urllib.error
from typing import Any

import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException, ServerException
from libretranslatepy import LibreTranslateAPI

from service.edge.security.tokens import Holder, line_of
from tests.clients.python.web.conftest import site_of
from tests.edge import RESULT, answered

TEXT, ANSWER = "the small red house", "zwei rote Häuser"
PAIR = {"source": "en", "target": "de"}
BOUNDARY = "0123456789"


def files(*parts):
    """The body and the type of a form with files. parts: name, file name or none, value."""
    lines = []
    for name, file, value in parts:
        more = f'; filename="{file}"\r\nContent-Type: application/octet-stream' if file else ""
        lines += [
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"
        ]
    return b"".join([*lines, f"--{BOUNDARY}--\r\n".encode()]), f"multipart/form-data; boundary={BOUNDARY}"


def upload(name, data, **fields):
    """The body and the type of a request for a file, English to German."""
    given = {**PAIR, **fields}
    return files(("file", name, data), *((field, None, value.encode()) for field, value in given.items()))


async def test_libretranslatepy_translates_and_lists(site):
    client = LibreTranslateAPI(site.address)
    assert await asyncio.to_thread(client.translate, TEXT, "en", "de") == ANSWER
    (language,) = await asyncio.to_thread(client.languages)
    assert (language["code"], language["targets"]) == ("en", ["de"])
    with pytest.raises(urllib.error.HTTPError) as caught:
        await asyncio.to_thread(client.translate, TEXT, "en", "fr")
    with caught.value as error:
        assert error.code == 400


async def test_deep_translator_translates(site):
    client = LibreTranslator(source="English", target="German", api_key="any", custom_url=f"{site.address}/")
    assert await asyncio.to_thread(client.translate, TEXT) == ANSWER
    assert await asyncio.to_thread(client.translate_batch, [TEXT, "a black cat"]) == [ANSWER, ANSWER]
    other = LibreTranslator(source="English", target="French", api_key="any", custom_url=f"{site.address}/")
    with pytest.raises(ServerException):
        await asyncio.to_thread(other.translate, TEXT)


async def test_keys_are_tokens_of_the_server(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"{line_of('ann', Holder('ann'))}\n")
    file.chmod(0o600)
    async with site_of(tokens=file) as site:
        good = LibreTranslateAPI(site.address, "ann")
        assert await asyncio.to_thread(good.translate, TEXT, "en", "de") == ANSWER
        assert site.edge.pool.requests[-1].caller.tenant == "ann"
        bad = LibreTranslator(source="en", target="de", api_key="eve", custom_url=f"{site.address}/")
        with pytest.raises(AuthorizationException):
            await asyncio.to_thread(bad.translate, TEXT)


async def test_texts_come_as_json_form_or_query(site):
    given = {"q": TEXT, **PAIR, "format": "text", "api_key": ""}
    assert await site.ask("/translate", given) == (200, {"translatedText": ANSWER})
    assert await site.ask("/translate", form=given) == (200, {"translatedText": ANSWER})
    assert await site.ask("/translate?q=a+black+cat&source=EN&target=de", b"") == (200, {"translatedText": ANSWER})
    assert await site.ask("/translate", {**given, "q": [TEXT, "a black cat"]}) == (
        200,
        {"translatedText": [ANSWER] * 2},
    )


async def test_alternatives_are_the_further_answers_of_a_beam(site):
    others = [dataclasses.replace(RESULT, text=text) for text in (ANSWER, "zwei Häuser", ANSWER)]
    site.edge.pool.answer = answered(*others)
    expected = {"translatedText": ANSWER, "alternatives": ["zwei Häuser"]}
    assert await site.ask("/translate", {"q": TEXT, **PAIR, "alternatives": 2}) == (200, expected)
    options = site.edge.pool.requests[-1].options
    assert (options.beam_size, options.num_hypotheses) == (3, 3)


async def test_html_is_translated_around_its_tags(site):
    given = {"q": ["<p>the small red house</p><p>a black cat</p>", "<i></i>"], **PAIR, "format": "html"}
    expected = [f"<p>{ANSWER}</p><p>{ANSWER}</p>", "<i></i>"]
    assert await site.ask("/translate", given) == (200, {"translatedText": expected})


async def test_what_cannot_be_done_is_refused_in_the_apis_form(site):
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"q": ""}, 400, "Invalid request: missing q parameter"),
        ({"q": []}, 400, "Invalid request: missing q parameter"),
        ({"q": [TEXT, 3]}, 400, "q: must be a text or a list of texts, got 3"),
        ({"q": [TEXT] * 1001}, 400, "q: has 1001 texts, at most 1000"),
        ({"q": [TEXT, "x " * 9]}, 400, "q[1]: "),
        ({"source": None}, 400, "Invalid request: missing source parameter"),
        ({"target": 7}, 400, "target: must be a text, got 7"),
        ({"target": "it"}, 400, "target_language: must be de, which model 'en-de' translates"),
        ({"format": "markdown"}, 400, "format: must be text or html, got 'markdown'"),
        ({"format": "html", "alternatives": 1}, 400, "alternatives: there are none of format html"),
        ({"alternatives": -1}, 400, "alternatives: must be 0..31, got -1"),
        ({"secret": "x"}, 400, "secret: is not a parameter that this server covers; known: q, source"),
    ]
    for changes, status, problem in cases:
        found, answer = await site.ask("/translate", {"q": TEXT, **PAIR, **changes})
        assert (found, problem in answer["error"]) == (status, True), answer


async def test_a_parameter_given_twice_and_a_body_that_is_no_json_are_refused(site):
    status, answer = await site.ask("/translate?q=a&q=b", b"")
    assert (status, answer["error"].startswith("q: is given twice")) == (400, True)
    status, answer = await site.ask("/translate", b'{"q": ', content_type="application/json")
    assert (status, answer["error"].startswith("the body must be JSON")) == (400, True)
    status, answer = await site.ask("/translate")
    assert (status, answer["error"]) == (405, "GET /translate: Method Not Allowed; use POST")


async def test_a_file_is_translated_and_fetched(site):
    for name, text, expected in [
        ("a.txt", TEXT, ANSWER),
        ("b c.html", "<p>a black cat</p>", f"<p>{ANSWER}</p>"),
    ]:
        body, kind = upload(name, text.encode())
        status, answer = await site.ask("/translate_file", body, content_type=kind)
        assert status == 200, answer
        assert answer["translatedFileUrl"].startswith(f"{site.address}/download_file/")
        path = answer["translatedFileUrl"].removeprefix(site.address)
        status, headers, data = await asyncio.to_thread(site.sent, path)
        assert (status, data.decode(), headers["content-disposition"]) == (200, expected, "attachment")
        assert (await site.ask(path.replace("/download_file/", "/download_file/x")))[0] == 404


async def test_a_file_that_cannot_be_translated_is_refused(site):
    cases: list[tuple[str, bytes, dict[str, str], str]] = [
        ("a.txt", b"", {}, "file a.txt: has nothing to translate (0 bytes)"),
        ("a.txt", b"\xff\xfe", {}, "file a.txt: must be UTF-8"),
        ("a.doc", b"a", {}, "a.doc: its suffix names no format"),
        ("a.xliff", b"a black cat", {}, "text: must be well-formed XML"),
        ("a.txt", b"a", {"target": "it"}, "target_language: must be de, which model 'en-de' translates"),
        ("a.txt", b"a", {"glossary": "x"}, "glossary: is not a parameter"),
    ]
    for name, data, fields, problem in cases:
        body, kind = upload(name, data, **fields)
        status, answer = await site.ask("/translate_file", body, content_type=kind)
        assert (status, problem in answer["error"]) == (400, True), answer


async def test_a_file_that_was_translated_in_part_is_refused_with_the_reason(site):
    body, kind = upload("a.txt", b"a black cat.\n\n" + b"cat " * 20)
    status, answer = await site.ask("/translate_file", body, content_type=kind)
    assert (status, answer["error"].startswith("1 of 2 segments were not translated: ")) == (400, True), answer


async def test_the_settings_of_frontends_and_health(site):
    status, found = await site.ask("/frontend/settings")
    assert (status, found["charLimit"], found["language"]["source"]["code"]) == (200, 16384, "en")
    assert {".txt", ".html", ".xliff"} <= set(found["supportedFilesFormat"])
    assert await site.ask("/health") == (200, {"status": "ok"})
    assert (await site.ask("/suggest", {"q": "a"}))[0] == 403
    await site.edge.server.stop()
    while (await site.ask("/health"))[0] != 503:  # what it heard may be a second old
        pass


async def test_languages_are_detected_and_named(site):
    status, found = await site.ask("/detect", {"q": "Where have you been all these years, my friend?"})
    assert (status, found[0]["language"], found[0]["confidence"] > 80) == (200, "en", True)
    client = LibreTranslator(source="auto", target="de", api_key="any", custom_url=f"{site.address}/")
    assert await asyncio.to_thread(client.translate, TEXT) == ANSWER
    status, answer = await site.ask("/translate", {"q": [TEXT, "a black cat"], "source": "auto", "target": "de"})
    assert (status, answer["translatedText"]) == (200, [ANSWER] * 2)
    assert [one["language"] for one in answer["detectedLanguage"]] == ["en", "en"]
    status, answer = await site.ask("/translate", {"q": "Wo warst du gestern?", "source": "auto", "target": "de"})
    assert (status, "auto: the text seems to be in de" in answer["error"]) == (400, True), answer
    assert (await asyncio.to_thread(LibreTranslateAPI(site.address).detect, TEXT))[0].keys() == {
        "language",
        "confidence",
    }
