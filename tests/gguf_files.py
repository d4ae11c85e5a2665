"""GGUF files of the random models of `tests.decoders`, with the names, keys and layouts of llama.cpp's converter."""

import re
from typing import Any

import gguf
import numpy as np
import torch

NAMES = (  # transformers → GGUF
    (r"^(model|transformer)\.(embed_tokens|wte)\.", "token_embd."),
    (r"^transformer\.wpe\.", "position_embd."),
    (r"^(model\.norm|model\.final_layernorm|transformer\.ln_f)\.", "output_norm."),
    (r"^lm_head\.", "output."),
    (r"^(model\.layers|transformer\.h)\.", "blk."),
    (r"\.(input_layernorm|ln_1)\.", ".attn_norm."),
    (r"\.(post_attention_layernorm|ln_2)\.", ".ffn_norm."),
    (r"\.pre_feedforward_layernorm\.", ".ffn_norm."),
    (r"\.post_feedforward_layernorm\.", ".post_ffw_norm."),
    (r"\.self_attn\.(q|k|v)_proj\.", r".attn_\1."),
    (r"\.self_attn\.(q|k)_norm\.", r".attn_\1_norm."),
    (r"\.(self_attn\.qkv_proj|attn\.c_attn)\.", ".attn_qkv."),
    (r"\.(self_attn\.o_proj|self_attn\.dense|attn\.c_proj)\.", ".attn_output."),
    (r"\.mlp\.gate_proj\.", ".ffn_gate."),
    (r"\.mlp\.(up_proj|gate_up_proj|fc1|c_fc)\.", ".ffn_up."),
    (r"\.mlp\.(down_proj|fc2|c_proj)\.", ".ffn_down."),
)
ARCHITECTURES = {"phi": "phi2", "mistral": "llama", "gemma3_text": "gemma3"}  # by model_type; others have the same name
KINDS = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}


def tensors_of(model) -> dict[str, np.ndarray]:
    """The tensors of a file, in float32."""
    kind, config, found = model.config.model_type, model.config, {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = name
        if kind in ("gemma2", "gemma3_text"):
            stored = stored.replace("post_attention_layernorm", "post_attention_norm")
        for pattern, ours in NAMES:
            stored = re.sub(pattern, ours, stored)
        values = parameter.float().numpy()
        if kind in ("llama", "mistral") and re.search(r"\.attn_[qk]\.", stored):
            heads = config.num_key_value_heads if ".attn_k." in stored else config.num_attention_heads
            halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if kind.startswith("gemma") and stored.endswith("norm.weight"):
            values = values + 1
        if kind == "gpt2" and stored.startswith("blk.") and values.ndim == 2:
            values = values.T
        found[stored] = np.ascontiguousarray(values)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        found["rope_freqs.weight"] = llama3_factors(rope, config.head_dim)
    return found


def llama3_factors(rope, head_dim):
    """The factors of `LlamaModel.generate_extra_tensors`."""
    low, high, length = (
        rope[name] for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    factors = []
    for frequency in 1.0 / (rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)):
        wavelength = 2 * torch.pi / frequency
        if wavelength < length / high:
            factors.append(1.0)
        elif wavelength > length / low:
            factors.append(rope["factor"])
        else:
            smooth = (length / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array([float(factor) for factor in factors], np.float32)


def metadata_of(model) -> dict[str, Any]:
    """The keys of a file, without the tokenizer's."""
    config = model.config
    kind = ARCHITECTURES.get(config.model_type, config.model_type)
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "feed_forward_length": 4 * config.hidden_size if kind == "gpt2" else config.intermediate_size,
    }
    epsilon = next(name for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon") if hasattr(config, name))
    values[f"attention.layer_norm_{'rms_' if 'rms' in epsilon else ''}epsilon"] = getattr(config, epsilon)
    if kind != "gpt2":
        rope, head_dim = config.rope_parameters, model.model.layers[0].self_attn.head_dim
        rope = rope.get("full_attention", rope)
        values |= {
            "attention.head_count_kv": config.num_key_value_heads,
            "rope.freq_base": rope["rope_theta"],
            "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "vocab_size": config.vocab_size,
        }
        if rope["rope_type"] == "linear":
            values |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    if kind in ("phi3", "gemma2", "gemma3"):
        values["attention.sliding_window"] = config.sliding_window or 0
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if cap := getattr(config, name, None):
            values[name] = cap
    return {"general.architecture": kind, **{f"{kind}.{name}": value for name, value in values.items()}}


def characters(size) -> dict[str, Any]:
    """A tokenizer of the kind `llama` whose pieces are single characters."""
    tokens = ["<unk>", "<s>", "</s>", *(chr(0x4E00 + index) for index in range(size - 3))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(index) for index in range(size)],
        "tokenizer.ggml.token_type": [2, 3, 3, *[1] * (size - 3)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def write_gguf(path, metadata, tensors, *, types=None, endian=gguf.GGUFEndian.LITTLE, **options):
    """Writes a file. types: of the tensors that are not float32, by name. options: of the writer, for split files."""
    metadata = {name: value for name, value in metadata.items() if value is not ...}
    architecture = metadata.get("general.architecture", "")
    writer = gguf.GGUFWriter(path, architecture, endianess=endian, **options)
    for name, value in metadata.items():
        if name != "general.architecture":  # the writer has it
            getattr(writer, f"add_{KINDS[type(value)]}")(name, value)
    for name, values in tensors.items():
        kind = (types or {}).get(name, gguf.GGMLQuantizationType.F32)
        if kind == gguf.GGMLQuantizationType.I32:
            writer.add_tensor(name, values.astype(np.int32))
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_of(path, model, *, types=None, drop=(), more=None, tokenizer=None, **changes):
    """Writes the file of a model. drop: names of tensors that are left out. more: further ones. changes: of metadata,
    with `__` for each `.` of a key; ... leaves it out."""
    metadata = {**metadata_of(model), **(tokenizer or characters(model.config.vocab_size))}
    metadata |= {name.replace("__", "."): value for name, value in changes.items()}
    tensors = {name: values for name, values in tensors_of(model).items() if name not in drop}
    return write_gguf(path, metadata, {**tensors, **(more or {})}, types=types)
