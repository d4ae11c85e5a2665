"""A translation whose text is not what the model reads, and whose answer is not what the model returns (`Rewriting`):
marks are taken out of the text and put back into each hypothesis, and terms of a glossary get into it.

Whether a call needs this is decided by its message alone (`is_rewritten`); other calls never come here. The texts
themselves are the business of `service.text`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from glossa.v1 import glossa_pb2 as pb
from service.edge.models.alignment import align
from service.edge.models.answer_confidence import answer_confidence
from service.edge.models.served_model import ServedModel
from service.edge.requests.glossaries import Glossaries
from service.edge.requests.prompt_encoder import PromptEncoder
from service.edge.requests.request_limits import TextLimits
from service.edge.requests.terminology import ForcedTerms, Terminology
from service.edge.rpcs.proto_conversion import completion, decoding_options, details, spans_of
from service.errors import InvalidRequest
from service.options import DecodingOptions
from service.phrase_variants import phrase_variants
from service.request import Finished, HypothesisResult, Request
from service.text.glossary import Glossary
from service.text.inline_markup import MarkedText, MarkupError, extract
from service.text.mark_placement import Links
from service.text.mark_scanner import Kinds


def is_rewritten(message: pb.TranslateRequest | pb.StreamTranslateRequest) -> bool:
    """Whether the message asks for more than the translation of its text."""
    return message.HasField("markup") or message.HasField("glossary")


def check_not_rewritten(message: pb.StreamTranslateRequest) -> None:
    """Rejects in a stream what may change text that was sent."""
    for field in ("markup", "glossary"):
        if message.HasField(field):
            raise InvalidRequest(field, "must be left out of a stream, whose text is final once sent; call Translate")


class Rewriting:
    """One call. Takes milliseconds for a long text."""

    def __init__(
        self,
        message: pb.TranslateRequest,
        model: ServedModel,
        limits: TextLimits,
        glossaries: Glossaries,
        *,
        is_fragment: bool = False,
    ) -> None:
        """is_fragment: tags may have their partners in another text.

        Raises InvalidRequest; Unsupported where the confidence is requested of a model without a calibration.
        """
        limits.check_text(message.text)
        self._message, self._model = message, model
        self._confidence = answer_confidence(message, model)
        kinds = Kinds(*(getattr(message.markup, kind) for kind in Kinds._fields))
        if message.HasField("markup") and not any(kinds):
            raise InvalidRequest("markup", f"must name at least one of {', '.join(Kinds._fields)}")
        self._marked = _extracted(message.text, kinds, is_fragment=is_fragment)
        self.text = self.read = self._marked.plain  # read: by the model
        PromptEncoder(model).check_length(self.text)  # before its terms are looked for
        glossary = glossaries.of(message.glossary) if message.HasField("glossary") else Glossary()
        self._terminology = Terminology(glossary, self.text)
        self._asked = decoding_options(message.options)
        if self._confidence and message.HasField("glossary") and self._asked.beam_size < 2:
            problem = "must be false with a glossary unless options.beam_size is above 1"
            raise InvalidRequest("include_confidence", f"{problem}: terms may replace words that the model chose")

    @property
    def options(self) -> DecodingOptions:
        """The options of the engine's request, which asks for the alignment where it is needed and the bundle has
        one."""
        asked = self._asked if self._confidence is None else dataclasses.replace(self._asked, token_logprobs=True)
        is_needed = self._marked.nodes or (self._terminology.terms and asked.beam_size < 2)
        if not is_needed or asked.alignment != "none" or self._model.manifest.alignment is None:
            return asked
        return dataclasses.replace(asked, alignment="hard")

    def request(self, decoding: Callable[..., Request], options: DecodingOptions) -> Request:
        """The engine's request with these options, without an alignment for which the answer would be too large if the
        client has not asked for it: marks are then placed without it. decoding: as of `RequestBuilder`."""
        build = partial(decoding, self.read, terms=self._pairs, has_confidence=self._confidence is not None)
        try:
            return build(options)
        except InvalidRequest as error:
            if error.field != "options.alignment" or options.alignment == self._asked.alignment:
                raise
        return build(dataclasses.replace(options, alignment="none"))

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        """Terms for a prompt."""
        return self._terminology.pairs

    def _links(self, result: HypothesisResult) -> Links | None:
        """Which tokens of an answer are linked to which of `text`."""
        return token_links(self._model, result, self.text)

    def _converted(self, hypothesis: pb.Hypothesis, result: HypothesisResult) -> None:
        """Changes what the message of an answer says of the model's own."""

    @property
    def has_terms(self) -> bool:
        """Whether the text has terms of the glossary."""
        return bool(self._terminology.terms)

    def forced(self, translation: str, request: Request) -> ForcedTerms:
        """What a second search for terms that an answer lacks may ask for. request: the one that has this answer."""
        allowed = [set(tokens) for tokens in (request.shortlist, request.options.allowed_tokens) if tokens]

        def can_have(form: str) -> bool:
            try:
                variants = phrase_variants(self._model.tokenizer.target, form)
            except InvalidRequest:
                return False
            return any(all(tokens.issuperset(variant) for tokens in allowed) for variant in variants)

        return ForcedTerms(self._terminology, request.options, translation, can_have)

    def response(
        self, finished: Finished, request: Request, text: str, tokens: tuple[int, ...]
    ) -> pb.TranslateResponse:
        """The response. text, tokens: the answer of the engine."""
        message, results = self._message, finished.hypotheses
        phrases = request.options.phrases  # forced ones too: an answer that has them is not like the calibrated ones
        asked = dataclasses.replace(request, options=dataclasses.replace(self._asked, phrases=phrases))
        fields = details(
            finished,
            asked,
            self._model,
            text=self.read,
            has_tokens=message.include_tokens,
            confidence=self._confidence,
        )
        plain, restored, links = self._rewritten(text, results[0] if results else None)
        for hypothesis, result in zip(fields.get("hypotheses", ()), results, strict=False):
            self._converted(hypothesis, result)
            hypothesis.plain_text, hypothesis.text, own = self._rewritten(result.text, result)
            if own is not None and hypothesis.HasField("alignment"):  # terms have moved the words after them
                del hypothesis.alignment.target_spans[:]
                hypothesis.alignment.target_spans.extend(spans_of(own.target_spans))
        if message.HasField("markup"):
            fields["markup"] = pb.MarkupResult(
                placement=self._placement(links), plain_text=plain, source_text=self.text
            )
        if message.HasField("glossary"):
            terms, unmet = self._terminology.terms, self._terminology.unmet(plain)
            fields["glossary"] = pb.GlossaryResult(
                terms=len(terms), met=len(terms) - len(unmet), unmet=[term.source for term in unmet]
            )
        shown = tokens if message.include_tokens else ()
        return pb.TranslateResponse(text=restored, tokens=shown, **completion(finished), **fields)

    def _placement(self, links: Links | None) -> pb.MarkPlacement:
        if not self._marked.nodes:
            return pb.MARK_PLACEMENT_UNSPECIFIED
        return pb.MARK_PLACEMENT_PROPORTIONAL if links is None else pb.MARK_PLACEMENT_ALIGNMENT

    def _rewritten(self, text: str, result: HypothesisResult | None) -> tuple[str, str, Links | None]:
        """An answer with its terms, without and with its marks, and the links of the first of these."""
        links = None if result is None else self._links(result)
        if self._asked.beam_size < 2:  # in a beam, terms are forced
            text, links = self._terminology.replaced(text, links)
        return text, self._marked.restored(text, links), links


