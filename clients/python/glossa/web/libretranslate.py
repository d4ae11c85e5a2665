"""LibreTranslate's HTTP API, for programs that speak it already.

A parameter that is not covered is refused by name. `api_key` is a token of the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from typing import Any
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from glossa.client import AsyncClient
from glossa.client.documents import Document
from glossa.web.calls import answer, json_object, while_present
from glossa.web.downloads import Downloads
from glossa.web.languages import Pair, detected, listed, pair_of, pairs
from glossa.web.page_calls import format_of, formats
from glossa.web.refusals import STATUS, Refused, argument_errors
from glossa.web.upstream import Upstream, bearer

TRANSLATE = ("q", "source", "target", "format", "alternatives", "api_key")
MAX_TEXTS = 1000  # of `q`
AT_ONCE = 8  # documents of a list


class LibreTranslate:
    """The routes of the API."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream, self._downloads = upstream, Downloads()
        self.routes = [
            Route("/translate", self._translate, methods=["POST"]),
            Route("/detect", self._detect, methods=["POST"]),
            Route("/languages", self._languages),
            Route("/translate_file", self._translate_file, methods=["POST"]),
            Route("/download_file/{key}/{name}", self._download),
            Route("/suggest", self._suggest, methods=["POST"]),
            Route("/frontend/settings", self._settings),
            Route("/health", self._health),
        ]

    async def _translate(self, request: Request) -> Response:
        given = await parameters(request, TRANSLATE)
        texts, format, count = _texts(given), given.get("format", "text"), _alternatives(given)
        token = given.get("api_key") or bearer(request)
        client = self._upstream.client(token)
        return answer(await while_present(request, self._translated(client, token, texts, format, count, given)))

    async def _translated(
        self, client: AsyncClient, token: str, texts: list[str], format: str, count: int, given: dict[str, Any]
    ) -> dict[str, Any]:
        if format not in ("text", "html"):
            raise Refused(f"format: must be text or html, got {format!r}")
        if format == "html" and count:
            raise Refused("alternatives: there are none of format html; leave one of them out")
        pair, guesses = await self._pair(client, token, texts, given)
        if format == "html":
            found = await _documents(client, texts, pair)
            body: dict[str, Any] = {"translatedText": found}
        else:
            options = {**pair.options, **({"beam_size": count + 1, "num_hypotheses": count + 1} if count else {})}
            with argument_errors():
                batch = client.translate_batch(texts, **options)
            answers = [one async for one in batch]
            body = {"translatedText": [one.text for one in answers]}
            if count:
                body["alternatives"] = [_others(one) for one in answers]
        if guesses:
            body["detectedLanguage"] = guesses
        return body if isinstance(given["q"], list) else {name: values[0] for name, values in body.items()}

    async def _pair(
        self, client: AsyncClient, token: str, texts: list[str], given: dict[str, Any]
    ) -> tuple[Pair, list[dict[str, Any]]]:
        """Which model translates, and with source `auto` the detected languages: one model for all texts."""
        known = pairs(await self._upstream.models(token))
        source, target = (given.get(name, "") for name in ("source", "target"))
        if source != "auto":
            return pair_of(known, source, target), []
        guesses = [(await detected(client, text))[0] for text in texts]
        languages = {guess["language"] for guess in guesses}
        if len(languages) > 1:
            raise Refused(
                f"source: auto found {', '.join(sorted(languages))} in the texts of q; send one request for each"
            )
        return pair_of(known, languages.pop(), target), guesses

    async def _detect(self, request: Request) -> Response:
        given = await parameters(request, ("q", "api_key"))
        client = self._upstream.client(given.get("api_key") or bearer(request))
        found = [await while_present(request, detected(client, text)) for text in _texts(given)]
        return answer(found if isinstance(given["q"], list) else found[0])

    async def _languages(self, request: Request) -> Response:
        given = await parameters(request, ("api_key",))
        models = await while_present(request, self._upstream.models(given.get("api_key") or bearer(request)))
        return answer(listed(pairs(models)))

    async def _translate_file(self, request: Request) -> Response:
        async with request.form(max_files=1, max_fields=8) as form:
            given = _single(form.multi_items(), ("file", "source", "target", "api_key"))
            upload = given.get("file")
            if not isinstance(upload, UploadFile) or not upload.filename:
                raise Refused("Invalid request: missing file parameter")
            name, data = upload.filename, await upload.read()
        format = format_of(name)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Refused(f"file {name}: must be UTF-8: {error}") from None
        if not text.strip():
            raise Refused(f"file {name}: has nothing to translate ({len(data)} bytes)")
        token = given.get("api_key") or bearer(request)
        client = self._upstream.client(token)
        pair, _ = await self._pair(client, token, [text], given)
        document = await while_present(request, _document(client, text, pair, format))
        key = self._downloads.keep(document.text.encode())
        return answer({"translatedFileUrl": f"{request.base_url}download_file/{key}/{quote(name, safe='')}"})

    async def _download(self, request: Request) -> Response:
        data = self._downloads.find(request.path_params["key"])
        headers = {"content-disposition": "attachment", "cache-control": "private, no-store"}
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def _suggest(self, request: Request) -> Response:
        raise Refused("Suggestions are disabled on this server.", 403)

    async def _settings(self, request: Request) -> Response:
        models = await while_present(request, self._upstream.models(bearer(request)))
        known = pairs(models)
        first = {name: {"code": code, "name": code} for name, code in (known[0].codes if known else {}).items()}
        limits = [model.limits.max_text_bytes for model in models]
        return answer(
            {
                "apiKeys": True,
                "keyRequired": False,
                "charLimit": min(limits, default=0),
                "frontendTimeout": 500,
                "suggestions": False,
                "filesTranslation": True,
                "supportedFilesFormat": [f".{suffix}" for suffix in formats()],
                "language": first,
            }
        )

    async def _health(self, request: Request) -> Response:
        await while_present(request, self._upstream.models(bearer(request)))
        return answer({"status": "ok"})


