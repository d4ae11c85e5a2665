"""What a seed draws: the server's limits, its clients, and all that goes wrong (`Scenario`).

Each seed switches whole kinds of trouble on or off, so that some seeds have one kind alone and some have all of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import grpc

from bench.simulation.process import Fate
from bench.simulation.runner import Table
from bench.simulation.transport import CallPlan
from export.bundle.manifest import Golden, Limits, Manifest, SpecialTokenTemplate, Task, Tokens
from glossa.v1 import glossa_pb2 as pb
from model.tokenizer import Tokenizer
from service.edge.observability.metrics import Method
from service.edge.rpcs.servicer import RPCS
from service.edge.security.tenants import PRIORITIES, PRIORITY, TENANT
from service.memory.engine_limits import EngineLimits
from service.settings.config import ServerSettings
from service.settings.loading import load_settings

WORDS = tuple("abcdefghijklmnopqrst")
TOKENIZER = Tokenizer.train((" ".join(WORDS),), kind="words", vocab_size=len(WORDS) + 4)
TABLE = Table(TOKENIZER.vocab_size)
MAX_SOURCE, MAX_TARGET = 32, 48
BASE = load_settings({"models": {"m": "/none"}})
BY_METHOD = {rpc.name: rpc for rpc in RPCS}
METHODS: dict[Task, tuple[str, str]] = {
    "translation": ("Translate", "StreamTranslate"),
    "generation": ("Generate", "StreamGenerate"),
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "scored": {"token_logprobs": True},
    "beam": {"beam_size": 3},
    "wide beam": {"beam_size": 4, "num_hypotheses": 2},
    "samples": {"num_sequences": 2, "temperature": 1.0},
    "stop": {"stop": ["c", "q"]},
    "phrase": {"phrases": ["d e"], "beam_size": 2},
    "without words": {"bad_words": ["a", "b", "c"]},
    "impossible": {"allowed_tokens": TOKENIZER.encode("b"), "bad_words": ["b"], "min_tokens": 2},
    "invalid": {"beam_size": 200},
    "too wide": {"beam_size": 16},
}
ITEM_KINDS = ("greedy", "greedy", "greedy", "beam", "samples", "stop", "phrase", "impossible", "invalid")
LINE_ENDS = ("\n", "\n\n", "\n", " ")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What a seed draws once. step_s: of one row. gap_s: mean time between two arrivals. drains_s: when the server is
    stopped; None: when all calls have ended. loops: processes that end again and again are part of it. texts: that are
    asked for often."""

    rng: random.Random
    task: Task
    settings: ServerSettings
    processes: int
    engines: int  # of each process
    limits: EngineLimits
    step_s: float
    requests: int
    gap_s: float
    burst: int
    drains_s: float | None
    capacity: int  # packets of a socket
    latency_s: float
    troubles: frozenset[str]
    texts: tuple[str, ...]

    @classmethod
    def draw(cls, seed: int, requests: int) -> Scenario:
        rng = random.Random(seed)
        troubles = frozenset(
            name
            for name, share in {
                **{"deaths": 0.3, "hangs": 0.2, "faults": 0.3, "loops": 0.03, "nonsense": 0.05},
                **{"leaving": 0.6, "deadlines": 0.6, "slow readers": 0.3, "bad messages": 0.4, "small sockets": 0.3},
            }.items()
            if rng.random() < share
        )
        processes, engines = rng.choice([(1, 1), (1, 1), (2, 1), (2, 1), (3, 1), (1, 2), (2, 2)])
        rows, step_s = rng.choice([2, 4, 6, 8]), rng.choice([0.0005, 0.001, 0.004])
        load = rng.choice([0.3, 0.8, 1.0, 1.5, 4.0])
        gap_s = 7 * step_s * (1 + rows / 16) / (rows * processes * engines * load)
        is_generation = rng.random() < 0.3
        draining = rng.random() < 0.4
        return cls(
            rng=rng,
            task="generation" if is_generation else "translation",
            settings=BASE.model_copy(update=cls._settings(rng, rows)),
            processes=processes,
            engines=engines,
            limits=EngineLimits(
                max_rows=rows,
                kv_cache_bytes=rng.choice([900, 3000, 100_000]),
                max_prefill_tokens=rng.choice([16, 64]),
                max_idle_prefill_tokens=64,
                chunk_tokens=16,
                parking_bytes=rng.choice([0, 300, 5000]),
                prefix_cache_bytes=rng.choice([0, 2000]),
                draft_tokens=rng.choice([0, 0, 4]) if is_generation else 0,
            ),
            step_s=step_s,
            requests=requests,
            gap_s=gap_s,
            burst=rng.choice([1, 1, 1, 8]),
            drains_s=rng.uniform(0.2, 1.2) * requests * gap_s if draining else None,
            capacity=rng.choice([1, 2, 4]) if "small sockets" in troubles else 64,
            latency_s=rng.choice([0.0, 0.0, 0.0002, 0.002]),
            troubles=troubles,
            texts=tuple(" ".join(rng.choices(WORDS, k=rng.randrange(1, 8))) for _ in range(4)),
        )

    @staticmethod
    def _settings(rng: random.Random, rows: int) -> dict[str, Any]:
        return {
            "max_rows": rows,
            "max_queue": rng.choice([2, 8, 40]),
            "max_requests": rng.choice([12, 60, 1024]),
            "default_deadline_s": 20.0,
            "max_deadline_s": rng.choice([20.0, 20.0, 0.05]),
            "message_timeout_s": rng.choice([0.1, 1.0]),
            "stall_timeout_s": rng.choice([0.2, 1.0]),
            "drain_delay_s": rng.choice([0.0, 0.05]),
            "drain_timeout_s": rng.choice([0.02, 0.5, 5.0]),
            "heartbeat_timeout_s": 2.0,
            "process_start_timeout_s": 5.0,
            "tenant_weights": {"tenant-0": 2.0, "tenant-1": 0.5},
            "unknown_tenant_priority": "high",
            "tenant_share": rng.choice([0.3, 0.5, 0.9]),
            "max_resets_per_s": 1_000_000,
            "stream_messages_per_s": rng.choice([0, 1000]),
        }

    @property
    def may_fail(self) -> bool:
        """Whether requests may end because of engines or processes."""
        return bool(self.troubles & {"deaths", "hangs", "faults", "loops", "nonsense"})

    @property
    def horizon_s(self) -> float:
        """About how long clients arrive."""
        return max(0.5, self.requests * self.gap_s)

    def manifest(self) -> Manifest:
        """Of the only model."""
        has_source = self.task == "translation"
        return Manifest(
            architecture="encoder_decoder" if has_source else "decoder",
            task=self.task,
            tokens=Tokens(pad=0, bos=1, eos=2, unk=3),
            template=SpecialTokenTemplate(source_suffix=(2,) if has_source else (), target_prefix=(1,)),
            limits=Limits(
                vocab_size=TOKENIZER.vocab_size,
                max_source_len=MAX_SOURCE if has_source else 0,
                max_target_len=MAX_TARGET,
                max_block=1 if has_source else 0,
            ),
            variants=(),
            golden=Golden(source=(4, 2) if has_source else (), prompt=(1,), output=(2,)),
            lineage={},
            parity={"passed": True, "checks": []},
            created="2026-01-01T00:00:00Z",
        )

    def fate(self, generation: int) -> Fate:
        """Of a process; `generation`: how many its place has had before it."""
        rng, troubles = self.rng, self.troubles
        start, life = "opens", "lives"
        if generation and "loops" in troubles and rng.random() < 0.8:
            start = rng.choice(["is killed", "refuses", "never opens"])
        lives = [
            *(["is killed", "crashes"] if "deaths" in troubles else []),
            *(["hangs", "is stopped", "freezes", "starves"] if "hangs" in troubles else []),
            *(["talks nonsense"] if "nonsense" in troubles else []),
        ]
        if lives and rng.random() < (0.9 if generation < 2 else 0.3):
            life = rng.choice(lives)
        faults = tuple(rng.choice([0.0, 0.01, 0.1]) if "faults" in troubles else 0.0 for _ in range(3))
        return Fate(
            open_s=rng.uniform(0.02, 0.4) if generation else 0.01,
            start=start,
            life=life,
            life_s=rng.uniform(0.0, self.horizon_s) if life != "lives" else 0.0,
            faults=(faults[0], faults[1], faults[2] / 10),
        )

    def call(self, number: int) -> CallPlan:
        """The call of a client."""
        rng = self.rng
        rpc, message = self._question(number)
        message_s: float | None = 0.0
        sent: Any = message
        if "bad messages" in self.troubles and rng.random() < 0.1:
            sent, message_s = rng.choice([(None, 0.0), (grpc.aio.EOF, 0.0), (message, None), (message, 0.09)])
        timeout_s: float | None = rng.choice([None, 10.0, 10.0])
        if "deadlines" in self.troubles and rng.random() < 0.4:
            timeout_s = rng.expovariate(1.0) * self.step_s * 12
        leaves_s = None
        if "leaving" in self.troubles and rng.random() < 0.25:
            leaves_s = rng.choice([0.0, rng.expovariate(1.0) * self.step_s * 8, rng.expovariate(1.0) * 0.2])
        reads_s: float | None = 0.0
        if "slow readers" in self.troubles and rng.random() < 0.2:
            reads_s = rng.choice([None, 0.01, 0.1])
        caller = [(TENANT, f"tenant-{rng.randrange(4)}")] if rng.random() < 0.9 else []
        if rng.random() < 0.5:
            caller.append((PRIORITY, rng.choice(list(PRIORITIES))))
        later = self._later(rpc, message) if rpc.type == "bidi_stream" else ()
        return CallPlan(f"call-{number}", rpc, sent, message_s, timeout_s, leaves_s, reads_s, tuple(caller), later)

    def _later(self, rpc: Method, first: Any) -> tuple[tuple[float, Any], ...]:
        """What follows the first message of a call with many items, or of a document."""
        rng, more = self.rng, list[Any]()
        for number in range(rng.choice([0, 0, 1, 3])):
            if rpc.name == "TranslateDocument":
                more.append(pb.TranslateDocumentRequest(text=self._document_text()))
            else:
                more.append(type(first)(items=self._items(rpc, 100 * (number + 1))))
        if rng.random() > 0.03:  # of few clients the stream never ends
            more.append(grpc.aio.EOF)
        gap_s = rng.choice([0.0, self.step_s, self.step_s * 20])
        return tuple((gap_s, message) for message in more)

    def _text(self, longest: int = 8) -> str:
        if self.rng.random() < 0.3:
            return self.rng.choice(self.texts)
        return " ".join(self.rng.choices(WORDS, k=self.rng.randrange(1, longest)))

    def _items(self, rpc: Method, first: int) -> list[Any]:
        """Items of a message, with ids from a number on, or those that the server gives."""
        rng = self.rng
        item_type = getattr(pb, f"{rpc.name}Item")
        ids = [str(first + place) for place in range(rng.choice([1, 2, 4, 12]))]
        if rng.random() < 0.03:
            ids[-1] = ids[0]  # refused, if both are there together
        return [item_type(id=name, request=self._item(rpc)) for name in ids]

    def _item(self, rpc: Method) -> Any:
        if rpc.name == "ScoreBatch":
            return pb.ScoreRequest(text=self._text(), target=self._text())
        options = pb.DecodingOptions(**KINDS[self.rng.choice(ITEM_KINDS)])
        if options.num_sequences:
            options.seed = 5
        return pb.TranslateRequest(text=self._text() if self.rng.random() > 0.02 else "", options=options)

    def _document_text(self) -> str:
        """Lines, some of them blank or without words."""
        rng = self.rng
        lines = [rng.choice(["", "--", self._text(24), self._text()]) for _ in range(rng.choice([1, 3, 9]))]
        return "".join(f"{line}{rng.choice(LINE_ENDS)}" for line in lines)

    def _many(self) -> tuple[Method, Any]:
        """The first message of a call with many items, or of a document."""
        rng = self.rng
        options = pb.DecodingOptions(max_tokens=rng.choice([1, 4, 8]))
        if self.task == "generation" or (draw := rng.random()) < 0.2:
            rpc = BY_METHOD["ScoreBatch"]
            return rpc, pb.ScoreBatchRequest(in_order=rng.random() < 0.5, items=self._items(rpc, 0))
        if draw < 0.5:
            return BY_METHOD["TranslateDocument"], pb.TranslateDocumentRequest(
                text=f"a{self._document_text()}", options=options
            )
        rpc, defaults = BY_METHOD["TranslateBatch"], pb.TranslateRequest(options=options, include_tokens=True)
        return rpc, pb.TranslateBatchRequest(defaults=defaults, in_order=rng.random() < 0.5, items=self._items(rpc, 0))

    def _question(self, number: int) -> tuple[Method, Any]:
        rng = self.rng
        draw = rng.random()
        if rng.random() < 0.04:
            return self._many()
        text = self._text(24 if draw < 0.2 else 8)
        if draw < 0.02:
            return BY_METHOD["GetModel"], pb.GetModelRequest(model=rng.choice(["m", "n"]))
        if draw < 0.03:
            return BY_METHOD["Embed"], pb.EmbedRequest(text=text)
        if draw < 0.08:
            return BY_METHOD["Score"], pb.ScoreRequest(text=text, target=self._text())
        kind = "greedy" if rng.random() < 0.7 else rng.choice(list(KINDS))
        given = dict(KINDS[kind])
        if "temperature" in given:
            given["seed"] = number
        options = pb.DecodingOptions(max_tokens=rng.choice([1, 4, 8, 16]), **given)
        is_streamed = rng.random() < 0.5 and given.get("num_sequences", 1) == 1
        method = METHODS[self.task][is_streamed]
        message = getattr(pb, f"{method}Request")(text=text, options=options, include_tokens=True)
        return BY_METHOD[method], message
