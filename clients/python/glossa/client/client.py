"""The blocking client."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, Unpack

import grpc

from glossa.client import calls
from glossa.client.calls import (
    CANDIDATES,
    CONCURRENCY,
    AttendOptions,
    Call,
    CallOptions,
    Options,
    Pooling,
    Reply,
    ScoreOptions,
    Stubs,
)
from glossa.client.channel import OPTIONS, TIMEOUT_S, Tls, endpoint
from glossa.client.errors import ClientError
from glossa.client.types import Answer, Attended, Classification, Piece, Score, Stream, TokenCandidate
from glossa.v1 import glossa_pb2 as pb


class Client:
    """Blocking calls; may be shared by threads. Close it, or use it in a `with`. All calls raise ClientError."""

    def __init__(
        self,
        address: str,
        *,
        tls: Tls = False,
        token: str = "",
        metadata: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """address: HOST:PORT, or another form that gRPC knows. token: sent as `authorization: Bearer …`, only over TLS
        or to this machine. metadata: sent with every call. timeout_s: deadline of a call that names none.

        Raises ValueError for a token without TLS to another machine, OSError for a PEM file that cannot be read.
        """
        server = endpoint(address, tls=tls, token=token, metadata=metadata)
        if server.credentials is None:
            self._channel = grpc.insecure_channel(address, options=OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, server.credentials, options=OPTIONS)
        self._stubs, self._timeout_s, self._metadata = Stubs(self._channel), timeout_s, server.metadata

    def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def translate(self, text: str, **options: Unpack[Options]) -> Answer:
        """Translate a text."""
        return self._run(calls.whole("translation", text, options))

    def stream_translate(self, text: str, **options: Unpack[Options]) -> Generator[Piece, None, None]:
        """Translate a text, in pieces as they are certain; the last one has the whole answer."""
        return self._pieces(calls.streamed("translation", text, options))

    def generate(self, text: str, **options: Unpack[Options]) -> Answer:
        """Continue a prompt."""
        return self._run(calls.whole("generation", text, options))

    def stream_generate(self, text: str, **options: Unpack[Options]) -> Generator[Piece, None, None]:
        """Continue a prompt, in pieces as they are certain; the last one has the whole answer."""
        return self._pieces(calls.streamed("generation", text, options))

    def translate_batch(
        self, texts: Iterable[str], *, concurrency: int = CONCURRENCY, **options: Unpack[Options]
    ) -> Generator[Answer, None, None]:
        """Answers in the order of the texts, at most `concurrency` calls at once. The first failure ends it."""
        with ThreadPoolExecutor(concurrency, thread_name_prefix="translate") as threads:
            running: deque[Future[Answer]] = deque()
            try:
                for text in texts:
                    running.append(threads.submit(self.translate, text, **options))
                    if len(running) >= concurrency:
                        yield running.popleft().result()
                while running:
                    yield running.popleft().result()
            finally:
                for future in running:
                    future.cancel()

    def score(
        self,
        text: str,
        target: str = "",
        *,
        target_tokens: Sequence[int] = (),
        omit_eos: bool = False,
        **options: Unpack[ScoreOptions],
    ) -> Score:
        """Score `target`, or its tokens, as the translation or continuation of `text`.

        omit_eos: the target continues after its last word, so no end token is scored.
        """
        return self._run(calls.score(text, target, target_tokens, omit_eos, options))

    def embed(
        self, text: str, *, normalize: bool = False, pooling: Pooling = "mean", **options: Unpack[CallOptions]
    ) -> list[float]:
        """Embed a text: the mean of the last hidden states, the first one, or that through the model's pooler.

        normalize: scale to length 1.
        """
        return self._run(calls.embed(text, normalize, pooling, options))

    def fill_mask(
        self, text: str, *, top_k: int = CANDIDATES, **options: Unpack[CallOptions]
    ) -> list[tuple[TokenCandidate, ...]]:
        """Predict each masked token: the most likely ones, best first. `Model.mask` is how a mask is written."""
        return self._run(calls.fill_mask(text, top_k, options))

    def classify(self, text: str, *, token_weights: bool = False, **options: Unpack[CallOptions]) -> Classification:
        """Probabilities of all labels; with token_weights also how much each token contributed."""
        return self._run(calls.classify(text, token_weights, options))

    def attend(self, text: str, **options: Unpack[AttendOptions]) -> Attended:
        """Attention weights of a text and its answer; the model generates the answer unless one is given."""
        return self._run(calls.attend(text, options))

    def list_models(self) -> list[pb.Model]:
        """All models of the server."""
        return self._run(calls.list_models())

    def get_model(self, model: str = "") -> pb.Model:
        """One model; without a name the only one."""
        return self._run(calls.get_model(model))

    def _start(self, call: Call[Any]) -> Any:
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return call.method(self._stubs)(call.request, timeout=timeout_s, metadata=self._metadata)

    def _run(self, call: Call[Reply]) -> Reply:
        try:
            return call.reply(self._start(call))
        except grpc.RpcError as error:
            raise ClientError(error) from None

    def _pieces(self, call: Call[Any]) -> Generator[Piece, None, None]:
        running, stream = self._start(call), Stream()
        try:
            for message in running:
                yield stream.piece(message)
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            running.cancel()
