"""A server without engines: real gRPC, real ports, a pool whose answers a test sets."""

import asyncio
import contextlib
import functools
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2_grpc
from grpc_status import rpc_status

from export.bundle.manifest import Golden, Limits, Manifest, SpecialTokenTemplate, Tokens
from glossa.v1 import glossa_pb2 as pb
from model.tokenizer import Tokenizer
from service.edge.admission.request_memory import RequestMemory, Reservation
from service.edge.calls.budget import Budget
from service.edge.calls.call import Call
from service.edge.calls.rpc import Rpc
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import NO_LANGUAGES
from service.edge.requests.request_builder import RequestBuilder
from service.edge.requests.request_limits import TextLimits
from service.machine.execution_choice import ExecutionChoice, GraphNodes
from service.options import DecodingOptions
from service.progress import Timings
from service.request import (
    Caller,
    Event,
    EventSink,
    Finished,
    FinishReason,
    HypothesisResult,
    Request,
    TextDelta,
)
from service.server import Server
from service.settings.config import ServerSettings
from service.wire.messages import Beat, State
from tests.calibrated import CALIBRATION
from tests.e2e.process import PATIENCE_S

TEXTS = ("the small red house", "a black cat", "zwei rote Häuser")
TOKENIZERS = {
    "translation": Tokenizer.train(TEXTS, kind="words", vocab_size=64),
    "generation": Tokenizer.train(TEXTS, kind="bpe", vocab_size=300),
}
CPU = "CPUExecutionProvider"
NODES = (GraphNodes("decode", CPU, 70), GraphNodes("encode", CPU, 30))
CHOICE = ExecutionChoice(CPU, "auto", True, "no GPU; add one", "fp32", nodes=NODES)
TIMINGS = Timings(queue_s=0.001, prefill_s=0.002, first_token_s=0.004, total_s=0.010)
RESULT = HypothesisResult(
    text="zwei rote Häuser",
    tokens=(5, 6, 7, 8, 2),
    reason=FinishReason.END_OF_SEQUENCE,
    score=-0.375,
    cumulative_logprob=-1.875,
    token_logprobs=(-0.5, -0.25, -0.125, -0.5, -0.5),
)


def a_call(method, deadline_s=1e9, *, started_s=0.0, caller=None, memory=None, **times):
    """A call of a method, of whose memory nothing is reserved. memory: of the server's requests."""
    caller = caller or Caller()
    rpc = Rpc(method, "r", caller, started_s, deadline_s, **times)
    return Call(rpc, Budget(Reservation(memory or RequestMemory(1 << 24, 0.8), caller)))


ANSWER = (
    TextDelta("zwei", (5,)),
    TextDelta(" rote", (6, 7)),
    Finished(
        FinishReason.END_OF_SEQUENCE,
        " Häuser",
        (8, 2),
        prompt_tokens=4,
        generated_tokens=5,
        timings=TIMINGS,
        hypotheses=(RESULT,),
    ),
)


def answered(*results):
    """The events of a request whose answers these are; their text comes at the end."""
    best = results[0]
    return (Finished(best.reason, best.text, best.tokens, timings=TIMINGS, hypotheses=results),)


