"""Answers over gRPC of a server on the fake CUDA: random batches, beams among them."""

import json

from tests.cuda import fake
from tests.cuda.shapes import WIDE
from tests.tiny import tiny_config, tiny_model

REQUESTS = 40
NEAR_TIES = 0.1
"""The share of answers that may differ: random weights often leave two tokens equally good in float16."""


def test_a_server_on_cuda_answers_as_one_on_the_cpu(fake_cuda, exported):
    bundle = exported(tiny_model(tiny_config("encoder_decoder", **WIDE)), precisions=("fp32", "fp16"))
    found = json.loads(fake.run_python(fake_cuda, "-m", "tests.cuda.served", str(bundle), str(REQUESTS)))
    assert found["providers"] == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert found["requests"] == REQUESTS
    assert len(found["others"]) <= NEAR_TIES * REQUESTS, found["others"]
