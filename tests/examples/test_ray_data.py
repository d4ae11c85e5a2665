"""The example for Ray Data, with real servers and a real Ray: `RAY_PYTHON` names an interpreter that has it."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from bench.load.peer_server import ending_with_parent
from glossa.client import Client
from tests.e2e.process import serving
from tests.tiny import TEXTS

ROOT = Path(__file__).parents[2]
HINT = "RAY_PYTHON must name a Python with Ray and the client: see examples/ray_data/README.md"
FILES, GROUPS, ROWS = 2, 3, 40  # files, row groups of a file, rows of a group
WRITE = """
import json, sys, pyarrow as pa, pyarrow.parquet as pq
for place, texts in enumerate(json.load(sys.stdin)):
    table = pa.table({"id": [f"{place}-{row}" for row in range(len(texts))], "text": pa.array(texts, pa.string())})
    pq.write_table(table, f"{sys.argv[1]}/{place}.parquet", row_group_size=int(sys.argv[2]))
"""
READ = """
import json, sys, pyarrow.parquet as pq
from pathlib import Path
json.dump([pq.ParquetFile(path).read().to_pylist() for path in sorted(Path(sys.argv[1]).glob("*"))], sys.stdout)
"""

pytestmark = pytest.mark.slow


def python(program, *arguments, given=None):
    interpreter = os.environ.get("RAY_PYTHON")
    assert interpreter, HINT
    command = [interpreter, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def translating(folder, out, address, **options):
    """The running example; its output can be read."""
    program = ROOT / "examples/ray_data/translate.py"
    command = [os.environ["RAY_PYTHON"], program, folder, out, address, "--options", json.dumps(options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "clients/python"), "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        ending_with_parent(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    )


def finished(process):
    with process:
        assert process.stdout is not None
        return process.stdout.read(), process.wait()


def workers():
    """Process ids of Ray's workers that translate."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if path.read_bytes().startswith(b"ray::") and b"Translate" in path.read_bytes():
                yield int(path.parent.name)


@pytest.fixture(scope="module")
def texts():
    found: list[str | None] = [
        f"{TEXTS[number % 4]} {TEXTS[number // 4 % 4]}" for number in range(FILES * GROUPS * ROWS)
    ]
    found[7], found[9] = None, "word " * 5000
    return [found[place::FILES] for place in range(FILES)]


@pytest.fixture(scope="module")
def folder(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    python(WRITE, folder, ROWS, given=texts)
    return folder


def test_every_row_is_translated_once_though_a_worker_and_a_server_end(
    folder, texts, tiny_translation_bundle, tmp_path
):
    models = {"en-de": str(tiny_translation_bundle)}
    with serving(models=models) as server, serving(models=models) as other:
        addresses = f"ipv4:{server.address},{other.address}"
        process = translating(folder, tmp_path, addresses, min_tokens=8, max_tokens=8)
        while not (found := list(workers())) or not list(tmp_path.glob("*.parquet")):
            assert process.poll() is None
        os.kill(found[0], signal.SIGKILL)
        other.process.kill()
        said, status = finished(process)
        assert status == 0, said
        assert f"{FILES * GROUPS} of {FILES * GROUPS} units to do" in said
        with Client(server.address) as client:
            expected = client.translate(texts[0][0], min_tokens=8, max_tokens=8).text
    rows = [row for file in json.loads(python(READ, tmp_path)) for row in file]
    by_id = {row["id"]: row for row in rows}
    assert len(rows) == len(by_id) == FILES * GROUPS * ROWS, "each once"
    for place, of_file in enumerate(texts):
        for number, text in enumerate(of_file):
            row = by_id[f"{place}-{number}"]
            assert row["text"] == text
            assert (row["translation"] is None) == (text is None or len(text) > 5000)
            assert (row["error"] is None) == (text is None or len(text) < 5000)
    assert by_id["0-0"]["translation"] == expected
