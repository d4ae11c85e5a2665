"""A GGUF file as the directory of a Hugging Face model, which `model.pretrained` reads like any other.

The small files are written to a temporary directory; the weights stay where they are until the configuration and the
tokenizer have been accepted.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from model.pretrained.files import CONFIG, TOKENIZER, TOKENIZER_CONFIG, PretrainedError, Stored
from model.pretrained.gguf.configuration import check_keys, configuration_of
from model.pretrained.gguf.file import Gguf, read_gguf
from model.pretrained.gguf.tokenizer import (
    ENDS,
    special_tokens_of,
    tokenizer_config_of,
    tokenizer_of,
    vocabulary_of,
)
from model.pretrained.gguf.weights import weights_of


@contextlib.contextmanager
def as_folder(file: Path) -> Iterator[tuple[Path, Stored]]:
    """The directory with the model's configuration and tokenizer, and its weights, while the context lasts.

    Raises PretrainedError, and names the file in those of others that concern the directory.
    """
    gguf = read_gguf(file)
    with tempfile.TemporaryDirectory(prefix="glossa-gguf-") as name:
        folder = Path(name)
        try:
            _write(gguf, folder)
            origin = {"imported_from": gguf.parts[0].name, "tensor_types": gguf.tensor_types}
            yield folder, Stored(files=_files(gguf), origin=origin, load=lambda: weights_of(gguf))
        except PretrainedError as error:
            message = str(error).replace(f"{folder}/", "").removeprefix(f"{folder}: ").removeprefix(f"{file}: ")
            raise PretrainedError(f"{file}: {message}") from error


def _files(gguf: Gguf) -> tuple[Path, ...]:
    beside = gguf.parts[0].with_name(TOKENIZER)
    return (*gguf.parts, *([beside] if beside.is_file() else []))


def _write(gguf: Gguf, folder: Path) -> None:
    config, vocabulary = configuration_of(gguf), vocabulary_of(gguf.fields)
    special = special_tokens_of(gguf.fields, vocabulary)
    config["eos_token_id"] = [special[name] for name in ENDS if name in special]
    others = {"bos_token_id": "bos_token_id", "pad_token_id": "padding_token_id"}
    config |= {theirs: special[ours] for theirs, ours in others.items() if ours in special}
    files = {
        CONFIG: config,
        TOKENIZER: tokenizer_of(gguf, vocabulary),
        TOKENIZER_CONFIG: tokenizer_config_of(gguf.fields, vocabulary),
    }
    check_keys(gguf)
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
