"""A translation whose text is not what the model reads, and whose answer is not what the model returns (`Rewriting`):
marks are taken out of the text and put back into each hypothesis.

Whether a call needs this is decided by its message alone (`is_rewritten`); other calls never come here. The texts
themselves are the business of `service.text`.
"""

from __future__ import annotations

import dataclasses

from glossa.v1 import glossa_pb2 as pb
from service.edge.alignment import align
from service.edge.proto_conversion import completion, decoding_options, details
from service.edge.request_limits import TextLimits
from service.edge.served_model import ServedModel
from service.errors import InvalidRequest
from service.options import DecodingOptions
from service.request import Finished, HypothesisResult, Request
from service.text.inline_markup import MarkedText, MarkupError, extract
from service.text.mark_placement import Links
from service.text.mark_scanner import Kinds


def is_rewritten(message: pb.TranslateRequest | pb.StreamTranslateRequest) -> bool:
    """Whether the message asks for more than the translation of its text."""
    return message.HasField("markup")


def check_not_rewritten(message: pb.StreamTranslateRequest) -> None:
    """Rejects in a stream what may change text that was sent."""
    if message.HasField("markup"):
        raise InvalidRequest("markup", "must be left out of a stream, whose text is final once sent; call Translate")


class Rewriting:
    """One call. Raises InvalidRequest, and takes milliseconds for a long text."""

    def __init__(self, message: pb.TranslateRequest, model: ServedModel, limits: TextLimits) -> None:
        limits.check_text(message.text)
        self._message, self._model = message, model
        self._marked = extract(message.text, Kinds())
        if message.HasField("markup"):
            kinds = Kinds(*(getattr(message.markup, kind) for kind in Kinds._fields))
            if not any(kinds):
                raise InvalidRequest("markup", f"must name at least one of {', '.join(Kinds._fields)}")
            self._marked = _extracted(message.text, kinds)
        self.text = self._marked.plain
        self._options = decoding_options(message.options)

    @property
    def options(self) -> DecodingOptions:
        """The options of the engine's request, which asks for the alignment where the bundle has one."""
        if self._options.alignment != "none" or self._model.manifest.alignment is None:
            return self._options
        return dataclasses.replace(self._options, alignment="hard")

    def response(
        self, finished: Finished, request: Request, text: str, tokens: tuple[int, ...]
    ) -> pb.TranslateResponse:
        """The response. text, tokens: the answer of the engine."""
        message = self._message
        asked = dataclasses.replace(request, options=self._options)
        fields = details(finished, asked, self._model, text=self.text, has_tokens=message.include_tokens)
        results = finished.hypotheses
        for hypothesis, result in zip(fields.get("hypotheses", ()), results, strict=False):
            hypothesis.plain_text, hypothesis.text = result.text, self._restored(result.text, result)
        return pb.TranslateResponse(
            text=self._restored(text, results[0] if results else None),
            tokens=tokens if message.include_tokens else (),
            markup=self._markup_result(text, is_aligned=bool(results) and results[0].attention is not None),
            **completion(finished),
            **fields,
        )

    def _restored(self, text: str, result: HypothesisResult | None) -> str:
        return self._marked.restored(text, None if result is None else token_links(self._model, result, self.text))

    def _markup_result(self, text: str, *, is_aligned: bool) -> pb.MarkupResult | None:
        if not self._message.HasField("markup"):
            return None
        placement = pb.MARK_PLACEMENT_ALIGNMENT if is_aligned else pb.MARK_PLACEMENT_PROPORTIONAL
        return pb.MarkupResult(placement=placement, plain_text=text, source_text=self.text)


def token_links(model: ServedModel, result: HypothesisResult, source: str) -> Links | None:
    """Which tokens of an answer are linked to which of its source, or None without attention. source: its text."""
    attention = model.manifest.alignment
    if attention is None or result.attention is None:
        return None
    weights_TS = align(result.attention, attention.default_layer)
    return Links(model.source_spans(source), model.target_spans(result.tokens, result.text), weights_TS)


def _extracted(text: str, kinds: Kinds) -> MarkedText:
    try:
        marked = extract(text, kinds)
    except MarkupError as error:
        raise InvalidRequest("text", str(error)) from error
    if not marked.plain.strip():
        raise InvalidRequest("text", "must have words beside its marks: there is nothing to translate")
    return marked
