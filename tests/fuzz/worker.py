"""One process of the fuzzer: `python -m tests.fuzz.worker NAME FOLDER SECONDS`.

atheris mutates inputs by the branches of the product that they reach. What a reader raises, and an input that takes too
long or too much memory, is a finding: the first input of each is kept, and the fuzzer goes on. A crash, and an input
that does not end, also end the process.
"""

import hashlib
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path

import atheris

MOST_S, MOST_KB = 1.0, 64 << 10  # of processor time and of memory that an input may take: inputs are small
ROOM_BYTES = 1 << 30  # of address space: more is refused, as a MemoryError
HANG_S = 600  # of time, which other work on the machine takes a part of
PRODUCT = ("service", "export", "model")


class Findings:
    """What was found, each once: by its kind and the place in the product."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, set[str]()

    def add(self, kind: str, data: bytes, text: str) -> None:
        """Keeps an input with its description."""
        if kind in self._known:
            return
        self._known.add(kind)
        name = hashlib.sha256(kind.encode()).hexdigest()[:12]
        if not (self._folder / name).exists():
            (self._folder / name).write_bytes(data)
            (self._folder / f"{name}.txt").write_text(f"{kind}\n{text}", encoding="utf-8", errors="replace")


def place_of(error: BaseException) -> str:
    """The innermost lines of an error in the product, and of the fuzzer where a property does not hold."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    root = str(Path(__file__).resolve().parents[2])
    own = [one for one in frames if one.filename.startswith(root) and "/.venv/" not in one.filename]
    return " < ".join(f"{one.filename.removeprefix(root)}:{one.lineno}" for one in own[:-3:-1])


def main(name: str, folder: Path, seconds: int) -> None:
    """Fuzzes a reader. folder: has its corpus, and gets its findings."""
    findings, corpus = Findings(folder / "findings"), folder / "corpus"
    with tempfile.TemporaryDirectory(prefix="glossa-fuzz-", dir="/dev/shm") as scratch:
        tempfile.tempdir = scratch
        with atheris.instrument_imports(include=list(PRODUCT)):
            from tests.fuzz.readers import reader_of

            reader = reader_of(name, Path(scratch))
        for seed in reader.seeds:
            (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed[: reader.max_bytes])
        (folder / "words").write_text("\n".join(map(_quoted, reader.words)), encoding="utf-8")
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

        def read(data: bytes) -> None:
            before_kb, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
            try:
                reader(data)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a panic of a library in Rust is no Exception
                text = "".join(traceback.format_exception(error))
                findings.add(f"{type(error).__name__} {place_of(error)}", data, text)
            taken_s = time.process_time() - began_s
            if taken_s > MOST_S:
                findings.add("slow", data, f"{taken_s:.2f} s")
            grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
            if grown_kb > MOST_KB:
                findings.add("memory", data, f"{grown_kb >> 10} MiB")

        flags = [f"-max_total_time={seconds}", f"-max_len={reader.max_bytes}", f"-timeout={HANG_S}"]
        flags += [f"-artifact_prefix={folder}/findings/", "-rss_limit_mb=4096", f"-report_slow_units={HANG_S}"]
        flags += [f"-dict={folder}/words"] if reader.words else []
        atheris.Setup([name, *flags, str(corpus)], read)
        atheris.Fuzz()


def _quoted(word: str) -> str:
    """A line of a dictionary of libFuzzer."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "ignore")) + '"'


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