async def parameters(request: Request, known: Collection[str]) -> dict[str, Any]:
    """The parameters of a request: of its query, and of its body as a form or as JSON. Raises Refused."""
    items: list[tuple[str, Any]] = list(request.query_params.multi_items())
    if request.headers.get("content-type", "").startswith("application/json"):
        items += (await json_object(request)).items()
    else:
        async with request.form(max_files=0) as form:
            items += form.multi_items()
    return _single(items, known)


def _single(items: list[tuple[str, Any]], known: Collection[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in items:
        if name not in known:
            raise Refused(f"{name}: is not a parameter that this server covers; known: {', '.join(known)}")
        if name in given:
            raise Refused(f"{name}: is given twice; several texts are a list of JSON")
        if value is not None:
            given[name] = value
    for name in {"source", "target", "format", "api_key"} & given.keys():
        if not isinstance(given[name], str):
            raise Refused(f"{name}: must be a text, got {json.dumps(given[name])[:80]}")
    return given


def _texts(given: dict[str, Any]) -> list[str]:
    texts = given.get("q", "")
    found = texts if isinstance(texts, list) else [texts]
    if not texts:
        raise Refused("Invalid request: missing q parameter")
    if len(found) > MAX_TEXTS:
        raise Refused(f"q: has {len(found)} texts, at most {MAX_TEXTS}")
    if wrong := [place for place, text in enumerate(found) if not isinstance(text, str)]:
        raise Refused(f"q: must be a text or a list of texts, got {json.dumps(found[wrong[0]])[:80]}")
    return found


def _alternatives(given: dict[str, Any]) -> int:
    try:
        count = int(given.get("alternatives", 0))
    except (TypeError, ValueError):
        count = -1
    if not 0 <= count < 32:
        raise Refused(f"alternatives: must be 0..31, got {given['alternatives']!r:.80}")
    return count


def _others(translation: Any) -> list[str]:
    """The further answers of a beam, without those that read the same."""
    texts = dict.fromkeys(one.text for one in translation.hypotheses)
    return [text for text in texts if text != translation.text]


async def _documents(client: AsyncClient, texts: list[str], pair: Pair) -> list[str]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(text: str) -> str:
        async with turn:
            return (await _document(client, text, pair, "html")).text

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(text)) for text in texts]
    return [task.result() for task in tasks]


async def _document(client: AsyncClient, text: str, pair: Pair, format: Any) -> Document:
    """A translated document. Raises Refused where a segment was not translated, as the API cannot say so."""
    with argument_errors():
        reply = client.translate_document(text, format=format, **pair.options)
    document = await reply
    for segment in document.errors:
        assert segment.error
        problem = f"{len(document.errors)} of {document.segments} segments were not translated: {segment.error.message}"
        raise Refused(problem, STATUS.get(segment.error.code, 500))
    return document