def summed(first: Finished, second: Finished) -> Finished:
    """The end of a call that needed two requests: the answer of the second one, the cost of both."""
    before, after = first.timings, second.timings
    timings = dataclasses.replace(
        before,
        queue_s=before.queue_s + after.queue_s,
        prefill_s=before.prefill_s + after.prefill_s,
        total_s=before.total_s + after.total_s,
    )
    generated = first.generated_tokens + second.generated_tokens
    return dataclasses.replace(second, generated_tokens=generated, timings=timings)


def token_links(model: ServedModel, result: HypothesisResult, source: str) -> Links | None:
    """Which tokens of an answer are linked to which of its source, or None without attention. source: its text."""
    attention = model.manifest.alignment
    if attention is None or result.attention is None:
        return None
    # Of layers 1 to 3 of a model, the mean up to the default one places most marks exactly: python -m bench markup.
    layers = range(1, attention.default_layer + 1)
    weights_TS = np.mean([align(result.attention, layer) for layer in layers], axis=0)
    spans, before = model.source_spans(source), len(model.manifest.template.source_prefix)
    context = weights_TS.shape[1] - len(spans)  # the tokens of sentences before the text, which no mark is in
    weights_TS = np.delete(weights_TS, slice(before, before + context), axis=1)
    return Links(spans, model.target_spans(result.tokens, result.text), weights_TS)


def _extracted(text: str, kinds: Kinds, *, is_fragment: bool) -> MarkedText:
    try:
        marked = extract(text, kinds, lenient=is_fragment)
    except MarkupError as error:
        raise InvalidRequest("text", str(error)) from error
    if marked.nodes and not marked.plain.strip():
        raise InvalidRequest("text", "must have words beside its marks: there is nothing to translate")
    return marked
