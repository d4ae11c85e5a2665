"""Runs an image as production would and says what it checked: `-m tests.deploy.image_check IMAGE [BUNDLE]`.

Read-only root, no capabilities, limits of memory and processors, user 65532, the bundle mounted read-only. It must
become ready, know neither torch nor a writable root, hold what its SBOM lists (`image_contents.py`), answer a
translation, send its trace to a collector, and on SIGTERM under load end every stream that it began and exit with 0.
Without a BUNDLE a tiny one with random weights is exported. Uses podman if present, else docker; ports are the host's
own, because a bridge needs firewall rights that not every machine gives.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cli.local_server import is_ready
from glossa.client import Client, ClientError
from tests.collector import collecting
from tests.deploy.image_contents import check_contents, check_labels
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

READY_WITHIN_S = 60.0
STREAMS = 16  # at once, when SIGTERM comes
DRAIN_DELAY_S = 2.0  # the server still accepts for so long, so streams begin on both sides of SIGTERM
TEXT = "the small red house stands behind the old tree"

LIMITS = (
    "--ulimit=nofile=4096:4096",
    "--ulimit=nproc=4096:4096",
)  # podman's own are more than some machines let it set

MEMORY, PROCESSORS = 2 << 30, 2.0

INSIDE = f"""
import importlib.util, os
from pathlib import Path
assert os.getuid() == 65532, os.getuid()
for library in ("torch", "onnx", "huggingface_hub"):
    assert importlib.util.find_spec(library) is None, library
try:
    open("/opt/glossa/written", "w")
except OSError:
    pass
else:
    raise AssertionError("the root can be written to")
open("/tmp/written", "w").close()
control = Path("/sys/fs/cgroup")
if (control / "cgroup.controllers").exists():
    memory = (control / "memory.max").read_text()
    quota, period = (control / "cpu.max").read_text().split()
else:
    memory = (control / "memory/memory.limit_in_bytes").read_text()
    quota, period = ((control / "cpu" / f"cpu.cfs_{{name}}_us").read_text() for name in ("quota", "period"))
assert int(memory) == {MEMORY}, memory
assert int(quota) / int(period) == {PROCESSORS}, (quota, period)
"""


class Container:
    """A running server; `tool` is podman or docker."""

    def __init__(self, tool: str) -> None:
        self.tool, self.name = tool, f"glossa-image-test-{os.getpid()}"
        self.port, self.http_port = _free_port(), _free_port()

    def start(self, image: str, bundle: Path, *, flags: Sequence[str] = (), arguments: Sequence[str] = ()) -> None:
        """flags: of `podman run`, beside those of production; arguments: of `glossa serve`, beside the bundle."""
        # crun refuses machines that mount cgroup controllers one by one; runc does not.
        runtime = ["--runtime", "runc"] if self.tool == "podman" and shutil.which("runc") else []
        self._run(
            *runtime,
            "run",
            *LIMITS,
            "--no-healthcheck",  # its timer would need systemd; it is run by hand below
            *("--name", self.name, "--detach", "--network", "host", "--read-only", "--tmpfs", "/tmp"),
            *("--cap-drop", "all", "--security-opt", "no-new-privileges"),
            *("--memory", str(MEMORY), "--cpus", str(PROCESSORS)),
            *("--volume", f"{bundle}:/models/demo:ro"),
            *("--env", "GLOSSA_HOST=127.0.0.1", "--env", f"GLOSSA_PORT={self.port}"),
            *("--env", "GLOSSA_HTTP_HOST=127.0.0.1", "--env", f"GLOSSA_HTTP_PORT={self.http_port}"),
            *("--env", f"GLOSSA_DRAIN_DELAY_S={DRAIN_DELAY_S}"),
            *flags,
            *(image, "demo=/models/demo", *arguments),
        )

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self.tool, *arguments], capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise AssertionError(f"{self.tool} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def execute(self, *command: str) -> str:
        return self._run("exec", self.name, *command)

    def inspect(self, field: str) -> str:
        return self._run("inspect", "--format", f"{{{{{field}}}}}", self.name)

    def terminate(self) -> None:
        self._run("kill", "--signal", "TERM", self.name)

    def wait(self) -> int:
        return int(self._run("wait", self.name))

    def log(self) -> str:
        done = subprocess.run([self.tool, "logs", self.name], capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """The lines of the server's log that tell of an event."""
        for line in self.log().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                fields = json.loads(line)
                if fields["event"] == name:
                    yield fields

    def codes_of(self, method: str) -> Iterator[str]:
        """The status of every call of a method that the server accepted, from its log."""
        for fields in self.events("request"):
            if fields["method"].endswith(f"/{method}"):
                yield fields["code"]

    def remove(self) -> None:
        self._run("rm", "--force", self.name)

    def wait_until_ready(self) -> float:
        """Seconds until /readyz answered 200."""
        start = time.monotonic()
        while time.monotonic() - start < READY_WITHIN_S:
            if is_ready(f"http://127.0.0.1:{self.http_port}"):
                return time.monotonic() - start
            if self.inspect(".State.Running") != "true":
                raise AssertionError("the server ended before it was ready")
            time.sleep(0.05)
        raise AssertionError(f"not ready within {READY_WITHIN_S:.0f} s")


