"""From a Hugging Face checkpoint directory to a configuration and weights of ours.

The `model_type` of its `config.json` names the family; what a family does not cover is refused with the field and its
value.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from model.architectures import build
from model.config import ConfigError, SpecialTokenTemplate
from model.pretrained import decoder, encoder, encoder_decoder
from model.pretrained.files import (
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Family,
    Fields,
    Imported,
    PretrainedError,
    read_directory,
    read_json,
)

# What changes answers wherever it stands, and no family covers.
NOT_COVERED = (
    "quantization_config",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_kv_shared_layers",
)


def import_model(path: Path, *, allow_pickle: bool = False, eos_id: int | None = None) -> Imported:
    """The model in a directory. Raises PretrainedError.

    eos_id: the only token that ends answers, instead of whatever their files say.
    """
    if not path.is_dir():
        raise PretrainedError(f"{path}: no such directory; give one that save_pretrained has written")
    config, generation, weights = read_directory(path, allow_pickle=allow_pickle)
    if eos_id is not None:
        config = config.with_value("eos_token_id", eos_id)
        generation = generation.with_value("eos_token_id", eos_id) if generation else generation
    kind = config.need("model_type")
    families = all_families()
    if kind not in families:
        raise PretrainedError(f"{CONFIG}: model_type {kind!r} is not covered; covered: {', '.join(sorted(families))}")
    for name in NOT_COVERED:
        if config.get(name, None):
            raise config.refuse(name)
    try:
        imported = families[kind](config, generation, weights)
        weights.finish()
        if imported.config.architecture == "decoder":
            imported = _with_prompt_prefix(imported, path)
        elif imported.config.architecture == "encoder":
            imported = encoder.with_special_tokens(imported, path)
        _check_weights(imported)
    except ConfigError as error:
        raise PretrainedError(f"{CONFIG}: what it describes is not covered: {error}") from error
    return imported


def _with_prompt_prefix(imported: Imported, path: Path) -> Imported:
    """With the tokens that its tokenizer puts before every text, where the directory says which."""
    prefix = _prompt_prefix(path, imported.config.bos_id)
    if prefix is None:
        return imported
    return replace(
        imported, config=imported.config.replace(special_token_template=SpecialTokenTemplate(target_prefix=prefix))
    )


def _prompt_prefix(path: Path, bos_id: int) -> tuple[int, ...] | None:
    if (path / TOKENIZER_CONFIG).is_file():
        adds = Fields(read_json(path / TOKENIZER_CONFIG), file=TOKENIZER_CONFIG).get("add_bos_token", None)
        if isinstance(adds, bool):
            return (bos_id,) if adds else ()
    if not (path / TOKENIZER).is_file():
        return None
    processor = Fields(read_json(path / TOKENIZER), file=TOKENIZER).inner("post_processor")
    steps = [Fields(step, file=f"{TOKENIZER}: post_processor") for step in processor.get("processors", [])]
    prefix: list[int] = []
    for step in steps or [processor]:
        if step.only("type", "ByteLevel", "TemplateProcessing", default="ByteLevel") == "TemplateProcessing":
            *before, text = step.need("single")  # what stands behind the text would have to be the last one
            if "Sequence" not in text:
                raise step.refuse("single", "tokens behind a prompt would end it")
            special = step.inner("special_tokens")
            prefix += [token for piece in before for token in special.need(piece["SpecialToken"]["id"])["ids"]]
    return tuple(prefix)


def _check_weights(imported: Imported) -> None:
    """Every weight that the configuration speaks of, in its shape, and no other."""
    with torch.device("meta"):
        expected = build(imported.config).state_dict()
    for name in sorted(expected.keys() ^ imported.weights.keys()):
        problem = "is missing" if name in expected else f"is none of the model that {CONFIG} describes"
        raise PretrainedError(f"weights: {name} (in our words) {problem}")
    for name, tensor in imported.weights.items():
        if tensor.shape != expected[name].shape:
            raise PretrainedError(
                f"weights: {name} (in our words) must have shape {tuple(expected[name].shape)} as {CONFIG} says, got "
                f"{tuple(tensor.shape)}"
            )


def all_families() -> dict[str, Family]:
    """Those of decoder-only models and all others, by model_type."""
    return decoder.FAMILIES | encoder_decoder.FAMILIES | encoder.FAMILIES
