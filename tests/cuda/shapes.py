"""Shapes of the tiny models that decode on the fake CUDA, as changes to those of `tests.tiny`."""

from typing import Any

WIDE: dict[str, Any] = {"d_model": 128, "num_heads": 2, "d_ff": 256}  # a head size that XQA has: 64
LLAMA: dict[str, Any] = {
    **WIDE,
    "num_heads": 4,
    "positions": "rotary",
    "norm": "rms",
    "bias": False,
    "gated": True,
    "activation": "silu",
}
BART: dict[str, Any] = {"norm_position": "post", "positions": "learned", "activation": "gelu"}
T5: dict[str, Any] = {"norm": "rms", "bias": False, "gated": True, "positions": "bucketed", "activation": "gelu_tanh"}
"""Scaled: with scores as they are, random weights do not hold in float16."""
