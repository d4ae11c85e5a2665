"""What the answers of a simulated server must be (`Answers`), those of batches and documents included.

Each item of a batch has one result, each segment of a document one place, and every answer is that of the unary method:
that of the runner's table where it is known without the engine, and the first answer to the same question in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from bench.simulation.runner import EOS, Table, greedy_tokens
from glossa.v1 import glossa_pb2 as pb
from model.tokenizer import Tokenizer
from service.edge.calls.batches import merged

Report = Callable[[str], None]
PLAIN = {"max_tokens", "token_logprobs"}  # options that leave a greedy answer the most likely tokens


class Check(Protocol):
    """Of the messages of one call."""

    def take(self, message: Any) -> None:
        """The server has written a message."""

    def end(self, code: str) -> None:
        """The call has ended for its client."""


class Answers:
    """All answers of a seed. report: gets what is wrong. note: counts what was seen to happen."""

    def __init__(
        self, table: Table, tokenizer: Tokenizer, longest: int, report: Report, note: Report, *, may_fail: bool
    ) -> None:
        """longest: tokens of a source. may_fail: whether items may fail because of engines or processes."""
        self._table, self._tokenizer, self.longest = table, tokenizer, longest
        self.report, self.note, self._may_fail = report, note, may_fail
        self._first: dict[bytes, Any] = {}  # the first answer to each question

    def check_of(self, name: str, messages: Sequence[Any]) -> Check | None:
        """The check of a call; None if it has no items. messages: what its client sends."""
        sent = [message for message in messages if hasattr(message, "DESCRIPTOR")]
        if sent and isinstance(sent[0], pb.TranslateBatchRequest | pb.ScoreBatchRequest):
            return BatchCheck(self, name, sent)
        if sent and isinstance(sent[0], pb.TranslateDocumentRequest):
            return DocumentCheck(self, name, sent)
        return None

    def source_ids(self, text: str) -> tuple[int, ...]:
        """The source that the model reads for a text."""
        return (*self._tokenizer.encode(text), EOS)

    def greedy_text(self, text: str, options: pb.DecodingOptions) -> str | None:
        """The translation of a text; None where it is not known without the engine."""
        source = self.source_ids(text)
        if {field.name for field, _ in options.ListFields()} - PLAIN or len(source) > self.longest:
            return None
        tokens = greedy_tokens(self._table, source, (1,), options.max_tokens)
        return self._tokenizer.decode([token for token in tokens if token != EOS])

    def take(self, name: str, request: Any, response: Any) -> None:
        """The answer to a request, alone or as an item. name: of the call or the item."""
        given: Any
        if isinstance(response, pb.TranslateResponse):
            expected = self.greedy_text(request.text, request.options)
            if expected is not None and response.text != expected:
                self.report(f"{name} got {response.text!r} instead of {expected!r}")
            given = response.text, tuple(response.tokens), response.finish_reason
        elif isinstance(response, pb.ScoreResponse):
            given = response.cumulative_logprob, tuple(token.logprob for token in response.tokens)
        else:
            return
        question = type(response).__name__.encode() + _question(request).SerializeToString(deterministic=True)
        first = self._first.setdefault(question, given)
        if first is not given:
            self.note("questions asked again")
        if first != given:
            self.report(f"{name} got {given}, and the same question {first} before")

    def take_error(self, name: str, code: int) -> None:
        """An item has ended with an error. code: of its status."""
        status = next(one for one in grpc.StatusCode if one.value[0] == code)
        self.note(f"items: {status.name}")
        if status is grpc.StatusCode.UNKNOWN or (status is grpc.StatusCode.INTERNAL and not self._may_fail):
            self.report(f"{name} ended with {status.name} where nothing fails")


def _question(request: Any) -> Any:
    """A request without what does not change its answer."""
    question = type(request)()
    question.CopyFrom(request)
    question.ClearField("model")
    return question


class BatchCheck:
    """Of a call with many items: each has one result, in order if that was asked for."""

    def __init__(self, answers: Answers, name: str, sent: Sequence[Any]) -> None:
        self._answers, self._name, first = answers, name, sent[0]
        items = [item for message in sent for item in message.items]
        # In their order. An id may be used again after its result.
        self._open = [
            (item.id or str(number), merged(item.request, first.defaults)) for number, item in enumerate(items)
        ]
        self._in_order = first.in_order

    def take(self, message: Any) -> None:
        for result in message.results:
            name = f"item {result.id!r} of {self._name}"
            place = next((place for place, (one, _) in enumerate(self._open) if one == result.id), None)
            if place is None:
                self._answers.report(f"{name} got a result twice, or was not sent")
                continue
            if self._in_order and place:
                self._answers.report(f"{name} got its result before an earlier one")
            _, request = self._open.pop(place)
            if result.HasField("error"):
                self._answers.take_error(name, result.error.code)
                continue
            self._answers.note("items: OK")
            self._answers.take(name, request, result.response)

    def end(self, code: str) -> None:
        if code == "OK" and self._open:
            self._answers.report(f"call {self._name} ended without the results of {[name for name, _ in self._open]}")


class DocumentCheck:
    """Of a document: its segments tile it and its translation, and each is translated as its text alone would be."""

    def __init__(self, answers: Answers, name: str, sent: Sequence[Any]) -> None:
        self._answers, self._name, self._options = answers, name, sent[0].options
        self._text = "".join(message.text for message in sent)
        self._segments = self._failed = self._translated = 0
        self._source = self._target = (0, 0)  # code points and bytes so far
        self._has_summary = False

    def take(self, message: Any) -> None:
        if self._has_summary:
            self._report("a message after its summary")
        for segment in message.segments:
            self._take(segment)
        if message.HasField("final"):
            self._has_summary = True
            counts = message.final.segments, message.final.failed
            if counts != (self._translated, self._failed):
                self._report(f"(segments, failed) {counts} instead of {(self._translated, self._failed)}")

    def _take(self, segment: Any) -> None:
        source = self._text[segment.source.start : segment.source.end]
        if segment.index != self._segments:
            self._report(f"segment {segment.index} instead of {self._segments}")
        self._source = self._moved("source", self._source, segment.source, source)
        self._target = self._moved("target", self._target, segment.target, segment.text)
        self._segments += 1
        self._translated += not segment.is_copied
        if segment.HasField("error"):
            self._failed += 1
            self._answers.take_error(f"segment {segment.index} of {self._name}", segment.error.code)
        if segment.is_copied or segment.HasField("error"):
            expected: str | None = source
        else:
            self._answers.note("items: OK")
            self._answers.note("segments translated")
            expected = self._answers.greedy_text(source.replace("\n", " "), self._options)
        if expected is not None and segment.text != expected:
            self._report(f"{segment.text!r} instead of {expected!r}")

    def _moved(self, what: str, place: tuple[int, int], given: Any, text: str) -> tuple[int, int]:
        """The place after a text, which must have these ranges."""
        after = place[0] + len(text), place[1] + len(text.encode())
        if (given.start, given.start_byte, given.end, given.end_byte) != (*place, *after):
            self._report(f"a segment whose {what} does not continue at {place}")
        return after

    def end(self, code: str) -> None:
        if code == "OK" and not (self._has_summary and self._source[0] == len(self._text)):
            self._report(f"its end at {self._source[0]} of {len(self._text)}")

    def _report(self, what: str) -> None:
        self._answers.report(f"document {self._name} got {what}")
