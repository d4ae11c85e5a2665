"""The worst that admission lets in, against the memory that the server predicts for it.

A server with default limits gets, one after the other: as many of the longest texts as it takes; beams of 32 with the
longest answers from many tenants, whose rows are parked for each other; samples with all their alternatives; the
largest options; attention, where the bundle has it; prompts that fill the prefix cache; headers without messages; and
messages of the largest size that lack their last byte, on all places that are left, beside samples. Shown are:

- the peak of the server with its engine processes, against the prediction: of each process the largest resident memory
  as the kernel kept it (VmHWM), at whatever time, with files that several of them have mapped counted once. With
  --cgroup it is the kernel's own count of a cgroup that is limited to 1.1 times the prediction. Without, the limit is
  what engine processes may allocate (RLIMIT_DATA), 1.1 times their own predictions
- processes that ended, and calls that ended neither with an answer nor refused
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import grpc

from bench.case import Flag, case
from bench.hostile.hostile_peers import Peers
from bench.load.lean_client import END_HEADERS, HEADERS, frame, request_headers
from bench.load.memory_cgroup import limited
from bench.load.peer_server import glossa_server, http_address
from bench.load.process_tree import peak_bytes
from bench.load.unfinished_messages import UnfinishedMessages
from bench.measure import Verdict, report
from bench.sentences import sentence_pairs
from cli.local_server import fetch, samples
from export.bundle.directory import load_manifest
from glossa.v1 import glossa_pb2 as pb
from service.edge.models.process_plan import plan_processes
from service.edge.versions.memory_plan import predict_memory
from service.machine.processors import processors
from service.memory.memory_prediction import Prediction
from service.settings.config import MIN_PROCESS_BYTES, ServerSettings
from service.settings.loading import load_settings

MOST, LEAST = 1.1, 0.5  # times the prediction
WIDTH, ALTERNATIVES, TENANTS = 32, 20, 20
STREAMS, SENDER_STREAMS = 240, 31  # on a connection; of more than 31 without a message the server refuses some
OPEN_S = 60.0  # for a call whose message is on its way
FILL_S = 40.0
HEADERS_S = 1.0
REFUSED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
METHODS = {"translation": "TranslationService/Translate", "generation": "GenerationService/Generate"}


class Load:
    """Calls of one server. ends: how many ended how; problems: details of those that are neither."""

    def __init__(self, address: str, task: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(8)]
        self.address, self.path = address, f"/glossa.v1.{METHODS[task]}"
        self.ends: collections.Counter[str] = collections.Counter()
        self.problems: collections.Counter[str] = collections.Counter()

    async def call(self, message: bytes, number: int = 0, *, path: str = "", tenants: int = 1) -> bool:
        """Whether the call was answered."""
        call: Any = self._channels[number % len(self._channels)].unary_unary(path or self.path)
        try:
            await call(message, timeout=600, metadata=(("x-glossa-tenant", f"tenant-{number % tenants}"),))
        except grpc.aio.AioRpcError as error:
            self.ends[error.code().name] += 1
            if error.code().name not in REFUSED:
                self.problems[f"{error.code().name}: {error.details()}"] += 1
            return False
        self.ends["OK"] += 1
        return True

    async def calls(self, messages: list[bytes], *, path: str = "", tenants: int = TENANTS) -> None:
        """All of them at once."""
        await asyncio.gather(
            *[self.call(message, number, path=path, tenants=tenants) for number, message in enumerate(messages)]
        )

    async def rounds(self, messages: list[bytes], count: int) -> None:
        """The same again and again."""
        for _ in range(count):
            await self.calls(messages)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


class Worst:
    """Messages that take most, for the model of a server."""

    def __init__(self, model: Any, task: str) -> None:
        self._make: Any = pb.TranslateRequest if task == "translation" else pb.GenerateRequest
        self.model = model
        self.text = self.prompt = ""  # the longest that the model takes beside the longest answer, and beside none
        self.most_tokens = model.limits.max_tokens if task == "translation" else max(1, model.limits.max_tokens // 2)

    def message(self, text: str = "", tokens: int = 0, **options: Any) -> bytes:
        """With an answer of just so many tokens."""
        tokens = tokens or self.most_tokens
        decoding = pb.DecodingOptions(max_tokens=tokens, min_tokens=tokens, **options)
        data: bytes = self._make(text=text or self.text, options=decoding).SerializeToString()
        return data

    def beams(self) -> bytes:
        return self.message(beam_size=WIDTH, num_hypotheses=WIDTH)

    def samples(self) -> bytes:
        """With as many alternatives as a response has room for."""
        tokens = min(self.most_tokens, (3 << 20) // (24 * WIDTH * (1 + ALTERNATIVES)))
        return self.message(tokens=tokens, num_sequences=WIDTH, temperature=1.0, top_logprobs=ALTERNATIVES)

    def options(self) -> bytes:
        """As many ids as a list may have."""
        ids = [number * 7 % self.model.vocab_size for number in range(1 << 16)]
        return self.message(tokens=1, allowed_tokens=ids)

    def aligned(self) -> bytes:
        return self.message(alignment=pb.ALIGNMENT_KIND_BOTH, tokens=self.most_tokens)

    def on_their_way(self, size: int) -> bytes:
        """A message of `size` bytes; its text is refused once it is there."""
        data: bytes = self._make(text="x" * (size - 16)).SerializeToString()
        return data


async def longest_text(load: Load, worst: Worst, words: list[str], tokens: int) -> str:
    """As many of the words as the model takes with an answer of so many tokens, by trying."""
    least, most = 1, min(len(words), max(2, worst.model.limits.max_prompt_tokens))
    while least < most:
        middle = (least + most + 1) // 2
        taken = await load.call(worst.message(" ".join(words[:middle]), tokens))
        least, most = (middle, most) if taken else (least, middle - 1)
    load.ends.clear()
    load.problems.clear()
    return " ".join(words[:least])


def kinds_of(
    load: Load, worst: Worst, words: list[str], settings: ServerSettings, options: argparse.Namespace
) -> dict[str, Any]:
    """Kinds of calls by name, to be run in this order."""
    some, model = options.calls, worst.model
    kinds: dict[str, Any] = {
        "longest texts": lambda: load.calls([worst.message()] * min(25 * some, settings.max_requests)),
        "beams": lambda: load.calls([worst.beams()] * some),
        "samples": lambda: load.calls([worst.samples()] * some),
        "options": lambda: load.rounds([worst.options()] * some, 8),
    }
    if model.has_alignment:
        kinds["alignments"] = lambda: load.calls([worst.aligned()] * 4 * some)
    if model.attention:
        attend = pb.AttendRequest(text=worst.text).SerializeToString()
        kinds["attention"] = lambda: load.calls([attend] * 4 * some, path="/glossa.v1.AttentionService/Attend")
    if model.task == pb.TASK_GENERATION:
        texts = [f"{words[number % len(words)]} {worst.prompt.partition(' ')[2]}" for number in range(8 * some)]
        kinds["prompts"] = lambda: load.calls([worst.message(text, 1) for text in texts])
    kinds["headers"] = lambda: headers_alone(load, options.headers)
    kinds["messages on their way"] = lambda: on_their_way(load, worst, settings, options)
    return kinds


async def headers_alone(load: Load, count: int) -> None:
    """Calls that send nothing else, until the server has seen them; then their connections are closed."""
    block, streams = request_headers(load.path, "localhost"), range(1, 2 * STREAMS, 2)
    with Peers(load.address, -(-count // STREAMS)) as peers:
        for connection in peers.sockets:
            connection.sendall(b"".join(frame(HEADERS, END_HEADERS, stream, block) for stream in streams))
        await asyncio.sleep(HEADERS_S)


async def on_their_way(load: Load, worst: Worst, settings: ServerSettings, options: argparse.Namespace) -> None:
    """On all places but a few, on which samples are computed."""
    message, left = worst.on_their_way(settings.max_message_bytes), settings.max_requests - options.calls
    with contextlib.ExitStack() as stack:
        senders = []
        for first in range(0, left, SENDER_STREAMS):
            count = min(SENDER_STREAMS, left - first)
            tenant = f"sender-{first}"
            senders.append(stack.enter_context(UnfinishedMessages(load.address, load.path, message, count, tenant)))
        for sender in senders:
            await asyncio.to_thread(sender.filled.wait, FILL_S)
        await load.calls([worst.samples()] * options.calls)
        load.ends["messages but their last byte"] += sum(one.count for one in senders if one.filled.is_set())
        for sender in senders:
            sender.finish()
        until_s = asyncio.get_running_loop().time() + FILL_S
        while sum(sender.ended for sender in senders) < left and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(0.05)
        load.ends["of them answered"] += sum(sender.ended for sender in senders)


async def measure(
    address: str, pid: int, settings: ServerSettings, options: argparse.Namespace, figures: dict[str, Any]
) -> collections.Counter[str]:
    """Runs all kinds, and notes the peak after each. Returns the problems."""
    task = load_manifest(options.bundle).task
    load = Load(address, task)
    channel = grpc.aio.insecure_channel(address)
    call: Any = channel.unary_unary("/glossa.v1.ModelService/GetModel", None, pb.GetModelResponse.FromString)
    model = (await call(pb.GetModelRequest().SerializeToString())).model
    await channel.close()
    words = " ".join(source for source, _ in sentence_pairs(options.data, 400)).split()
    worst = Worst(model, task)
    worst.prompt = await longest_text(load, worst, words, 1)
    worst.text = worst.prompt if task == "translation" else await longest_text(load, worst, words, worst.most_tokens)
    figures["at the start"] = f"{peak_bytes(pid).total / 1e6:.0f} MB"
    for name, run in kinds_of(load, worst, words, settings, options).items():
        await run()
        ends = ", ".join(f"{count} {end}" for end, count in load.ends.items())
        figures[name] = f"{peak_bytes(pid).total / 1e6:.0f} MB; {ends}"
        load.ends.clear()
    await load.close()
    return load.problems


def settings_of(options: argparse.Namespace) -> ServerSettings:
    """Those of the server: default limits, and time enough."""
    fields: dict[str, Any] = {"models": {"model": options.bundle}, "precision": options.precision}
    fields |= {"engines": options.engines, "engines_per_process": options.engines_per_process}
    fields |= {"message_timeout_s": OPEN_S, "default_deadline_s": 600.0, "max_backlog_age_s": 60.0}
    for name in ("max_requests", "max_message_bytes", "request_memory_bytes", "parking_bytes", "prefix_cache_bytes"):
        if (value := getattr(options, name)) >= 0:
            fields[name] = value
    return load_settings(fields)


def flags_of(settings: ServerSettings, prediction: Prediction, *, is_limited: bool) -> list[str]:
    """Settings as flags; all limits, as `glossa_server` has others."""
    names = ["engines", "engines_per_process", "precision", "message_timeout_s", "default_deadline_s"]
    names += ["max_backlog_age_s", "max_requests", "max_queue", "max_concurrent_streams", "max_message_bytes"]
    names += ["kv_cache_bytes", "request_memory_bytes", "parking_bytes", "prefix_cache_bytes"]
    flags = [part for name in names for part in (f"--{name.replace('_', '-')}", str(getattr(settings, name)))]
    if not is_limited:
        flags += ["--process-memory-bytes", str(max(MIN_PROCESS_BYTES, int(MOST * prediction.process_peak(0))))]
    return flags


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    engines=2,
    engines_per_process=0,
    precision="auto",
    calls=Flag(40, "beams, samples and the like at a time"),
    headers=Flag(5000, "calls of headers alone"),
    max_requests=Flag(-1, "this and the following: limits of the server; -1: its default"),
    max_message_bytes=-1,
    request_memory_bytes=-1,
    parking_bytes=-1,
    prefix_cache_bytes=-1,
    cgroup=Flag(Path, "directory of version 2 in which a cgroup with a limit may be made; default: none"),
)
def memory_promise(options: argparse.Namespace) -> None:
    options.bundle = options.bundle.resolve()
    settings, manifest = settings_of(options), load_manifest(options.bundle)
    found = processors()
    prediction = predict_memory(settings, [(manifest, plan_processes(settings, manifest, found))], found)
    figures: dict[str, Any] = {"predicted": f"{prediction.total / 1e6:.0f} MB"}
    figures["limit"] = "a cgroup" if options.cgroup else "RLIMIT_DATA of engine processes"
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        group = limited(options.cgroup, int(MOST * prediction.total)) if options.cgroup else None
        limit = stack.enter_context(group) if group else None
        log = Path(scratch, "log")
        flags = flags_of(settings, prediction, is_limited=limit is not None)
        address, pid = stack.enter_context(glossa_server(options.bundle, flags=flags, log=log))
        if limit is not None:
            limit.leave()
        problems = asyncio.run(measure(address, pid, settings, options, figures))
        peak = peak_bytes(pid)
        for name, size in peak.processes.items():
            figures[f"process {name}"] = f"{size / 1e6:.0f} MB"
        ended = sum(samples(fetch(f"http://{http_address(log)}/metrics"), "glossa_engine_process_restarts_total"))
        total = limit.peak_bytes() if limit is not None else peak.total
        ended += limit.killed() if limit is not None else 0
    figures |= {f"problem: {problem}": count for problem, count in problems.most_common(5)}
    share = total / prediction.total
    engines = max(list(peak.processes.values())[1:], default=0) / prediction.process_peak(0)
    verdicts = [
        Verdict("peak against the prediction", round(share, 3), MOST, is_limit=True),
        Verdict("peak against the prediction, at least", round(share, 3), LEAST),
        Verdict("largest engine process against its prediction", round(engines, 3), MOST, is_limit=True),
        Verdict("processes that ended", ended, 0, "", is_limit=True),
        Verdict("calls that ended neither answered nor refused", problems.total(), 0, "", is_limit=True),
    ]
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
