"""Every emulated kernel computes what the CPU does: graphs of one node each, with no node on the CPU."""

import json

import pytest

from tests.cuda import fake
from tests.cuda.single_nodes import CASES

LARGEST_ERROR = {"float32": 2e-6, "float16": 2e-3}
"""Relative to the largest number. Half of float16's precision is 5e-4; results that round differently in several steps,
as those of attention, differ by a few of that."""


@pytest.fixture(scope="module")
def errors(fake_cuda):
    return json.loads(fake.run_python(fake_cuda, "-m", "tests.cuda.single_nodes", STRICT=1))


@pytest.mark.parametrize("name", CASES)
def test_a_node_computes_what_it_does_on_the_cpu(errors, name):
    kind = "float32" if name.endswith("float32") else "float16"
    assert isinstance(errors[name], float), errors[name]
    assert errors[name] <= LARGEST_ERROR[kind]
