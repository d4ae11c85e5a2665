"""The metadata of a GGUF file → the fields of the config.json from which the model was converted.

Each key of the architecture is read, has no effect, or is refused: a file that says more than a family of Glossa can do
would be another model. The keys are those that llama.cpp's convert_hf_to_gguf.py writes and its loader reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from model.pretrained.files import PretrainedError
from model.pretrained.gguf.file import Gguf
from model.pretrained.gguf.rotary_factors import rotary_scaling

EMBEDDING = "token_embd.weight"
ROTARY_FACTORS = "rope_freqs.weight"


class Architecture(NamedTuple):
    """How an architecture of llama.cpp is one of transformers.

    model_type: the family of `model.pretrained.decoder`. counts, numbers: keys, without the architecture's name, to
    fields of config.json. is_partly_rotated: only a share of each head may be rotated. has_biases: of attention and
    feed-forward, if they are stored. has_window: attention slides over a window. largest: layers of the largest Gemma 2
    or 3, whose scores have another scale; 0: of another family.
    """

    model_type: str
    counts: Mapping[str, str]
    numbers: Mapping[str, str]
    is_rotary: bool = True
    is_partly_rotated: bool = False
    has_biases: bool = False
    has_window: bool = False
    largest: int = 0


_COUNTS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_GPT2_COUNTS = dict(zip(_COUNTS, ("n_positions", "n_embd", "n_layer", "n_inner", "n_head"), strict=True))
_RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}

ARCHITECTURES = {  # by `general.architecture`
    "gemma": Architecture("gemma", _COUNTS, _RMS, has_biases=True),
    "gemma2": Architecture("gemma2", _COUNTS, _RMS, has_biases=True, largest=46),
    "gemma3": Architecture("gemma3_text", _COUNTS, _RMS, has_biases=True, largest=62),
    "gpt2": Architecture("gpt2", _GPT2_COUNTS, {"attention.layer_norm_epsilon": "layer_norm_epsilon"}, is_rotary=False),
    "llama": Architecture("llama", _COUNTS, _RMS, has_biases=True),
    "phi2": Architecture("phi", _COUNTS, {"attention.layer_norm_epsilon": "layer_norm_eps"}, is_partly_rotated=True),
    "phi3": Architecture("phi3", _COUNTS, _RMS, is_partly_rotated=True, has_window=True),
    "qwen2": Architecture("qwen2", _COUNTS, _RMS),
    "qwen3": Architecture("qwen3", _COUNTS, _RMS, has_biases=True),
}
NO_EFFECT = (  # of an architecture's keys: tensors have their own shapes, and plain scaling needs no original length
    *("vocab_size", "tensor_data_layout", "expert_used_count"),
    *("rope.scaling.original_context_length", "rope.scaling.finetuned"),
)
TOKENIZER_NO_EFFECT = (  # patterns: roles that no request uses, and other forms of what is read
    *("tokenizer.ggml.*_token_id", "tokenizer.ggml.token_type_count"),
    *("tokenizer.chat_templates", "tokenizer.huggingface.json"),
)
NEUTRAL: tuple[Any, ...] = (0, False, "", [])


def architecture_of(gguf: Gguf) -> tuple[str, Architecture]:
    """The architecture's name and what it is. Raises PretrainedError for one that is not covered."""
    kind = gguf.fields.get("general.type", "model")
    if kind != "model":
        raise gguf.fields.refuse("general.type", "covered: 'model'")
    name = gguf.fields.only("general.architecture", *ARCHITECTURES, default=None)
    return name, ARCHITECTURES[name]


def configuration_of(gguf: Gguf) -> dict[str, Any]:
    """The fields of config.json, without special tokens. Raises PretrainedError for what is missing or not covered."""
    name, architecture = architecture_of(gguf)
    fields = gguf.fields
    found: dict[str, Any] = {
        "model_type": architecture.model_type,
        "vocab_size": gguf.rows(EMBEDDING),
        # Of two tensors that differ, each is used; of one, or two that are equal, one.
        "tie_word_embeddings": True,
        **{theirs: fields.count(f"{name}.{key}") for key, theirs in architecture.counts.items()},
        **{theirs: fields.number(f"{name}.{key}") for key, theirs in architecture.numbers.items()},
    }
    fields.only(f"{name}.attention.causal", True, default=True)
    if (blocks := fields.count(f"{name}.block_count")) > len(gguf.tensors):
        raise PretrainedError(f"{name}.block_count {blocks} is more than the {len(gguf.tensors)} tensors of the file")
    heads = fields.count(f"{name}.attention.head_count")
    if f"{name}.attention.head_count_kv" in fields:
        found["num_key_value_heads"] = fields.count(f"{name}.attention.head_count_kv")
    if architecture.is_rotary:
        head_dim = _head_dim(gguf, name, heads)
        found |= {"head_dim": head_dim, **_rotary(gguf, name, architecture, head_dim)}
    if architecture.has_biases:
        found["attention_bias"] = "blk.0.attn_q.bias" in gguf.tensors
        found["mlp_bias"] = "blk.0.ffn_up.bias" in gguf.tensors
    if architecture.has_window and fields.get(window := f"{name}.attention.sliding_window", 0) != 0:
        found["sliding_window"] = fields.count(window)
    if architecture.largest:
        found |= _gemma(gguf, name, found, is_largest=blocks == architecture.largest)
    return found


