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

from bench.abuser import LENDABLE, LOST, Outcome, Phase, Source, TenantConnection, Traffic, judged, kinds, serialized
from bench.open_loop import LATE, End
from glossa.v1 import glossa_pb2 as pb
from tests.edge import running
from tests.tiny import TEXTS

ROOT = Path(__file__).parents[2]
MESSAGES = serialized(["the small red house"])


def source(address, rate, *tenants, deadline_s=10.0, messages=MESSAGES):
    return Source([TenantConnection(address, deadline_s, tenant) for tenant in tenants], messages, rate)


async def offered(*sources, seconds=0.5):
    await asyncio.to_thread(Traffic(sources, seed=0).run, seconds)
    for one in sources:
        for connection in one.connections:
            connection.close()


async def test_every_source_offers_its_rate_under_its_tenants():
    async with running() as edge:
        victims, abuser = source(edge.address, 200.0, "a", "b"), source(edge.address, 100.0, "abuser")
        await offered(victims, abuser)
        await edge.server.calls.idle()
        tenants = [request.tenant for request in edge.pool.requests]
    assert set(tenants) == {"a", "b", "abuser"}
    assert tenants.count("abuser") == pytest.approx(50, abs=25)
    assert len(victims.in_time) == len(victims.outcomes) == pytest.approx(100, abs=35)
    assert victims.ends == "OK 100.0 %"


async def test_refused_and_late_calls_are_not_in_time():
    async with running() as edge:
        refused = source(edge.address, 100.0, "a b")
        await offered(refused)
        edge.pool.hold = True
        late = source(edge.address, 100.0, "a", deadline_s=0.2)
        await offered(late)
        await edge.server.calls.idle()
    assert refused.ends == "INVALID_ARGUMENT 100.0 %"
    assert set(late.ends.split()) & {LATE, "DEADLINE_EXCEEDED", "RESET"}
    assert not refused.in_time
    assert not late.in_time


async def test_a_connection_that_the_server_closes_is_opened_again():
    async with running() as edge:
        one = source(edge.address, 200.0, "a", messages=[b"x" * (1 << 21)])  # more than a message may have
        other = source(edge.address, 200.0, "b")
        await offered(other, one)
        await edge.server.calls.idle()
    assert other.ends == "OK 100.0 %"
    assert LOST in one.ends or "RESOURCE_EXHAUSTED" in one.ends


def phase(victims, abuser=(), late_s=0.0):
    """Of a second. victims, abuser: (status, seconds) of their calls."""
    found = []
    for calls, deadline_s in ((victims, 1.0), (abuser, 10.0)):
        connection: Any = SimpleNamespace(deadline_s=deadline_s)
        outcomes = [Outcome(End(status, None, 0), seconds) for status, seconds in calls]
        found.append(Source([connection], MESSAGES, 1.0, outcomes))
    return Phase(found[0], found[1], seconds=1.0, late_s=late_s)


def test_verdicts_compare_with_quiet_and_with_what_the_abuser_gets_alone():
    calls = [("OK", 0.02)] * 999 + [("LATE", 1.0)]
    verdicts = judged("beams", phase(calls, [("OK", 3.0)] * 3), 0.015, alone=10.0)
    assert [(verdict.figure, verdict.met) for verdict in verdicts] == [(99.9, True), (1.33, True), (0.5, True)]
    calls += [("OK", 0.03)] * 20 + [("OK", 1.01)]
    verdicts = judged("beams", phase(calls, [("OK", 11.0)] * 6), 0.015, alone=10.0)
    assert [verdict.met for verdict in verdicts] == [False, False, False]
    assert len(judged("long texts", phase(calls), 0.015, alone=0.0)) == 2


def test_a_late_generator_voids_a_phase():
    (verdict,) = judged("beams", phase([("OK", 0.01)], late_s=0.02), 0.01, alone=1.0)
    assert not verdict.met
    assert "void" in verdict.measure


def test_long_texts_are_one_frame_and_beams_have_phrases():
    sent = kinds([("Ein Satz.", "One sentence.")] * 3, 16)
    assert set(LENDABLE) < set(sent)
    (text,) = sent["long texts"]
    assert 15_000 < len(text) < 16_384 - 5
    assert pb.TranslateRequest.FromString(sent["beams"][0]).options.phrases == ["One", "sentence"]


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
    assert {verdict["measure"].partition(":")[0] for verdict in verdicts} == set(kinds([("a", "b")], 16))
