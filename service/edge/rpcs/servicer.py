"""gRPC services of glossa.v1: a message becomes a `Request`, the events of an engine become messages.

Every RPC is one method, found by its name in the .proto. What all calls share (ids, deadlines, admission, statuses,
logs) is in `calls`; what messages mean is in `proto_conversion`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable
from functools import partial
from typing import TypeVar

from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.preparation import Preparation
from service.edge.calls.batches import merged
from service.edge.calls.call import Call
from service.edge.calls.conversation import takes_items
from service.edge.calls.items import ItemRunner
from service.edge.models.answer_confidence import answer_confidence
from service.edge.models.served_model import ServedModel
from service.edge.requests.catalog import DECODER_TASKS, Catalog
from service.edge.requests.glossaries import Glossaries
from service.edge.requests.language_routes import Route
from service.edge.requests.prompt_encoder import INLINE_BYTES
from service.edge.requests.terminology import ForcedTerms
from service.edge.rpcs.document_calls import DocumentCalls
from service.edge.rpcs.encoding_calls import EncodingCalls
from service.edge.rpcs.item_calls import Messages
from service.edge.rpcs.languages.language_calls import LanguageCalls
from service.edge.rpcs.languages.pivot_calls import PivotCalls
from service.edge.rpcs.languages.routed_calls import Routed
from service.edge.rpcs.model_calls import FULL, convert_off_loop, is_slow, languages_of
from service.edge.rpcs.model_description import describe
from service.edge.rpcs.proto_conversion import (
    attend_response,
    attention_choice,
    decoding_options,
    score_response,
)
from service.edge.rpcs.rewriting import Rewriting, check_not_rewritten, is_rewritten, summed
from service.edge.rpcs.rpc_handlers import rpcs_of, services_of
from service.edge.rpcs.sentence_calls import SentenceCalls
from service.edge.rpcs.token_calls import TokenCalls
from service.errors import InvalidRequest, Unsatisfiable
from service.options import DecodingOptions
from service.request import Finished, Request

SERVICES = services_of(pb.DESCRIPTOR)
RPCS = rpcs_of(pb.DESCRIPTOR)

T = TypeVar("T")
_Answer = tuple[Request, str, tuple[int, ...], Finished]


class Servicer(TokenCalls, DocumentCalls, EncodingCalls, LanguageCalls, PivotCalls, SentenceCalls):
    """The RPCs of all services of glossa.v1. Event-loop thread only."""

    FILE = pb.DESCRIPTOR

    def __init__(
        self,
        catalog: Catalog,
        preparation: Preparation,
        items: ItemRunner,
        glossaries: Glossaries,
        *,
        log_text: bool = False,
    ) -> None:
        """items: see `ItemCalls`. log_text: see `ModelCalls`."""
        super().__init__(catalog, preparation, items, log_text=log_text)
        self.glossaries = glossaries

    async def Translate(self, request: pb.TranslateRequest, call: Call) -> pb.TranslateResponse:
        return await self._translate(await self.routed(request, call), request, call)

    async def _translate(self, routed: Routed, request: pb.TranslateRequest, call: Call) -> pb.TranslateResponse:
        route, answer = routed.route, self.translated
        if route.first is not None:
            answer = partial(self.pivoted, route)
        if (text := await self.split(request, route.first or route.model, call)) is None:
            response = await answer(route.model, request, call)
        else:
            glossary = None
            if request.HasField("glossary"):
                glossary = await self.built(partial(self.glossaries.of, request.glossary), request, call)
            answer = partial(answer, is_fragment=True)
            response = await self.in_sentences(text, request, route.model, call, answer, glossary)
            if self.log_text:
                call.record.note(answer=response.text)
        routed.note(response)
        return response

    async def StreamTranslate(
        self, request: pb.StreamTranslateRequest, call: Call
    ) -> AsyncGenerator[pb.StreamTranslateResponse, None]:
        check_not_rewritten(request)
        routed = await self.routed(request, call)
        route, stream = routed.route, self.stream_translated
        if route.first is not None:
            stream = partial(self.stream_pivoted, route)
        if (text := await self.split(request, route.first or route.model, call)) is None:
            responses = stream(route.model, request, call)
        else:
            responses = self.stream_in_sentences(text, request, route.model, call, stream)
        async with contextlib.aclosing(responses):
            async for response in responses:
                if response.HasField("final"):
                    routed.note(response.final)
                yield response

    @takes_items
    def TranslateBatch(self, messages: Messages, call: Call) -> AsyncGenerator[pb.TranslateBatchResponse, None]:
        routes = list[Route]()

        def find(defaults: pb.TranslateRequest, call: Call) -> ServedModel:
            routes.append(self.route_of_items(defaults, call))
            return routes[0].model

        def answer(request: pb.TranslateRequest, item: Call) -> Awaitable[pb.TranslateResponse]:
            return self.translated_item(routes[0], request, item)

        return self.batch(messages, call, answer, pb.TranslateBatchResponse, find=find)

    async def translated_item(self, route: Route, request: pb.TranslateRequest, item: Call) -> pb.TranslateResponse:
        """The response to an item of a call. route: that of `route_of_items`."""
        if route.first is None:
            return await self.Translate(request, item)
        return await self._translate(await self.routed_item(route, request, item), request, item)

    async def Generate(self, request: pb.GenerateRequest, call: Call) -> pb.GenerateResponse:
        model = self.find_for(request, call, "generation")
        return pb.GenerateResponse(**await self.unary(model, request, call))

    def StreamGenerate(
        self, request: pb.StreamGenerateRequest, call: Call
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        model = self.find_for(request, call, "generation")
        return self.stream(model, request, call, pb.StreamGenerateResponse)

    async def Score(self, request: pb.ScoreRequest, call: Call) -> pb.ScoreResponse:
        model = self.find_for(request, call, *DECODER_TASKS)
        if bool(request.target) == bool(request.target_tokens):
            raise InvalidRequest("target", "must be given, as text or as target_tokens, but not as both")
        if request.text and request.text_tokens:
            raise InvalidRequest("text_tokens", "must be empty with text")
        build = partial(
            self.builder(model, call).scoring,
            tuple(request.text_tokens) or request.text,
            request.target or tuple(request.target_tokens),
            decoding_options(request.options),
            languages_of(request),
            omit_eos=request.omit_eos,
        )
        has_prompt = model.translation is not None and bool(request.target_language)
        built = await self.built(build, request, call, is_slow=has_prompt)
        finished = await self.finished(model, built, call)
        convert = partial(score_response, finished, built, model, text=request.text)
        return await convert_off_loop(self.preparation, model, built, convert)

    @takes_items
    def ScoreBatch(self, messages: Messages, call: Call) -> AsyncGenerator[pb.ScoreBatchResponse, None]:
        return self.batch(messages, call, self.Score, pb.ScoreBatchResponse, *DECODER_TASKS)

    async def Attend(self, request: pb.AttendRequest, call: Call) -> pb.AttendResponse:
        model = self.find_for(request, call)
        if request.target and request.target_tokens:
            raise InvalidRequest("target", "must be given as text or as target_tokens, but not as both")
        build = partial(
            self.builder(model, call).attention,
            request.text,
            request.target or tuple(request.target_tokens) or None,
            attention_choice(request),
            languages_of(request),
            text_only=request.text_only,
            max_tokens=request.max_tokens,
        )
        built, choice = await self.built(build, request, call)
        finished = await self.finished(model, built, call)
        return await self.preparation.convert(
            call.rpc.caller, partial(attend_response, finished, built, model, choice, request)
        )

    async def ListModels(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[self._describe(model, has_checks=False) for model in self.catalog])

    async def GetModel(self, request: pb.GetModelRequest, call: Call) -> pb.GetModelResponse:
        return pb.GetModelResponse(model=self._describe(self.find_for(request, call)))

    def _describe(self, model: ServedModel, *, has_checks: bool = True) -> pb.Model:
        is_default = self.catalog.is_default(model)
        return describe(model, self.catalog.limits_of(model), is_default=is_default, has_checks=has_checks)

    async def translated(
        self, model: ServedModel, message: pb.TranslateRequest, call: Call, *, is_fragment: bool = False
    ) -> pb.TranslateResponse:
        """The response to a request whose text the model reads as a whole. is_fragment: the text is a part of another
        one, which may have the partners of its tags."""
        if is_rewritten(message):
            return await self._rewritten(message, model, call, is_fragment=is_fragment)
        return pb.TranslateResponse(**await self.unary(model, message, call))

    async def _rewritten(
        self, message: pb.TranslateRequest, model: ServedModel, call: Call, *, is_fragment: bool
    ) -> pb.TranslateResponse:
        """The response to a request whose text or answer is changed around the translation."""
        limits, glossaries = self.catalog.limits_of(model), self.glossaries
        read = partial(Rewriting, message, model, limits, glossaries, is_fragment=is_fragment)
        rewriting = await self.built(read, message, call, is_slow=message.ByteSize() > INLINE_BYTES // 2)
        return await self.answer_rewritten(rewriting, message, model, call)

    async def answer_rewritten(
        self, rewriting: Rewriting, message: pb.TranslateRequest, model: ServedModel, call: Call
    ) -> pb.TranslateResponse:
        """The response to what was rewritten."""
        request, text, tokens, finished = await self._answered(rewriting, rewriting.options, model, message, call)
        if message.options.beam_size > 1 and rewriting.has_terms:
            forced = rewriting.forced(text, request)
            if (second := await self._with_terms(rewriting, forced, model, message, call)) is not None:
                request, text, tokens, last = second
                finished = summed(finished, last)
        call.record.finish(finished)
        convert = partial(rewriting.response, finished, request, text, tokens)
        response = await self.preparation.convert(call.rpc.caller, convert)
        if response.confidence.calibrated:
            call.record.note_confidence(response.confidence.sentence)
        terms = response.glossary
        self.items.metrics.terms_translated(model.name, model.version, terms.terms, terms.met)
        if self.log_text:
            call.record.note(answer=response.text)
        return response

    async def check_translation(self, request: pb.TranslateRequest, model: ServedModel, call: Call) -> None:
        """Refuses what would be refused with any text. request: without a text. Raises InvalidRequest, Unsupported."""
        if not is_rewritten(request):
            answer_confidence(request, model)
            return
        tried = merged(request, pb.TranslateRequest(text="a"))
        await self.built(partial(Rewriting, tried, model, self.catalog.limits_of(model), self.glossaries), tried, call)

    async def _with_terms(
        self, rewriting: Rewriting, forced: ForcedTerms, model: ServedModel, message: pb.TranslateRequest, call: Call
    ) -> _Answer | None:
        """The answer that has as many of the missing terms as it can, or None if the first one stands."""
        while True:  # each time with fewer terms
            options = await self.preparation.convert(call.rpc.caller, forced.options)  # a text may have many terms
            if options is None:
                return None
            try:
                return await self._answered(rewriting, options, model, message, call, is_again=True)
            except (InvalidRequest, Unsatisfiable) as error:
                if not forced.without(error):
                    return None
            except FULL:
                return None

    async def _answered(
        self,
        rewriting: Rewriting,
        options: DecodingOptions,
        model: ServedModel,
        message: pb.TranslateRequest,
        call: Call,
        *,
        is_again: bool = False,
    ) -> _Answer:
        """One request of a rewritten translation, and its answer. is_again: instead of the one before."""
        decoding = partial(self.builder(model, call).decoding, languages=languages_of(message), is_streamed=False)
        build = partial(rewriting.request, partial(decoding, context=call.context), options)
        request = await self.built(build, message, call, is_slow=is_slow(model, options))
        return request, *await self.answered(model, request, call, has_memory=is_again)
