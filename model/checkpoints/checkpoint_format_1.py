"""Reads what checkpoints of release 0.1.0 (format 1) name otherwise: fields of the configuration, and weights.

Their configuration has the fields of all architectures, whether the model uses them or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.architecture_config import CLASSES
from model.config import field_types

RENAMED = {
    "framing": "special_token_template",
    "more_eos_ids": "extra_eos_ids",
    "compression": "compression_stride",
    "window": "sliding_window",
    "experts": "num_experts",
    "parallel": "parallel_residual",
}
RENAMED_IN_TEMPLATE = {
    "before_source": "source_prefix",
    "after_source": "source_suffix",
    "before_target": "target_prefix",
}


def upgraded_config(model: Mapping[str, Any]) -> dict[str, Any]:
    """The `model` part of a config.json of format 1 without the fields of other architectures, under today's names."""
    values = {RENAMED.get(key, key): value for key, value in model.items()}
    if isinstance(template := values.get("special_token_template"), Mapping):
        values["special_token_template"] = {RENAMED_IN_TEMPLATE.get(key, key): ids for key, ids in template.items()}
    used = CLASSES.get(values.get("architecture", "encoder_decoder"))
    if used is None:
        return values
    unused = {name for config in CLASSES.values() for name in field_types(config)} - set(field_types(used))
    if used is CLASSES["encoder"]:
        unused.add("sliding_window")  # encoders had none
    return {key: value for key, value in values.items() if key not in unused}


def upgraded_weight(name: str) -> str:
    """Today's name of a weight. A name of today stays as it is."""
    return name.replace(".cues.", ".position_encoding.").replace("decoder.firsts.", "decoder.initial.")
