"""Documents: the messages that one becomes, and its segments as they come back. Knows no gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from google.rpc import code_pb2, error_details_pb2

from glossa.client.fields import new_message
from glossa.client.languages import DetectedLanguage, TranslationRoute
from glossa.client.requests import TranslateOptions, enum_number, translation_fields
from glossa.client.types import GlossaryResult, enum_names, read
from glossa.v1 import glossa_pb2 as pb

Format = Literal["text", "html", "xliff", "srt", "vtt", "po"]
CHARACTERS = 1 << 15  # of a message: at most 128 KiB, half of what a server accepts by default


@dataclass(frozen=True)
class TextRange:
    """A part of a text: characters start .. end, and bytes of UTF-8, ends excluded."""

    start: int
    end: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True)
class SegmentError:
    """Why a segment was not translated. code: the gRPC status by name; reason: the server's."""

    code: str
    reason: str
    message: str


@dataclass(frozen=True)
class Segment:
    """A part of a document: a sentence, or what was copied between two. The texts of all segments are the translated
    document; that of a failed one is its source."""

    index: int
    source: TextRange  # in the document
    target: TextRange  # in the translated document
    text: str
    is_copied: bool
    error: SegmentError | None = None
    confidence: float | None = None  # only when requested, of what was translated


@dataclass(frozen=True)
class SegmentConfidence:
    """How sure the model is of a translated segment: 0 .. 1."""

    source: TextRange  # in the document
    target: TextRange  # in the translated document
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole translated document."""

    text: str
    segments: int  # that are not copies
    errors: tuple[Segment, ...]  # segments that were not translated
    splitting: str  # sentences or paragraphs
    splitter_language: str  # whose rules split texts into sentences
    is_language_assumed: bool  # neither the request nor the document named it
    prompt_tokens: int
    generated_tokens: int
    first_token_s: float  # until the first segment was translated
    total_s: float
    glossary: GlossaryResult | None = None  # the terms of all sentences
    detected_language: DetectedLanguage | None = None  # with source_language auto
    route: TranslationRoute | None = None  # if its models were chosen by its languages
    confidences: tuple[SegmentConfidence, ...] = ()  # only when requested, of the translated segments in order


@dataclass(frozen=True)
class DocumentPiece:
    """Segments that were ready together; the last piece has the whole document."""

    segments: tuple[Segment, ...]
    document: Document | None = None


def document_requests(
    text: str, format: Format, splitter_language: str, options: TranslateOptions, *, context_sentences: int = 0
) -> Iterator[Any]:
    """The messages of one document. Raises TypeError and ValueError as `translation_fields`."""
    if "uncertain_below" in options:
        raise TypeError("uncertain_below is for texts: documents have the confidence of segments, not of words")
    if "split_sentences" in options:
        raise TypeError("split_sentences is for texts: documents are always split; leave it out")
    if not isinstance(text, str):
        raise TypeError(f"text must be a text, got {text!r:.80} ({type(text).__name__})")
    fields = translation_fields(text[:CHARACTERS], options)
    number = enum_number("format", pb.DocumentFormat.DESCRIPTOR, format)
    fields |= {"splitter_language": splitter_language, "context_sentences": context_sentences}
    first = new_message(pb.TranslateDocumentRequest, format=number, **fields)
    starts = range(CHARACTERS, len(text), CHARACTERS)
    more = (pb.TranslateDocumentRequest(text=text[start : start + CHARACTERS]) for start in starts)
    return iter([first, *more])


@dataclass
class DocumentStream:
    """Turns the messages of a translated document into pieces."""

    texts: list[str] = field(default_factory=list)
    errors: list[Segment] = field(default_factory=list)
    confidences: list[SegmentConfidence] = field(default_factory=list)

    def piece(self, message: Any) -> DocumentPiece:
        """The piece of one message; `document` is set in the last."""
        segments = tuple(_segment(segment) for segment in message.segments)
        self.texts += [segment.text for segment in segments]
        self.errors += [segment for segment in segments if segment.error]
        self.confidences += [
            SegmentConfidence(segment.source, segment.target, segment.confidence)
            for segment in segments
            if segment.confidence is not None
        ]
        if not message.HasField("final"):
            return DocumentPiece(segments)
        splitting = enum_names(pb.DocumentSplitting.DESCRIPTOR)[message.final.splitting]
        given = {
            "text": "".join(self.texts),
            "errors": tuple(self.errors),
            "confidences": tuple(self.confidences),
            "splitting": splitting,
        }
        return DocumentPiece(segments, read(Document, message.final, **given))


def _segment(message: Any) -> Segment:
    error = None
    if message.HasField("error"):
        info = error_details_pb2.ErrorInfo()
        reason = next((info.reason for detail in message.error.details if detail.Unpack(info)), "")
        error = SegmentError(code_pb2.Code.Name(message.error.code), reason, message.error.message)
    ranges = {name: read(TextRange, getattr(message, name)) for name in ("source", "target")}
    sure = message.confidence if message.HasField("confidence") else None
    return Segment(
        message.index, text=message.text, is_copied=message.is_copied, error=error, confidence=sure, **ranges
    )
