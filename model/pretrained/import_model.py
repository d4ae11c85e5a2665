"""Converts a Hugging Face checkpoint directory to a Glossa configuration and weights.

The `model_type` of its `config.json` selects the family. Unsupported values are rejected with the field and its value.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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

# Fields that change the output in every family and are not supported by any.
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

    eos_id: the only end-of-sequence token, instead of those in the files.
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
    except ConfigError as error:
        raise PretrainedError(f"{CONFIG}: the model is not covered: {error}") from error
    return imported


def _with_prompt_prefix(imported: Imported, path: Path) -> Imported:
    """Sets the target prefix to the tokens that the tokenizer puts before every text, if its files name them."""
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
            *before, text = step.need("single")  # the text must be the last element
            if "Sequence" not in text:
                raise step.refuse("single", "tokens after a prompt would end it")
            special = step.inner("special_tokens")
            prefix += [token for piece in before for token in special.need(piece["SpecialToken"]["id"])["ids"]]
    return tuple(prefix)


def all_families() -> dict[str, Family]:
    """All supported families, by model_type."""
    return decoder.FAMILIES | encoder_decoder.FAMILIES | encoder.FAMILIES
