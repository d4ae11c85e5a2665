"""Hostile bundles: that none is accepted, that the measurement sees one that is, and what it concludes."""

import random
import shutil
from pathlib import Path

import pytest

from bench.hostile.hostile_bundles import (
    ACCEPTED,
    REFUSED,
    Edge,
    Found,
    Outcome,
    attempt,
    measure_random,
    mutants,
    verdicts_of,
)
from bench.hostile.hostile_graphs import SPECIAL

KEPT = Path(__file__).parents[2] / "bundles/format-11/bundle"


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(KEPT, tmp_path / "bundle"))


def test_the_good_bundle_is_accepted(copy):
    assert attempt(copy).status == ACCEPTED


@pytest.mark.parametrize("name", SPECIAL)
def test_every_special_bundle_is_refused(copy, name):
    SPECIAL[name](copy)
    outcome = attempt(copy)
    assert outcome.status == REFUSED
    assert "fix: " in outcome.message or len(outcome.message) == 200


@pytest.mark.slow
def test_random_mutations_are_refused_and_taken_back(copy):
    found = measure_random(copy, 60, seed=3)
    assert {outcome.status for outcomes in found.outcomes.values() for outcome in outcomes} == {REFUSED}
    kinds = {kind for kind, _ in zip((kind for kind, _ in mutants(copy, random.Random(4))), range(80), strict=False)}
    assert kinds >= set(found.outcomes)


def test_a_bundle_that_is_accepted_or_takes_long_is_a_miss():
    good = Outcome(REFUSED, 0.1, 3.0, "x")
    edge = Edge([], 1.0, 0.0, 0, 0)

    def missed(outcome, edge=edge):
        verdicts = verdicts_of(Found({"bits": [good]}, 0), {"a loop": outcome}, edge)
        return [verdict.measure for verdict in verdicts if not verdict.met]

    assert missed(good) == []
    assert missed(good._replace(status=ACCEPTED)) == ["of 1 special bundles refused before a session"]
    assert missed(good._replace(status=11)) == ["of 1 special bundles refused before a session"]
    assert missed(good._replace(seconds=3.0)) == ["longest refusal"]
    assert missed(good._replace(memory_mb=65.0)) == ["most memory"]
    assert missed(good, edge._replace(accepted=["a loop"])) == ["special bundles that a server opened"]
    assert missed(good, edge._replace(processes=1)) == ["processes and files that it has left"]
    assert missed(good, edge._replace(grown_mb=40.0)) == ["memory that the server's process gained"]
