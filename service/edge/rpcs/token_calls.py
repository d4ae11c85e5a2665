"""The RPCs of TokenService: texts become the tokens that a model reads. No engine is involved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.request_memory import answer_bytes
from service.edge.calls.call import Call
from service.edge.models.served_model import ServedModel
from service.edge.requests.chat_prompts import ChatPrompts
from service.edge.requests.prompt_encoder import LanguagePair
from service.edge.requests.request_limits import TOKEN_BYTES
from service.edge.requests.tokenization import Count, Tokenization, Tokens
from service.edge.rpcs.chat_messages import chat_of
from service.edge.rpcs.model_calls import INLINE_SIZE, ModelCalls
from service.edge.rpcs.proto_conversion import prompt_name_of, spans_of
from service.errors import InvalidRequest

PORTION_CHARACTERS = 16384  # counted in one turn of a thread: 4 to 10 ms


class TokenCalls(ModelCalls):
    """The RPCs of TokenService. Event-loop thread only."""

    async def CountTokens(self, request: pb.CountTokensRequest, call: Call) -> pb.CountTokensResponse:
        model = self.find(request.model, call)
        if self.log_text:
            call.record.note(texts="\n".join(request.texts))
        if request.messages or request.HasField("chat"):
            return await self._count_chat(request, model, call)
        tokenization = Tokenization(model, self.catalog.limits_of(model))
        languages = LanguagePair(request.source_language, request.target_language)
        tokenization.check_texts(request.texts, languages)
        prompt = model.prompt(prompt_name_of(request))
        counts: list[Count] = []
        for texts in _portions(request.texts):  # other tenants' texts go between them
            counts += await self.built(partial(_counts, tokenization, texts, prompt, languages), request, call)
        return pb.CountTokensResponse(
            counts=[pb.TokenCount(**count._asdict()) for count in counts], max_prompt_tokens=model.max_prompt_tokens
        )

    async def _count_chat(
        self, request: pb.CountTokensRequest, model: ServedModel, call: Call
    ) -> pb.CountTokensResponse:
        if request.texts:
            raise InvalidRequest("texts", "must be empty with messages; send two requests")
        if request.HasField("prompt_name"):
            raise InvalidRequest("prompt_name", "must be left out with messages, which are never embedded")

        def count() -> int:
            chat = chat_of(request)
            assert chat is not None
            return len(ChatPrompts(model, self.catalog.limits_of(model)).prompt(chat).tokens)

        tokens, most = await self.built(count, request, call, is_slow=True), model.max_prompt_tokens
        return pb.CountTokensResponse(
            counts=[pb.TokenCount(tokens=tokens, exceeds_limit=tokens > most)], max_prompt_tokens=most
        )

    async def Tokenize(self, request: pb.TokenizeRequest, call: Call) -> pb.TokenizeResponse:
        model = self.find(request.model, call)
        if self.log_text:
            call.record.note(text=request.text, target=request.target)
        if request.text and request.target:
            raise InvalidRequest("target", "must be empty with text; send two requests")
        tokenize = partial(
            Tokenization(model, self.catalog.limits_of(model)).tokens,
            request.target or request.text,
            LanguagePair(request.source_language, request.target_language),
            is_target=bool(request.target),
            has_special=request.add_special_tokens,
        )
        tokens = await self.built(tokenize, request, call)
        size = TOKEN_BYTES * len(tokens.ids)
        call.budget.memory.grow(answer_bytes(size, 0))
        limits = self.catalog.limits_of(model)
        convert = partial(
            tokenize_response, model, tokens, is_target=bool(request.target), max_text_bytes=limits.max_text_bytes
        )
        return convert() if size <= INLINE_SIZE else await self.preparation.convert(call.rpc.caller, convert)


def tokenize_response(
    model: ServedModel, tokens: Tokens, *, max_text_bytes: int, is_target: bool = False
) -> pb.TokenizeResponse:
    """The tokens of a text as a message. max_text_bytes: the server's limit."""
    first, last = tokens.num_before, len(tokens.ids) - tokens.num_after
    names = model.token_names(tokens.ids, is_target=is_target)
    parts = zip(tokens.ids, names, spans_of(tokens.spans), strict=True)
    return pb.TokenizeResponse(
        tokens=[
            pb.Token(token=token, text=text, span=span, is_special=not first <= place < last)
            for place, (token, text, span) in enumerate(parts)
        ],
        limits=pb.TokenLimits(
            max_prompt_tokens=model.max_prompt_tokens,
            max_text_bytes=max_text_bytes,
            max_new_tokens=tokens.max_new_tokens,
        ),
        count=tokens.length.tokens,
        exceeds_limit=tokens.length.exceeds_limit,
        unknown_words=tokens.length.unknown_words,
    )


def _portions(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts, in lists of at most PORTION_CHARACTERS or of one text."""
    portion: list[str] = []
    size = 0
    for text in texts:
        if portion and size + len(text) > PORTION_CHARACTERS:
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text)
    yield portion


def _counts(tokenization: Tokenization, texts: Sequence[str], prompt: str, languages: LanguagePair) -> list[Count]:
    return [tokenization.count(text, prompt, languages) for text in texts]
