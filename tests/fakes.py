"""Doubles for the engine's seams: a clock that is set, a runner that follows a rule, letters as tokens, sinks, CUDA."""

import asyncio
import ctypes
import random
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.engine_pool import EnginePool
from bench.simulation.invariants import check_invariants
from export.bundle.manifest import Limits
from service.decoding.search import advance, search_for
from service.decoding.vocabulary import Vocabulary
from service.encoder_request import EncoderOutput
from service.engine.engine import Engine
from service.engine.fair_shares import FairShares
from service.engine.prompt_lookup import DraftProposer
from service.memory.cache_layout import CacheLayout
from service.options import DecodingOptions
from service.request import Finished, Request, TextDelta
from service.runtime.cuda_memory import CudaMemory, CudaRuntime, CudaStream
from service.step import Burst, DeviceLost, Plain, PrefillCost, Ranked, TurnOutput, VerifiedDraft, non_finite

EOS = 2


class FakeClock:
    """A clock that a test advances."""

    def __init__(self, now_s=100.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s

    def advance(self, seconds):
        self.now_s += seconds


class LetterTokenizer:
    """Token 4 is "a", 5 is "b", …; special tokens are no text."""

    class Decoder:
        def push(self, token):
            if token < 0:
                raise ValueError(f"no such token: {token}")
            return chr(ord("a") + token - 4) if token >= 4 else ""

        def flush(self):
            return ""

    target: Any = None
    pieces = (b"", b"", b"", b"", *(bytes([ord("a") + place]) for place in range(26)))
    strips_leading_space = False

    def incremental(self):
        return self.Decoder()


def brackets(size, *eos_ids):
    """A vocabulary in which any token may follow any other: all are opening brackets."""
    return Vocabulary([b"("] * size, eos_ids=eos_ids, strips_leading_space=False)


def next_token(source, fed, vocab_size):
    """The rule of ScriptedRunner: depends on every token of the source and of the row so far, ends after a while."""
    mixed = sum((place + 3) * token for place, token in enumerate((*source, 1, *fed))) * 2654435761 % 2**32
    return EOS if mixed % 11 == 0 else 3 + mixed % (vocab_size - 3)


def scripted_answer(request, vocab_size=24):
    """The answer to a request under that rule, whatever its neighbours."""
    tokens: list[int] = []
    while len(tokens) < request.max_tokens and EOS not in tokens:
        tokens.append(next_token(request.source, (*request.prompt, *tokens), vocab_size))
    return tokens


def certain(token, vocab_size):
    """The distribution that is sure of one token."""
    logits_V = np.zeros(vocab_size, np.float32)
    logits_V[token] = 20.0
    return logits_V - np.log(np.exp(logits_V).sum())


def doubtful(source, fed, vocab_size):
    """A distribution that depends on every token of the source and of the row, and ends after a while."""
    seed = hash((tuple(source), tuple(fed)))
    logits_V = np.random.default_rng(seed % 2**63).normal(0.0, 2.0, vocab_size).astype(np.float32)
    logits_V[EOS] += 0.15 * len(fed)
    return (logits_V - np.log(np.exp(logits_V).sum(dtype=np.float64))).astype(np.float32)


class ScriptedOutputs:
    """See service.step.DeferredOutputs. Attention looks at one source position after another."""

    def __init__(self, logprobs_LV, sources):
        self.logprobs_LV, self.sources = logprobs_LV, sources

    def logprobs(self, row, line):
        return self.logprobs_LV[line]

    def logsumexp(self, row, line):
        return 3.0

    def cross_attention(self, row, tokens):
        weights_TS = np.zeros((len(tokens), len(self.sources[row])), np.float32)
        for place in range(len(tokens)):
            weights_TS[place, place % len(self.sources[row])] = 1.0
        return np.stack([weights_TS, weights_TS])[None]

    def encoder_output(self, row):
        return EncoderOutput(vector=np.array(self.sources[row], np.float32))

    def attention(self, source, tokens, kinds):
        """Every position attends to the first one alone."""
        lengths = {"encoder": (source, source), "decoder": (tokens, tokens), "cross": (tokens, source)}
        weights = {kind: np.zeros((2, 2, *map(len, lengths[kind])), np.float32) for kind in kinds}
        for one in weights.values():
            one[..., 0] = 1.0
        return weights


def scripted_output(logprobs_LV, sources, top_k=1, *, rows=None, drafts=(), extra_tokens=(), **turn):
    """What a runner returns that predicts these lines of log-probabilities, of which the first `rows` follow the step;
    drafts: by row, guesses. top_k: 0: no row is scored. `turn`: more fields of service.step.TurnOutput."""
    ids_LK = np.argsort(-logprobs_LV, axis=1, kind="stable")[:, : max(1, top_k)]
    scores_LK = np.take_along_axis(logprobs_LV, ids_LK, axis=1)
    rows, deferred = len(logprobs_LV) if rows is None else rows, ScriptedOutputs(logprobs_LV, sources)
    ranked, plain = Ranked(ids_LK.tolist(), scores_LK.tolist(), range(rows), deferred), ids_LK[:, 0].tolist()
    verified, first = {}, rows
    for row, guesses in dict(drafts).items():
        verified[row] = VerifiedDraft(guesses, range(first, first + 1 + len(guesses)), 0.003)
        first += 1 + len(guesses)
    return TurnOutput(
        predictions=ranked if top_k else Plain(plain, deferred),
        non_finite=non_finite(scores_LK[:, 0].tolist()),
        drafts=verified,
        bursts={0: Burst(extra_tokens, range(1 + len(extra_tokens)))} if extra_tokens else {},
        **{"step_s": 0.0, **turn},
    )


class ScriptedRunner:
    """A runner without numbers: each row remembers its source and tokens, and the plan is checked against them.

    rule: (source, tokens of the row, vocab_size) → the next token, or a whole distribution.
    fail_on: numbers of runs that raise. gate: when set to an Event, runs wait for it; `entered` is set meanwhile.
    """

    eos_ids = (EOS,)
    max_rows = 64

    def __init__(
        self,
        *,
        has_source=True,
        has_decoder=True,
        max_block=1,
        vocab_size=24,
        max_len=64,
        layout=None,
        rule=next_token,
    ):
        self.limits = Limits(
            vocab_size=vocab_size,
            max_source_len=max_len if has_source else 0,
            max_target_len=max_len if has_decoder else 0,
            max_block=max_block,
        )
        self.layout = layout or CacheLayout(target_bytes=10, source_bytes=10 if has_source else 0)
        self.rule = rule
        self.rows: list[Any] = []
        self.words: dict[int, tuple[int, ...]] = {}  # of each row's own
        self.guessed: set[int] = set()  # rows whose last tokens were guesses: any number of them may be taken back
        self.parked: dict[int, tuple[list[Any], tuple[int, ...]]] = {}  # by slot: rows, and their words
        self.kept: dict[int, list[int]] = {}  # by slot: all tokens up to the end of the block that is kept there
        self.plans: list[Any] = []
        self.keeps_plans = True
        self.runs = self.idle_marks = 0
        self.fail_on: set[int] = set()
        self.is_broken = False
        self.gate: Any = None
        self.entered = threading.Event()
        self.before_run = lambda: None
        self.has_lost_device = False

    def reset(self):
        if self.has_lost_device:
            raise DeviceLost("the device is lost")
        self.rows, self.is_broken = [], False
        self.parked.clear()
        self.guessed.clear()

    def mark_idle(self):
        self.idle_marks += 1

    def run(self, plan):
        assert not self.is_broken, "a failed run needs a reset"
        self.runs += 1
        if self.keeps_plans:
            self.plans.append(plan)
        self.entered.set()
        self.before_run()
        if self.gate is not None:
            self.gate.wait()
        if self.runs in self.fail_on:
            self.is_broken = True
            raise RuntimeError(f"scripted failure of run {self.runs}")
        self._park(plan)
        self._copy(plan)
        self._resume(plan)
        assert not {join.row for join in plan.new_rows} & {copy.target for copy in plan.moves.copies}
        assert [join.row for join in plan.new_rows] == sorted({join.row for join in plan.new_rows})
        for join in plan.new_rows:
            assert join.row <= len(self.rows)
            assert bool(join.source) == bool(self.limits.max_source_len)
            self.rows[join.row : join.row + 1] = [(join.source, [])]
            self.words[join.row] = join.shortlist
        assert len(self.rows) == plan.shape.rows
        own = {row: self.words[row] for row in range(plan.shape.rows) if self.words.get(row)}
        assert (plan.shortlist_rows, plan.shape.shortlist_len) == (own.keys(), max(map(len, own.values()), default=0))
        self._read(plan)
        assert plan.shape.source_len == max(len(source) for source, _ in self.rows)
        predicted = self._feed(plan) if plan.decode else []
        after = self._draft(plan)
        assert plan.shape.target_len >= max(len(fed) for _, fed in self.rows)
        extra, words = self._extra_steps(plan, predicted), self.limits.vocab_size
        lines = [*predicted, *[line for lines in after.values() for line in lines]]
        logprobs_LV = np.array([certain(what, words) if isinstance(what, int) else what for what in lines])
        prefills = plan.new_rows or plan.prompts.chunks
        encode_s, tokens, padding = 0.0004 if plan.new_rows else 0.0, 16 * len(plan.new_rows), 5 * len(plan.new_rows)
        return scripted_output(
            logprobs_LV.reshape(len(lines), words),
            [source for source, _ in self.rows],
            plan.top_k,
            rows=plan.step_rows,
            drafts={draft.row: draft.tokens[1:] for draft in plan.drafts},
            extra_tokens=extra,
            prefill=PrefillCost(0.001, encode_s, tokens, padding) if prefills else None,
            step_s=0.002 if plan.decode else 0.0,
        )

    def _feed(self, plan):
        """Reads the tokens of a step; what follows each row."""
        step, words = plan.decode, self.limits.vocab_size
        assert self.limits.max_target_len
        assert len(step.prefilling_rows) + len(plan.drafts) < plan.shape.rows
        for row, (token, start) in enumerate(zip(step.tokens, step.starts, strict=True)):
            fed = self._rewound(row, start)
            if row not in step.prefilling_rows:
                fed.append(token)
        assert len(step.tokens) == plan.shape.rows
        return [
            words - 1 if row in step.prefilling_rows else self.rule(source, fed, words)
            for row, (source, fed) in enumerate(self.rows)
        ]

    def _extra_steps(self, plan, predicted):
        """Inputs of the extra steps of the only row; what follows each of them is appended to `predicted`."""
        if not (plan.decode and plan.decode.extra):
            return []
        assert plan.shape.rows == len(predicted) == 1
        assert not plan.drafts
        ((source, fed),), words = self.rows, self.limits.vocab_size
        extra: list[int] = []
        while len(extra) < plan.decode.extra.most:
            token = predicted[-1] if isinstance(predicted[-1], int) else int(np.argmax(predicted[-1]))
            if token in self.eos_ids:
                break
            extra.append(token)
            fed.append(token)
            predicted.append(self.rule(source, fed, words))
        self.guessed = {0} if extra else set()
        return extra

    def _rewound(self, row, start):
        """The tokens of a row, without guesses from `start` on."""
        _, fed = self.rows[row]
        assert start <= len(fed) if row in self.guessed else start == len(fed), "a row is fed a token not its next"
        del fed[start:]
        return fed

    def _draft(self, plan):
        """Reads the drafts; what follows each of their tokens, by row."""
        after: dict[int, list[Any]] = {}
        self.guessed = {draft.row for draft in plan.drafts}
        assert len(self.guessed) == len(plan.drafts)
        for draft in plan.drafts:
            assert self.limits.max_block != 1
            assert len(draft.tokens) > 1
            fed, (source, _) = self._rewound(draft.row, draft.start), self.rows[draft.row]
            after[draft.row] = []
            for token in draft.tokens:
                fed.append(token)
                after[draft.row].append(self.rule(source, fed, self.limits.vocab_size))
        return after

    def _read(self, plan):
        for load in plan.prompts.loads:
            _, fed = self.rows[load.row]
            kept = self.kept[load.slot]
            assert (len(fed), len(kept)) == (load.start, load.start + load.count)
            assert kept[: load.start] == fed, "what is kept followed something else"
            fed += kept[load.start :]
        for block in plan.prompts.chunks:
            assert self.limits.max_block != 1
            assert 0 < len(block.tokens) <= (self.limits.max_block or 10**6)
            fed = self._rewound(block.row, block.start)
            fed += block.tokens
        for save in plan.prompts.stores:
            assert save.slot < plan.prompts.slots
            _, fed = self.rows[save.row]
            assert len(fed) >= save.start + save.count
            self.kept[save.slot] = fed[: save.start + save.count]

    def _park(self, plan):
        assert plan.rows_before <= len(self.rows)
        del self.rows[plan.rows_before :]  # a turn without rows is not run
        self.parked = {slot: found for slot, found in self.parked.items() if slot in plan.moves.slots}
        for parked in plan.moves.parked:
            assert parked.slot in plan.moves.slots
            assert parked.slot not in self.parked
            words = self.words.get(parked.rows[0], ())
            for row in parked.rows:
                source, fed = self.rows[row]
                assert (len(source), len(words)) == (parked.source_len, parked.shortlist_len)
                assert parked.target_len <= len(fed) if row in self.guessed else parked.target_len == len(fed)
            rows = [(source, fed[: parked.target_len]) for source, fed in (self.rows[row] for row in parked.rows)]
            self.parked[parked.slot] = rows, words

    def _resume(self, plan):
        for resumed in plan.moves.resumed:
            rows, words = self.parked.pop(resumed.slot)
            for row, line in resumed.lines.items():
                source, fed = rows[line]
                self.rows += [((), [])] * (row + 1 - len(self.rows))
                self.rows[row] = source, fed.copy()
                self.words[row] = words

    def _copy(self, plan):
        assert not {copy.source for copy in plan.moves.copies} & {copy.target for copy in plan.moves.copies}
        assert len({copy.target for copy in plan.moves.copies}) == len(plan.moves.copies)
        kept = plan.rows_after_copies
        rows = [*self.rows, *[((), []) for _ in range(kept - len(self.rows))]]
        for copy in plan.moves.copies:
            source, fed = self.rows[copy.source]
            old_source, old = rows[copy.target]
            assert copy.stop <= len(fed) if copy.source in self.guessed else copy.stop == len(fed)
            assert old[: copy.start] == fed[: copy.start], "positions that were not copied are others"
            assert copy.source_len == len(source) or (copy.source_len == 0 and source == old_source)
            rows[copy.target] = (source, fed[: copy.stop])
            own = self.words.get(copy.source, ())
            assert copy.shortlist_len == (len(own) if copy.source_len else 0)
            if copy.source_len:
                self.words[copy.target] = own
            assert self.words.get(copy.target, ()) == own
        self.rows = rows[:kept]


@dataclass(frozen=True, kw_only=True)
class ProcessedRequest(Request):
    """A request with logits processors that no option describes."""

    logits_processors: Any = ()


def search_of(request, eos_ids=(EOS,)):
    """The strategy of a request with its logits processors."""
    return search_for(request, eos_ids=eos_ids, processors=getattr(request, "logits_processors", ()))


def decoding_request(name="r", source=(5, 6, 2), max_tokens=10, prefix=(), logits_processors=(), **options):
    """A request whose options are given as keywords."""
    return ProcessedRequest(
        request_id=name,
        source=source,
        prompt=(1,),
        max_tokens=max_tokens,
        prefix=prefix,
        logits_processors=logits_processors,
        options=DecodingOptions(**options),
        seed=options.get("seed", 0),
    )


def drain(scheduler, runner, on_run=lambda plan, outputs: None, on_turn=lambda plan: None):
    """Turns a scheduler and its runner by hand until nothing is left, and checks the invariants after each turn.

    on_run: called with what a turn computed, before it is used. on_turn: called at its end.
    """
    while not scheduler.is_idle:
        plan = scheduler.plan(0.0)
        if plan.live:
            outputs = runner.run(plan.step)
            on_run(plan, outputs)
            advance(scheduler.commit(plan), outputs)
            scheduler.record_drafts(plan, outputs)
            scheduler.shares.record(outputs.step_s, plan.live, {})
        assert check_invariants(scheduler) == []
        on_turn(plan)


class EveryDraft(DraftProposer):
    """A proposer for which every draft pays. accepted: tokens of each verified draft."""

    def __init__(self, most):
        super().__init__(most)
        self.accepted: list[int] = []

    def worthwhile(self, drafts, rows):
        return len(drafts)

    def record_draft(self, sequence, size, accepted, seconds):
        super().record_draft(sequence, size, accepted, seconds)
        self.accepted.append(accepted)


class RandomDrafts(EveryDraft):
    """Drafts of random length, partly right. right: the tokens of each answer by request id."""

    def __init__(self, right, words, seed):
        super().__init__(9)
        self.right, self.words, self.rng = right, words, random.Random(seed)

    def propose(self, stepping, rows):
        found = {}
        for sequence in stepping:
            room = min(self.most, sequence.request.max_tokens - sequence.steps - 1)
            if room > 0 and self.rng.random() < 0.7:
                ahead = self.right[sequence.request.request_id][sequence.steps :][:room]
                draft = [*ahead, *[self.rng.randrange(self.words) for _ in range(room - len(ahead))]]
                if self.rng.random() < 0.7:
                    draft[self.rng.randrange(len(draft))] = self.rng.randrange(self.words)
                found[sequence] = tuple(draft[: self.rng.randrange(1, room + 1)])
        return found

    def record_draft(self, sequence, size, accepted, seconds):
        self.accepted.append(accepted)


class Sink:
    """Collects the events of one request. `done` is resolved by the final one, with this sink."""

    def __init__(self, loop=None):
        self.events = []
        self.done: Any = loop.create_future() if loop else None

    def __call__(self, event):
        self.events.append(event)
        if self.done and not self.done.done() and not isinstance(event, TextDelta):
            self.done.set_result(self)

    @property
    def finals(self):
        return [event for event in self.events if not isinstance(event, TextDelta)]

    @property
    def tokens(self):
        return [token for event in self.events if isinstance(event, TextDelta | Finished) for token in event.tokens]

    @property
    def text(self):
        return "".join(event.text for event in self.events if isinstance(event, TextDelta | Finished))


class ManualLoop:
    """An event loop as far as a pool needs one: callbacks run when a test calls `run`."""

    def __init__(self):
        self.calls = []

    def call_soon_threadsafe(self, callback, *arguments):
        self.calls.append((callback, arguments))

    def run(self):
        calls, self.calls = self.calls, []
        for callback, arguments in calls:
            callback(*arguments)


class CheckedEngine(Engine):
    """Checks the invariants after every turn; a violation ends the engine."""

    def turn(self):
        super().turn()
        assert check_invariants(self._core.scheduler) == []


class ManualEngine(EnginePool):
    """A pool of one engine without its thread: `turn()` does what the thread would, and raises what would kill it."""

    def __init__(self, runner, settings, **more):
        self.runner, self.clock = runner, FakeClock()
        tokenizer: Any = LetterTokenizer()
        (self.engine,) = engines = [CheckedEngine(runner, tokenizer, settings, clock=self.clock, **more)]
        super().__init__(engines)
        self.start(is_manual=True)

    @property
    def snapshot(self):
        return self.engine.snapshot

    def turn(self):
        self.engine.turn()


async def ask(pool, *requests, within_s=120):
    """Submits requests at once and waits for their final events; returns their sinks."""
    loop = asyncio.get_running_loop()
    sinks = [Sink(loop) for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        pool.submit(request, loop, sink)
    return await asyncio.wait_for(asyncio.gather(*(sink.done for sink in sinks)), timeout=within_s)


class FakeCuda:
    """The CUDA runtime calls that are made without ONNX Runtime, on main memory; all take effect at once.

    fail: the status that every call returns, until cudaGetLastError is asked. lost: that of a broken device. live:
    buffers in use, by address. waits: for the stream so far. batches: pieces of each batch of copies.
    count: a number of devices, or -error. driver: 1000 * major + 10 * minor. free: bytes.
    """

    def __init__(self, fail=0, *, lost=0, driver=13000, count=1, free=8 << 30):
        self.fail, self.live, self.waits, self.batches = fail, {}, 0, list[int]()
        self.lost, self.driver, self.count, self.free, self.event_waits = lost, driver, count, free, 0

    def cudaDriverGetVersion(self, version):
        version._obj.value = self.driver
        return 0

    def cudaGetDeviceCount(self, count):
        count._obj.value = max(0, self.count)
        return max(0, -self.count)

    def cudaMemGetInfo(self, free, total):
        free._obj.value, total._obj.value = self.free, 8 << 30
        return self.lost

    def cudaGetLastError(self):
        error, self.fail = self.lost or self.fail, 0
        return error

    def cudaDeviceSynchronize(self):
        return self.lost

    def _allocate(self, pointer, size):
        if self.fail:
            return self.fail
        buffer = ctypes.create_string_buffer(size.value)
        pointer._obj.value = ctypes.addressof(buffer)
        self.live[pointer._obj.value] = buffer
        return 0

    def cudaMalloc(self, pointer, size):
        return self._allocate(pointer, size)

    def cudaHostAlloc(self, pointer, size, flags):
        return self._allocate(pointer, size)

    def cudaFree(self, pointer):
        del self.live[pointer.value]
        return 0

    cudaFreeHost = cudaFree

    def cudaStreamCreateWithFlags(self, stream, flags):
        assert flags.value == 1, "does not wait for the default stream"
        stream._obj.value = 0x5000
        return self.fail

    def cudaStreamSynchronize(self, stream):
        assert stream.value == 0x5000
        self.waits += 1
        return self.fail

    def cudaEventCreate(self, event):
        event._obj.value = 0x6000
        return self.fail

    def cudaEventRecord(self, event, stream):
        assert (event.value, stream.value) == (0x6000, 0x5000)
        return self.fail

    def cudaEventSynchronize(self, event):
        self.event_waits += 1
        return self.fail

    def cudaEventElapsedTime(self, milliseconds, start, end):
        milliseconds._obj.value = 1.5
        return self.fail

    def cudaEventDestroy(self, event):
        return 0

    def cudaMemcpy2DAsync(self, target, target_pitch, source, source_pitch, width, height, kind, stream):
        assert (kind.value, stream.value) == (3, 0x5000), "device to device, on the stream"
        if self.fail:
            return self.fail
        for line in range(height.value):
            ctypes.memmove(
                target.value + line * target_pitch.value, source.value + line * source_pitch.value, width.value
            )
        return 0

    def cudaMemcpyBatchAsync(self, targets, sources, sizes, count, attributes, first, attribute_count, stream):
        assert (attribute_count.value, first._obj.value, stream.value) == (1, 0, 0x5000)
        if self.fail:
            return self.fail
        self.batches.append(count.value)
        arrays = [np.ctypeslib.as_array((ctypes.c_uint64 * count.value).from_address(at.value)).tolist()
                  for at in (targets, sources, sizes)]  # fmt: skip
        for target, source, size in zip(*arrays, strict=True):
            ctypes.memmove(target, source, size)
        return 0

    def cudaMemsetAsync(self, target, value, size, stream):
        assert stream.value == 0x5000
        ctypes.memset(target.value, value.value, size.value)
        return self.fail

    def cudaMemcpyAsync(self, target, source, size, kind, stream):
        assert kind.value in (1, 2), "between host and device"
        assert stream.value == 0x5000
        if self.fail:
            return self.fail
        ctypes.memmove(target.value, source.value, size.value)
        return 0


def cuda_memory(cuda=None):
    """Memory of a device, by way of a FakeCuda."""
    return CudaMemory(CudaStream(CudaRuntime(cuda or FakeCuda())))


def bytes_of(block):
    """A block's bytes as an array that changes with them."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * block.size).from_address(block.address))


def bytes_at(address, dtype, shape):
    """A copy of the bytes of an array that lies somewhere."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(bytearray(ctypes.string_at(address, size)) or bytearray(1), np.uint8)


class RecordingBinding:
    """A binding without a graph. bound: (device, dtype, shape, address) of inputs and outputs, by name."""

    def __init__(self):
        self.bound = {}

    def bind_input(self, name, device, number, dtype, shape, address):
        self.bound[name] = device, np.dtype(dtype), tuple(shape), address

    bind_output = bind_input


class RecordingSession:
    """A session without a graph. made: bindings so far. runs: the binding and the options of each run."""

    def __init__(self, on_run=lambda binding: None):
        self.made, self.runs, self.on_run = 0, [], on_run

    def get_provider_graph_assignment_info(self):
        return []

    def io_binding(self):
        self.made += 1
        return RecordingBinding()

    def run_with_iobinding(self, binding, options=None):
        self.runs.append((binding, options))
        self.on_run(binding)


def array_at(place):
    """The array that lies at a bound place; changing it changes the memory."""
    _, dtype, shape, address = place
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype).reshape(shape)


class RandomShares(FairShares):
    """Parks and resumes at random."""

    def __init__(self, seed):
        super().__init__()
        self.rng, self.left = random.Random(seed), 0

    def meet(self, lanes):
        self.left = self.rng.randrange(8)
        found = frozenset(lane for lane in sorted(lanes) if self.rng.random() < 0.4)
        self.guests = found if len(found) < len(lanes) else frozenset()

    @property
    def rows_for_guests(self):
        return self.left

    def makes_room(self, one, other):
        return self.is_guest_of(one, other) or (one.width > other.width and self.rng.random() < 0.5)
