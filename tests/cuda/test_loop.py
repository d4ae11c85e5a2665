"""The turns of an engine on CUDA: captured at start and never again, and one wait for each."""

import json

import pytest

from tests.cuda import fake
from tests.cuda.shapes import LLAMA, WIDE
from tests.tiny import tiny_config, tiny_model

MODELS = {"translation": ("encoder_decoder", WIDE), "generation": ("decoder", WIDE), "llama": ("decoder", LLAMA)}
ROOMS = 5  # of 12 rows: 1, 2, 4, 8 and 12
GRAPHS = 6  # of each room: a step, log-probabilities with the best 2, 8, 16 or 64 tokens, draws from these


@pytest.fixture(scope="module", params=MODELS)
def counted(request, fake_cuda, exported):
    """What `tests.cuda.loop` prints for a model."""
    architecture, shape = MODELS[request.param]
    bundle = exported(tiny_model(tiny_config(architecture, **shape)), precisions=("fp32", "fp16"))
    return json.loads(fake.run_python(fake_cuda, "-m", "tests.cuda.loop", str(bundle)))


def test_every_number_of_rows_is_captured_at_start_and_none_later(counted):
    assert counted["start"]["captures"] == ROOMS * GRAPHS
    assert counted["start"]["illegal in capture"] == 0
    for search in ("greedy", "beams"):
        assert "captures" not in counted[search]["all"]
        assert counted[search]["all"]["graph launches"] == 2 * counted[search]["turns"], "all steps are captured"


@pytest.mark.parametrize("search", ["greedy", "beams"])
def test_a_step_waits_once_and_allocates_nothing(counted, search):
    most = counted[search]["most"]
    assert counted[search]["steps"] > 5
    assert (most["graph launches"], most["blocking"], most["allocations"], most["products"]) == (2, 1, 0, 0)
    assert most["launches"] == 0, "log-probabilities and the best of them are captured, too"


@pytest.mark.parametrize("search", ["greedy", "beams"])
def test_captured_steps_compute_what_the_others_do(counted, search):
    assert counted[search]["same_without_capture"]


def test_inputs_that_do_not_keep_to_the_stream_give_other_answers(fake_cuda, exported):
    """So that a missing wait would be seen by every test here."""
    bundle = exported(tiny_model(tiny_config("decoder", **WIDE)), precisions=("fp32", "fp16"))
    late, eager = (
        json.loads(fake.run_python(fake_cuda, "-m", "tests.cuda.race", str(bundle), EAGER=is_eager))
        for is_eager in (0, 1)
    )
    assert late["others"] > 5
    assert eager["others"] == 0
