"""How an encoder checkpoint of sentence-transformers makes one vector of a text: the modules after its Transformer.

modules.json lists them: one that pools the states, and possibly one that scales the vector to length 1. Others, such as
`Dense`, are refused by name.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from model.pretrained.files import Fields, Imported, PretrainedError, read_json, read_optional_json

MODULES = "modules.json"
TRANSFORMER, VECTORS = "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING_CONFIG = "1_Pooling/config.json"
FILES = (MODULES, TRANSFORMER, VECTORS, POOLING_CONFIG)
POOLINGS = {  # theirs → ours
    "cls_token": "cls",
    "mean_tokens": "mean",
    "max_tokens": "max",
    "lasttoken": "last",
    "mean_sqrt_len_tokens": "",
    "weightedmean_tokens": "",
}
DEFAULTS = {"mean_tokens": True}


class SentenceVectors(NamedTuple):
    """The pooling of a checkpoint, whether vectors are normalized, and the longest text in tokens; 0: the model's."""

    pooling: str
    normalized: bool
    max_length: int


def sentence_vectors(path: Path) -> SentenceVectors | None:
    """What the files of a directory say; None without modules.json. Raises PretrainedError for what is not covered."""
    if not (path / MODULES).is_file():
        return None
    modules = [(str(item.get("type")).rpartition(".")[2], str(item.get("path"))) for item in _list(path / MODULES)]
    kinds = [kind for kind, _ in modules if kind != "Dropout"]  # which does nothing outside training
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0][1]:
        raise PretrainedError(
            f"{path / MODULES}: modules {', '.join(kinds)} are not covered; covered: Transformer in the directory "
            "itself, Pooling and possibly Normalize"
        )
    place = f"{dict(modules)['Pooling']}/config.json"
    transformer, vectors = (Fields(read_optional_json(path / name), file=name) for name in (TRANSFORMER, VECTORS))
    transformer.only("do_lower_case", False, default=False)
    vectors.only("default_prompt_name", "", default="")
    return SentenceVectors(
        pooling=_pooling(Fields(read_json(path / place), file=place)),
        normalized="Normalize" in kinds,
        max_length=transformer.count("max_seq_length") if transformer.get("max_seq_length", None) else 0,
    )


def _list(file: Path) -> list[dict[str, Any]]:
    try:
        items = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{file}: cannot be read: {error}") from error
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise PretrainedError(f"{file}: must hold a list of modules")
    return items


def _pooling(config: Fields) -> str:
    modes = {name: bool(config.get(f"pooling_mode_{name}", DEFAULTS.get(name, False))) for name in POOLINGS}
    if "pooling_mode" in config:  # of newer files: a name, or several
        named = config.need("pooling_mode")
        named = [named] if isinstance(named, str) else list(named)
        modes = {name: name.removesuffix("_tokens").removesuffix("_token") in named for name in POOLINGS}
    chosen = [name for name, is_chosen in modes.items() if is_chosen]
    if len(chosen) != 1 or not POOLINGS[chosen[0]]:
        covered = ", ".join(name for name, ours in POOLINGS.items() if ours)
        problem = f"pooling {' and '.join(chosen) or 'of another kind'} is not covered"
        raise PretrainedError(f"{config.file}: {problem}; covered: one of {covered}")
    return POOLINGS[chosen[0]]


def with_sentence_vectors(imported: Imported, path: Path) -> Imported:
    """Sets the pooling of an encoder. Raises PretrainedError."""
    if (found := sentence_vectors(path)) is None:
        return imported
    if imported.config.architecture != "encoder":
        raise PretrainedError(f"{path / MODULES}: vectors of a model with a decoder are not covered; remove the file")
    changed = replace(imported, config=imported.config.replace(pooling=found.pooling, normalized=found.normalized))
    return changed.shortened(found.max_length) if found.max_length else changed
