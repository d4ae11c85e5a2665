"""Vectors of texts: what the calls to embed take beside a text, and what they return."""

from __future__ import annotations

from typing import Any

from glossa.client.fields import new_message
from glossa.client.requests import CallOptions, Pooling, call_fields, pooling_number
from glossa.v1 import glossa_pb2 as pb


class Embedding(list[float]):
    """The vector of a text: a list of its values.

    prompt_tokens: how many tokens the model has read, those of a prompt and special ones included. truncated: tokens at
    the end of the text are not among them.
    """

    def __init__(self, response: pb.EmbedResponse) -> None:
        super().__init__(response.values)
        self.prompt_tokens, self.truncated = response.usage.prompt_tokens, response.truncated


def embed_request(
    options: CallOptions, *, pooling: Pooling | None, prompt_name: str | None, **fields: Any
) -> pb.EmbedRequest:
    """A request to embed, or the fields that several share. Raises ValueError for an unknown pooling."""
    given = {} if prompt_name is None else {"prompt_name": prompt_name}
    number = pooling_number(pooling)
    request: pb.EmbedRequest = new_message(pb.EmbedRequest, pooling=number, **fields, **given, **call_fields(options))
    return request
