"""Documents: how fast one is translated beside the same sentences as a batch, what it costs in memory, and that its
ranges are exact.

A text of so many megabytes is made of sentences in paragraphs. Parts of it are translated as a document
(TranslateDocument) and, sentence by sentence, as a batch (TranslateBatch) on the same server, either one first in turn.
Shown are the ratio of the two times, and that of the server's processor time, which other programs disturb less. Then
the whole text is one document, while the memory of the server's processes is watched. Every answer must be that of the
batch, and the ranges of all segments must tile both texts in characters and bytes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from bench.case import Flag, case
from bench.measure import Verdict, report
from bench.peer_server import glossa_server
from bench.process_tree import cpu_seconds, memory_mb
from bench.sentences import sentence_pairs
from glossa.client.documents import document_requests
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as stubs
from service.text.documents import plain
from service.text.segmentation import Splitter
from service.text.segments import Text

BAR = 0.95  # of the speed of a batch
PARAGRAPH = 8  # sentences
GROWTH_MB = 64  # a document's own memory, 12 bytes for each of its own, and what a window of sentences has
ITEMS = 500  # of a message


def text_of(sentences: list[str], size: int, seed: int) -> str:
    """A text of about `size` bytes: paragraphs of random sentences."""
    rng, parts = random.Random(seed), list[str]()
    while size > 0:
        parts.append(" ".join(rng.choice(sentences) for _ in range(PARAGRAPH)))
        size -= len(parts[-1].encode()) + 2
    return "\n\n".join(parts)


def translated(stub: Any, text: str) -> tuple[list[Any], float]:
    """The segments of a document, and seconds. Raises if its ranges do not tile both texts."""
    began_s, segments = time.perf_counter(), list[Any]()
    for message in stub.TranslateDocument(document_requests(text, "text", "en", {})):
        segments += message.segments
    seconds = time.perf_counter() - began_s
    places = [0, 0, 0, 0]
    for segment in segments:
        for start, (whole, part) in enumerate(
            ((segment.source, text[segment.source.start : segment.source.end]), (segment.target, segment.text))
        ):
            begin = places[2 * start : 2 * start + 2]
            places[2 * start : 2 * start + 2] = [begin[0] + len(part), begin[1] + len(part.encode())]
            assert [whole.start, whole.start_byte] == begin, segment
            assert [whole.end, whole.end_byte] == places[2 * start : 2 * start + 2], segment
    assert places[0] == len(text), places
    return segments, seconds


def batch(stub: Any, texts: list[str]) -> tuple[dict[str, str], float]:
    """The translations of texts as a batch, by number, and seconds."""

    def messages() -> Iterator[Any]:
        for start in range(0, len(texts), ITEMS):
            items = [
                pb.TranslateBatchItem(request=pb.TranslateRequest(text=text)) for text in texts[start : start + ITEMS]
            ]
            yield pb.TranslateBatchRequest(items=items)

    began_s, found = time.perf_counter(), dict[str, str]()
    for message in stub.TranslateBatch(messages()):
        found |= {result.id: result.response.text for result in message.results}
    return found, time.perf_counter() - began_s


def batch_of(stub: Any, texts: list[str], pid: int) -> tuple[dict[str, str], float, float]:
    """`batch`, with the processor time of the server."""
    began_s = cpu_seconds(pid)
    return *batch(stub, texts), cpu_seconds(pid) - began_s


class Memory:
    """The most memory that a server has while this is entered, MB."""

    def __init__(self, pid: int) -> None:
        self._pid, self._over, self.most = pid, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.most = max(self.most, memory_mb(self._pid))

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    megabytes=1.0,
    rounds=Flag(4, "parts that are translated as a document and as a batch"),
)
def documents(options: argparse.Namespace) -> None:
    sentences = [source for source, _ in sentence_pairs(options.data, 2000)]
    size = int(options.megabytes * 1e6)
    figures, wrong = dict[str, Any](), 0
    with glossa_server(options.bundle.resolve()) as (address, pid), grpc.insecure_channel(address) as channel:
        stub = stubs.TranslationServiceStub(channel)
        translated(stub, text_of(sentences, 20_000, 0))  # warms up
        times, cpu_times, speeds = list[tuple[float, float]](), list[tuple[float, float]](), list[float]()
        for number in range(options.rounds):
            text = text_of(sentences, size // options.rounds, 1 + number)
            texts = [
                part.text for one in plain.segments(text, Splitter("en")) for part in one.parts if type(part) is Text
            ]
            if number % 2:
                answers, batch_s, batch_cpu_s = batch_of(stub, texts, pid)
            began_s = cpu_seconds(pid)
            segments, document_s = translated(stub, text)
            document_cpu_s = cpu_seconds(pid) - began_s
            if not number % 2:
                answers, batch_s, batch_cpu_s = batch_of(stub, texts, pid)
            answered = [one.text for one in segments if not one.is_copied]
            wrong += sum(answers[str(place)] != one for place, one in enumerate(answered))
            times.append((document_s, batch_s))
            cpu_times.append((document_cpu_s, batch_cpu_s))
            speeds.append(len(texts) / document_s)
        before = memory_mb(pid)
        text = text_of(sentences, size, 0)
        with Memory(pid) as memory:
            segments, whole_s = translated(stub, text)
        figures |= {
            "sentences/s, document": f"{statistics.median(speeds):.0f}",
            "whole document": f"{len(text.encode())} bytes, {sum(not one.is_copied for one in segments)} sentences, "
            f"{whole_s:.1f} s",
            "failed segments": sum(one.HasField("error") for one in segments),
            "ratios of the rounds": " ".join(f"{batch_s / document_s:.3f}" for document_s, batch_s in times),
        }
    documents_s, batches_s = (sum(seconds) for seconds in zip(*times, strict=True))
    document_cpu_s, batch_cpu_s = (sum(seconds) for seconds in zip(*cpu_times, strict=True))
    growth = memory.most - before
    verdicts = [
        Verdict("speed of a document, of that of a batch", batches_s / documents_s, BAR),
        Verdict("the same by processor time of the server", batch_cpu_s / document_cpu_s, BAR),
        Verdict("answers unlike those of the batch", wrong, 0, "", is_limit=True),
        Verdict("memory growth", growth, GROWTH_MB + 12 * options.megabytes, "MB", is_limit=True),
    ]
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
