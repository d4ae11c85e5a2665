"""Twenty tenants beside one that sends twenty times its share, in turns of what costs a server most.

Twenty tenants offer plain requests together, at random moments, with deadlines. Quiet phases, with nobody else, give
the p99 of their answers. In each other phase one more tenant offers twenty times what one of them does, with a long
deadline: plain requests, beams of 32 with phrases, 32 samples each, texts of 16 KB that are refused, and grammars that
are costly to compile or to follow. All that happens at two loads of the twenty:

- 40 % of the server's capacity in answers. Capacity is reached with batches of 64, and an answer in a small batch takes
  two to three times as much processor time (Xeon with AMX: 5.0 ms instead of 2.0), so the processor is some 94 % busy
- what makes the server's processor 40 % busy

Shown is for each load and kind of abuse

- how many of the others' requests were answered in time, and their p99 against that of the quiet phases
- what share of idle capacity the abuser was lent: its answers a second, divided by those that it gets alone, scaled to
  the 60 % that the others leave; not at the second load, where 20 times one's share is less than that
- what share of idle processor time it was lent: its answers a second, divided by those that it gets alone, scaled to
  the processor time that was idle in quiet, or by what it offered if that is less. Texts and grammars are left out of
  both: refused, or bounded by what they cost to prepare

Server and load have a processor each. A phase is void if the generator itself was late by more than 5 ms at p99, there
or in the quiet phases with which it is compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.load.calls import UNARY
from bench.load.lean_client import LeanConnection, closed_loop
from bench.load.open_loop import OpenLoop, Source, p99, shares
from bench.load.peer_server import glossa_server
from bench.load.process_tree import cpu_seconds
from bench.load.status_connection import DeadlineConnection
from bench.measure import Verdict, report
from bench.promises.overload import LATENESS_S, capacity
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb

TENANTS, TIMES, LOAD = 20, 20, 0.4  # tenants; what the abuser offers of one's load; their load, of capacity
BUSY, TRIES = 0.4, 3  # of the server's processor, at the other load; phases that look for it
ABUSER_DEADLINE_S = 10.0
SERVED, SLOWER, LENT = 0.999, 1.5, 0.5  # bars
TEXT_BYTES = 16_000
WIDTH = 32
REST_S = 0.5  # after a phase, until what was cancelled has left the engine
AMBIGUOUS = "start: s\ns: s s | s s s | W\nW: /[a-zA-ZäöüßÄÖÜ .,]/"
ENDLESS = r"(\w*\W*){1,99}" * 40
CHOICES = json.dumps(
    {"anyOf": [{"type": "object", "properties": {f"k{n}": {"minimum": n}}, "required": [f"k{n}"]} for n in range(120)]}
)
LIMITS = ("--max-queue", "256", "--max-requests", "1024", "--max-concurrent-streams", "256")  # as by default
Messages = list[bytes]


def serialized(texts: Sequence[str], **options: Any) -> Messages:
    asked = pb.DecodingOptions(**options)
    return [pb.TranslateRequest(text=text, options=asked).SerializeToString() for text in texts]


def kinds(pairs: Sequence[tuple[str, str]], tokens: int) -> dict[str, Messages]:
    """What the abuser sends, by kind."""
    texts, long = [source for source, _ in pairs], 4 * tokens
    text = (
        " ".join(itertools.islice(itertools.cycle(texts), TEXT_BYTES)).encode()[:TEXT_BYTES].decode("utf-8", "ignore")
    )
    beams = [
        message
        for source, target in pairs[:50]
        for message in serialized([source], beam_size=WIDTH, max_tokens=long, phrases=target.strip(".?!").split()[:2])
    ]
    return {
        "plain requests": serialized(texts, max_tokens=tokens, ignore_eos=True),
        "beams": beams,
        "samples": serialized(texts, num_sequences=WIDTH, temperature=1.0, max_tokens=long, ignore_eos=True),
        "long texts": serialized([text]),
        "grammars": [
            *serialized(texts[:1], regex=ENDLESS),
            *serialized(texts[:1], json_schema=CHOICES),
            *serialized(texts[:1], lark=AMBIGUOUS, max_tokens=long),
        ],
    }


@dataclass
class Phase:
    """What a phase showed. victims, abuser: the calls of both. busy: processor time of the server, a second."""

    victims: Source
    abuser: Source
    seconds: float
    late_s: float
    busy: float = 0.0

    @property
    def served(self) -> float:
        """The share of the victims' calls that were answered in time."""
        return len(self.victims.in_time) / max(1, len(self.victims.outcomes))

    @property
    def lent(self) -> float:
        """Answers a second that the abuser got in time."""
        return len(self.abuser.in_time) / self.seconds


