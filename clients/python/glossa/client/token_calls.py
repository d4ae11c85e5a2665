"""The calls of both clients for the tokens of texts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from glossa.client.chat import Message, chat_fields
from glossa.client.fields import new_message
from glossa.client.methods import Call, unary
from glossa.client.requests import CallOptions, call_fields, span_messages
from glossa.client.types import Span, Tagging, TokenCount, Tokenized, TokenVector, read
from glossa.v1 import glossa_pb2 as pb


class TokenCalls:
    """Calls for tokens. All raise ClientError."""

    @unary
    def embed_tokens(
        self, text: str, *, normalize: bool = False, spans: Sequence[Span] = (), **options: Unpack[CallOptions]
    ) -> Call[list[TokenVector]]:
        """Embed each token of a text: the encoder's last hidden states, special tokens included.

        normalize: scale each vector to length 1. spans: only the tokens that share a character with one of them.
        """
        fields = {"spans": span_messages("spans", spans), **call_fields(options)}
        request = new_message(pb.EmbedTokensRequest, text=text, normalize=normalize, **fields)
        return Call(request, options, lambda response: [read(TokenVector, one) for one in response.tokens])

    @unary
    def tag(self, text: str, *, include_tokens: bool = False, **options: Unpack[CallOptions]) -> Call[Tagging]:
        """Find the labelled spans of a text, such as names; with include_tokens also the label of every token."""
        request = new_message(pb.TagRequest, text=text, include_tokens=include_tokens, **call_fields(options))
        return Call(request, options, functools.partial(read, Tagging))

    @unary
    def count_tokens(
        self, texts: Sequence[str], *, prompt_name: str | None = None, **options: Unpack[CallOptions]
    ) -> Call[list[TokenCount]]:
        """Count the tokens of texts, special ones included. Texts above the model's limit are counted too.

        prompt_name: of the prompt before each text, as of `embed`. Raises TypeError for a single text.
        """
        given = {} if prompt_name is None else {"prompt_name": prompt_name}
        request = new_message(pb.CountTokensRequest, texts=texts, **given, **call_fields(options))
        return Call(request, options, lambda response: [read(TokenCount, one) for one in response.counts])

    @unary
    def count_chat_tokens(
        self,
        messages: Sequence[Message],
        *,
        template_arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **options: Unpack[CallOptions],
    ) -> Call[TokenCount]:
        """Count the tokens of the prompt that `generate` makes of these messages."""
        chat = chat_fields(messages, template_arguments, add_generation_prompt, continue_final_message)
        request = new_message(pb.CountTokensRequest, **chat, **call_fields(options))
        return Call(request, options, lambda response: read(TokenCount, response.counts[0]))

    @unary
    def tokenize(
        self, text: str = "", *, target: str = "", add_special_tokens: bool = False, **options: Unpack[CallOptions]
    ) -> Call[Tokenized]:
        """The tokens of a text, or of a target of translation models, with their positions.

        add_special_tokens: with those around the text, as the model reads it.
        """
        fields: dict[str, Any] = {"text": text, "target": target, "add_special_tokens": add_special_tokens}
        request = new_message(pb.TokenizeRequest, **fields, **call_fields(options))
        return Call(request, options, functools.partial(read, Tokenized))
