"""Do engine processes give the answers of the same engines in this process, bit for bit? Requests of every kind.

All requests go to the process pool of a server, and to an engine pool in this process, concurrently: greedy, beams,
samples, penalties, bans, constraints, grammars, scores of given targets, embeddings, and attention weights where the
bundle has them; about half of those that can be are streamed. Compared is all that an answer has except its times:
text, tokens, log-probabilities, scores, arrays. Exits with 1 when any answer differs.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import itertools
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.answers.invariance import STRATEGIES
from bench.case import Flag, case
from bench.engine_pool import EnginePool
from bench.load.peer_server import ROOMY
from bench.measure import Verdict, report
from bench.sentences import sentence_pairs
from service.attention_request import AttentionChoice
from service.edge.models.process_plan import ProcessPlan, engine_settings
from service.edge.models.served_model import Pool, ServedModel
from service.edge.observability.metrics import Metrics
from service.edge.requests.request_builder import RequestBuilder
from service.edge.requests.request_limits import TextLimits
from service.edge.versions.open_model import ModelOpener
from service.engine_process.open_engines import open_engines
from service.errors import RequestError
from service.options import DecodingOptions
from service.request import Finished, Request, TextDelta
from service.settings.config import ServerSettings
from service.settings.engine_settings import EngineSettings
from service.settings.loading import load_settings

WORD = ("the first word of the request's text",)  # which a closed vocabulary knows
DECODED: dict[str, dict[str, Any]] = {
    **STRATEGIES,
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "no_repeat_ngram_size": 3},
    "bans": {"bad_words": WORD, "logit_bias": {7: -2.0}},
    "stop strings": {"stop": ("e", ".")},
    "prefix": {"prefix_tokens": (10, 11), "token_logprobs": True},
    "preferred prefix": {"prefix_tokens": (10, 11), "prefix_bias": 0.5},
    "phrases": {"phrases": WORD, "beam_size": 4},
    "regular expression": {"regex": "[A-ZÄÖÜ][A-Za-zäöüß ,]{3,60}[.!?]"},
    "JSON schema": {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'},
    "most likely tokens": {"top_logprobs": 3},
}
WIDE = ("num_sequences", "return_alternatives")  # options without streams
ERROR = "error"
SHOWN = 3  # differing answers that are printed
TIMEOUT_S = 600.0

Kind = Callable[[RequestBuilder, str, str, int], Request]


def decoded(options: dict[str, Any], max_tokens: int) -> Kind:
    """Requests to decode, about half of them streamed, if they can be; samples with a seed of their own."""
    may_stream = not any(name in options for name in WIDE)

    def build(builder: RequestBuilder, text: str, _: str, number: int) -> Request:
        given: dict[str, Any] = {
            name: tuple(text.split()[:1]) if value is WORD else value for name, value in options.items()
        }
        asked = DecodingOptions(max_tokens=max_tokens, **given)
        if asked.is_sampling:
            asked = dataclasses.replace(asked, seed=number)
        return builder.decoding(text, asked, is_streamed=may_stream and random.Random(number).random() < 0.5)

    return build


def kinds_of(model: ServedModel, max_tokens: int) -> dict[str, Kind]:
    """All that this model can be asked for."""
    kinds = {
        name: decoded(options, max_tokens)
        for name, options in DECODED.items()
        if model.shortlist is not None or "use_shortlist" not in options
    }
    kinds["score"] = lambda builder, text, target, _: builder.scoring(text, target, DecodingOptions())
    if model.encoding is not None:
        kinds["embedding"] = lambda builder, text, *_: builder.embedding(text).request
    if model.manifest.attention_maps:
        kinds["attention"] = lambda builder, text, target, _: builder.attention(text, target, AttentionChoice())[0]
        kinds["alignment"] = decoded({"alignment": "both"}, max_tokens)
    return kinds


def requests_of(model: ServedModel, options: argparse.Namespace) -> list[Request]:
    """Requests of all kinds in turn; the kind is in the id. The sentences repeat if there are too few."""
    pairs = itertools.cycle(sentence_pairs(options.data, options.requests))
    kinds = itertools.cycle(kinds_of(model, options.max_tokens).items())
    found = []
    for number, (name, build), (text, target) in zip(range(options.requests), kinds, pairs, strict=False):
        builder = RequestBuilder(model, TextLimits(), f"{name} {number}", time.monotonic() + TIMEOUT_S)
        found.append(build(builder, text, target, number))
    return found


def exact(value: Any) -> Any:
    """A value that equals another one's only if all bits are the same, NaN included. Without times."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name != "timings"]
        return type(value).__name__, [exact(getattr(value, name)) for name in names]
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(key, exact(each)) for key, each in value.items()]
    if isinstance(value, tuple | list):
        return [exact(each) for each in value]
    return value.hex() if isinstance(value, float) else value


