"""The glossaries of a server: files that the setting `glossaries` names, read when it starts and when they change."""

from __future__ import annotations

import functools
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from glossa.v1 import glossa_pb2 as pb
from service.edge.requests.prompt_encoder import shorten
from service.edge.security.watched_files import WatchedFiles
from service.errors import InvalidRequest, StartupError
from service.text.glossary import Glossary, GlossaryError, Term, read_terms

MAX_FILE_TERMS = 100_000
RECENT = 16  # glossaries of requests that are kept: each sentence of a document, and each item of a call, has the same


class Glossaries:
    """Glossaries by name. Raises StartupError for a file that cannot be used."""

    def __init__(self, files: Mapping[str, Path] | None = None) -> None:
        self._files = dict(files or {})
        self._by_name: dict[str, Glossary] = {}
        self._watched = WatchedFiles("glossaries", list(self._files.values()), self._read)

    def watching(self) -> list[Coroutine[Any, Any, None]]:
        """Coroutines that keep the glossaries up to date until they are cancelled."""
        return [self._watched.watch(lambda _: None)] if self._files else []

    def of(self, message: pb.Glossary) -> Glossary:
        """The terms of a request, and those of the glossary that it names. Raises InvalidRequest."""
        named = self._by_name.get(message.name)
        if message.name and named is None:
            known = f"known: {', '.join(sorted(self._by_name))}" if self._by_name else "the server has none"
            raise InvalidRequest("glossary.name", f"no glossary {shorten(message.name, 64)!r}; {known}")
        if not message.terms:
            if named is None:
                raise InvalidRequest("glossary", "must have terms, or the name of a glossary of the server")
            return named
        own = _own(message.SerializeToString())
        return own if named is None else own.over(named)

    def _read(self) -> None:
        self._by_name = {name: _glossary(name, path) for name, path in self._files.items()}


@functools.lru_cache(RECENT)
def _own(message: bytes) -> Glossary:
    """The terms of a request. Raises InvalidRequest."""
    terms = pb.Glossary.FromString(message).terms
    try:
        return Glossary([Term(term.source, tuple(term.targets), term.ignore_case) for term in terms])
    except GlossaryError as error:
        field = f"glossary.terms[{error.place}].{error.field}" if error.field else "glossary.terms"
        raise InvalidRequest(field, str(error)) from error


def _glossary(name: str, path: Path) -> Glossary:
    try:
        return Glossary(read_terms(path.read_text(encoding="utf-8-sig").splitlines()), max_terms=MAX_FILE_TERMS)
    except (OSError, ValueError) as error:
        raise StartupError(f"glossaries: {name}: {path}: {error}") from error
