"""The languages of multilingual encoder-decoder checkpoints, which are special tokens of their tokenizers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, SpecialTokenTemplate
from model.pretrained.files import CONFIG, TOKENIZER_CONFIG, Fields, Imported, read_json

LANGUAGE_NAMES = {  # of special tokens that name a language, by model_type; the group is its code
    "marian": re.compile(">>(.+)<<"),
    "mbart": re.compile("([a-z]{2}_[A-Z]{2})"),
    "m2m_100": re.compile("__([a-z]+)__|([a-z]{3}_[A-Z][a-z]{3})"),  # M2M100 and NLLB
}


def with_languages(imported: Imported, path: Path, special: Mapping[str, int]) -> Imported:
    """With the languages among a tokenizer's special tokens, where the family has them stand around texts.

    path: the model's directory. special: ids of special tokens by their names. A model of fewer than two languages is
    asked for none.
    """
    config, file = Fields(read_json(path / CONFIG)), path / TOKENIZER_CONFIG
    tokenizer = Fields(read_json(file) if file.is_file() else {}, file=TOKENIZER_CONFIG)
    kind, eos, known = config.need("model_type"), imported.config.eos_id, imported.config.template
    pattern = LANGUAGE_NAMES.get(kind)
    found = {
        match[match.lastindex or 1]: token
        for name, token in special.items()
        if pattern and (match := pattern.fullmatch(name))
    }
    if len(found) < 2:
        return imported
    start, named = known.target_prefix[:1], tokenizer.get("tokenizer_class", config.get("tokenizer_class", ""))
    around: tuple[tuple[int, ...], ...]
    if kind == "marian":  # one of several targets is named before the text
        around = (TARGET_LANGUAGE,), (eos,), known.target_prefix
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
    return replace(imported, config=imported.config.replace(special_token_template=template))
