"""The answers to the sentences of a text → the answer to the text (`joined`). docs/sentences.md defines each field."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from export.bundle.confidence import merged
from glossa.v1 import glossa_pb2 as pb
from service.edge.models.alignment import Span
from service.edge.requests.request_limits import MAX_RESPONSE_BYTES
from service.edge.rpcs.proto_conversion import completion, spans_of
from service.errors import InvalidRequest
from service.options import DecodingOptions
from service.request import Finished
from service.text.edits import moved
from service.text.glossary import Glossary
from service.text.source_sentences import Sentence, SplitText

_LENGTH, _END = pb.FINISH_REASON_LENGTH, pb.FINISH_REASON_END_OF_SEQUENCE
_OUTPUT = ("alignment", "top_logprobs", "token_logprobs", "num_hypotheses", "num_sequences")


class _Place(NamedTuple):
    """A sentence of the text, and what is before it in answers, without marks. source: where it begins in the text that
    the spans of alignments refer to."""

    sentence: Sentence
    source: int
    gap: str


def joined(
    text: SplitText,
    answers: Sequence[pb.TranslateResponse],
    message: pb.TranslateRequest | pb.StreamTranslateRequest,
    options: DecodingOptions,
    finished: Finished,
    glossary: Glossary | None = None,
) -> pb.TranslateResponse:
    """The answer to a text. answers: to its first sentences; to all, unless max_tokens left no room for the others.
    message: the client's. finished: of all answers together. glossary: that of the message. Raises InvalidRequest for
    an answer that clients would not accept."""
    whole = _Whole(text, answers, has_marks=message.HasField("markup"), is_cut=is_cut(text, answers, options))
    cost = completion(finished) | {"finish_reason": whole.reason(answers)}
    response = pb.TranslateResponse(text=whole.text([answer.text for answer in answers]), **cost)
    if message.include_tokens:
        response.tokens.extend(token for answer in answers for token in answer.tokens)
    if options.returns_hypotheses:
        found = _drawn(answers) if options.num_sequences > 1 else _best(answers, options.num_hypotheses)
        _check_rows(found, options)
        response.hypotheses.extend(whole.hypothesis(one, has_tokens=message.include_tokens) for one in found)
    if answers[0].HasField("seed"):
        response.seed = answers[0].seed
    if whole.has_marks:
        response.markup.CopyFrom(whole.markup())
    if glossary is not None:
        response.glossary.CopyFrom(_terms(glossary, answers, [place.sentence.text for place in whole.places]))
    if message.include_confidence:
        response.confidence.CopyFrom(whole.confidence([answer.confidence for answer in answers], whole.starts(None)))
    if answers[0].HasField("route"):
        response.route.CopyFrom(answers[0].route)
        response.route.pivot_text = whole.plain(answer.route.pivot_text for answer in answers)
    if (size := response.ByteSize()) > MAX_RESPONSE_BYTES:
        asked = next((name for name in _OUTPUT if getattr(options, name) not in (0, 1, False, "none")), "max_tokens")
        problem = f"must give a response of at most {MAX_RESPONSE_BYTES} bytes, that of all sentences has {size}"
        raise InvalidRequest(f"options.{asked}", f"{problem}; request less, or send fewer sentences")
    return response


def is_cut(text: SplitText, answers: Sequence[pb.TranslateResponse], options: DecodingOptions) -> bool:
    """Whether max_tokens has ended the answer to a text before its end."""
    is_short = len(answers) < len(text.sentences)
    return is_short or (options.max_tokens > 0 and answers[-1].finish_reason == _LENGTH)


def _best(answers: Sequence[pb.TranslateResponse], count: int) -> list[list[pb.Hypothesis]]:
    """The combinations of one answer to each sentence whose scores have the largest sums, the best first."""
    best: list[tuple[float, Any]] = [(0.0, None)]  # the sum, and the answers from the last one back
    for answer in answers:
        longer = ((total + one.score, (one, before)) for total, before in best for one in answer.hypotheses)
        best = heapq.nlargest(count, longer, key=lambda scored: scored[0])
    return [_in_order(chain) for _, chain in best]


def _in_order(chain: Any) -> list[pb.Hypothesis]:
    found = []
    while chain is not None:
        last, chain = chain
        found.append(last)
    return found[::-1]


def _drawn(answers: Sequence[pb.TranslateResponse]) -> list[list[pb.Hypothesis]]:
    """The samples of all sentences, in the order in which they were drawn."""
    return [list(one) for one in zip(*(answer.hypotheses for answer in answers), strict=True)]


def _check_rows(found: Iterable[Sequence[pb.Hypothesis]], options: DecodingOptions) -> None:
    if options.alignment not in ("soft", "both"):
        return
    size = sum(
        4 * sum(len(one.alignment.rows) for one in chosen) * sum(len(one.alignment.source_spans) for one in chosen)
        for chosen in found
    )
    if size > MAX_RESPONSE_BYTES:
        problem = (
            f"must give a response of at most {MAX_RESPONSE_BYTES} bytes, the weights of all sentences have {size}"
        )
        raise InvalidRequest("options.alignment", f"{problem}; request hard, or send fewer sentences")


def _terms(glossary: Glossary, answers: Sequence[pb.TranslateResponse], sources: Sequence[str]) -> pb.GlossaryResult:
    terms = {
        found.term.source: None
        for source, answer in zip(sources, answers, strict=True)
        for found in glossary.occurrences(answer.markup.source_text or source)
    }
    unmet = dict.fromkeys(source for answer in answers for source in answer.glossary.unmet)
    return pb.GlossaryResult(terms=len(terms), met=len(terms) - len(unmet), unmet=unmet)


class _Whole:
    """The text whose sentences were answered."""

    def __init__(
        self, text: SplitText, answers: Sequence[pb.TranslateResponse], *, has_marks: bool, is_cut: bool
    ) -> None:
        self._text, self._answers, self.has_marks, self._is_cut = text, answers, has_marks, is_cut
        self.places, source = list[_Place](), 0
        for sentence, answer in zip(text.sentences, answers, strict=False):
            source += len(sentence.plain_before)
            self.places.append(_Place(sentence, source, sentence.plain_before))
            source += len(answer.markup.source_text if has_marks else sentence.original)

    def reason(self, ended: Iterable[Any]) -> Any:
        """Why an answer ended, from the ends of those to its sentences."""
        return _LENGTH if self._is_cut or any(one.finish_reason == _LENGTH for one in ended) else _END

    def text(self, texts: Iterable[str]) -> str:
        """The answer, from those to the sentences."""
        pairs = zip(self.places, texts, strict=True)
        after = "" if self._is_cut else self._text.after
        return "".join(part for place, text in pairs for part in (place.sentence.before, text)) + after

    def plain(self, texts: Iterable[str]) -> str:
        """The answer without marks, from those to the sentences."""
        pairs = zip(self.places, texts, strict=True)
        return "".join(part for place, text in pairs for part in (place.gap, text)) + self._plain_after

    @property
    def _plain_after(self) -> str:
        return "" if self._is_cut else self._text.plain_after

    def starts(self, chosen: Sequence[pb.Hypothesis] | None) -> list[int]:
        """Where the answer to each sentence begins, without marks. chosen: the answers, by default the best ones."""
        if chosen is not None:
            texts = [one.plain_text if self.has_marks else one.text for one in chosen]
        else:
            texts = [one.markup.plain_text if self.has_marks else one.text for one in self._answers]
        starts, end = [], 0
        for place, text in zip(self.places, texts, strict=True):
            starts.append(end + len(place.gap))
            end = starts[-1] + len(text)
        return starts

    def markup(self) -> pb.MarkupResult:
        """What became of the marks. Those between sentences stay there."""
        results = [answer.markup for answer in self._answers]
        return pb.MarkupResult(
            placement=max(result.placement for result in results),
            plain_text=self.plain(result.plain_text for result in results),
            source_text=self.plain(result.source_text for result in results),
        )

    def hypothesis(self, chosen: Sequence[pb.Hypothesis], *, has_tokens: bool) -> pb.Hypothesis:
        """The whole answer of one answer to each sentence."""
        starts = self.starts(chosen)
        hypothesis = pb.Hypothesis(
            text=self.text(one.text for one in chosen),
            tokens=[token for one in chosen for token in one.tokens] if has_tokens else (),
            finish_reason=self.reason(chosen),
            score=math.fsum(one.score for one in chosen) / len(chosen),
            cumulative_logprob=math.fsum(one.cumulative_logprob for one in chosen),
            token_logprobs=self._token_logprobs(chosen),
            plain_text=self.plain(one.plain_text for one in chosen) if self.has_marks else "",
        )
        if chosen[0].HasField("alignment"):
            hypothesis.alignment.CopyFrom(self._alignment([one.alignment for one in chosen], starts))
        if chosen[0].HasField("confidence"):
            hypothesis.confidence.CopyFrom(self.confidence([one.confidence for one in chosen], starts))
        return hypothesis

    def _token_logprobs(self, chosen: Sequence[pb.Hypothesis]) -> list[pb.TokenLogprob]:
        """Those of all sentences. What is between two belongs to the first token after it, at the end to the last."""
        found = list[pb.TokenLogprob]()
        for place, one in zip(self.places, chosen, strict=True):
            for number, token in enumerate(one.token_logprobs):
                found.append(pb.TokenLogprob())
                found[-1].CopyFrom(token)
                if not number:
                    found[-1].text = place.gap + token.text
        if found:
            found[-1].text += self._plain_after
        return found

    def _alignment(self, alignments: Sequence[pb.Alignment], starts: Sequence[int]) -> pb.Alignment:
        """The tokens of all sentences: those of an answer have no weight for tokens of other sentences."""
        whole, width = pb.Alignment(), sum(len(one.source_spans) for one in alignments)
        for place, one, start in zip(self.places, alignments, starts, strict=True):
            before, own = len(whole.source_spans), len(one.source_spans)
            source = moved(((span.start, span.end) for span in one.source_spans), place.sentence.edits)
            whole.source_spans.extend(spans_of(_shifted(source, place.source)))
            whole.target_spans.extend(spans_of(_shifted(((span.start, span.end) for span in one.target_spans), start)))
            for row in one.rows:
                weights = [*(before * [0.0]), *row.weights, *((width - before - own) * [0.0])]
                whole.rows.add(weights=weights)
            whole.positions.extend(before + position for position in one.positions)
        return whole

    def confidence(self, parts: Sequence[pb.Confidence], starts: Sequence[int]) -> pb.Confidence:
        """The words of all sentences, of which each counts as much in the whole; an answer without words as one."""
        words = list[pb.WordConfidence]()
        for one, start in zip(parts, starts, strict=True):
            for word in one.words:
                words.append(pb.WordConfidence(confidence=word.confidence, is_uncertain=word.is_uncertain))
                words[-1].span.start, words[-1].span.end = word.span.start + start, word.span.end + start
        counts = [max(1, len(one.words)) for one in parts]
        total = math.fsum(one.sentence * count for one, count in zip(parts, counts, strict=True))
        spans = [(word.span.start, word.span.end) for word in words]
        return pb.Confidence(
            sentence=total / sum(counts),
            words=words,
            calibrated=all(one.calibrated for one in parts),
            uncertain=spans_of(merged(spans, [word.is_uncertain for word in words])),
        )


def _shifted(spans: Iterable[Span], by: int) -> list[Span]:
    return [(start + by, end + by) for start, end in spans]
