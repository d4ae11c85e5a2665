"""TranslateDocument: the messages of a document → segments, and their translations → messages.

A text is cut until the model takes it, and each part is an item of the call (`items`), answered as Translate answers.
The document is read and split in threads, a few segments at a time and only while the window of items has room: a
document costs the memory of its text, and that of a window. What formats are is in `service.text`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.preparation import Preparation
from service.edge.admission.request_memory import CALL_BYTES
from service.edge.calls.call import Call
from service.edge.calls.items import Item, ItemRunner, Outcome
from service.edge.models.served_model import ServedModel
from service.edge.observability.status import rich_status
from service.edge.requests.prompt_encoder import LanguagePair, PromptEncoder, shorten
from service.edge.requests.request_builder import RequestBuilder
from service.edge.requests.request_limits import TextLimits, check_capabilities
from service.edge.requests.translation_encoder import TranslationEncoder
from service.edge.rpcs.document_context import TextInContext
from service.edge.rpcs.document_formats import format_of, markup_of
from service.errors import DeadlineExceeded, InvalidRequest, RequestError
from service.option_checks import check_single
from service.options import MAX_GRAMMAR_BYTES, DecodingOptions
from service.text.cuts import parts_that_fit
from service.text.inline_markup import MarkupError, extract
from service.text.languages import LANGUAGES, PARAGRAPHS, Languages, language_of
from service.text.mark_scanner import Kinds
from service.text.segmentation import splitter_for
from service.text.segments import DocumentError, Place, Segment, Text, has_words
from service.text.spans import Cursor

DOCUMENT_FACTOR = 12  # bytes of memory for each byte of a document: an ASCII text with one emoji has 4 in each copy
SPLIT_FIRST, SPLIT_GROWTH, SPLIT_TOGETHER = 4, 8, 512  # segments: the first sentence need not wait for others, and the
# window is soon full; 512 take some 15 ms in a thread
ITEMS_TOGETHER = 64
MAX_UNMET = 100  # sources of unmet terms in a summary
MAX_SEGMENTS, MAX_TEXT = 128, 1 << 18  # of a response: segments, characters of their texts
OPTIONS = "options."  # how the fields of decoding options begin in errors
COMPILED = ("bad_words", *MAX_GRAMMAR_BYTES)  # options that the text of a request has no part in


async def text_of(
    first: Any, messages: AsyncGenerator[Any, None], call: Call, runner: ItemRunner, *, limit: int
) -> str:
    """The text of a document. It reserves memory for it, instead of what its messages reserved.

    first: the message that has been read of `messages`. runner: its limits hold from one message with text to the next,
    or the end, and from the first to the end. limit: bytes of all texts. Raises InvalidRequest and DeadlineExceeded.
    """
    idle_s, all_s = runner.limits.idle_s, runner.limits.answer_s
    texts, size, loop = [first.text], 0, asyncio.get_running_loop()
    due_s, last_s = loop.time() + idle_s, loop.time() + all_s
    while True:
        size += len(texts[-1].encode())
        if size > limit:
            raise InvalidRequest("text", f"must be at most {limit} bytes in all messages, got {size}; split it")
        memory = call.budget.memory
        memory.shrink(CALL_BYTES + DOCUMENT_FACTOR * size)
        memory.grow(CALL_BYTES + DOCUMENT_FACTOR * size - memory.size)
        try:
            # wait_for of Python 3.11 may swallow a cancellation
            with runner.idle(call):
                async with asyncio.timeout_at(min(due_s, last_s)):
                    message = await anext(messages, None)
        except TimeoutError:
            problem = f"no text came within {idle_s:g} s" if due_s < last_s else f"the text took over {all_s:g} s"
            raise DeadlineExceeded(f"{problem}; end the stream of requests") from None
        if message is None:
            break
        if set_fields := [name.name for name, _ in message.ListFields() if name.name != "text"]:
            raise InvalidRequest(set_fields[0], "must be set in the first message of a call only")
        texts.append(message.text)
        if message.text:
            due_s = loop.time() + idle_s
    text = "".join(texts)
    if not text.strip():
        raise InvalidRequest("text", "must not be empty or blank")
    return text


def check_document(
    model: ServedModel, options: DecodingOptions, languages: LanguagePair, builder: RequestBuilder
) -> PromptEncoder:
    """Refuses options and languages that would be refused of every text, and options for more than an answer's text.
    Returns what encodes the texts. Raises InvalidRequest and Unsupported."""
    builder.check_options(options)
    check_single(options)
    check_capabilities(model, options, is_translation=True)
    prompts = PromptEncoder(model)
    if (encoder := TranslationEncoder.of(model)) is not None:
        encoder.check_languages(languages)
    else:
        prompts.language_ids(languages)
    golden = model.manifest.golden
    known = model.tokenizer.decode(golden.source or golden.prompt)  # a text that the model reads
    try:
        builder.decoding(known, replace(options, max_length_ratio=0.0), languages)  # the ratio limits short texts alone
    except InvalidRequest as error:
        if _option_of(error):
            raise
    return prompts


def is_of_every_text(error: RequestError, first: Any) -> bool:
    """Whether an engine refuses every text of a document for its options, as it has refused one. Limits of an answer's
    tokens may depend on the text, its context and its terms. first: the document's first message."""
    varies = first.options.max_length_ratio or first.context_sentences or first.HasField("glossary")
    name = _option_of(error)
    return name in COMPILED if varies else bool(name)


