"""Answers over gRPC of a server on the fake CUDA: random batches, beams among them."""

import json

import pytest

from tests.cuda import fake
from tests.cuda.served import NEAR_TIE
from tests.cuda.shapes import LLAMA, WIDE
from tests.tiny import tiny_config, tiny_model

REQUESTS = 40


@pytest.mark.parametrize(("architecture", "shape"), [("encoder_decoder", WIDE), ("decoder", LLAMA)])
def test_a_server_on_cuda_answers_as_one_on_the_cpu(fake_cuda, exported, architecture, shape):
    bundle = exported(tiny_model(tiny_config(architecture, **shape)), precisions=("fp32", "fp16"))
    found = json.loads(fake.run_python(fake_cuda, "-m", "tests.cuda.served", str(bundle), str(REQUESTS)))
    assert found["providers"] == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert found["requests"] == REQUESTS
    assert max(found["gaps"], default=0) < NEAR_TIE, found
    assert found["same"] > 0.8 * REQUESTS, found
