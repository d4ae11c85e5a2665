"""The Glossa server behind this process: clients for the holders of tokens, its models and what each of them can do."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Any

from starlette.requests import Request

from glossa.client import AsyncClient
from glossa.client.types import enum_names
from glossa.v1 import glossa_pb2 as pb
from glossa.web.refusals import argument_errors

FRESH_S = 1.0
CALLERS = 64  # whose list of models is kept


class Upstream:
    """One server."""

    def __init__(self, client: AsyncClient, address: str, token: str = "") -> None:
        """token: of the calls of those who send none."""
        self.address = address
        self._client, self._token = client, token
        self._lists: OrderedDict[str, tuple[float, asyncio.Task[list[pb.Model]]]] = OrderedDict()

    def client(self, token: str) -> AsyncClient:
        """A client that calls with a token, or without one with that of this process. Raises Refused."""
        with argument_errors():
            return self._client.with_token(token or self._token)

    async def models(self, token: str) -> list[pb.Model]:
        """The default versions of all models; for many that ask at a time one call. Raises ClientError."""
        asked_s, listing = self._lists.get(token, (0.0, None))
        if listing is None or (listing.done() and time.monotonic() - asked_s > FRESH_S):
            listing = asyncio.create_task(_default_models(self.client(token)))
            listing.add_done_callback(lambda done: done.cancelled() or done.exception())  # those who asked may be gone
            self._lists[token] = time.monotonic(), listing
            while len(self._lists) > CALLERS:
                self._lists.popitem(last=False)
        return await asyncio.shield(listing)


async def _default_models(client: AsyncClient) -> list[pb.Model]:
    return [model for model in await client.list_models() if model.is_default]


def bearer(request: Request) -> str:
    """The token in the header of a request; empty: none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def described(model: pb.Model) -> dict[str, Any]:
    """A model as JSON values for the page: what it is, and for each thing that it cannot do the reason."""
    kinds = enum_names(pb.AttentionKind.DESCRIPTOR)
    attention = {kinds[one.kind]: {"layers": one.layers, "heads": one.heads} for one in model.attention}
    task = enum_names(pb.Task.DESCRIPTOR)[model.task]
    missing = {}
    if "cross" not in attention:
        missing["attention"] = "the bundle has no cross-attention; export it with --attention"
    if not model.HasField("calibration"):
        missing["confidence"] = "the model has no calibrated confidence; export it with --calibrate"
    if not model.has_chat_template:
        missing["chat"] = "the model has no chat template, which messages need"
    return {
        "name": model.name,
        "version": model.version,
        "task": task,
        "translates": task == "translation" or bool(model.translation_template),
        "generates": task == "generation",
        "architecture": model.architecture,
        "precision": model.quantization.scheme or model.precision,
        "provider": model.execution_provider.provider,
        "engines": model.engines,
        "processes": model.engine_processes,
        "vocab_size": model.vocab_size,
        "verified": model.parity.passed,
        "bundle_sha256": model.bundle_sha256,
        "source_languages": list(model.source_languages),
        "target_languages": list(model.target_languages),
        "limits": {
            "text_bytes": model.limits.max_text_bytes,
            "prompt_tokens": model.limits.max_prompt_tokens,
            "new_tokens": model.limits.max_tokens,
            "hypotheses": model.limits.max_hypotheses,
            "document_bytes": model.limits.max_document_bytes,
        },
        "attention": attention,
        "splits_sentences": model.splits_sentences,
        "missing": missing,
    }
