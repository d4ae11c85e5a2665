"""Answers that are kept: are they those that are computed, bit for bit, how much faster do they come, in which memory?

A server with an answer cache gets mixed requests: greedy, beams, samples with a seed, log-probabilities, a glossary,
streams, batches. Each is asked three times: so that its answer is computed and not kept, computed and kept, and kept.
All that a response has except its times is compared. Then 64 texts are asked again and again, of this server and of one
without a cache, in turns. Last, answers to --different different requests are put into a cache in this process.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.case import Flag, case
from bench.load.calls import STREAM, UNARY
from bench.load.lean_client import LeanConnection, closed_loop
from bench.load.peer_server import glossa_server
from bench.measure import Spread, Verdict, report
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.record import AGE
from service.edge.models.answer_cache import CACHE, NOTHING, AnswerCache
from service.edge.observability.metrics import Metrics
from service.machine.process_memory import resident_bytes
from service.request import Finished, FinishReason, Request

BATCH, ITEMS = f"{UNARY}Batch", 8
REPEATED, CALLERS = 64, 32
ASKERS = 8  # at the same time


class Asked(NamedTuple):
    """A request. path: its method."""

    kind: str
    path: str
    message: Any


class Answer(NamedTuple):
    """data: the response, or the messages of a stream in one, without times. is_kept: as its metadata say."""

    data: bytes
    is_kept: bool


def mixed(texts: list[str], count: int, max_tokens: int) -> Iterator[Asked]:
    """So many different requests of all kinds."""
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {},
        "beams": {"beam_size": 4, "num_hypotheses": 2},
        "samples": {"temperature": 0.8, "num_sequences": 2},
        "log-probabilities": {"top_logprobs": 2, "token_logprobs": True},
        "glossary": {},
        "stream": {},
        "batch": {},
    }
    for number, (kind, text) in enumerate(itertools.islice(zip(itertools.cycle(kinds), itertools.cycle(texts)), count)):
        options = pb.DecodingOptions(**kinds[kind], max_tokens=1 + (max_tokens + number // len(texts)) % 64)
        if kind == "samples":
            options.seed = number
        fields: dict[str, Any] = {"text": text, "options": options, "include_tokens": True}
        if kind == "glossary":
            term = pb.GlossaryTerm(source=text.split()[0], targets=[text.split()[-1]])
            fields["glossary"] = pb.Glossary(terms=[term])
        if kind == "stream":
            yield Asked(kind, STREAM, pb.StreamTranslateRequest(**fields))
        elif kind == "batch":
            places = (number + step for step in range(ITEMS))
            items = [
                pb.TranslateBatchItem(id=f"{step}", request=pb.TranslateRequest(text=texts[place % len(texts)]))
                for step, place in enumerate(places)
            ]
            yield Asked(kind, BATCH, pb.TranslateBatchRequest(items=items))
        else:
            yield Asked(kind, UNARY, pb.TranslateRequest(**fields))


def ask(channel: grpc.Channel, asked: Asked, metadata: tuple[tuple[str, str], ...] = ()) -> Answer:
    """The answer to a request."""
    response: Any
    if asked.path == UNARY:
        call = channel.unary_unary(UNARY, pb.TranslateRequest.SerializeToString, pb.TranslateResponse.FromString)
        response, ended = call.with_call(asked.message, metadata=metadata)
    elif asked.path == STREAM:
        streaming = channel.unary_stream(
            STREAM, pb.StreamTranslateRequest.SerializeToString, pb.StreamTranslateResponse.FromString
        )
        ended, response = streaming(asked.message, metadata=metadata), pb.StreamTranslateResponse()
        for message in ended:
            text = response.text + message.text
            response.MergeFrom(message)
            response.text = text
    else:
        batches = channel.stream_stream(
            BATCH, pb.TranslateBatchRequest.SerializeToString, pb.TranslateBatchResponse.FromString
        )
        ended = batches(iter([asked.message]), metadata=metadata)
        results = sorted((result for message in ended for result in message.results), key=lambda result: result.id)
        for result in results:
            result.response.ClearField("timings")
        response = pb.TranslateBatchResponse(results=results)
    if asked.path != BATCH:
        (response.final if asked.path == STREAM else response).ClearField("timings")
    is_kept = any(key == AGE for key, _ in ended.trailing_metadata())
    return Answer(response.SerializeToString(deterministic=True), is_kept)


def differences(address: str, requests: list[Asked]) -> tuple[list[Asked], list[Asked]]:
    """The requests whose answers differ, and those whose last one was not kept (a batch does not say it)."""
    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(ASKERS) as askers:

        def thrice(asked: Asked) -> tuple[bool, bool]:
            computed, first, again = [ask(channel, asked, said) for said in (((CACHE, NOTHING),), (), ())]
            return computed.data == first.data == again.data, again.is_kept or asked.path == BATCH

        found = list(askers.map(thrice, requests))
    pairs = list(zip(requests, found, strict=True))
    return [one for one, (same, _) in pairs if not same], [one for one, (_, kept) in pairs if not kept]


def grown(different: int, limit_bytes: int) -> tuple[int, int]:
    """Resident bytes that a cache has taken for answers to so many different requests, and how many it has at the
    end."""
    metrics = Metrics()
    answers = AnswerCache(limit_bytes, metrics.answer_cache).answers(metrics.model("model").open("v1").series)
    before = resident_bytes()
    for number in range(different):
        request = Request(request_id="r", source=(number, 2), prompt=(1,), max_tokens=64)
        end = Finished(FinishReason.LENGTH, "a" * (40 + number % 80), tuple(range(10 + number % 20)))
        key = answers.key(request)
        assert key is not None
        answers.keeping(key, lambda _: None)(end)
    return resident_bytes() - before, len(answers.entries)


@case(
    bundle=Flag(type=Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    count=Flag(5000, "mixed requests"),
    max_tokens=40,
    seconds=2.0,
    rounds=5,
    different=Flag(1_000_000, "requests of the cache in this process"),
    limit=Flag(1 << 26, "its bytes"),
)
def answer_cache(options: argparse.Namespace) -> None:
    texts = [source for source, _ in sentence_pairs(options.data, 512)]
    decoding = pb.DecodingOptions(max_tokens=options.max_tokens)
    messages = [pb.TranslateRequest(text=text, options=decoding).SerializeToString() for text in texts[:REPEATED]]
    rates: dict[str, list[float]] = {"kept": [], "computed": []}
    bundle, flags = options.bundle.resolve(), ["--answer-cache-bytes", str(1 << 28)]
    with ExitStack() as stack:
        address, _ = stack.enter_context(glossa_server(bundle, flags=flags))
        differ, computed = differences(address, list(mixed(texts, options.count, options.max_tokens)))
        other, _ = stack.enter_context(glossa_server(bundle))
        sides = {"kept": address, "computed": other}
        connections = {name: stack.enter_context(LeanConnection(where)) for name, where in sides.items()}
        for number in range(options.rounds + 1):
            for name, connection in connections.items():
                for one in connections.values():
                    one.answer_pings()
                found = closed_loop([connection], UNARY, messages, CALLERS, options.seconds)
                spent_s = max(one.ended_s for one in found) - min(one.began_s for one in found)
                if number:
                    rates[name].append(len(found) / spent_s)
    size, entries = grown(options.different, options.limit)
    ratio = Spread.of([kept / anew for kept, anew in zip(rates["kept"], rates["computed"], strict=True)])
    figures: dict[str, Any] = {f"repeated texts, answers/s, {name}": Spread.of(found) for name, found in rates.items()}
    figures |= {
        "kept over computed": ratio,
        "mixed requests": options.count,
        f"answers kept of {options.different}": entries,
    }
    verdicts = [
        Verdict("answers that differ", len(differ), 0, "", is_limit=True, note=str({one.kind for one in differ})),
        Verdict("answers that were not kept", len(computed), 0, "", is_limit=True),
        Verdict("answers/s of repeated texts over computed ones", ratio.median, 20.0),
        Verdict("resident memory over the cache's limit", size / options.limit, 1.05, is_limit=True),
    ]
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
