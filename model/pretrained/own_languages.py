"""The two languages of an imported model that is for a single pair (`own_languages`), from what its makers wrote: the
tokenizer's configuration, or names as those of OPUS-MT (opus-mt-en-de) and of Marian's students (model.ende.….bin).

Codes are those of ISO 639-1: names of groups of languages, such as ROMANCE and mul, tell no language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model.config import DEFAULT_LANGUAGES, LanguagePair, ModelConfig
from model.config_parts import unnamed_languages
from model.pretrained.files import TOKENIZER_CONFIG, read_optional_json

_CODE = re.compile("[a-z]{2}")
_NAME = re.compile(r"opus-mt(?:-[a-z]+)*?-([a-z]{2})-([a-z]{2})")
_JOINED = re.compile(r"(?<![a-z])([a-z]{2})([a-z]{2})(?![a-z])")  # in names of files, between dots


def with_own_languages(config: ModelConfig, folder: Path, name: str, files: Iterable[Path] = ()) -> ModelConfig:
    """The configuration of a model that translates with its languages, where they are known and requests need not name
    them. folder: of the Hugging Face model. name: of the model. files: of a model of Marian."""
    if not (config.has_encoder and config.has_decoder):
        return config
    found = _of_tokenizer(read_optional_json(folder / TOKENIZER_CONFIG)) or _of_name(name) or _of_files(list(files))
    source, target = unnamed_languages(config.template, found or DEFAULT_LANGUAGES)
    return config.replace(source_language=source, target_language=target)


def _of_tokenizer(values: Any) -> LanguagePair | None:
    """Of MarianTokenizer: source_lang and target_lang; of others these are settings of a multilingual one."""
    if values.get("tokenizer_class", "MarianTokenizer") != "MarianTokenizer":
        return None
    codes = [values.get(name) for name in ("source_lang", "target_lang")]
    known = [code if isinstance(code, str) and _CODE.fullmatch(code) else "" for code in codes]
    return LanguagePair(*known) if any(known) else None


def _of_name(name: str) -> LanguagePair | None:
    match = _NAME.fullmatch(name.rpartition("/")[2].lower())
    return LanguagePair(*match.groups()) if match else None


def _of_files(files: list[Path]) -> LanguagePair | None:
    """The pair in the name of the model, or of its directory, that another of its files has in its name, too, in either
    order: `base` and `tiny` are no languages."""
    if not files:
        return None
    model, *others = files
    confirmed = {frozenset(pair) for file in others for pair in _JOINED.findall(file.name)}
    found = [pair for part in (model.name, model.parent.name) for pair in _JOINED.findall(part)]
    return next((LanguagePair(*pair) for pair in found if frozenset(pair) in confirmed), None)
