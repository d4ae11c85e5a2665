"""The languages of multilingual encoder-decoder checkpoints, which are special tokens of their tokenizers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, SpecialTokenTemplate
from model.pretrained.files import CONFIG, TOKENIZER_CONFIG, Fields, Imported, read_json, read_optional_json

LANGUAGE_NAMES = {  # patterns of language tokens by model_type; the group is the language code
    "marian": re.compile(">>(.+)<<"),
    "mbart": re.compile("([a-z]{2}_[A-Z]{2})"),
    "m2m_100": re.compile("__([a-z]+)__|([a-z]{3}_[A-Z][a-z]{3})"),  # M2M100 and NLLB
}


def with_languages(imported: Imported, path: Path, special: Mapping[str, int]) -> Imported:
    """Adds the tokenizer's language tokens to the special-token template of a multilingual model.

    path: the model's directory. special: ids of the special tokens by name. A model with fewer than two languages is
    returned unchanged.
    """
    config = Fields(read_json(path / CONFIG))
    tokenizer = Fields(read_optional_json(path / TOKENIZER_CONFIG), file=TOKENIZER_CONFIG)
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
    if kind == "marian":  # the target language precedes the source
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
