"""How growth of memory is estimated, and the soak test in its smallest form."""

import argparse
import asyncio
import os
import random
import subprocess
import sys

import pytest

from bench.promises.soak import Watch, growth, soak, watched
from tests.tiny import pairs_file


def walk(count, step, seed):
    """Memory that goes up and down at random, by `step` bytes."""
    rng, at, found = random.Random(seed), 0.0, []
    for _ in range(count):
        at += rng.choice([-step, step])
        found.append(at)
    return found


def test_a_line_has_its_slope_and_no_margin():
    found = growth(range(0, 1000, 10), [1e8 + 5.0 * at for at in range(0, 1000, 10)])
    assert (found.slope, found.margin) == pytest.approx((5.0, 0.0), abs=1e-6)


def test_noise_around_a_line_stays_within_the_margin():
    rng = random.Random(1)
    within = 0
    for _ in range(200):
        found = growth(range(100), [3.0 * at + rng.gauss(0, 20) for at in range(100)])
        within += abs(found.slope - 3.0) <= found.margin
    assert 180 <= within < 200


def test_errors_that_follow_each_other_widen_the_margin():
    steps = walk(100, 20, seed=2)
    shuffled = random.Random(3).sample(steps, len(steps))
    assert growth(range(100), steps).margin > 1.5 * growth(range(100), shuffled).margin


PROGRAM = """
kept = []
for line in open(0):
    kept.append(bytes(int(line)))
    print(flush=True)
"""


async def test_what_a_process_allocates_is_read_from_inside(tmp_path):
    with watched(str(tmp_path)):
        environment = {**os.environ, "PYTHONPATH": sys.path[0]}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    watch = Watch({"process": process.pid}, tmp_path)
    for ended in range(10):
        process.stdin.write(b"100000\n")
        await process.stdout.readline()
        watch.look(ended)
        await watch.look_inside(ended)
    resident, heap, blocks = watch.growths("process")
    process.stdin.close()
    assert await process.wait() == 0
    assert heap.slope == pytest.approx(100_000, rel=0.05)
    assert blocks.slope < 20, "larger than what Python's own heap takes"
    assert resident.slope > 50_000


@pytest.mark.slow
def test_a_server_answers_and_releases_all_rows(tiny_translation_bundle, tmp_path, capsys):
    asked = argparse.Namespace(
        bundle=tiny_translation_bundle,
        data=pairs_file(tmp_path),
        clients=8,
        requests=200,
        max_tokens=4,
        seed=1,
        json=False,
    )
    with pytest.raises(SystemExit) as end:
        soak(asked)
    printed = capsys.readouterr().out
    assert end.value.code == 0, printed
    assert "met  requests that run or wait afterwards: 0" in printed
    assert "server: bytes per request, last half" in printed
    assert "server: allocated bytes per request, last half" in printed