def _option_of(error: RequestError) -> str:
    """The decoding option that an error is about; empty for another field, and for the option whose memory depends on
    the length of a text."""
    if not isinstance(error, InvalidRequest) or not error.field.startswith(OPTIONS):
        return ""
    name = error.field.removeprefix(OPTIONS).partition("[")[0]
    return "" if name == "coverage_penalty" else name


def check_splitter(code: str) -> None:
    """Refuses a code that names no rules. Raises InvalidRequest."""
    if code and code != PARAGRAPHS and not language_of(code):
        known, fix = ", ".join(sorted(LANGUAGES)), f"{PARAGRAPHS} splits into paragraphs alone"
        raise InvalidRequest("splitter_language", f"must be one of {known}, got {shorten(code, 64)!r}; {fix}")


def translation_of(first: Any) -> pb.TranslateRequest:
    """The request for a text of a document, but for the text. first: the document's first message."""
    names = ("options", "glossary")
    return pb.TranslateRequest(
        **{name: getattr(first, name) for name in names if first.HasField(name)},
        markup=markup_of(first),
        source_language=first.source_language,
        target_language=first.target_language,
        include_confidence=first.include_confidence,
    )


def fits(prompts: PromptEncoder, limits: TextLimits, text: str) -> bool:
    """Whether a text is short enough to be translated. Quick for one that is far too long."""
    return len(text.encode()) <= limits.max_text_bytes and prompts.fits(text)


@dataclass
class _Pending:
    """A segment whose texts are being translated. answers: so far, one for each part that is a Text."""

    segment: Segment
    parts: tuple[str | Text, ...]
    missing: int
    answers: list[pb.TranslateResponse] = field(default_factory=list)
    error: RequestError | None = None

    @property
    def text(self) -> str:
        """Its part of the translated document."""
        answers = (answer.text for answer in self.answers)
        texts = [part if isinstance(part, str) else part.written(next(answers)) for part in self.parts]
        return (self.segment.joined or "".join)(texts)


class _Terms:
    """What became of the terms of a glossary in all texts."""

    def __init__(self) -> None:
        self._terms = self._met = 0
        self._unmet: dict[str, None] = {}

    def add(self, result: pb.GlossaryResult) -> None:
        """Counts those of one text."""
        self._terms += result.terms
        self._met += result.met
        room = MAX_UNMET - len(self._unmet)
        self._unmet |= dict.fromkeys([source for source in result.unmet if source not in self._unmet][:room])

    @property
    def result(self) -> pb.GlossaryResult:
        """Those of all texts."""
        return pb.GlossaryResult(terms=self._terms, met=self._met, unmet=self._unmet)


