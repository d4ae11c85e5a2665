"""The shipped CUDA provider decodes whole answers that are those of the CPU, on emulated kernels."""

import json
from typing import Any

import pytest

from tests.cuda import fake
from tests.cuda.packed_weights import with_packed_weights
from tests.cuda.shapes import BART, LLAMA, T5, WIDE
from tests.tiny import tiny_config, tiny_model

# Architecture, shape, a seed of the requests and perhaps of the model: with some seeds two answers are equally good.
MODELS: dict[str, Any] = {
    "translation, head size 8": ("encoder_decoder", {}, 5),
    "translation, head size 64": ("encoder_decoder", WIDE, 1),
    "translation, BART": ("encoder_decoder", {**WIDE, **BART}, 3),
    "translation, T5": ("encoder_decoder", T5, 3, 7),
    "translation, ALiBi": ("encoder_decoder", {**WIDE, "positions": "alibi"}, 2, 7),
    "translation, Shaw": ("encoder_decoder", {**WIDE, "positions": "shaw"}, 2, 7),
    "translation, SSRU": ("encoder_decoder", {**WIDE, "decoder_mixing": "ssru", "norm_position": "post"}, 1, 7),
    "generation, sinusoidal": ("decoder", WIDE, 2),
    "generation, window": ("decoder", {**WIDE, "sliding_window": 16}, 1),
    "generation, ALiBi": ("decoder", {**WIDE, "positions": "alibi"}, 3),
    "generation, bucketed": ("decoder", {**WIDE, "positions": "bucketed"}, 1),
    "generation, Shaw": ("decoder", {**WIDE, "positions": "shaw"}, 1),
    "generation, llama, head size 32": ("decoder", LLAMA, 1),
    "generation, llama with groups, head size 64": ("decoder", {**LLAMA, "num_kv_heads": 2, "head_dim": 64}, 5, 7),
}
PACKED = {"translation": ("encoder_decoder", WIDE, 5), "generation, llama": ("decoder", LLAMA, 4)}
LARGEST_DIFFERENCE = 0.05
"""Of a log-probability or score: float16 on CUDA, float32 on the CPU."""
MOST_NEAR_TIES = 1
"""Of eight answers, so many may differ, with as good a score: random weights leave two tokens nearly equal."""


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_cpu(fake_cuda, exported, name):
    architecture, shape, seed, *model_seed = MODELS[name]
    bundle = exported(tiny_model(tiny_config(architecture, **shape), *model_seed), precisions=("fp32", "fp16"))
    check_answers(bundle, seed, fake_cuda)


@pytest.mark.parametrize("name", PACKED)
def test_answers_of_4_bit_weights_are_those_of_the_same_weights_on_the_cpu(fake_cuda, exported, name):
    architecture, shape, seed = PACKED[name]
    model = with_packed_weights(tiny_model(tiny_config(architecture, **shape, tie_embeddings=False)))
    check_answers(exported(model, precisions=("fp32", "w4a16")), seed, fake_cuda)


def check_answers(bundle, seed, fake_cuda):
    found = json.loads(fake.run_python(fake_cuda, "-m", "tests.cuda.answers", str(bundle), str(seed)))
    assert not found["not emulated"]
    for search, answers in found["answers"].items():
        assert answers["same"] >= answers["requests"] - MOST_NEAR_TIES, (search, answers)
        assert answers["scores"] < LARGEST_DIFFERENCE, (search, answers)
        assert answers["difference"] < LARGEST_DIFFERENCE, (search, answers)
