"""The files of a model's tokenizer as gateways read them (`tokenizer_archive`): a ZIP of tokenizer.json and
tokenizer_config.json.

A gateway tokenizes by itself. It gets the bundle's tokenizer, which adds the model's start tokens to a text, the names
of its special tokens, and its chat template, if the bundle has one.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from service.edge.models.served_model import ServedModel
from service.errors import Unsupported

WRITTEN = (1980, 1, 1, 0, 0, 0)  # the same files give the same archive


def tokenizer_archive(model: ServedModel) -> bytes:
    """The archive. Raises Unsupported for a tokenizer that only this service can read."""
    values = json.loads(model.tokenizer.to_json())
    start = model.manifest.template.target_prefix
    names = {token: name for name, token in model.tokenizer.special.items()}
    if not model.tokenizer.is_standard or not all(isinstance(token, int) and token in names for token in start):
        raise Unsupported(
            f"model {model.name!r} segments text in a way that tokenizer.json cannot say; give the gateway the "
            "original model's files (smg: --tokenizer-path)"
        )
    values["post_processor"] = _post_processor([names[token] for token in start if isinstance(token, int)], names)
    special = model.manifest.tokens
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.manifest.limits.max_target_len,
        "clean_up_tokenization_spaces": False,
        **{
            f"{key}_token": names[token]
            for key, token in (("bos", special.bos), ("eos", special.eos), ("pad", special.pad), ("unk", special.unk))
            if token in names
        },
    }
    if model.chat is not None:
        config |= {**model.chat.template.special_tokens, "chat_template": model.chat.template.source}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (("tokenizer.json", values), ("tokenizer_config.json", config)):
            entry = zipfile.ZipInfo(name, WRITTEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, json.dumps(content, ensure_ascii=False))
    return data.getvalue()


def _post_processor(start: Sequence[str], names: Mapping[int, str]) -> dict[str, Any]:
    """The post-processor that puts start tokens before a text."""
    ids = {name: token for token, name in names.items()}
    before = [{"SpecialToken": {"id": name, "type_id": 0}} for name in start]
    texts = [{"Sequence": {"id": which, "type_id": index}} for index, which in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [*before, texts[0]],
        "pair": [*before, *texts],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in start},
    }