def _gemma(gguf: Gguf, name: str, found: dict[str, Any], *, is_largest: bool) -> dict[str, Any]:
    """Fields of Gemma 2 and 3: what llama.cpp knows of a file's model without keys."""
    fields, heads = gguf.fields, found["num_attention_heads"]
    has_window = fields.get(window := f"{name}.attention.sliding_window", 0) != 0
    more: dict[str, Any] = {"query_pre_attn_scalar": found["hidden_size"] // heads if is_largest else found["head_dim"]}
    if has_window:
        more["sliding_window"] = fields.count(window)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if f"{name}.{key}" in fields:
            more[key] = fields.number(f"{name}.{key}")
    if name == "gemma3":
        sliding = {"rope_theta": fields.number(f"{name}.rope.freq_base_swa", 10000.0)} if has_window else {}
        more["rope_parameters"] = {"full_attention": found["rope_parameters"], "sliding_attention": sliding}
        more |= {} if has_window else {"layer_types": ["full_attention"] * found["num_hidden_layers"]}
    return more


def check_keys(gguf: Gguf) -> None:
    """Raises PretrainedError for a key of the architecture or the tokenizer that nothing has read and that has a
    value which may change an answer."""
    name, _ = architecture_of(gguf)
    ignored = (*(f"{name}.{key}" for key in NO_EFFECT), *TOKENIZER_NO_EFFECT)
    for key in gguf.fields.unread:
        is_known = not key.startswith((f"{name}.", "tokenizer.")) or any(fnmatchcase(key, one) for one in ignored)
        if not is_known and gguf.fields.get(key, None) not in NEUTRAL:
            raise gguf.fields.refuse(key)


def _head_dim(gguf: Gguf, name: str, heads: int) -> int:
    fields, width = gguf.fields, gguf.fields.count(f"{name}.embedding_length")
    if f"{name}.attention.key_length" not in fields:
        return width // heads
    head_dim = fields.count(f"{name}.attention.key_length")
    fields.only(f"{name}.attention.value_length", head_dim, default=head_dim)
    return head_dim


def _rotary(gguf: Gguf, name: str, architecture: Architecture, head_dim: int) -> dict[str, Any]:
    """Fields of rotary positions; angles and scaling as llama.cpp has them where a key is missing."""
    fields = gguf.fields
    rope: dict[str, Any] = {"rope_theta": fields.number(f"{name}.rope.freq_base", 10000.0)}
    key = f"{name}.rope.dimension_count"
    rotated = fields.count(key) if key in fields else head_dim
    if rotated != head_dim and not architecture.is_partly_rotated:
        raise fields.refuse(key, f"covered: {head_dim}, all dimensions of a head")
    kind = fields.only(f"{name}.rope.scaling.type", "none", "linear", default="linear")
    factor = fields.number(f"{name}.rope.scaling.factor", 0.0)
    if kind == "linear" and factor not in (0.0, 1.0):
        rope |= {"rope_type": "linear", "factor": factor}
    if ROTARY_FACTORS in gguf.tensors and architecture.model_type == "llama":
        if "factor" in rope:
            raise PretrainedError(f"{name}.rope.scaling.factor {factor} beside {ROTARY_FACTORS} is not covered")
        rope |= rotary_scaling(gguf.tensor(ROTARY_FACTORS), rope["rope_theta"], head_dim)
    # The family rounds the product of the share and the dimensions down.
    share = (rotated + 0.5) / head_dim if rotated < head_dim else 1.0
    return {"rope_parameters": rope, **({"partial_rotary_factor": share} if architecture.is_partly_rotated else {})}
