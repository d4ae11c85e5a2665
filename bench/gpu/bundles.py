"""The models of `python -m bench gpu-check`: their names, shapes and paths, for processes without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROTARY = {"norm": "rms", "bias": False, "gated": True, "positions": "rotary", "activation": "silu"}
T5 = {**ROTARY, "positions": "bucketed", "activation": "gelu_tanh"}  # scaled: random weights would not hold in fp16
SMALL: dict[str, tuple[str, dict[str, Any]]] = {  # architecture, and what differs from `small_model`
    "translation": ("encoder_decoder", {"positions": "learned"}),
    "rotary, heads of 32": ("decoder", {**ROTARY, "num_heads": 4}),
    "rotary, heads of 64": ("decoder", {**ROTARY, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64}),
    "ALiBi": ("decoder", {"positions": "alibi"}),
    "T5": ("encoder_decoder", T5),
    "compression": ("decoder", {"compression_stride": 4, "sliding_window": 16}),
}
LARGE = ("6+6 layers, d512", "rotary, 12 layers, d768")  # models that are timed


def path_of(folder: Path, name: str) -> Path:
    """Where the bundle of a model is."""
    return folder / f"{name.replace(', ', '-').replace(' ', '-')}.bundle"
