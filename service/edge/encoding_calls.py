"""The RPCs of EncodingService: one pass of an encoder over a text, and what its heads make of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from operator import attrgetter

from glossa.v1 import glossa_pb2 as pb
from service.edge.call import Call
from service.edge.catalog import ENCODER_TASKS
from service.edge.conversation import takes_items
from service.edge.item_calls import ItemCalls, Messages
from service.edge.model_calls import convert_off_loop, languages_of
from service.edge.prompt_encoder import INLINE_BYTES
from service.edge.proto_conversion import (
    DEFAULT_CANDIDATES,
    classify_response,
    embed_response,
    embed_tokens_response,
    fill_mask_response,
    pooling_from,
    tag_response,
)

is_classifier = attrgetter("is_classifier")


class EncodingCalls(ItemCalls):
    """The RPCs of EncodingService. Event-loop thread only."""

    async def Embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        model = self.find_for(request, call, *ENCODER_TASKS)
        build = partial(self.builder(model, call).embedding, request.text, pooling_from(request), languages_of(request))
        finished = await self.finished(model, await self.built(build, request, call), call)
        return embed_response(finished, normalize=request.normalize)

    @takes_items
    def EmbedBatch(self, messages: Messages, call: Call) -> AsyncGenerator[pb.EmbedBatchResponse, None]:
        return self.batch(messages, call, self.Embed, pb.EmbedBatchResponse, *ENCODER_TASKS)

    async def EmbedTokens(self, request: pb.EmbedTokensRequest, call: Call) -> pb.EmbedTokensResponse:
        model = self.find_for(request, call, *ENCODER_TASKS)
        spans = [(span.start, span.end) for span in request.spans]
        build = partial(self.builder(model, call).token_embedding, request.text, spans, languages_of(request))
        built = await self.built(build, request, call)
        finished = await self.finished(model, built, call)
        convert = partial(embed_tokens_response, finished, built, model, text=request.text, normalize=request.normalize)
        return await convert_off_loop(self.preparation, model, built, convert)

    async def FillMask(self, request: pb.FillMaskRequest, call: Call) -> pb.FillMaskResponse:
        model = self.find_for(request, call, "encoding", can=lambda model: bool(model.mask_token))
        top_k = request.top_k if request.HasField("top_k") else DEFAULT_CANDIDATES
        build = partial(self.builder(model, call).mask_filling, request.text, top_k)
        finished = await self.finished(model, await self.built(build, request, call), call)
        return fill_mask_response(finished, model)

    async def Classify(self, request: pb.ClassifyRequest, call: Call) -> pb.ClassifyResponse:
        model = self.find_for(request, call, "encoding", can=is_classifier)
        classification = self.builder(model, call).classification
        build = partial(classification, request.text, token_weights=request.include_token_weights)
        finished = await self.finished(model, await self.built(build, request, call), call)
        return classify_response(finished, model, text=request.text)

    @takes_items
    def ClassifyBatch(self, messages: Messages, call: Call) -> AsyncGenerator[pb.ClassifyBatchResponse, None]:
        return self.batch(messages, call, self.Classify, pb.ClassifyBatchResponse, "encoding", can=is_classifier)

    async def Tag(self, request: pb.TagRequest, call: Call) -> pb.TagResponse:
        model = self.find_for(request, call, "encoding", can=lambda model: model.is_tagger)
        built = await self.built(partial(self.builder(model, call).tagging, request.text), request, call)
        finished = await self.finished(model, built, call)
        convert = partial(tag_response, finished, built, model, text=request.text, has_tokens=request.include_tokens)
        if len(request.text) > INLINE_BYTES:  # which is segmented once more, to find its words
            return await self.preparation.convert(call.caller, convert)
        return convert()
