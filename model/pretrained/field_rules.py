"""What becomes of the fields that no family reads: some refuse a checkpoint, some are options of requests, and some
have no effect. Others are unknown; an import names them.

The oracle is transformers: a field has no effect if no value of it changes what its model computes, in float32 and
outside training. docs/import.md explains the choices.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from model.pretrained.files import TOKENIZER, TOKENIZER_CONFIG, Fields, PretrainedError, read_optional_json

# Fields of config.json that change the output in every family and are not supported by any.
REFUSED = (
    "quantization_config",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_kv_shared_layers",
)
# Fields that change the output of families that read them; in a file of another family they may be a mistake.
REFUSED_UNREAD = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "embedding_multiplier",
    "attention_multiplier",
    "logits_scaling",
    "no_rope_layers",
)
# Settings of `generate` that change every answer and that no request of Glossa can ask for.
REFUSED_SETTINGS = (
    "constraints",
    "dola_layers",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "guidance_scale",
    "penalty_alpha",
    "sequence_bias",
    "token_healing",
    "top_h",
    "watermarking_config",
)
NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, [], {})  # values of settings that change nothing
# Settings of `generate` that each request of Glossa has for itself.
OPTIONS = (
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "stop_strings",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
)
_RULES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NO_EFFECT = frozenset(" ".join(_RULES["no_effect"].values()).split())
TOKENIZER_READ, TOKENIZER_NO_EFFECT = (frozenset(_RULES["tokenizer"][kind].split()) for kind in ("read", "no_effect"))


def check_fields(config: Fields, generation: Fields) -> None:
    """Raises PretrainedError for a field that excludes a model of every family."""
    for name in REFUSED:
        if config.get(name, None):
            raise config.refuse(name)
    steering = generation or config
    for name in REFUSED_SETTINGS:
        if steering.get(name, None) not in NEUTRAL:
            raise steering.refuse(name, "no request can ask for it; remove it")


def check_unread(config: Fields) -> None:
    """Raises PretrainedError for a field that the family has not read, although others mean something by it."""
    for name in sorted(set(config.unread) & set(REFUSED_UNREAD)):
        if config.get(name, None) not in NEUTRAL:
            raise config.refuse(name, "this family has no such field; remove it")


def options_of(config: Fields, generation: Fields) -> dict[str, Any]:
    """The settings of `generate` that a request of Glossa has for itself, without neutral ones."""
    steering = generation or config
    return {name: value for name in OPTIONS if (value := steering.get(name, None)) not in NEUTRAL}


def unknown_fields(config: Fields, generation: Fields, path: Path) -> tuple[str, ...]:
    """The fields of a directory that have been neither read nor decided, each with its file."""
    decided = {*NO_EFFECT, *OPTIONS, *REFUSED_SETTINGS}
    found = [
        f"{fields.file}: {name}" for fields in (config, generation) for name in fields.unread if name not in decided
    ]
    for name, value in read_optional_json(path / TOKENIZER_CONFIG).items():
        if value is not None and not name.endswith("_token") and name not in TOKENIZER_READ | TOKENIZER_NO_EFFECT:
            found.append(f"{TOKENIZER_CONFIG}: {name}")
    return tuple(found)


def check_tokenizer_fields(path: Path) -> None:
    """Raises PretrainedError where tokenizer_config.json contradicts the tokenizer.json beside it: classes of
    transformers obey the first, others the second."""
    values, config = read_optional_json(path / TOKENIZER), read_optional_json(path / TOKENIZER_CONFIG)
    if not values:
        return
    normalizer, cut = (_steps(values.get(part), f"{part}s") for part in ("normalizer", "pre_tokenizer"))
    for step in normalizer:
        if step.get("type") == "BertNormalizer":
            for name, theirs in BERT_NORMALIZER.items():
                _check_same(config, name, step.get(theirs))
    for step in cut:
        if step.get("type") == "ByteLevel":
            _check_same(config, "add_prefix_space", step.get("add_prefix_space"))
    known = {item.get("content") for item in values.get("added_tokens") or ()} | _pieces(values)
    for item in (config.get("added_tokens_decoder") or {}).values():
        if not item.get("special") and item.get("content") not in known:
            raise PretrainedError(
                f"{TOKENIZER_CONFIG}: added_tokens_decoder: {item.get('content')!r} is not in {TOKENIZER}; save the "
                "tokenizer again"
            )


BERT_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def _steps(part: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a part of a tokenizer.json, which is one or a sequence."""
    if not isinstance(part, dict):
        return []
    return [step for item in part.get(inner.replace("_", ""), ()) for step in _steps(item, inner)] or [part]


def _pieces(values: dict[str, Any]) -> set[str]:
    vocabulary = (values.get("model") or {}).get("vocab") or ()
    return {item if isinstance(item, str) else item[0] for item in vocabulary}


def _check_same(config: dict[str, Any], name: str, value: Any) -> None:
    if config.get(name) is not None and config[name] != value:
        raise PretrainedError(
            f"{TOKENIZER_CONFIG}: {name} {config[name]!r} contradicts {TOKENIZER}, which has {value!r}; correct "
            "one of them"
        )
