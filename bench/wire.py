"""Cost of messages between the edge and an engine process: typed msgspec messages against pickle of the same data.

Microseconds to encode and to decode typical messages as `service.wire.messages` does, and with pickle protocol 5:
medians of --rounds interleaved rounds. Attention weights of 1 MB also go through a socket pair, as the sealed memory
file that `service.wire.channel` makes of a large message, and, pickled, in pieces that a stream socket takes.
"""

from __future__ import annotations

import argparse
import pickle
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.case import Flag, case
from bench.measure import Spread, Verdict, interleaved, report, seconds
from service.options import DecodingOptions
from service.progress import Timings
from service.request import AttentionResult, Finished, FinishReason, HypothesisResult, Request, TextDelta
from service.wire.channel import receive, send, socket_pair
from service.wire.messages import State, Turn, Work, decode_from_engine, decode_to_engine, encode

ROWS, ANSWERS = 32, 8
SHAPE = (4, 8, 88, 93)  # layers, heads, queries and keys of about 1 MB of float32
STATE = State(ROWS, 3, 0.25, 1234.5, True, False)


def request() -> Work:
    """One request of 20 tokens."""
    options = DecodingOptions(max_tokens=60)
    asked = Request(
        request_id="0123456789abcdef",
        source=tuple(range(100, 120)),
        prompt=(1,),
        max_tokens=60,
        deadline_s=99.5,
        options=options,
    )
    return Work([(7, asked)], [])


def deltas() -> Turn:
    """The new tokens of a turn of 32 streams, with what it measured."""
    found = [(ticket, TextDelta(" word", (ticket + 100,))) for ticket in range(ROWS)]
    return Turn(0, STATE, found, [], [], [("stepped", (0.004, ROWS, 1)), ("next_tokens", (0.004, ROWS))])


def answers() -> Turn:
    """Eight answers of 20 tokens that end in one turn."""
    ends = []
    for ticket in range(ANSWERS):  # each of objects of its own: pickle writes the same object only once
        text, tokens = f"Satz {ticket}, ungefähr so lang wie die meisten Sätze hier.", tuple(range(200, 220 + ticket))
        hypothesis = HypothesisResult(text, tokens, FinishReason.END_OF_SEQUENCE, float("nan"), float("nan"), ())
        timings = Timings(0.001 * ticket, 0.002, 0.003, 0.04)
        ends.append((ticket, Finished(FinishReason.END_OF_SEQUENCE, text, tokens, 21, 20, timings, (hypothesis,))))
    return Turn(0, STATE, [], ends, [], [("finished", ("end_of_sequence", 0))] * ANSWERS)


def attention() -> Turn:
    """Attention weights of one pass."""
    weights = np.random.default_rng(1).random(SHAPE, np.float32)
    result = AttentionResult(tuple(range(SHAPE[2])), {"cross": weights})
    end = Finished(FinishReason.ATTENTION, prompt_tokens=SHAPE[3], attention=result)
    return Turn(0, STATE, [], [(7, end)], [], [])


MESSAGES: dict[str, Callable[[], Work | Turn]] = {
    "a request": request,
    f"{ANSWERS} answers": answers,
    f"deltas of {ROWS} rows": deltas,
    "1 MB of attention": attention,
}


def plain(value: Any) -> Any:
    """A message as plain data for pickle: its structures, which cannot be pickled, as tuples of their fields."""
    if isinstance(value, Turn):
        state = tuple(getattr(value.state, name) for name in State.__struct_fields__)
        return (value.engine, state, value.deltas, value.ends, [], value.measurements)
    return (value.requests, value.cancels)


def through_pair(data: bytes) -> None:
    """As the channel sends it: a large message in a sealed memory file."""
    near, far = socket_pair()
    with near, far:
        send(near, data)
        decode_from_engine(receive(far))


def through_stream(data: bytes) -> None:
    """Pickled through a stream socket, as pipes of multiprocessing do."""
    near, far = socket.socketpair()
    with near, far, far.makefile("rb") as reader:
        sender = threading.Thread(target=near.sendall, args=(data,))
        sender.start()
        pickle.loads(reader.read(len(data)))
        sender.join()


def jobs_of(repeats: int) -> dict[str, Callable[[], float]]:
    """What is timed, by name: functions that return microseconds of one repetition."""

    def timed(job: Callable[[], object], count: int) -> float:
        return 1e6 * seconds(lambda: [job() for _ in range(count)]) / count

    jobs: dict[str, Callable[[], float]] = {}
    for name, made in MESSAGES.items():
        message, count = made(), max(1, repeats // (1 if "MB" not in name else 50))
        data, pickled = encode(message), pickle.dumps(plain(message), 5)
        decode = decode_to_engine if isinstance(message, Work) else decode_from_engine
        each: dict[str, Callable[[], object]] = {
            f"{name}: encode, msgspec": partial(encode, message),
            f"{name}: encode, pickle": partial(lambda whole: pickle.dumps(plain(whole), 5), message),
            f"{name}: decode, msgspec": partial(decode, data),
            f"{name}: decode, pickle": partial(pickle.loads, pickled),
        }
        if "MB" in name:
            each[f"{name}: through a socket pair, msgspec"] = partial(through_pair, data)
            each[f"{name}: through a socket pair, pickle"] = partial(through_stream, pickled)
        jobs |= {label: partial(timed, job, count) for label, job in each.items()}
    return jobs


@case(
    rounds=15,
    repeats=Flag(2000, "of each message in a round; of a large one, a fiftieth of it"),
    bar=Flag(1.0, "what pickle must take to encode and decode a message, as a multiple of msgspec's time"),
)
def wire(options: argparse.Namespace) -> None:
    found = interleaved(jobs_of(options.repeats), options.rounds)
    figures: dict[str, Any] = {"unit": "µs"}
    verdicts = []
    for name, made in MESSAGES.items():
        message = made()
        figures[f"{name}: bytes, msgspec"] = len(encode(message))
        figures[f"{name}: bytes, pickle"] = len(pickle.dumps(plain(message), 5))
        figures |= {label: spread for label, spread in found.items() if label.startswith(f"{name}: ")}
        ratio = _both(found, name, "pickle") / _both(found, name, "msgspec")
        verdicts.append(Verdict(f"{name}: time of pickle over msgspec", round(ratio, 2), options.bar))
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))


def _both(found: dict[str, Spread], name: str, form: str) -> float:
    return sum(found[f"{name}: {step}, {form}"].median for step in ("encode", "decode"))