async def answers(pool: Pool, requests: list[Request]) -> list[Any]:
    """The exact answers, each with its whole text and tokens: their division among events depends on time. Errors as
    their reason and message."""
    loop = asyncio.get_running_loop()

    def ask(request: Request) -> asyncio.Future[Any]:
        ended, deltas = loop.create_future(), list[TextDelta]()

        def sink(event: object) -> None:
            if isinstance(event, TextDelta):
                deltas.append(event)
                return
            if isinstance(event, Finished):
                text = "".join([delta.text for delta in deltas]) + event.text
                tokens = (*(token for delta in deltas for token in delta.tokens), *event.tokens)
                ended.set_result(exact(dataclasses.replace(event, text=text, tokens=tokens)))
            else:
                assert isinstance(event, RequestError)
                ended.set_result((ERROR, event.reason, str(event)))

        try:
            pool.submit(request, loop, sink)
        except RequestError as error:  # a process pool gives it to the sink
            sink(error)
        return ended

    return await asyncio.wait_for(asyncio.gather(*map(ask, requests)), TIMEOUT_S)


async def answers_of_this_process(bundle: Path, settings: EngineSettings, requests: list[Request]) -> list[Any]:
    """See `answers`: those of engines in this process."""
    opened = await asyncio.to_thread(open_engines, bundle, settings)
    pool = EnginePool(opened.engines)
    pool.start()
    try:
        return await answers(pool, requests)
    finally:
        await pool.aclose()


async def measure(settings: ServerSettings, options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    served = await ModelOpener(settings, Metrics()).open("model", options.bundle)
    try:
        requests = requests_of(served, options)
        found = await answers(served.pool, requests)
    finally:
        await served.pool.aclose()
    same = engine_settings(settings, ProcessPlan(1, served.engines), 0)
    expected = await answers_of_this_process(options.bundle, same, requests)
    total: collections.Counter[str] = collections.Counter()
    failed: collections.Counter[str] = collections.Counter()
    wrong: collections.Counter[str] = collections.Counter()
    for request, mine, theirs in zip(requests, expected, found, strict=True):
        name = request.request_id.rpartition(" ")[0]
        total[name] += 1
        failed[name] += mine[0] == ERROR
        wrong[name] += mine != theirs
        if mine != theirs and wrong.total() <= SHOWN:
            print(f"{request.request_id}\n  in this process: {mine}\n  in another one: {theirs}", file=sys.stderr)
    figures: dict[str, Any] = {"processes": served.processes, "engines": served.engines}
    for name, count in total.items():
        errors = f", {failed[name]} of them errors" if failed[name] else ""
        figures[name] = f"{count - wrong[name]} of {count} bit-identical{errors}"
    return figures, [Verdict(f"answers of {total.total()} that differ", wrong.total(), 0, "", is_limit=True)]


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    requests=2000,
    engines=2,
    precision="auto",
    max_tokens=40,
)
def process_answers(options: argparse.Namespace) -> None:
    asked = {"models": {"model": options.bundle}, "engines": options.engines, "precision": options.precision, **ROOMY}
    settings = load_settings({**asked, "device": "cpu", "engines_per_process": 1})
    figures, verdicts = asyncio.run(measure(settings, options))
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