class Load:
    """Streams from many threads, one after the other each, until the server refuses a new one."""

    def __init__(self, address: str) -> None:
        self._client = Client(address, retries=False)  # or gRPC would repeat what the server refuses
        self._lock = threading.Lock()
        self.running = 0
        self.finished = 0
        self.broken: list[str] = []  # streams that gave a piece and then no end
        self.refused: Counter[str] = Counter()  # by status; these gave nothing
        self._threads = ThreadPoolExecutor(STREAMS)
        self._loops = [self._threads.submit(self._loop) for _ in range(STREAMS)]

    def _loop(self) -> None:
        while self._stream():
            pass

    def _stream(self) -> bool:
        pieces = 0
        try:
            for piece in self._client.stream_translate(TEXT):
                pieces += 1
                with self._lock:
                    self.running += pieces == 1
                    self.finished += piece.answer is not None
        except ClientError as error:
            if pieces:
                self.broken.append(str(error))
            else:
                with self._lock:
                    self.refused[error.code] += 1
            return False
        finally:
            with self._lock:
                self.running -= pieces > 0
        return True

    @property
    def has_ended(self) -> bool:
        return all(loop.done() for loop in self._loops)

    def join(self) -> None:
        for loop in self._loops:
            loop.result(timeout=120)
        self._threads.shutdown()
        self._client.close()


@contextlib.contextmanager
def running(
    tool: str, image: str, bundle: Path, *, flags: Sequence[str] = (), arguments: Sequence[str] = ()
) -> Iterator[Container]:
    """A container that was started, see `Container.start`, and is removed in the end. If something fails, its log's end
    goes to standard error."""
    container = Container(tool)
    try:
        container.start(image, bundle, flags=flags, arguments=arguments)
        yield container
    except BaseException:
        print("\n".join(container.log().splitlines()[-30:]), file=sys.stderr)
        raise
    finally:
        container.remove()


@contextlib.contextmanager
def bundle_to_serve(given: Path | None) -> Iterator[Path]:
    """A bundle that user 65532 can read, for CPU and CUDA unless it is given."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bundle"
        if given is None:
            from export.options import ExportOptions  # needs torch: only without a bundle
            from export.to_onnx import export_model

            options = ExportOptions(texts=TEXTS, precisions=("fp32", "fp16"))
            export_model(tiny_model(tiny_config()), tiny_tokenizer(), path, options)
        else:
            shutil.copytree(given, path)
        Path(directory).chmod(0o755)  # the bundle in it is for all already
        yield path


def check(image: str, tool: str, bundle: Path) -> None:
    labels = subprocess.run([tool, "image", "inspect", image], capture_output=True, text=True, check=True, timeout=60)
    check_labels(json.loads(labels.stdout)[0]["Config"]["Labels"], addresses_expected="SOURCE_URL" in os.environ)
    with collecting() as collector, running(tool, image, bundle, arguments=_traced(collector)) as container:
        print(f"ready after {container.wait_until_ready():.1f} s, read-only root, no capabilities")
        container.execute("python3", "-c", INSIDE)
        print(
            f"inside: user 65532, root not writable, /tmp writable, at most {MEMORY >> 20} MiB and {PROCESSORS:g} "
            "processors, no torch, no onnx, no huggingface_hub"
        )
        check_contents(container.execute)
        container.execute("glossa", "doctor", "/models/demo")
        container.execute("glossa", "healthcheck")
        print("glossa doctor: no failure; glossa healthcheck: ready")
        address = f"127.0.0.1:{container.port}"
        with Client(address) as client:
            answer = client.translate(TEXT)
        assert answer.generated_tokens > 0, answer
        print(f"translated: {answer.generated_tokens} tokens in {answer.total_s * 1e3:.1f} ms")
        spans = collector.children(collector.wait_for(1, "glossa.v1.TranslationService/Translate")[0])
        assert [span.name for span in spans] == ["queue", "encode", "prefill", "decode"], spans
        print("traced: a collector got the call and its stages")

        load = Load(address)
        while load.finished < 3 * STREAMS:
            assert not load.has_ended, f"all streams ended early: broken {load.broken}, refused {dict(load.refused)}"
            time.sleep(0.01)
        before, streams = load.finished, load.running
        terminated = time.monotonic()
        container.terminate()
        load.join()
        status = container.wait()
        drain_s = time.monotonic() - terminated
        # grpc itself cancels a call that reaches it while it stops, before any handler: the log has none of these.
        accepted = Counter(container.codes_of("StreamTranslate"))
        assert not load.broken, f"streams without an end: {load.broken}"
        assert accepted.keys() <= {"OK", "UNAVAILABLE"}, f"accepted streams ended with {dict(accepted)}"
        assert accepted["OK"] == load.finished, f"{accepted['OK']} answered, {load.finished} arrived"
        assert load.finished > before, "no stream ended after SIGTERM: there was no load"
        assert status == 0, f"exit status {status}"
        print(
            f"SIGTERM with {streams} streams in flight: {load.finished - before} more accepted and ended whole, "
            f"none broke, exit 0 after {drain_s:.1f} s, {DRAIN_DELAY_S:g} s of them the delay; "
            f"refused in the end: {dict(load.refused)}"
        )


def _traced(collector: Any) -> tuple[str, ...]:
    """Flags with which a server sends its traces to a collector of this machine."""
    return ("--otlp-endpoint", collector.endpoint)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run(check: Callable[[str, str, Path], None]) -> None:
    """The program of a check: `PROGRAM IMAGE [BUNDLE]`. The check gets the image, podman or docker, and the bundle."""
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(f"usage: {sys.argv[0]} IMAGE [BUNDLE]")
    tool = next((name for name in ("podman", "docker") if shutil.which(name)), None)
    if tool is None:
        sys.exit("neither podman nor docker here; install one of them")
    with bundle_to_serve(Path(sys.argv[2]) if len(sys.argv) == 3 else None) as bundle:
        try:
            check(sys.argv[1], tool, bundle)
        except (AssertionError, ClientError) as error:
            sys.exit(f"the image does not do what it promises: {error}")


if __name__ == "__main__":
    run(check)
