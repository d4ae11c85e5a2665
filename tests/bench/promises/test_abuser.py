"""The load of several tenants, what is concluded from it, and the whole case in its smallest form."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.load.open_loop import LATE, LOST, OpenLoop, Outcome, Source
from bench.load.status_connection import DeadlineConnection, End
from bench.promises.abuser import BUSY, LENDABLE, Phase, Quiet, judged, kinds, serialized
from glossa.v1 import glossa_pb2 as pb
from tests.edge import running
from tests.tiny import TEXTS

ROOT = Path(__file__).parents[3]
MESSAGES = serialized(["the small red house"])


def source(address, rate, *tenants, deadline_s=60.0, messages=MESSAGES):
    """With a deadline so long that no machine is too busy for it: a server refuses calls that wait a 20th of theirs."""
    connections = [DeadlineConnection(address, deadline_s, tenant) for tenant in tenants]
    return Source(connections, messages, [(rate, 0.5)], reopens=True)


async def offered(*sources):
    await asyncio.to_thread(OpenLoop(sources, seed=0).run)


async def test_every_source_offers_its_rate_under_its_tenants():
    async with running() as edge:
        victims, abuser = source(edge.address, 200.0, "a", "b"), source(edge.address, 100.0, "abuser")
        await offered(victims, abuser)
        await edge.server.calls.idle()
        tenants = [request.tenant for request in edge.pool.requests]
    assert set(tenants) == {"a", "b", "abuser"}
    assert tenants.count("abuser") == pytest.approx(50, abs=25)
    assert len(victims.in_time) == len(victims.outcomes) == pytest.approx(100, abs=35)
    assert victims.ends.keys() == {"OK"}


async def test_refused_and_late_calls_are_not_in_time():
    async with running() as edge:
        refused = source(edge.address, 100.0, "a b")
        await offered(refused)
        edge.pool.hold = True
        late = source(edge.address, 100.0, "a", deadline_s=0.2)
        await offered(late)
        await edge.server.calls.idle()
    assert refused.ends.keys() == {"INVALID_ARGUMENT"}
    assert late.ends.keys() & {LATE, "DEADLINE_EXCEEDED", "RESET"}
    assert not refused.in_time
    assert not late.in_time


async def test_a_connection_that_the_server_closes_is_opened_again():
    async with running() as edge:
        one = source(edge.address, 200.0, "a", messages=[b"x" * (1 << 21)])  # more than a message may have
        other = source(edge.address, 200.0, "b")
        await offered(other, one)
        await edge.server.calls.idle()
    assert other.ends.keys() == {"OK"}
    assert LOST in one.ends or "RESOURCE_EXHAUSTED" in one.ends


def phase(victims, abuser=(), late_s=0.0, busy=0.0):
    """Of a second, in which the abuser offered 10 calls. victims, abuser: (status, seconds) of their calls."""
    found = []
    for calls, deadline_s in ((victims, 1.0), (abuser, 10.0)):
        connection: Any = SimpleNamespace(deadline_s=deadline_s)
        outcomes = [Outcome(End(status, None, 0), seconds, 0.0) for status, seconds in calls]
        found.append(Source([connection], MESSAGES, [(10.0, 1.0)], outcomes=outcomes))
    return Phase(found[0], found[1], seconds=1.0, late_s=late_s, busy=busy)


def quiet(seconds, *busy):
    return Quiet(tuple(phase([("OK", seconds)], busy=share) for share in busy))


def test_verdicts_compare_with_quiet_and_with_what_the_abuser_gets_alone():
    calls = [("OK", 0.02)] * 999 + [("LATE", 1.0)]
    before = quiet(0.015, 0.35, 0.45)
    verdicts = judged("beams", phase(calls, [("OK", 3.0)] * 3), before, alone=10.0, is_of_capacity=True)
    assert [(verdict.figure, verdict.met) for verdict in verdicts] == [
        (99.9, True),
        (1.33, True),
        (0.5, True),
        (0.5, True),
    ]
    calls += [("OK", 0.03)] * 20 + [("OK", 1.01)]
    verdicts = judged("beams", phase(calls, [("OK", 11.0)] * 6), before, alone=10.0, is_of_capacity=True)
    assert [verdict.met for verdict in verdicts] == [False, False, False, False]
    assert len(judged("long texts", phase(calls), before, alone=0.0, is_of_capacity=True)) == 2


@pytest.mark.parametrize(("alone", "busy", "expected"), [(10.0, 0.4, 0.5), (10.0, 0.9, 3.0), (100.0, 0.4, 0.3)])
def test_what_is_lent_is_a_share_of_idle_processor_time_and_of_what_is_offered(alone, busy, expected):
    found = phase([("OK", 0.01)], [("OK", 3.0)] * 3)
    verdicts = judged("beams", found, quiet(0.01, busy), alone, is_of_capacity=False)
    assert [verdict.figure for verdict in verdicts] == [100.0, 1.0, expected]
    assert "processor time" in verdicts[-1].measure


@pytest.mark.parametrize(("late_s", "quiet_late_s"), [(0.02, 0.0), (0.0, 0.02)])
def test_a_late_generator_voids_a_phase(late_s, quiet_late_s):
    late, before = phase([("OK", 0.01)], late_s=late_s), Quiet((phase([("OK", 0.01)], late_s=quiet_late_s),))
    (verdict,) = judged("beams", late, before, alone=1.0, is_of_capacity=True)
    assert not verdict.met
    assert "void" in verdict.measure


def test_a_quiet_phase_without_answers_voids_a_phase():
    before = Quiet((phase([("DEADLINE_EXCEEDED", 1.0)]), phase([])))
    (verdict,) = judged("beams", phase([("OK", 0.01)]), before, alone=1.0, is_of_capacity=True)
    assert not verdict.met
    assert "void" in verdict.measure


def test_long_texts_are_one_frame_and_beams_have_phrases():
    sent = kinds([("Ein Satz.", "One sentence.")] * 3, 16)
    assert set(LENDABLE) < set(sent)
    (text,) = sent["long texts"]
    assert 15_000 < len(text) < 16_384 - 5
    assert pb.TranslateRequest.FromString(sent["beams"][0]).options.phrases == ["One", "sentence"]


@pytest.mark.slow
def test_the_case_runs_in_its_smallest_form(tiny_translation_bundle, tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{text}\t{text}\n" for text in TEXTS))
    command = ["abuser", "--bundle", str(tiny_translation_bundle), "--data", str(data), "--seconds", "0.3", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients/python'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)["verdicts"]
    names = {verdict["measure"].partition(":")[0] for verdict in verdicts}
    assert names == {kind + load for kind in kinds([("a", "b")], 16) for load in ("", f", {100 * BUSY:.0f} % busy")}
