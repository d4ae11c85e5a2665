"""Turns that are launched before the last one was read: the same answers, and a device that need not wait."""

import json

import pytest

from tests.cuda import fake
from tests.cuda.shapes import LLAMA, WIDE
from tests.tiny import tiny_config, tiny_model

MODELS = {"translation": ("encoder_decoder", WIDE), "llama": ("decoder", LLAMA)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", [100, 400])
def test_turns_launched_ahead_give_the_answers_of_turns_that_are_waited_for(fake_cuda, exported, model, count):
    architecture, shape = MODELS[model]
    bundle = exported(tiny_model(tiny_config(architecture, **shape)), precisions=("fp32", "fp16"))
    found = json.loads(fake.run_python(fake_cuda, "-m", "tests.cuda.run_ahead", str(bundle), str(count)))
    assert found["requests"] == count - count // 10
    # Encoder batches round by their sources, and which these are depends on time: so do a few answers, either way.
    few = 0.05 * count if architecture == "encoder_decoder" else 0
    assert found["same"] >= found["requests"] - few, found
    assert found["with an end"] == found["cancelled"] == count // 10
    assert found["captures"] == 0
    assert min(found["draws"].values()) > 20, "tokens that are certain, and guesses that are not"
    free, turns = found["free"], found["free"]["turns"]
    assert free["stream waits"] == 0
    assert free["others"] <= few, found
    assert turns["several"] < turns["single"], found
    # The device runs dry only when the last rows end, or when all end in one turn.
    assert free["read last"] < 0.2 * sum(turns.values()), found
