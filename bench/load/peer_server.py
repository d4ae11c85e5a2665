"""Servers for comparisons: Glossa's own command, and the same gRPC service with CTranslate2 as its engine.

CTranslate2 has no server. A typical service around it collects requests for a few milliseconds and translates them as
one batch. Here such a batcher replaces the engines, with our servicer, tokenizer and limits, so that only the engine
differs. One thread for each of CTranslate2's workers takes the requests that have arrived.

usage: python -m bench.load.peer_server BUNDLE CTRANSLATE2_DIRECTORY [--kind int8] [--workers 2] [--threads 1]
           [--batch 64] [--window-ms 5] [--port 50051] [--http-port 9464]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.local_server import free_port, is_ready
from export.bundle.directory import load_bundle
from export.bundle.manifest import TOKENIZER
from model.tokenizer import Tokenizer
from service.edge.models.served_model import ServedModel
from service.edge.observability import logs
from service.errors import InternalFailure
from service.machine.execution_choice import ExecutionChoice
from service.progress import Timings
from service.request import Caller, Cancel, EventSink, Finished, FinishReason, HypothesisResult, Request
from service.server import Server
from service.settings.loading import load_settings

ROOMY = {
    "max_queue": 8192,
    "max_requests": 8192,
    "max_concurrent_streams": 8192,
    "kv_cache_bytes": 1 << 33,
    "default_deadline_s": 600.0,
}
"""Settings under which nothing is refused: what is measured is how fast answers come."""
READY_WITHIN_S = 60.0
ENDING_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, which survives the exec
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Waiting:
    request: Request
    loop: asyncio.AbstractEventLoop
    sink: EventSink
    arrived_s: float


class CTranslate2Pool:
    """In the place of an `EnginePool`: batches what arrives within `window_s` of the first, up to `batch` of them."""

    def __init__(self, translator: Any, tokenizer: Tokenizer, eos: int, *, workers: int, batch: int, window_s: float):
        self._translator, self._tokenizer, self._eos = translator, tokenizer, eos
        self._batch, self._window_s = batch, window_s
        self._arrivals: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._main, daemon=True) for _ in range(workers)]
        self._collecting = threading.Lock()  # one worker collects while the others translate
        self.is_ready = True
        self.window = 2 * workers * batch

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Cancel:
        """Returns what cancels nothing: a batch cannot be left."""
        self._arrivals.put(Waiting(request, loop, sink, time.monotonic()))
        return lambda: None

    def predicted_s(self, caller: Caller) -> float:
        return 0.0

    def problems(self) -> list[str]:
        return [] if self.is_ready else ["a translation failed"]

    async def aclose(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self, timeout_s: float = 10.0) -> None:
        for _ in self._threads:
            self._arrivals.put(None)
        for thread in self._threads:
            thread.join(timeout_s)

    def _main(self) -> None:
        while (waiting := self._collect()) is not None:
            try:
                self._translate(waiting)
            except Exception:
                self.is_ready = False
                for one in waiting:
                    one.loop.call_soon_threadsafe(one.sink, InternalFailure(one.request.request_id))

    def _collect(self) -> list[Waiting] | None:
        with self._collecting:
            first = self._arrivals.get()
            if first is None:
                return None
            found, until_s = [first], time.monotonic() + self._window_s
            while len(found) < self._batch:
                try:
                    more = self._arrivals.get(timeout=max(0.0, until_s - time.monotonic()))
                except queue.Empty:
                    break
                if more is None:
                    self._arrivals.put(None)
                    break
                found.append(more)
            return found

    def _translate(self, waiting: list[Waiting]) -> None:
        answers = self._translator.translate_batch(
            [[str(token) for token in one.request.source] for one in waiting],
            beam_size=waiting[0].request.options.beam_size,
            max_decoding_length=max(one.request.max_tokens for one in waiting),
            max_input_length=0,
            return_end_token=True,
        )
        for one, answer in zip(waiting, answers, strict=True):
            tokens = tuple(int(token) for token in answer.hypotheses[0])[: one.request.max_tokens]
            one.loop.call_soon_threadsafe(one.sink, self._finished(one, tokens))

    def _finished(self, one: Waiting, tokens: tuple[int, ...]) -> Finished:
        is_ended = tokens[-1:] == (self._eos,)
        text = self._tokenizer.decode(list(tokens[:-1] if is_ended else tokens))
        reason = FinishReason.END_OF_SEQUENCE if is_ended else FinishReason.LENGTH
        total_s = time.monotonic() - one.arrived_s
        return Finished(
            reason=reason,
            text=text,
            tokens=tokens,
            prompt_tokens=len(one.request.source) + len(one.request.prompt),
            generated_tokens=len(tokens),
            timings=Timings(first_token_s=total_s, total_s=total_s),
            hypotheses=(HypothesisResult(text, tokens, reason, 0.0, 0.0, (0.0,) * len(tokens)),),
        )


@contextlib.contextmanager
def glossa_server(
    bundle: Path,
    environment: Mapping[str, str] | None = None,
    *,
    checkout: Path | None = None,
    flags: Sequence[str] = (),
    log: Path | int | None = None,
    modules: Sequence[Path] = (),
    port: int | None = None,
) -> Iterator[tuple[str, int]]:
    """Glossa's own command serving a bundle, with roomy settings: the address of its gRPC port and its process id.

    checkout: whose command and code this is; that of this process, if not given. flags: more of them. log: a file for
    its log, JSON lines, or a descriptor that gets it. modules: folders in which it looks for modules first. port: of
    gRPC; None: a free one.
    """
    roomy = [part for name, value in ROOMY.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    checkout = checkout or Path(__file__).resolve().parents[2]
    module = "cli.main" if (checkout / "cli").is_dir() else "glossa"  # of release 0.1.0: glossa.py
    program = f"import sys; sys.argv[0] = 'glossa'; from {module} import main; main()"
    command = ["-c", program, "serve", f"model={bundle}", "--drain-delay-s", "0", *roomy, *flags]
    path = os.pathsep.join((*map(str, modules), str(checkout), str(checkout / "clients/python")))
    with _listening(command, {**(environment or {}), "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}, log, port) as found:
        yield found


@contextlib.contextmanager
def ctranslate2_server(
    bundle: Path,
    directory: Path,
    *,
    kind: str = "int8",
    workers: int = 2,
    threads: int = 1,
    window_ms: float = 5.0,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, int]]:
    """The same with CTranslate2 in the engines' place."""
    flags = ["--kind", kind, "--workers", str(workers), "--threads", str(threads), "--window-ms", str(window_ms)]
    with _listening(["-m", "bench.load.peer_server", str(bundle), str(directory), *flags], environment) as found:
        yield found


