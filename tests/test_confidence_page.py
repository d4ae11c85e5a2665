"""docs/confidence.md states the numbers of the code, every field, and a program that runs."""

import asyncio
import re
from pathlib import Path

import pytest

from export.adequacy_fit import DAMAGED_SHARE
from export.bundle.adequacy import Signs
from export.bundle.confidence import MAX_KNOTS
from export.bundle.manifest import FORMAT_VERSION
from export.calibration import LEAST_RIGHT, MAX_DAMAGED, MAX_SAMPLES, MIN_ANSWERED, MIN_SAMPLES
from export.confidence_fit import BINS, FEWEST_A_KNOT, FOLDS
from glossa.client import Client
from glossa.v1 import glossa_pb2 as pb
from service.edge.models.answer_confidence import UNCERTAIN_BELOW
from tests.cli.command import run
from tests.edge import running

PAGE = Path(__file__).resolve().parent.parent / "docs/confidence.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_have_every_field():
    fields = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.M))
    asked = {"include_confidence", "uncertain_below"}
    assert fields == {*asked, *pb.Confidence.DESCRIPTOR.fields_by_name, *Signs._fields}


@pytest.mark.parametrize(
    "phrase",
    [
        f"up to {MAX_SAMPLES:,} sentences",
        f"at least {MIN_SAMPLES}",
        f"made of the first {MAX_DAMAGED}",
        f"needs {MIN_ANSWERED} damaged answers of a kind",
        f"one answer in { {0.05: 'twenty'}[DAMAGED_SHARE] } is",
        f"less than {LEAST_RIGHT:.0%}".replace("%", " %"),
        f"at least {FEWEST_A_KNOT} examples",
        f"at most {MAX_KNOTS} knots",
        f"{BINS} bins of equal size",
        f"{ {5: 'five'}[FOLDS] }-fold cross-validation",
        f"bundle format {FORMAT_VERSION}",
        f"default {UNCERTAIN_BELOW}",
    ],
)
def test_numbers_are_those_of_the_code(phrase):
    assert phrase in " ".join(TEXT.split())


@pytest.mark.parametrize("line", re.findall(r"^glossa (.*)$", TEXT, re.M))
def test_commands_have_the_flags_of_the_page(line):
    verb, *words = line.partition("#")[0].split()
    shown = run(verb, "--help")
    assert all(word in shown for word in words if word.startswith("--"))


async def test_the_program_runs():
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    async with running() as edge:
        edge.calibrate()

        def execute():
            with Client(edge.address) as client:
                exec(program, {"client": client})

        await asyncio.to_thread(execute)
        (request,) = edge.pool.requests
        assert request.options.token_logprobs
