"""The fake CUDA of tests: builds its libraries with gcc, and runs Python with them and the CUDA provider's wheel.

`fake_cuda/` stands in for the CUDA runtime and cuBLAS, so that the shipped CUDA provider of ONNX Runtime runs on a
machine without a GPU. `make fake-cuda` fetches the wheels. Whatever uses the fake runs in a process of its own: the
provider's onnxruntime takes the place of the installed one, and the dynamic linker must find the libraries first.
"""

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).with_name("fake_cuda")
BUILD = ROOT / "build" / "fake_cuda"
WHEELS = BUILD / "wheels"
HEADERS = WHEELS / "nvidia" / "cu13" / "include"

LIBRARIES = {  # soname → sources; the rest of the folder is the runtime's
    "libcublas.so.13": "cublas.c",
    "libcublasLt.so.13": "cublaslt.c",
    "libcuda.so.1": "driver.c",
    "libcurand.so.10": "curand.c",
}
RUNTIME = "libcudart.so.13"
VERSIONED = {RUNTIME, "libcublas.so.13", "libcublasLt.so.13"}  # their symbols have the soname as version
COMPILE = ("gcc", "-std=gnu17", "-shared", "-fPIC", "-O2", "-g", "-Wall", "-Wextra")


def missing() -> str:
    """What is not there to run the fake with; empty if nothing is."""
    if not (WHEELS / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so").exists() or not HEADERS.exists():
        return "the CUDA provider's wheel is not there; fetch it with: make fake-cuda"
    return "" if shutil.which("gcc") else "the fake CUDA is built with gcc, which is not installed"


def build() -> Path:
    """Compiles the libraries unless they exist for these sources. Returns their folder. Raises CalledProcessError."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(repr([COMPILE, Path(__file__).read_text()]).encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    folder = BUILD / f"libraries-{digest.hexdigest()[:16]}"
    with (BUILD / "libraries.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for outdated in BUILD.glob("libraries-*"):
                shutil.rmtree(outdated)
            unfinished = BUILD / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _compile(unfinished)
            unfinished.rename(folder)
    return folder


def _compile(folder: Path) -> None:
    own = [source for source in SOURCES.glob("*.c") if source.name not in LIBRARIES.values()]
    _link(folder, RUNTIME, sorted(own), ["-lpthread", "-lm"])
    for soname, source in LIBRARIES.items():
        _link(folder, soname, [SOURCES / source], [f"-L{folder}", f"-l:{RUNTIME}", "-lm"])


def _link(folder: Path, soname: str, sources: Sequence[Path], libraries: Sequence[str]) -> None:
    options = [f"-Wl,-soname,{soname}"]
    if soname in VERSIONED:
        script = folder / f"{soname}.map"
        script.write_text(f"{soname} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script={script}")
    paths = ["-o", str(folder / soname), *map(str, sources)]
    command = [*COMPILE, f"-I{HEADERS}", *options, *paths, *libraries]
    subprocess.run(command, check=True)


def environment(libraries: Path, settings: Mapping[str, object] = {}) -> dict[str, str]:
    """Environment variables for a Python process on the fake. settings: of FAKE_CUDA_…, by their names without that."""
    own = {f"FAKE_CUDA_{name}": str(value) for name, value in settings.items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAKE_CUDA_")}
    path = os.pathsep.join(map(str, [WHEELS, ROOT, ROOT / "clients" / "python"]))
    return {**kept, "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **own}


def run_python(libraries: Path, *arguments: str, timeout_s: float = 170.0, **settings: object) -> str:
    """Runs `python ARGUMENTS` on the fake and returns its standard output. Raises AssertionError with what it wrote."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(libraries, settings),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}: status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout


class FakeCuda:
    """The runtime library inside a process on the fake: calls of the API by name, counters, failures on demand."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(RUNTIME)
        self.library.fake_cuda_count.restype = ctypes.c_long
        self.library.fake_cuda_counts.restype = ctypes.c_size_t

    def counts(self, kind: str = "") -> dict[str, int]:
        """Counters by name, those whose names begin with the words `kind`: "launches", "blocking cudaFree"."""
        size = self.library.fake_cuda_counts(None, ctypes.c_size_t(0))
        text = ctypes.create_string_buffer(size)
        self.library.fake_cuda_counts(text, ctypes.c_size_t(size))
        lines = re.findall(r"^(\d+) (.*)$", text.value.decode(), re.MULTILINE)
        return {name: int(value) for value, name in lines if f"{name} ".startswith(f"{kind} " if kind else "")}

    def total(self, kind: str) -> int:
        """The sum of the counters of a kind."""
        return sum(self.counts(kind).values())

    def mark(self, text: str) -> None:
        """Writes a line into the log."""
        self.library.fake_cuda_mark(text.encode())

    def fail_launch(self, nth: int) -> None:
        """Makes the n-th kernel or product that is executed from now on fail for good; 0: none."""
        self.library.fake_cuda_fail_launch(ctypes.c_long(nth))

    def fail_call(self, nth: int) -> None:
        """Makes the n-th call of the runtime from now on fail for good; 0: none."""
        self.library.fake_cuda_fail_call(ctypes.c_long(nth))

    def reset(self) -> None:
        """Counters at 0, devices without errors; memory and streams stay."""
        self.library.fake_cuda_reset()