@dataclass
class FakePool:
    """Accepts requests and sends them `answer`, or nothing until a test does (`hold`)."""

    answer: tuple[Event, ...] = ANSWER
    hold: bool = False
    refuse: Exception | None = None
    is_ready: bool = True
    problem: str = ""
    prediction: float = 0.0
    window: int = 8
    closed: bool = False
    states: list[State] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    sinks: list[EventSink] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def beats(self):
        return [Beat(states=self.states, measurements=[], memory={}, cpu_s=0.0, resident_bytes=0)]

    def submit(self, request, loop, sink):
        if self.refuse:
            raise self.refuse
        self.requests.append(request)
        self.sinks.append(sink)
        loop.call_soon_threadsafe(self.changed.set)
        if not self.hold:
            loop.call_soon_threadsafe(self.send, sink, self.answer)
        return functools.partial(self.cancel, request)

    def predicted_s(self, caller):
        return self.prediction

    def cancel(self, request):
        self.cancelled.append(request.request_id)
        self.changed.set()

    @staticmethod
    def send(sink, events):
        for event in events:
            sink(event)

    async def until(self, condition):
        """Returns once `condition()` holds, which only submissions and cancellations change."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def problems(self):
        return [self.problem] if self.problem else []

    async def aclose(self):
        self.closed = True


def manifest(task="translation", **changes):
    has_source = task == "translation"
    fields = {
        "architecture": "encoder_decoder" if has_source else "decoder",
        "task": task,
        "tokens": Tokens(pad=0, bos=1, eos=2, unk=3),
        "template": SpecialTokenTemplate(source_suffix=(2,) if has_source else (), target_prefix=(1,)),
        "limits": Limits(
            vocab_size=TOKENIZERS[task].vocab_size,
            max_source_len=8 if has_source else 0,
            max_target_len=16,
            max_block=1 if has_source else 0,
        ),
        "variants": (),
        "golden": Golden(source=(4, 2), prompt=(1,), output=(2,)),
        "lineage": {"git_commit": "c0ffee", "data_sha256": "ab" * 32, "metrics": {"steps": 7}},
        "parity": {"passed": True, "checks": [{"name": "greedy", "max_error": 0.5, "passed": True, "note": ""}]},
        "created": "2026-01-01T00:00:00Z",
    }
    return Manifest(**{**fields, **changes})


def served(name, pool, task="translation", **changes):
    return ServedModel(
        name=name,
        manifest=manifest(task),
        choice=CHOICE,
        bundle_sha256="cd" * 32,
        tokenizer=TOKENIZERS[task],
        pool=pool,
        **changes,
    )


TRANSLATION = served("en-de", FakePool())
GENERATION = served("en", FakePool(), "generation")
LIMITS = TextLimits(max_text_bytes=4000, max_stop_strings=2, max_stop_bytes=4)
CALL = ("r", 9.0)  # request id and deadline


def decoding_request(model, text, *, languages=NO_LANGUAGES, **options):
    """The request to translate or continue a text."""
    return RequestBuilder(model, LIMITS, *CALL).decoding(text, DecodingOptions(**options), languages)


def scoring_request(model, text, target, *, omit_eos=False, **options):
    """The request to score a target."""
    builder = RequestBuilder(model, LIMITS, *CALL)
    return builder.scoring(text, target, DecodingOptions(**options), omit_eos=omit_eos)


def settings(**changes):
    fields = {
        "models": {"en-de": "/none", "en": "/none"},
        "port": 0,
        "http_port": 0,
        "drain_delay_s": 0.0,
        "drain_timeout_s": 5.0,
    }
    return ServerSettings(**{**fields, **changes})


def method(channel, name):
    """A callable for any RPC by its name, that takes fields or a message."""
    service = next(s for s in pb.DESCRIPTOR.services_by_name.values() if name in s.methods_by_name)
    kind = service.methods_by_name[name]
    make = channel.unary_stream if kind.server_streaming else channel.unary_unary
    if kind.client_streaming:
        make = channel.stream_stream
    call = make(
        f"/{service.full_name}/{name}",
        request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        response_deserializer=getattr(pb, f"{name}Response").FromString,
    )

    def invoke(data=None, *, timeout=PATIENCE_S, metadata=None, **fields):
        return call(
            getattr(pb, f"{name}Request")(**fields) if data is None else data, timeout=timeout, metadata=metadata
        )

    return invoke


async def failure(call):
    """The error a call ends with, and its details by their type's name."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call if isinstance(call, grpc.aio.UnaryUnaryCall) else [message async for message in call]
    details = {}
    error: Any = caught.value
    for packed in rpc_status.from_call(error).details:
        name = packed.TypeName().rpartition(".")[2]
        details[name] = getattr(error_details_pb2, name)()
        packed.Unpack(details[name])
    assert details["ErrorInfo"].domain == "glossa"
    return error, details


def health(channel):
    """The stub of grpc.health.v1; its published types know no asyncio."""
    return health_pb2_grpc.HealthStub(channel)


@dataclass
class Edge:
    server: Server
    pools: dict[str, FakePool]
    models: dict[str, ServedModel]

    @property
    def address(self):
        return f"127.0.0.1:{self.server.port}"

    @property
    def pool(self):
        return self.pools["en-de"]

    def calibrate(self, precision="fp32", calibration=CALIBRATION):
        """Gives the translation model a calibration of the graphs of that precision."""
        self.models["en-de"].manifest = manifest(calibrations={precision: calibration})
        self.models["en-de"].words_per_token = 1


@contextlib.asynccontextmanager
async def running(**changes):
    """A started server with a translation model `en-de` and a generation model `en`, both on fake pools."""
    pools: dict[str, FakePool] = {}
    models: dict[str, ServedModel] = {}

    async def open_model(name, path):
        task = "generation" if name == "en" else "translation"
        pools[name] = FakePool()
        models[name] = served(name, pools[name], task, beats=lambda: pools[name].beats)
        server.metrics.model(name).open(models[name].version).describe(manifest(task), CHOICE)
        return models[name]

    server = Server(settings(**changes), open_model=open_model)
    try:
        await server.start()
        yield Edge(server, pools, models)
    finally:
        await server.stop()