class Quiet(NamedTuple):
    """Phases without an abuser. p99_s: of the answers, idle: of the server's processor time, together."""

    phases: tuple[Phase, ...]

    @property
    def p99_s(self) -> float:
        """Seconds."""
        return p99([seconds for phase in self.phases for seconds in phase.victims.in_time])

    @property
    def late_s(self) -> float:
        """The generator's lateness at p99, of the phase in which it was later."""
        return max(phase.late_s for phase in self.phases)

    @property
    def idle(self) -> float:
        """A share of one processor."""
        return max(0.0, 1 - sum(phase.busy for phase in self.phases) / len(self.phases))


class Bench:
    """Phases against one server. pid: its process. rate: of all victims together, calls a second."""

    def __init__(self, address: str, pid: int, messages: Messages, rate: float, options: argparse.Namespace) -> None:
        self._address, self._pid, self._messages, self._options = address, pid, messages, options
        self.rate, self._seeds = rate, itertools.count(options.seed)

    def seek(self, busy: float, seconds: float) -> None:
        """Changes the rate to one at which the server takes about so much processor time a second."""
        for _ in range(TRIES):
            found = self.phase(seconds).busy
            self.rate *= min(2.0, busy / max(found, 0.01))

    def phase(self, seconds: float, abuse: Messages | None = None) -> Phase:
        """Offers the victims' load, and the abuser's beside it."""
        options = self._options
        names = [f"tenant-{number}" for number in range(TENANTS)]
        victims = [DeadlineConnection(self._address, options.deadline_s, name) for name in names]
        count = options.connections if abuse else 0
        abusers = [DeadlineConnection(self._address, ABUSER_DEADLINE_S, "abuser") for _ in range(count)]
        victim = Source(victims, self._messages, [(self.rate, seconds)], reopens=True)
        phases = [(TIMES * self.rate / TENANTS, seconds)]
        abuser = Source(abusers, abuse or [], phases, reopens=True, is_awaited=False)
        began_s, used_s = time.perf_counter(), cpu_seconds(self._pid)
        loop = OpenLoop([victim, abuser] if abuse else [victim], next(self._seeds))
        loop.run()
        busy = (cpu_seconds(self._pid) - used_s) / (time.perf_counter() - began_s)
        time.sleep(REST_S)
        return Phase(victim, abuser, seconds, p99(loop.lateness), busy)

    def alone(self, messages: Messages, seconds: float) -> float:
        """Answers a second to a single client that sends these."""
        connections = [LeanConnection(self._address) for _ in range(4)]
        began_s = time.perf_counter()
        found = closed_loop(connections, UNARY, messages, self._options.callers, seconds)
        for connection in connections:
            connection.close()
        return len(found) / (max(answer.ended_s for answer in found) - began_s)


