"""The RPCs of EncodingService: one pass of an encoder over a text, and what its heads make of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from operator import attrgetter

import numpy as np

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.call import Call
from service.edge.calls.conversation import takes_items
from service.edge.requests.catalog import ENCODER_TASKS
from service.edge.requests.prompt_encoder import INLINE_BYTES
from service.edge.rpcs.item_calls import ItemCalls, Messages
from service.edge.rpcs.model_calls import convert_off_loop, languages_of
from service.edge.rpcs.proto_conversion import (
    DEFAULT_CANDIDATES,
    classify_response,
    embed_response,
    embed_tokens_response,
    fill_mask_response,
    pooling_from,
    prompt_name_of,
    tag_response,
)
from service.edge.rpcs.similarity import (
    PROMPT_NAMES,
    check_widths,
    fields_of,
    given_vectors,
    is_small,
    similarity_response,
    texts_of,
    together,
    vector_of,
)
from service.request import Finished

is_classifier = attrgetter("is_classifier")


class EncodingCalls(ItemCalls):
    """The RPCs of EncodingService. Event-loop thread only."""

    async def Embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        model = self.find_for(request, call, *ENCODER_TASKS)
        build = partial(
            self.builder(model, call).embedding,
            request.text,
            pooling_from(request),
            languages_of(request),
            prompt_name=prompt_name_of(request),
            truncate=request.truncate,
        )
        built, is_truncated = await self.built(build, request, call)
        finished = await self.finished(model, built, call)
        return embed_response(finished, normalize=request.normalize, is_truncated=is_truncated)

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

    async def Similarity(self, request: pb.SimilarityRequest, call: Call) -> pb.SimilarityResponse:
        vectors = await self.built(partial(given_vectors, request), request, call)
        finished = await self._embed_items(request, vectors, call)
        convert = partial(similarity_response, request, vectors, finished)
        return convert() if is_small(request, vectors) else await self.preparation.convert(call.rpc.caller, convert)

    async def _embed_items(
        self, request: pb.SimilarityRequest, vectors: dict[str, np.ndarray], call: Call
    ) -> Finished | None:
        """Adds the embedding of each text to the given vectors, which must be as wide. Returns the end of all requests
        together, None without texts. They run one after the other: a call is never more than one request of its
        tenant."""
        if not (texts := texts_of(request)):
            return None
        model, given, ends = self.find(request.model, call, *ENCODER_TASKS), dict(vectors), list[Finished]()
        if self.log_text:
            call.record.note(texts="\n".join(texts.values()))
        embedding, how = self.builder(model, call).embedding, (pooling_from(request), languages_of(request))
        for field, text in texts.items():
            name = PROMPT_NAMES[field.partition("[")[0]]
            build = partial(embedding, text, *how, prompt_name=prompt_name_of(request, name))
            with fields_of(field, prompt_name=name):
                built, _ = await self.built(build, request, call)
                ends.append(await self.finished(model, built, call))
            vectors[field] = vector_of(ends[-1])
            if len(ends) == 1:
                check_widths(given, len(vectors[field]), f"as the embeddings of model {model.name!r}")
        finished = together(ends)
        call.record.finish(finished)
        return finished

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
            return await self.preparation.convert(call.rpc.caller, convert)
        return convert()
