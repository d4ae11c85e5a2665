"""Puts each fault of `tests.faults.faults` into a copy of the tree, and shows which tests catch it.

usage: python -m tests.faults [NAME ...] [--fast]

Without --fast, slow tests run as well. A line is a fault, with the modules that catch it: a number in brackets is how
many tests fail, those that `make test` runs / all. The exit status is 1 if `make test` catches a fault with none. With
--fast the first test that fails ends the tests of its fault.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.faults.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
RESULT = "GLOSSA_FAULTS_RESULT"
LONGEST_S = 900.0  # of the tests of one fault; a fault may make a test run for ever
FAST_ONLY = "not slow and not cuda"


def copy_of(tree: Path, folder: Path) -> None:
    """Copies what git knows of the tree, or would: not what it ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (tree / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((tree / name).read_bytes())


def write(path: Path, text: str) -> None:
    """Writes a module, and removes its bytecode: a change within a second can look like none."""
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def with_fault(fault: Fault, text: str) -> str:
    """The text of the fault's file with the fault in it."""
    assert text.count(fault.old) == 1, f"{fault.name}: its text occurs {text.count(fault.old)} times in {fault.file}"
    return text.replace(fault.old, fault.new)


def failures(tree: Path, tests: Iterable[str], *, is_fast: bool) -> dict[str, bool]:
    """Failing tests of a tree, and whether each is slow. A module that cannot be imported fails as a whole."""
    with tempfile.NamedTemporaryFile() as result:
        paths = os.pathsep.join(map(str, (tree, tree / "clients/python")))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", RESULT: result.name}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.faults.record",
        ]
        command += ["-x", "-m", FAST_ONLY, *tests] if is_fast else ["-m", "not cuda", *tests]
        try:
            run = subprocess.run(
                command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=LONGEST_S
            )
            assert run.returncode in (0, 1, 2), run.stdout
        except subprocess.TimeoutExpired:
            pass  # the test that does not end is recorded as one that fails
        return {str(name): bool(is_slow) for name, is_slow in json.loads(Path(result.name).read_text()).items()}


def line_of(fault: Fault, found: dict[str, bool]) -> str:
    counts = collections.Counter(name.partition("::")[0] for name in found)
    fast = collections.Counter(name.partition("::")[0] for name, is_slow in found.items() if not is_slow)
    caught = ", ".join(
        f"{Path(module).stem.removeprefix('test_')} ({fast[module]}/{counts[module]})" for module in counts
    )
    return f"| {fault.name} | {fault.file} | {caught or 'NONE'} |"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("names", nargs="*", metavar="NAME", help="of faults; all if none is given")
    ask.add_argument("--fast", action="store_true", help="only the tests that `make test` runs")
    options = ask.parse_args()
    chosen = [fault for fault in FAULTS if not options.names or fault.name in options.names]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_of(ROOT, tree)
        print("| fault | in | caught by (tests that `make test` runs / all) |\n|---|---|---|", flush=True)
        for fault in chosen:
            path = tree / fault.file
            text = path.read_text(encoding="utf-8")
            write(path, with_fault(fault, text))
            found = failures(tree, fault.tests, is_fast=options.fast)
            write(path, text)
            print(line_of(fault, found), flush=True)
            if all(found.values()):
                missed.append(fault.name)
    if missed:
        sys.exit(f"`make test` does not catch: {', '.join(missed)}")


if __name__ == "__main__":
    main()
