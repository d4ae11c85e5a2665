"""LibreTranslate's HTTP API, for programs that speak it already.

A parameter that is not covered is refused by name. `api_key` is a token of the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from glossa.client import AsyncClient
from glossa.client.documents import Document
from glossa.web.calls import answer, json_object, while_present
from glossa.web.downloads import Downloads
from glossa.web.languages import detections, guess_of, listed, name_of
from glossa.web.page_calls import format_of, formats
from glossa.web.refusals import STATUS, Refused
from glossa.web.upstream import Upstream, bearer

TRANSLATE = ("q", "source", "target", "format", "alternatives", "api_key")
MAX_TEXTS = 1000  # of `q`
AT_ONCE = 8  # texts of a list that are not sent as one batch
Reply = TypeVar("Reply")


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
        return answer(await while_present(request, self._translated(self._client(request, given), given)))

    async def _translated(self, client: AsyncClient, given: dict[str, Any]) -> dict[str, Any]:
        texts, format, count, pair = _texts(given), given.get("format", "text"), _alternatives(given), _pair(given)
        if format not in ("text", "html"):
            raise Refused(f"format: must be text or html, got {format!r}")
        if format == "html" and count:
            raise Refused("alternatives: there are none of format html; leave one of them out")
        if format == "html":
            answers: list[Any] = await _each(texts, lambda text: _document(client, text, pair, "html"))
        else:
            options: Any = {**pair, **({"beam_size": count + 1, "num_hypotheses": count + 1} if count else {})}
            if pair["source_language"] == "auto":  # each text may be in another language, and so for another model
                answers = await _each(texts, lambda text: client.translate(text, **options))
            else:
                answers = [one async for one in client.translate_batch(texts, **options)]
        body: dict[str, list[Any]] = {"translatedText": [one.text for one in answers]}
        if count:
            body["alternatives"] = [_others(one) for one in answers]
        if pair["source_language"] == "auto":
            body["detectedLanguage"] = [guess_of(one.detected_language) for one in answers]
        return body if isinstance(given["q"], list) else {name: values[0] for name, values in body.items()}

    def _client(self, request: Request, given: dict[str, Any]) -> AsyncClient:
        return self._upstream.client(given.get("api_key") or bearer(request))

    async def _detect(self, request: Request) -> Response:
        given = await parameters(request, ("q", "api_key"))
        found = await while_present(request, detections(self._client(request, given), _texts(given)))
        return answer(found if isinstance(given["q"], list) else found[0])

    async def _languages(self, request: Request) -> Response:
        client = self._client(request, await parameters(request, ("api_key",)))
        return answer(listed(await while_present(request, client.list_language_pairs(include_pivots=True))))

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
        reply = _document(self._client(request, given), text, _pair(given), format)
        document = await while_present(request, reply)
        key = self._downloads.keep(document.text.encode())
        return answer({"translatedFileUrl": f"{request.base_url}download_file/{key}/{quote(name, safe='')}"})

    async def _download(self, request: Request) -> Response:
        data = self._downloads.find(request.path_params["key"])
        headers = {"content-disposition": "attachment", "cache-control": "private, no-store"}
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def _suggest(self, request: Request) -> Response:
        raise Refused("Suggestions are disabled on this server.", 403)

    async def _settings(self, request: Request) -> Response:
        client = self._client(request, {})
        models = await while_present(request, self._upstream.models(bearer(request)))
        pairs = await while_present(request, client.list_language_pairs())
        first = [(pair.source_language, pair.target_language) for pair in pairs[:1]]
        sides = {side: code for codes in first for side, code in zip(("source", "target"), codes, strict=True)}
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
                "language": {side: {"code": code, "name": name_of(code)} for side, code in sides.items()},
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


def _pair(given: dict[str, Any]) -> dict[str, str]:
    """The languages of a request, as arguments of a call. Raises Refused."""
    for name in ("source", "target"):
        if not given.get(name):
            raise Refused(f"Invalid request: missing {name} parameter")
    return {"source_language": given["source"], "target_language": given["target"]}


async def _each(texts: Sequence[str], call: Callable[[str], Awaitable[Reply]]) -> list[Reply]:
    """The replies for texts, of which some are on their way at a time. The first error ends all."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(text: str) -> Reply:
        async with turn:
            return await call(text)

    tasks = [asyncio.ensure_future(one(text)) for text in texts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _document(client: AsyncClient, text: str, pair: dict[str, Any], format: Any) -> Document:
    """A translated document. Raises Refused where a segment was not translated, as the API cannot say so."""
    document = await client.translate_document(text, format=format, **pair)
    for segment in document.errors:
        assert segment.error
        problem = f"{len(document.errors)} of {document.segments} segments were not translated: {segment.error.message}"
        raise Refused(problem, STATUS.get(segment.error.code, 500))
    return document
