"""Is the engine still as much faster as it was? Ratios of what runs in turn, never times: machines and days differ.

The bounds are far below what a quiet machine shows (BENCHMARKS.md), so that they fail when something broke and not when
something else runs. What is measured precisely is measured by `make bench`.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measure import interleaved
from bench.speed.speed_models import SpeedModel
from bench.speed.speed_worker import HUGE_PAGES, Worker

ROOT = Path(__file__).resolve().parents[2]
INT8 = "w8a8-static-kv8"
HAS_CTRANSLATE2 = importlib.util.find_spec("ctranslate2") is not None
ONE_CORE = {"engines": 1, "rows": 64}  # tests run beside each other
ALONE, OFFLINE = {"count": 5, "alone": True}, {"count": 64, "alone": False}
REPETITIONS = 3

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Built in a process of its own: the peers' libraries warn, and warnings are errors here."""
    cache = tmp_path_factory.mktemp("speed")
    command = [sys.executable, "-m", "bench", "speed-models", "--cache", str(cache), "--scheme", "fp32", INT8]
    subprocess.run([*command, *(["--peers"] if HAS_CTRANSLATE2 else [])], check=True, cwd=ROOT, capture_output=True)
    return SpeedModel(cache)


@pytest.fixture(scope="module")
def work(model):
    return model.sentences(OFFLINE["count"]).save(model.path / "guard.work.json")


@pytest.mark.parametrize(("order", "bound"), [(ALONE, 1.5), (OFFLINE, 1.3)])
def test_int8_is_faster_than_fp32(model, work, order, bound):
    with (
        Worker("glossa", model.bundle(INT8), work, HUGE_PAGES) as int8,
        Worker("glossa", model.bundle("fp32"), work, HUGE_PAGES) as fp32,
    ):
        assert ratio(lambda: int8.rate(**ONE_CORE, **order), lambda: fp32.rate(**ONE_CORE, **order)) > bound


@pytest.mark.skipif(not HAS_CTRANSLATE2, reason="ctranslate2 is not installed: pip install -r requirements/bench.in")
@pytest.mark.parametrize(("order", "bound"), [(ALONE, 1.2), (OFFLINE, 0.8)])
def test_int8_is_faster_than_ctranslate2(model, work, order, bound):
    theirs = {"kind": "int8", "inter_threads": 1, "intra_threads": 1, "batch": 64}
    with (
        Worker("glossa", model.bundle(INT8), work, HUGE_PAGES) as ours,
        Worker("ctranslate2", model.ctranslate2("int8"), work, HUGE_PAGES) as peer,
    ):
        assert ratio(lambda: ours.rate(**ONE_CORE, **order), lambda: peer.rate(**theirs, **order)) > bound


def ratio(ours, theirs):
    """Of the speeds of two jobs that take turns."""
    found = interleaved({"ours": ours, "theirs": theirs}, REPETITIONS)
    return found["ours"].median / found["theirs"].median
