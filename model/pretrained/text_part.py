"""The text part of a model that also reads pictures: where its fields and tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEFT_OUT = "the parts that read pictures"
PREFIXES = ("language_model.", "model.language_model.")  # of the names of its tensors
_PARTS = ("vision_tower.*", "multi_modal_projector.*")
OTHER_TENSORS = (*_PARTS, *(f"model.{name}" for name in _PARTS))
_OTHER_FIELDS = ("vision_config", "boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image")
# Values that files leave out, where those of other families have them.
_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}


def has_text_part(values: Mapping[str, Any]) -> bool:
    """Whether these are the values of config.json of such a model."""
    return values.get("model_type") == "gemma3" and isinstance(values.get("text_config"), Mapping)


def text_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of config.json, of such a model those of its text part."""
    if not has_text_part(values):
        return dict(values)
    around = {name: value for name, value in values.items() if name not in (*_OTHER_FIELDS, "text_config")}
    inner = {name: value for name, value in values["text_config"].items() if value is not None or name not in around}
    return {**_DEFAULTS, **around, **inner, "model_type": values["model_type"]}
