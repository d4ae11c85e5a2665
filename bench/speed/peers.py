"""An encoder-decoder of ours as a model of a peer, with the same weights: Hugging Face transformers and CTranslate2.

M2M100 has the architecture of the presets: pre-norm with a last norm, biases, scaled and tied embeddings, sinusoidal
positions. Only its table of positions is laid out otherwise, sines and cosines in halves, and is replaced by ours.
CTranslate2 takes the table as a tensor. Models that the peers cannot represent are rejected, and each model is compared
with ours before it is returned.

The peers are in requirements/bench.in. They are imported by name, so that types can be checked without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.architecture_config import TransformerConfig
from model.config import ModelConfig
from model.layers import Block
from model.transformer import DecoderStack, EncoderDecoder, EncoderStack

MAX_DIFFERENCE = 1e-4  # of a logit, relative to it if above 1; measured: 8e-6, float32 sums in another order
VERIFIED_ROWS = 8  # random token sequences that are compared


class NotRepresentable(ValueError):
    """A peer has no model of this shape, or its numbers are not ours."""


def transformers_model(model: EncoderDecoder) -> Any:
    """M2M100ForConditionalGeneration with our weights; its logits are verified."""
    _check_config(model.config)
    theirs, config = _m2m100(model), model.config
    theirs.generation_config = importlib.import_module("transformers").GenerationConfig(
        pad_token_id=config.pad_id,
        bos_token_id=config.bos_id,
        eos_token_id=config.eos_id,
        decoder_start_token_id=config.bos_id,
    )
    theirs.eval()
    verify("transformers", model, lambda source, inputs: _transformers_logits(theirs, source, inputs))
    return theirs


def save_ctranslate2(model: EncoderDecoder, directory: Path, kind: str) -> None:
    """Writes the model as CTranslate2 reads it. kind: float32, whose logits are verified, or int8, which loses some."""
    _check_config(model.config)
    _write_ctranslate2(model, directory, kind)
    if kind == "float32":
        translator = importlib.import_module("ctranslate2").Translator(
            str(directory), device="cpu", compute_type=kind, intra_threads=1
        )
        verify("CTranslate2", model, lambda source, inputs: _ctranslate2_logits(translator, source, inputs))


def _check_config(config: ModelConfig) -> None:
    is_plain = (
        isinstance(config, TransformerConfig)
        and (config.norm, config.norm_position, config.norm_eps, config.gated) == ("layer", "pre", 1e-5, False)
        and config.bias
        and config.tie_embeddings
        and config.attention_kv_heads == config.num_heads
        and config.attention_head_dim * config.num_heads == config.d_model
        and config.positions != "rotary"
    )
    if not is_plain:
        raise NotRepresentable(f"the peers have no model of this shape: {config}")


class _Positions(nn.Module):
    """Our table in the place of M2M100's positions, which also skip padding tokens wherever they stand."""

    def __init__(self, table_PM: Tensor) -> None:
        super().__init__()
        self.register_buffer("table_PM", table_PM.detach().clone(), persistent=False)

    def forward(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None = None, past_key_values_length: int = 0
    ) -> Tensor:
        tokens = input_ids if input_ids is not None else inputs_embeds
        assert tokens is not None
        table_PM: Tensor = self.get_buffer("table_PM")
        return table_PM[past_key_values_length : past_key_values_length + tokens.shape[1]][None]


def _m2m100(model: EncoderDecoder) -> Any:
    library, config = importlib.import_module("transformers"), model.config
    theirs = library.M2M100ForConditionalGeneration(
        library.M2M100Config(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.num_encoder_layers,
            decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            max_position_embeddings=max(config.max_source_len, config.max_target_len),
            activation_function=config.activation,
            scale_embedding=True,
            pad_token_id=config.pad_id,
            bos_token_id=config.bos_id,
            eos_token_id=config.eos_id,
            decoder_start_token_id=config.bos_id,
        )
    )
    weights: dict[str, Tensor] = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        getattr(theirs.model, side).embed_positions = _Positions(stack.embedding.positions)
        _copy(weights, f"model.{side}.layer_norm", stack.norm)
        for i, block in enumerate(_blocks(stack)):
            name = f"model.{side}.layers.{i}"
            _copy(weights, f"{name}.self_attn_layer_norm", block.self_residual.norm)
            _copy_split(weights, f"{name}.self_attn", "qkv", block.self_attention.query_key_value)
            _copy(weights, f"{name}.self_attn.out_proj", block.self_attention.output)
            if block.cross_attention is not None:
                _copy(weights, f"{name}.encoder_attn_layer_norm", block.cross_residual.norm)
                _copy_split(weights, f"{name}.encoder_attn", "q", block.cross_attention.query)
                _copy_split(weights, f"{name}.encoder_attn", "kv", block.cross_attention.key_value)
                _copy(weights, f"{name}.encoder_attn.out_proj", block.cross_attention.output)
            _copy(weights, f"{name}.final_layer_norm", block.feed_forward_residual.norm)
            _copy(weights, f"{name}.fc1", block.feed_forward.inner)
            _copy(weights, f"{name}.fc2", block.feed_forward.outer)
    for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = model.decoder.unembedding.weight
    theirs.load_state_dict(weights)
    return theirs


def _blocks(stack: EncoderStack | DecoderStack) -> list[Block]:
    return [block for block in stack.blocks if isinstance(block, Block)]