@contextlib.contextmanager
def _listening(
    arguments: list[str],
    environment: Mapping[str, str] | None,
    log_file: Path | int | None = None,
    port: int | None = None,
) -> Iterator[tuple[str, int]]:
    port, http_port = port or free_port(), free_port()
    command = [sys.executable, *arguments, "--port", str(port), "--http-port", str(http_port)]
    with contextlib.ExitStack() as stack:
        # A file, unless a descriptor is given: a full pipe without a reader would stop most servers.
        log = None
        if log_file is None:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
        elif isinstance(log_file, Path):
            log = stack.enter_context(log_file.open("w+"))
        output = log or log_file
        assert not isinstance(output, Path)
        process = subprocess.Popen(
            ending_with_parent(command),
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )
        try:
            until_s = time.monotonic() + READY_WITHIN_S
            while not is_ready(f"http://127.0.0.1:{http_port}"):
                if process.poll() is not None or time.monotonic() > until_s:
                    if log is not None:
                        log.seek(0)
                    problem = "" if log is None else log.read().strip()[-2000:]
                    raise SystemExit(f"{' '.join(command)} is not ready ({_end_of(process)}): {problem}")
                time.sleep(0.05)
            yield f"127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            process.wait(timeout=60)


def http_address(log: Path) -> str:
    """Of a server that serves, by its log."""
    while True:
        events = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        for event in events:
            if event["event"] == "serving":
                return str(event["http"])
        time.sleep(0.05)


def _end_of(process: subprocess.Popen[bytes]) -> str:
    """How a process has ended: by its exit status or a signal."""
    status = process.poll()
    if status is None:
        return f"still starting after {READY_WITHIN_S:.0f} s"
    return f"exit status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"


def ending_with_parent(command: Sequence[str | Path]) -> list[str]:
    """A command that runs `command` and gets SIGTERM when this process ends.

    A measurement that is killed leaves no running server, which would disturb all that follow. The command asks for the
    signal itself: `preexec_fn` makes subprocess call fork(), after which the handlers of gRPC 1.85 abort one child in
    twenty (SIGABRT before the exec) if a thread of this process is inside gRPC.
    """
    return [sys.executable, "-ISc", ENDING_WITH_PARENT, str(os.getpid()), *map(str, command)]


async def serve(server: Server) -> None:
    """Until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await server.start()
    await stopping.wait()
    await server.stop()


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("bundle", type=Path)
    ask.add_argument("directory", type=Path)
    ask.add_argument("--kind", default="int8")
    for name, default in (("workers", 2), ("threads", 1), ("batch", 64), ("port", 50051), ("http-port", 9464)):
        ask.add_argument(f"--{name}", type=int, default=default)
    ask.add_argument("--window-ms", type=float, default=5.0)
    options = ask.parse_args()

    async def open_model(name: str, path: Path) -> ServedModel:
        manifest = load_bundle(path)
        tokenizer = Tokenizer.load(path / TOKENIZER)
        translator = importlib.import_module("ctranslate2").Translator(
            str(options.directory),
            device="cpu",
            compute_type=options.kind,
            inter_threads=options.workers,
            intra_threads=options.threads,
        )
        pool = CTranslate2Pool(
            translator,
            tokenizer,
            manifest.tokens.eos,
            workers=options.workers,
            batch=options.batch,
            window_s=options.window_ms / 1e3,
        )
        pool.start()
        return ServedModel(
            name=name,
            manifest=manifest,
            choice=ExecutionChoice("CTranslate2", "cpu", False, "", manifest.variants[0].precision),
            bundle_sha256="",
            tokenizer=tokenizer,
            pool=pool,
        )

    settings = load_settings(
        {
            "models": {"model": options.bundle},
            "port": options.port,
            "http_port": options.http_port,
            "drain_delay_s": 0.0,
            **ROOMY,
        }
    )
    writer = logs.LogWriter(settings.log_format)
    try:
        asyncio.run(serve(Server(settings, open_model=open_model)))
    finally:
        writer.close()


if __name__ == "__main__":
    main()
