"""Special tokens from the tokenizer files of a checkpoint: those before every prompt, the cls, sep and mask tokens of
encoders, and the languages of multilingual models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, SpecialTokenTemplate
from model.pretrained.convert_tokenizer import convert_tokenizer, tokens_before
from model.pretrained.files import (
    CONFIG,
    TOKENIZER_CONFIG,
    Fields,
    Imported,
    PretrainedError,
    read_json,
    read_optional_json,
)
from model.pretrained.frame import frame_of, missing_token
from model.pretrained.tokenizer_files import T5_LANGUAGE, special_texts
from model.tokenizer import Tokenizer

# Patterns of language tokens by model_type; the group is the language's code. Makers add languages, and write codes in
# several forms: de_DE, zh_Hant_TW, sr-Latn, eo.
_CODE = "[A-Za-z]{2,8}(?:[_-][A-Za-z0-9]{1,8})*"
LANGUAGE_NAMES = {
    "marian": re.compile(">>(.+)<<"),
    "mbart": re.compile(f"({_CODE})"),
    "m2m_100": re.compile(f"__(.+)__|({_CODE})"),  # M2M100 and NLLB
    **dict.fromkeys(("t5", "mt5"), T5_LANGUAGE),
}


def with_special_tokens(imported: Imported, path: Path) -> Imported:
    """Sets the special tokens of decoders and encoders; those of encoder-decoders are in config.json.

    Raises PretrainedError if a special token of an encoder is missing, and for tokens after a prompt.
    """
    if imported.config.architecture == "encoder":
        return _with_encoder_tokens(imported, path)
    if imported.config.architecture == "decoder":
        return _with_template(imported, SpecialTokenTemplate(target_prefix=_prompt_prefix(path)))
    return imported


def _with_template(imported: Imported, template: SpecialTokenTemplate) -> Imported:
    return replace(imported, config=imported.config.replace(special_token_template=template))


def _prompt_prefix(path: Path) -> tuple[int, ...]:
    frame = frame_of(path)
    if frame.after:
        raise PretrainedError(f"{path}: tokens {[*frame.after]} after a prompt are not covered: they would end it")
    return frame.before


def _with_encoder_tokens(imported: Imported, path: Path) -> Imported:
    model, frame = imported.config, frame_of(path)
    texts, special = special_texts(path), convert_tokenizer(path).special
    ids: dict[str, Any] = {name: special.get(texts.get(f"{name}_token", "")) for name in ("cls", "sep", "unk", "mask")}
    if model.head == "masked" and ids["mask"] is None:
        raise missing_token(path, "mask_token")
    known = [model.pad_id if ids[name] is None else ids[name] for name in ("cls", "sep", "unk")]
    config = model.replace(
        bos_id=frame.before[0] if frame.before else known[0],
        eos_id=frame.after[-1] if frame.after else known[1],
        unk_id=known[2],
        mask_id=ids["mask"],
        special_token_template=SpecialTokenTemplate(source_prefix=frame.before, source_suffix=frame.after),
    )
    return replace(imported, config=config)


def with_vocabularies(imported: Imported, path: Path, tokenizer: Tokenizer) -> Imported:
    """Sets the vocabulary of sources, and ends them with its end token, if the tokenizer has two vocabularies.

    path: the model's directory. Raises PretrainedError for a vocabulary of sources without an end token."""
    if not tokenizer.has_two_vocabularies:
        return imported
    text = special_texts(path).get("eos_token", "</s>")
    if text not in tokenizer.special:
        raise missing_token(path, "eos_token")
    model = imported.config
    template = replace(model.template, source_suffix=(tokenizer.special[text],))
    size = model.source_vocab_size or model.vocab_size
    return replace(imported, config=model.replace(source_vocab_size=size, special_token_template=template))


def with_languages(imported: Imported, path: Path, tokens: Mapping[str, int]) -> Imported:
    """Adds the tokenizer's language tokens to the special-token template of a multilingual model.

    path: the model's directory. tokens: ids of the tokens beside the vocabulary by name. A single language is one that
    every source has. A model without languages is returned unchanged.
    """
    config = Fields(read_json(path / CONFIG))
    tokenizer = Fields(read_optional_json(path / TOKENIZER_CONFIG), file=TOKENIZER_CONFIG)
    kind, eos, known = config.need("model_type"), imported.config.eos_id, imported.config.template
    pattern, roles = LANGUAGE_NAMES.get(kind), {*special_texts(path).values()}
    found = {
        match[match.lastindex or 1]: token
        for name, token in tokens.items()
        if pattern and name not in roles and (match := pattern.fullmatch(name))
    }
    if not found or imported.config.architecture != "encoder_decoder":
        return imported
    start, named = known.target_prefix[:1], tokenizer.get("tokenizer_class", config.get("tokenizer_class", ""))
    around: tuple[tuple[int, ...], ...]
    if kind == "marian":  # the target language precedes the source
        around = (TARGET_LANGUAGE,), known.source_suffix, known.target_prefix
    elif kind in ("t5", "mt5"):  # also here, as a text of its own
        code, token = next(iter(found.items()))
        around = (*tokens_before(path, f"<2{code}>", token), TARGET_LANGUAGE), (eos,), known.target_prefix
    elif kind == "mbart" and not named.startswith("MBart50"):
        around = (), (eos, SOURCE_LANGUAGE), (TARGET_LANGUAGE,)
    elif tokenizer.get("legacy_behaviour", False):
        around = (), (eos, SOURCE_LANGUAGE), (*start, TARGET_LANGUAGE)
    else:
        around = (SOURCE_LANGUAGE,), (eos,), (*start, TARGET_LANGUAGE)
    source_prefix, source_suffix, target_prefix = around
    template = SpecialTokenTemplate(
        source_prefix=source_prefix,
        source_suffix=source_suffix,
        target_prefix=target_prefix,
        languages=tuple(sorted(found.items(), key=lambda language: language[1])),
    )
    return _with_template(imported, template)


def added_tokens_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the tokens beside a tokenizer's vocabulary, special or not, by name."""
    added = json.loads(tokenizer.to_json()).get("added_tokens") or []
    return {item["content"]: item["id"] for item in added}