def _copy(weights: dict[str, Tensor], name: str, module: nn.Module) -> None:
    weights |= {f"{name}.{kind}": parameter for kind, parameter in module.named_parameters()}


def _copy_split(weights: dict[str, Tensor], name: str, parts: str, module: nn.Module) -> None:
    """One projection of ours into one of theirs for each letter of `parts`."""
    for kind, parameter in module.named_parameters():
        for letter, part in zip(parts, parameter.chunk(len(parts)), strict=True):
            weights[f"{name}.{letter}_proj.{kind}"] = part


def _write_ctranslate2(model: EncoderDecoder, directory: Path, kind: str) -> None:
    specs, config = importlib.import_module("ctranslate2.specs"), model.config
    activations = importlib.import_module("ctranslate2.specs.common_spec").Activation
    spec = specs.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=True,
        activation={"relu": activations.RELU, "gelu": activations.GELU, "silu": activations.SWISH}[config.activation],
    )
    table = model.decoder.unembedding.weight
    for their_stack, stack in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        embeddings = their_stack.embeddings if stack is model.decoder else their_stack.embeddings[0]
        embeddings.weight = _array(table)
        their_stack.position_encodings.encodings = _array(stack.embedding.positions)
        _set_norm(their_stack.layer_norm, stack.norm)
        for theirs, block in zip(their_stack.layer, _blocks(stack), strict=True):
            _set_norm(theirs.self_attention.layer_norm, block.self_residual.norm)
            _set_linear(theirs.self_attention.linear[0], block.self_attention.query_key_value)
            _set_linear(theirs.self_attention.linear[1], block.self_attention.output)
            if block.cross_attention is not None:
                _set_norm(theirs.attention.layer_norm, block.cross_residual.norm)
                _set_linear(theirs.attention.linear[0], block.cross_attention.query)
                _set_linear(theirs.attention.linear[1], block.cross_attention.key_value)
                _set_linear(theirs.attention.linear[2], block.cross_attention.output)
            _set_norm(theirs.ffn.layer_norm, block.feed_forward_residual.norm)
            _set_linear(theirs.ffn.linear_0, block.feed_forward.inner)
            _set_linear(theirs.ffn.linear_1, block.feed_forward.outer)
    spec.decoder.projection.weight = _array(table)
    names = [str(token) for token in range(config.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token = spec.config.decoder_start_token = str(config.bos_id)
    spec.config.eos_token, spec.config.unk_token = str(config.eos_id), str(config.unk_id)
    spec.validate()
    spec.optimize(quantization=kind)
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def _array(parameter: Tensor) -> np.ndarray:
    return parameter.detach().cpu().numpy().copy()  # CTranslate2 quantises in place


def _set_norm(theirs: Any, norm: nn.Module) -> None:
    weights = dict(norm.named_parameters())
    theirs.gamma, theirs.beta = _array(weights["weight"]), _array(weights["bias"])


def _set_linear(theirs: Any, linear: nn.Module) -> None:
    weights = dict(linear.named_parameters())
    theirs.weight, theirs.bias = _array(weights["weight"]), _array(weights["bias"])


@torch.inference_mode()
def _our_logits(model: EncoderDecoder, source: Sequence[int], inputs: Sequence[int]) -> np.ndarray:
    arguments = torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([inputs])
    return _array(model.decoder.unembedding(model(*arguments)[0]))


@torch.inference_mode()
def _transformers_logits(theirs: Any, source: Sequence[int], inputs: Sequence[int]) -> np.ndarray:
    return _array(theirs(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([inputs])).logits[0])


def _ctranslate2_logits(translator: Any, source: Sequence[int], inputs: Sequence[int]) -> np.ndarray:
    """Of every step while it is forced to repeat the inputs; bos, the first, is its own."""
    (answer,) = translator.translate_batch(
        [[str(token) for token in source]],
        [[str(token) for token in inputs[1:]]],
        beam_size=1,
        max_decoding_length=len(inputs),
        min_decoding_length=0,
        return_logits_vocab=True,
    )
    return np.stack([np.asarray(step).reshape(-1) for step in answer.logits[0]])


def verify(peer: str, model: EncoderDecoder, logits: Any) -> float:
    """The largest difference between a logit of ours and of theirs, over random tokens of random lengths."""
    config, generator, worst = model.config, np.random.default_rng(1), 0.0
    limits = (32, config.max_target_len, config.max_source_len)
    for row in range(VERIFIED_ROWS):
        longest = min(limits) if row else config.max_target_len
        length = int(generator.integers(1, longest)) if row else longest
        source = [*generator.integers(4, config.vocab_size, length - 1).tolist(), config.eos_id]
        inputs = [config.bos_id, *generator.integers(4, config.vocab_size, length - 1).tolist()]
        source = source[-config.max_source_len :]
        ours_TV, theirs_TV = _our_logits(model, source, inputs), logits(source, inputs)
        worst = max(worst, float((np.abs(ours_TV - theirs_TV) / np.maximum(1, np.abs(ours_TV))).max()))
    if not worst < MAX_DIFFERENCE:
        raise NotRepresentable(f"{peer}: logits differ by up to {worst:.1e}, allowed are {MAX_DIFFERENCE:.0e}")
    print(f"{peer}: logits as ours, largest difference {worst:.1e}")
    return worst