def judged(kind: str, phase: Phase, quiet: Quiet, alone: float, *, is_of_capacity: bool) -> list[Verdict]:
    """alone: answers a second that the abuser gets alone; 0: it gets none. is_of_capacity: the load is LOAD of it."""
    if (late_s := max(phase.late_s, quiet.late_s)) > LATENESS_S:
        late_ms = round(1000 * late_s, 1)
        return [Verdict(f"{kind}: lateness of the generator, void", late_ms, 1000 * LATENESS_S, "ms", is_limit=True)]
    if not quiet.p99_s:  # a starved machine may answer nothing in time in short phases
        return [Verdict(f"{kind}: answers in time in quiet, void", 0.0, 1.0)]
    slower = p99(phase.victims.in_time) / quiet.p99_s
    verdicts = [
        Verdict(f"{kind}: others' requests answered in time", round(100 * phase.served, 2), 100 * SERVED, "%"),
        Verdict(f"{kind}: p99 of others against quiet", round(slower, 2), SLOWER, is_limit=True),
    ]
    if alone and is_of_capacity:
        share = phase.lent / ((1 - LOAD) * alone)
        verdicts.append(Verdict(f"{kind}: idle share lent to the abuser", round(share, 2), LENT))
    if alone:
        possible = min(phase.abuser.rate, quiet.idle * alone)
        share = phase.lent / possible if possible else 1.0
        verdicts.append(Verdict(f"{kind}: idle processor time lent to the abuser", round(share, 2), LENT))
    return verdicts


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    seconds=Flag(10.0, "of each phase"),
    kinds=Flag([""], "of abuse; all if not given"),
    tokens=Flag(16, "of each answer to the others"),
    deadline_s=Flag(1.0, "of the others' requests"),
    connections=Flag(16, "of the abuser"),
    callers=Flag(16, "of the closed loop that measures what an abuser gets alone"),
    seed=0,
    serve=Flag("", "more flags of the server"),
)
def abuser(options: argparse.Namespace) -> None:
    mine, *others = sorted(os.sched_getaffinity(0))
    pairs = sentence_pairs(options.data, 500)
    plain = serialized([source for source, _ in pairs], max_tokens=options.tokens, ignore_eos=True)
    abuse = {
        kind: found
        for kind, found in kinds(pairs, options.tokens).items()
        if kind in options.kinds or not any(options.kinds)
    }
    os.sched_setaffinity(0, {mine})  # the server inherits it
    flags = ["--engines", "1", *LIMITS, *shlex.split(options.serve)]
    figures: dict[str, Any] = {}
    verdicts: list[Verdict] = []
    short_s = min(3.0, options.seconds)
    with (
        tempfile.TemporaryDirectory() as scratch,
        glossa_server(options.bundle, flags=flags, log=Path(scratch) / "log") as (address, pid),
    ):
        os.sched_setaffinity(0, set(others) or {mine})
        capacity(address, plain, 128, min(1.0, short_s))
        most = max(1.0, capacity(address, plain, 128, short_s))  # a starved machine may answer none in so short a time
        bench = Bench(address, pid, plain, LOAD * most, options)
        alone = {
            kind: most if kind == "plain requests" else bench.alone(abuse[kind], short_s)
            for kind in abuse
            if kind in LENDABLE
        }
        figures["capacity"] = f"{most:.0f} requests/s"
        bench.phase(min(2.0, short_s))
        for load in ("", f", {100 * BUSY:.0f} % busy"):
            if load:
                bench.seek(BUSY, short_s)
            before = bench.phase(options.seconds)
            phases = {kind: bench.phase(options.seconds, messages) for kind, messages in abuse.items()}
            quiet = Quiet((before, bench.phase(options.seconds)))
            figures |= shown(load, bench.rate, quiet, phases, alone)
            for kind, phase in phases.items():
                verdicts += judged(kind + load, phase, quiet, alone.get(kind, 0.0), is_of_capacity=not load)
    report(figures, verdicts, as_json=options.json)


def shown(
    load: str, rate: float, quiet: Quiet, phases: Mapping[str, Phase], alone: Mapping[str, float]
) -> dict[str, str]:
    """Figures of all phases at a load as text. load: what names it; rate, alone: as above."""
    each = ", ".join(f"{1000 * p99(one.victims.in_time):.1f} ms" for one in quiet.phases)
    found = {f"others{load}": f"{rate:.0f} requests/s; quiet p99 {each}; processor {100 - 100 * quiet.idle:.0f} % busy"}
    for kind, phase in phases.items():
        others = f"p99 {1000 * p99(phase.victims.in_time):.1f} ms; processor {100 * phase.busy:.0f} % busy"
        found[f"{kind}{load}: others"] = f"{shares(phase.victims.ends)}; {others}"
        got = f"{phase.lent:.1f} answers/s, alone {alone.get(kind, 0):.1f}"
        found[f"{kind}{load}: abuser"] = f"{shares(phase.abuser.ends)}; {got}"
    return found


LENDABLE = ("plain requests", "beams", "samples")
