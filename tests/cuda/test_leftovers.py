"""What one request leaves in its cache row does not reach the next one."""

import json

import pytest

from tests.cuda import fake
from tests.cuda.shapes import WIDE
from tests.tiny import tiny_config, tiny_model


@pytest.mark.parametrize("positions", ["alibi", "bucketed"])
def test_numbers_that_are_not_finite_end_with_the_request_that_left_its_prompt(fake_cuda, exported, positions):
    """Attention with a position bias multiplies all places of a row, also those that no one uses."""
    bundle = exported(tiny_model(tiny_config("decoder", **WIDE, positions=positions)), precisions=("fp32", "fp16"))
    assert json.loads(fake.run_python(fake_cuda, "-m", "tests.cuda.leftovers", str(bundle))) == {"same": True}
