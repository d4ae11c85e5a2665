"""The calls of the client for documents. How messages become segments is in `documents`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Concatenate, Unpack, cast

from glossa.client.documents import Document, DocumentPiece, DocumentStream, Format, document_requests
from glossa.client.methods import Call, Method, P, method_of
from glossa.client.requests import TranslateOptions

_Pieces = Method[P, Generator[DocumentPiece, None, None], AsyncGenerator[DocumentPiece, None]]
_Whole = Method[P, Document, Coroutine[Any, Any, Document]]


def _streaming(build: Callable[Concatenate[Any, P], Call[Any]]) -> _Pieces[P]:
    return cast(_Pieces[P], method_of(build, "_pieces", "Iterator[DocumentPiece]"))


def _whole(build: Callable[Concatenate[Any, P], Call[Any]]) -> _Whole[P]:
    return cast(_Whole[P], method_of(build, "_document"))


class DocumentCalls:
    """Calls for documents. All raise ClientError. Without timeout_s they have no deadline."""

    @_streaming
    def stream_translate_document(
        self,
        text: str,
        *,
        format: Format = "text",
        context_sentences: int = 0,
        **options: Unpack[TranslateOptions],
    ) -> Call[Document]:
        """Translate a document of any length, in pieces as its segments are ready; the last one has the whole document.

        splitter_language: of the rules that split texts into sentences; "und": paragraphs alone; default:
        source_language, else the language that the document names, else English. context_sentences: how many sentences
        before each one the model reads beside it, of models that were trained so. A segment that fails is copied and
        has an error. markup: marks beside the tags of the format. confidence: of each segment. Raises ValueError for
        an unknown format.
        """
        return _call(text, format, context_sentences, options)

    @_whole
    def translate_document(
        self,
        text: str,
        *,
        format: Format = "text",
        context_sentences: int = 0,
        **options: Unpack[TranslateOptions],
    ) -> Call[Document]:
        """Translate a document of any length; see `stream_translate_document`."""
        return _call(text, format, context_sentences, options)


def _call(text: str, format: Format, context_sentences: int, options: TranslateOptions) -> Call[Document]:
    language = options.get("splitter_language", "")
    requests = document_requests(text, format, language, options, context_sentences=context_sentences)
    return Call(requests, options, cast(Any, None), DocumentStream, many="TranslateDocumentRequest")