class Document:
    """One document while it is translated. Event-loop thread only, but for `split`."""

    def __init__(
        self,
        text: str,
        first: Any,
        call: Call,
        fits: Callable[[str], bool],
        preparation: Preparation,
    ) -> None:
        """first: its first message. fits: whether the model takes a text."""
        self._text, self._first, self._call, self._fits = text, first, call, fits
        markup = markup_of(first)
        self._marks = Kinds(*(bool(markup) and getattr(markup, kind) for kind in Kinds._fields))
        self._preparation = preparation
        self._pending: deque[_Pending] = deque()  # segments that were not sent
        self._waiting: deque[_Pending] = deque()  # those of them whose texts are being translated
        self._texts: deque[TextInContext] = deque()  # that have no outcome
        self._last: TextInContext | None = None  # of the paragraph
        self._terms = _Terms()
        self._source, self._target = Cursor(), Cursor()
        self._index = self._translated = self._failed = 0
        self._first_s = 0.0  # from the call's start until a segment was translated
        self.splitter = splitter_for("")
        self._segments: Iterator[Segment] = iter(())

    async def read(self) -> None:
        """Checks the document, and selects the rules by which it is split. Raises InvalidRequest."""
        first, format = self._first, format_of(self._first.format)
        check = partial(format.check, self._text, first.target_language)
        try:
            named = await self._preparation.prepare(self._call.rpc.caller, check)
        except DocumentError as error:
            raise InvalidRequest("text", str(error)) from None
        self.splitter = splitter_for(first.splitter_language or first.source_language or named)
        languages = Languages(first.source_language or named, first.target_language)
        self._segments = format.segments(self._text, self.splitter, languages)

    async def items(self) -> AsyncGenerator[list[Item], None]:
        """The texts to translate, in order. The next ones are split while these begin."""
        number, count = 0, SPLIT_FIRST
        splitting = asyncio.create_task(self._split_in_thread(self._segments, count))
        try:
            while split := await splitting:
                count = min(SPLIT_GROWTH * count, SPLIT_TOGETHER)
                splitting = asyncio.create_task(self._split_in_thread(self._segments, count))
                self._pending += split
                self._waiting += [pending for pending in split if pending.missing]
                texts = [text for pending in split for text in self._in_context(pending)]
                for start in range(0, len(texts), ITEMS_TOGETHER):  # a sentence may have a text between any two tags
                    some = texts[start : start + ITEMS_TOGETHER]
                    self._texts += some
                    yield [Item(str(number + place), text) for place, text in enumerate(some)]
                    number += len(some)
        finally:
            splitting.cancel()

    async def _split_in_thread(self, segments: Iterator[Segment], count: int) -> list[_Pending]:
        return await self._preparation.convert(self._call.rpc.caller, partial(self.split, segments, count))

    def split(self, segments: Iterator[Segment], count: int) -> list[_Pending]:
        """The next segments of a document, each cut into parts that the model takes. In any thread."""
        return [self._cut(segment) for segment in itertools.islice(segments, count)]

    def _cut(self, segment: Segment) -> _Pending:
        parts, is_joined = list[str | Text](), segment.joined is not None
        if segment.problem:
            return _Pending(segment, (), 0, error=InvalidRequest("text", segment.problem))
        if any(
            isinstance(one, Text) and (one.has_tags or is_joined) and not self._fits(one.plain) for one in segment.parts
        ):
            segment = replace(segment, parts=segment.pieces, joined=None)
        for part in map(self._with_words, segment.parts):
            if isinstance(part, str) or self._fits(part.plain):
                parts.append(part)
                continue
            spans = parts_that_fit(part.text, self._fits)
            if spans is None:
                problem = "has a word of more tokens than the model reads; break it up"
                return _Pending(segment, (), 0, error=InvalidRequest("text", problem))
            place = 0
            for span in spans:
                text = replace(part, text=part.text[span.start : span.end])
                parts += [part.written(part.text[place : span.start]), self._with_words(text)]
                place = span.end
        texts = sum(isinstance(part, Text) for part in parts)
        if not texts and not segment.is_copied:  # all that it has are marks
            parts = [self._text[segment.span.start : segment.span.end]]
            segment = replace(segment, parts=tuple(parts), joined=None)
        return _Pending(segment, tuple(parts), texts)

    def _with_words(self, part: str | Text) -> str | Text:
        """A part; in place of a text that has no words beside its marks, what the document has there."""
        if isinstance(part, str) or not any(self._marks):
            return part
        try:
            marked = extract(part.text, self._marks._replace(tags=part.has_tags))
        except MarkupError:  # the error of its item says why
            return part
        return part if has_words(marked.plain) else part.written(part.text)

    def _in_context(self, pending: _Pending) -> list[TextInContext]:
        """The texts of a segment that are to be translated, each with the one before it in its paragraph; those of
        attributes, also inside a sentence, are in none."""
        place, size, found = pending.segment.place, self._first.context_sentences, list[TextInContext]()
        if place is Place.FIRST or pending.error:
            self._last = None
        for part in pending.parts if pending.missing else ():
            if isinstance(part, Text):
                is_alone = place is Place.ALONE or part.is_attribute or not size
                found.append(TextInContext(self._request(part), None if is_alone else self._last, size))
                self._last = self._last if is_alone else found[-1]
        return found

    @staticmethod
    def _request(part: Text) -> Any:
        """The request for a text, without what all of them share."""
        return pb.TranslateRequest(text=part.text, markup=pb.Markup(tags=True) if part.has_tags else None)

    async def responses(
        self, outcomes: AsyncGenerator[list[Outcome], None], clock: Callable[[], float]
    ) -> AsyncGenerator[Any, None]:
        """The messages of a call, from the outcomes of its items."""
        async for some in outcomes:
            for outcome in some:
                if outcome.error is not None and is_of_every_text(outcome.error, self._first):
                    raise outcome.error
                self._take(outcome)
            self._first_s = self._first_s or clock() - self._call.rpc.started_s
            while segments := self._ready():
                yield pb.TranslateDocumentResponse(segments=segments)
        while segments := self._ready():
            yield pb.TranslateDocumentResponse(segments=segments)
        assert not self._pending, "every item has an outcome"
        yield pb.TranslateDocumentResponse(final=self._summary(clock() - self._call.rpc.started_s))

    def _take(self, outcome: Outcome) -> None:
        """Notes the translation of a text, of the first segment that waits for one."""
        pending = self._waiting[0]
        self._texts.popleft().end(None)  # if it never began, none after it must wait for it
        if outcome.error is not None:
            pending.error = outcome.error
        else:
            assert isinstance(outcome.response, pb.TranslateResponse)
            pending.answers.append(outcome.response)
            self._terms.add(outcome.response.glossary)
        pending.missing -= 1
        if not pending.missing:
            self._waiting.popleft()

    def _ready(self) -> list[Any]:
        """The next segments for one message that are translated, or copied."""
        found, size = list[Any](), 0
        while self._pending and not self._pending[0].missing and len(found) < MAX_SEGMENTS and size < MAX_TEXT:
            found.append(self._segment(self._pending.popleft()))
            size += len(found[-1].text)
        return found

    def _segment(self, pending: _Pending) -> Any:
        span, is_copied = pending.segment.span, pending.segment.is_copied
        source = self._text[span.start : span.end]
        text = source if pending.error else pending.text
        segment = pb.DocumentSegment(
            index=self._index,
            source=pb.TextRange(**self._source.move(source)._asdict()),
            target=pb.TextRange(**self._target.move(text)._asdict()),
            text=text,
            is_copied=is_copied,
        )
        if pending.error is not None:
            segment.error.CopyFrom(rich_status(pending.error))
            self._failed += 1
        elif self._first.include_confidence and pending.answers:
            segment.confidence = min(answer.confidence.sentence for answer in pending.answers)
        self._index += 1
        self._translated += not is_copied
        return segment

    def _summary(self, total_s: float) -> Any:
        splitter, counts = self.splitter, self._call.record.items
        summary = pb.DocumentSummary(
            segments=self._translated,
            failed=self._failed,
            splitting=pb.DOCUMENT_SPLITTING_SENTENCES if splitter.language else pb.DOCUMENT_SPLITTING_PARAGRAPHS,
            splitter_language=splitter.language,
            is_language_assumed=splitter.is_assumed,
        )
        if counts is not None:
            usage = {name: counts.fields[name] for name in ("prompt_tokens", "generated_tokens")}
            summary.usage.CopyFrom(pb.Usage(**usage))
        if self._first.HasField("glossary"):
            summary.glossary.CopyFrom(self._terms.result)
        first, total = timedelta(seconds=self._first_s), timedelta(seconds=total_s)
        summary.timings.CopyFrom(pb.Timings(first_token=first, total=total))
        return summary
