"""Parts of `python -m bench gpu-check` that ask a server: two models on one device, and goodput beside the CPU."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

from bench.gpu.bundles import path_of
from bench.gpu.decoding import decode, open_model, questions, runner_for
from bench.gpu.findings import Findings, Setting
from bench.load.lean_client import Answered, LeanConnection, closed_loop
from bench.load.peer_server import glossa_server
from bench.measure import Spread
from export.bundle.directory import load_manifest
from glossa.v1 import glossa_pb2 as pb
from model.tokenizer import SPECIAL

PATH = "/glossa.v1.TranslationService/Translate"
CLIENTS = (1, 16, 64, 256)
MAX_ROWS = max(CLIENTS)
TEXTS, WORDS, TOKENS = 64, 20, 32  # of the load; words of a text, tokens of an answer
LARGE_ONE, SMALL_ONE, SMALL_OTHER = "6+6 layers, d512", "translation", "T5"
LEAST_GOODPUT = 1.0  # of CUDA with the most clients, as a multiple of the CPU's


def _messages(bundle: Path, model: str, tokens: int) -> list[bytes]:
    """Requests of random words, whose answers have so many tokens."""
    rng, words = random.Random(1), load_manifest(bundle).limits.vocab_size - len(SPECIAL)
    options = pb.DecodingOptions(max_tokens=tokens, ignore_eos=True)
    texts = [" ".join(f"w{rng.randrange(words)}" for _ in range(WORDS)) for _ in range(TEXTS)]
    return [pb.TranslateRequest(model=model, text=text, options=options).SerializeToString() for text in texts]


@contextlib.contextmanager
def _server(setting: Setting, bundle: Path, device: str, *flags: str) -> Iterator[str]:
    """The address of a server of the model `model`."""
    modules = [Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    rows = ("--max-rows", "4", "--kv-cache-bytes", str(1 << 24)) if setting.is_smoke else ("--max-rows", str(MAX_ROWS))
    flags = ("--device", device, *(("--precision", "fp32") if device == "cpu" else ()), *rows, *flags)
    with glossa_server(bundle.resolve(), flags=flags, modules=modules) as (address, _):
        yield address


def _texts(answers: list[Answered]) -> dict[int, str]:
    """An answer to each message; "" for one without."""
    return {one.place: pb.TranslateResponse.FromString(one.answer).text for one in answers}


def _note_kernels(bundle: Path) -> None:
    """Decodes one answer in this process, so that it knows of kernels that the fake CUDA does not emulate: a server's
    processes cannot tell."""
    runner = runner_for(open_model(bundle, "cuda"), 1)
    decode(runner, questions(runner.model.manifest, 1, tokens=2))


def two_models(setting: Setting, found: Findings) -> None:
    """two models, each in an engine process of its own, on one device at once"""
    seconds, callers, tokens = setting.pick(0.5, 60.0), setting.pick(2, 16), setting.pick(4, TOKENS)
    names = {"model": SMALL_ONE, "other": setting.pick(SMALL_ONE, SMALL_OTHER)}  # the fake lacks kernels of the other
    paths = {name: path_of(setting.models, model) for name, model in names.items()}
    for path in paths.values():
        _note_kernels(path)
    messages = {name: _messages(path, name, tokens)[: setting.pick(4, TEXTS)] for name, path in paths.items()}
    answers: dict[str, list[Answered]] = {}
    problems: list[str] = []

    def load(address: str, name: str) -> None:
        try:
            with LeanConnection(address) as connection:
                answers[name] = closed_loop([connection], PATH, messages[name], callers, seconds)
        except Exception as error:  # of a thread: told below
            problems.append(f"{name}: {error}")

    with _server(setting, paths["model"], "cuda", f"other={paths['other'].resolve()}") as address:
        alone = {}
        for name in paths:
            with LeanConnection(address) as connection:
                texts = [connection.call(PATH, [message])[0] for message in messages[name]]
                alone[name] = [pb.TranslateResponse.FromString(text).text for text in texts]
        threads = [threading.Thread(target=load, args=(address, name)) for name in paths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found.none("calls without an answer, of both models", len(problems), "; ".join(problems))
    for name, path in paths.items():
        given = [(one.place, pb.TranslateResponse.FromString(one.answer).text) for one in answers.get(name, [])]
        other = sum(text != alone[name][place] for place, text in given)
        # On a GPU the kernels of matrix products depend on the rows: ties may go the other way.
        found.tell(
            f"{name}, {path.stem}: answers, and those that differ from a request alone", f"{len(given)}, {other}"
        )


def goodput(setting: Setting, found: Findings) -> None:
    """tokens a second through a server, CUDA in fp16 beside the CPU in fp32"""
    seconds, tokens, clients = setting.pick(0.5, 10.0), setting.pick(4, TOKENS), setting.pick((2,), CLIENTS)
    bundle = path_of(setting.models, setting.pick(SMALL_ONE, LARGE_ONE))
    _note_kernels(bundle)
    messages, rates = _messages(bundle, "", tokens), dict[tuple[str, int], float]()
    for device in ("cuda", "cpu"):
        with _server(setting, bundle, device) as address, LeanConnection(address) as connection:
            closed_loop([connection], PATH, messages, max(clients), setting.pick(0.0, 2.0))  # a warm-up
            for callers in clients:
                answers = closed_loop([connection], PATH, messages, callers, seconds)
                took_s = max(one.ended_s for one in answers) - min(one.began_s for one in answers)
                rates[device, callers] = tokens * len(answers) / took_s
                waits = Spread.of([1e3 * (one.ended_s - one.began_s) for one in answers])
                found.time(f"{device}, {callers} clients: tokens/s", f"{rates[device, callers]:.0f}")
                found.time(f"{device}, {callers} clients: ms a request", waits)
    most = max(clients)
    measure = f"tokens/s of {most} clients, CUDA over the CPU"
    found.least(measure, rates["cuda", most] / rates["cpu", most], LEAST_GOODPUT, "×")
    found.timed.add(measure)
