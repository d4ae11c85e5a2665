"""Hostile bundles: random mutations of a good one and bundles made to do harm, all of which a server must refuse.

Each mutation is checked as an engine process checks a bundle before it opens a session, in a process of its own. Shown
are the share that was refused, the longest time and the most memory that a refusal took, and:

- mutations of bits, lengths and places of files, under the digests of the good bundle: every byte of a bundle is
  covered, so each of them must be refused
- values of the manifest that its fields do not allow, sealed again with a right digest, as an attacker would
- special bundles, sealed again: hostile graphs, links, pipes, devices, sparse files, other encodings. They are opened
  by a server's edge with its engine processes, which must be as it was before

A sealed change of a value within its range makes another valid manifest. It is counted, and not a mutation to refuse.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import gc
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.hostile.hostile_graphs import SPECIAL, seal
from bench.load.process_tree import children
from bench.measure import Verdict, report
from export.bundle.directory import BundleError, check_bundle
from export.bundle.manifest import MANIFEST
from service.edge.observability.metrics import Metrics
from service.edge.versions.open_model import ModelOpener
from service.errors import StartupError
from service.machine.process_memory import give_back_memory
from service.settings.loading import load_settings

TIME_BAR_S, MEMORY_BAR_MB, PARENT_BAR_MB = 2.0, 64.0, 32.0
ROOM_BYTES = 1 << 30  # of address space that a refusal may take before it counts as a crash
REFUSED, ACCEPTED = 0, 1
VALUES: list[Any] = [
    *(None, True, -1, 1, 2**31, 2**40, 2**63, 10**300, 1.5, -1e300, 1e308),
    *("", "x\0", "\ud800", "../../etc/passwd", "a" * 10_000, [], [[]], [2**40], {}, {"a": {}}),
]
ENCODINGS: list[Callable[[str], bytes]] = [
    lambda text: text.encode("utf-16"),
    lambda text: text.encode("utf-16-be"),
    lambda text: text.encode("utf-32"),
    lambda text: b"\xef\xbb\xbf" + text.encode(),
    lambda text: text.replace("{", '{"task": "translation", ', 1).encode(),
    lambda text: text.replace(": 0", ": NaN", 1).encode(),
    lambda text: text.replace(": 1", ": 1e999", 1).encode(),
    lambda text: text.replace(": 1", ": " + "9" * 5000, 1).encode(),
    lambda text: text.replace("{", '{"x": ' + "[" * 50_000 + "]" * 50_000 + ", ", 1).encode(),
]


class Outcome(NamedTuple):
    """What became of a bundle. message: of the refusal."""

    status: int
    seconds: float
    memory_mb: float
    message: str


def attempt(path: Path) -> Outcome:
    """Check a bundle in a process of its own, as an engine process does first."""
    reads, writes = os.pipe()
    began_s = time.perf_counter()
    child = os.fork()
    if not child:
        gc.disable()  # what the parent left behind may wait, when it is collected, for threads that are not here
        os.close(reads)
        status = 99
        with contextlib.suppress(BaseException):
            limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + ROOM_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            before_kb = _peak_kb()
            try:
                check_bundle(path)
                status, message = ACCEPTED, ""
            except BundleError as error:
                status, message = REFUSED, str(error)
            os.write(writes, f"{_peak_kb() - before_kb} {message[:200]}".encode(errors="replace"))
        os._exit(status)
    os.close(writes)
    with os.fdopen(reads, "rb") as stream:
        peak_kb, _, message = stream.read().decode(errors="replace").partition(" ")
    _, status = os.waitpid(child, 0)
    return Outcome(status >> 8 or status, time.perf_counter() - began_s, int(peak_kb or 0) / 1e3, message)


def _peak_kb() -> int:
    """Most memory that this process has had in RAM, since the last call with what it has now."""
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    Path("/proc/self/clear_refs").write_text("5")
    return int(peak)


def mutants(path: Path, draw: random.Random) -> Iterator[tuple[str, bool]]:
    """Change the bundle at `path` in one way after another. Yields the kind of each change and whether the digests were
    made right again; the good bundle is back before the next one."""
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    good = {name: (path / name).read_bytes() for name in names}
    values = json.loads(good[MANIFEST])
    kinds: list[tuple[str, Callable[[], bool]]] = [
        ("bits", lambda: _flip(path / draw.choice(names), draw)),
        ("lengths", lambda: _resize(path / draw.choice(names), draw)),
        ("zeros", lambda: _zero(path / draw.choice(names), draw)),
        ("swapped files", lambda: _swap(path, *draw.sample(names, 2))),
        ("missing files", lambda: _remove(path / draw.choice(names))),
        ("values", lambda: _value(path, values, draw, is_sealed=False)),
        ("sealed values", lambda: _value(path, values, draw, is_sealed=True)),
        ("sealed encodings", lambda: seal(path, draw.choice(ENCODINGS)(good[MANIFEST].decode()))),
    ]
    while True:
        kind, change = draw.choice(kinds)
        is_sealed = change()
        if any(not (path / name).exists() or (path / name).read_bytes() != data for name, data in good.items()):
            yield kind, is_sealed
        for name, data in good.items():
            if not (path / name).exists() or (path / name).read_bytes() != data:
                (path / name).write_bytes(data)


def _flip(file: Path, draw: random.Random) -> bool:
    data = bytearray(file.read_bytes())
    for _ in range(draw.randint(1, 3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
    return False


def _resize(file: Path, draw: random.Random) -> bool:
    data = file.read_bytes()
    file.write_bytes(data[: draw.randrange(len(data))] if draw.random() < 0.5 else data + draw.randbytes(8))
    return False


def _zero(file: Path, draw: random.Random) -> bool:
    data = file.read_bytes()
    place = draw.randrange(len(data))
    file.write_bytes(data[:place].ljust(len(data), b"\0"))
    return False


def _remove(file: Path) -> bool:
    file.unlink()
    return False


def _swap(path: Path, one: str, other: str) -> bool:
    first, second = (path / one).read_bytes(), (path / other).read_bytes()
    (path / one).write_bytes(second)
    (path / other).write_bytes(first)
    return False


def _value(path: Path, values: dict[str, Any], draw: random.Random, *, is_sealed: bool) -> bool:
    """Put a value in the place of another one, anywhere in the manifest."""
    changed = json.loads(json.dumps(values))
    places = list(_places(changed))
    container, key = draw.choice(places)
    container[key] = draw.choice([value for value in VALUES if value != container[key]])
    data = json.dumps(changed).encode()
    if is_sealed:
        seal(path, data)
    else:
        (path / MANIFEST).write_bytes(data)
    return is_sealed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value that has one: what holds it, and its key there."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


class Found(NamedTuple):
    """Outcomes by kind of mutation, and sealed values that were valid."""

    outcomes: dict[str, list[Outcome]]
    valid: int


def measure_random(path: Path, count: int, seed: int) -> Found:
    """Outcomes of `count` mutations that are to be refused."""
    outcomes, valid = collections.defaultdict[str, list[Outcome]](list), 0
    good = check_bundle(path).manifest
    for kind, is_sealed in mutants(path, random.Random(seed)):
        outcome = attempt(path)
        if outcome.status == ACCEPTED and is_sealed and check_bundle(path).manifest != good:
            valid += 1
            continue
        outcomes[kind].append(outcome)
        if sum(map(len, outcomes.values())) >= count:
            break
    return Found(outcomes, valid)


class Edge(NamedTuple):
    """What refusing the special bundles left in the process of the edge. accepted: names of bundles that were not
    refused. slowest_s: most time that a refusal took, with starting the engine process."""

    accepted: list[str]
    slowest_s: float
    grown_mb: float
    processes: int
    files: int


async def measure_edge(bundles: dict[str, Path]) -> Edge:
    """Open special bundles as a server does."""
    accepted, slowest_s = [], 0.0
    settings = load_settings({"models": {"model": "none"}, "engines": 1, "device": "cpu"})
    before_mb, files = 0.0, 0
    for name, path in bundles.items():
        if not before_mb:
            with contextlib.suppress(StartupError):  # what is loaded and kept at the first time
                await ModelOpener(settings, Metrics()).open("model", path)
            before_mb, files = _resident_mb(), len(os.listdir("/proc/self/fd"))
        began_s = time.perf_counter()
        try:
            model = await ModelOpener(settings, Metrics()).open("model", path)
        except StartupError:
            slowest_s = max(slowest_s, time.perf_counter() - began_s)
        else:
            accepted.append(name)
            await model.pool.aclose()
    await asyncio.sleep(0.1)  # for callbacks that hold the last model
    grown_mb, left = _resident_mb() - before_mb, len(os.listdir("/proc/self/fd")) - files
    return Edge(accepted, slowest_s, grown_mb, len(children(os.getpid())), left)


def _resident_mb() -> float:
    gc.collect()
    give_back_memory()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def verdicts_of(found: Found, special: dict[str, Outcome], edge: Edge) -> list[Verdict]:
    """The bars: everything refused, quickly and with little memory, by a server that stays as it was."""
    everything = [outcome for outcomes in found.outcomes.values() for outcome in outcomes]
    refused = sum(outcome.status == REFUSED for outcome in everything)
    stopped = sum(outcome.status == REFUSED for outcome in special.values())
    both = [*everything, *special.values()]
    return [
        Verdict(f"of {len(everything)} random mutations refused", 100 * refused / len(everything), 100, "%"),
        Verdict(f"of {len(special)} special bundles refused before a session", 100 * stopped / len(special), 100, "%"),
        Verdict("special bundles that a server opened", len(edge.accepted), 0, "", is_limit=True),
        Verdict("longest refusal", max(outcome.seconds for outcome in both), TIME_BAR_S, "s", is_limit=True),
        Verdict("most memory", max(outcome.memory_mb for outcome in both), MEMORY_BAR_MB, "MB", is_limit=True),
        Verdict("memory that the server's process gained", edge.grown_mb, PARENT_BAR_MB, "MB", is_limit=True),
        Verdict("processes and files that it has left", edge.processes + edge.files, 0, "", is_limit=True),
    ]


@case(
    bundle=Flag(Path, required=True),
    mutations=Flag(2000, "random ones"),
    servers=Flag(0, "special bundles that a server opens, too; 0: all"),
    seed=1,
)
def hostile_bundles(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "random")
        shutil.copytree(options.bundle, copy)
        found = measure_random(copy, options.mutations, options.seed)
        bundles = {}
        for number, (name, change) in enumerate(SPECIAL.items()):
            bundles[name] = Path(scratch, f"special-{number}")
            shutil.copytree(options.bundle, bundles[name])
            change(bundles[name])
        special = {name: attempt(path) for name, path in bundles.items()}
        chosen = dict(list(bundles.items())[: options.servers or None])
        edge = asyncio.run(measure_edge(chosen))
    figures: dict[str, Any] = {
        f"random: {kind}": f"{sum(one.status == REFUSED for one in outcomes)} of {len(outcomes)} refused"
        for kind, outcomes in sorted(found.outcomes.items())
    }
    figures["sealed values within their range, valid"] = found.valid
    for name, outcome in special.items():
        figures[f"special: {name}"] = outcome.message.partition(": ")[2] or f"status {outcome.status}"
    figures["longest refusal by a server, its engine process started"] = f"{edge.slowest_s:.2f} s"
    verdicts = verdicts_of(found, special, edge)
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
