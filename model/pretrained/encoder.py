"""Encoder families: BERT, RoBERTa, XLM-R and DistilBERT, without a head, with a masked-LM head or as classifiers.

All share one layout: learned positions, a norm after the embeddings, post-norm blocks, and the heads of
`model.encoder` under other names. Inputs are single texts, so the embedding of segment 0 is added to every position.
RoBERTa numbers positions from the id after its padding token: the rows before that are dropped.

The ids of the cls, sep and mask tokens are not in config.json: `with_special_tokens` reads them from the tokenizer
files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from model.architecture_config import EncoderConfig
from model.config import ModelConfig, SpecialTokenTemplate
from model.pretrained.files import (
    ACTIVATIONS,
    CONFIG,
    TOKENIZER_CONFIG,
    Family,
    Fields,
    Imported,
    PretrainedError,
    Weights,
    read_optional_json,
)

SPECIAL_TOKENS_MAP = "special_tokens_map.json"
KINDS = {"Model": "bare", "ForMaskedLM": "masked", "ForPreTraining": "masked", "ForSequenceClassification": "classify"}
OLD_PARTS = {"weight": "gamma", "bias": "beta"}  # names of norm parameters in checkpoints converted from TensorFlow
NORM_EPS = 1e-12  # of BERT, and fixed in DistilBERT
REGRESSION = 1  # with one label the output is a number


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Weight names of a family. Names of layers are relative to `layers`.N., names of heads are absolute.

    masked_head: dense layer, norm, output projection and its bias. classifier: dense layer, its activation, and the
    projection to the labels.
    """

    base: str  # prefix of everything but the heads, absent in models without a head
    layers: str
    query_key_value: tuple[str, str, str]
    output: str
    attention_norm: str
    inner: str
    outer: str
    feed_forward_norm: str
    masked_head: tuple[str, str, str, str]
    pooler: str
    classifier: tuple[str, str, str]


BERT = _Layout(
    base="bert.",
    layers="encoder.layer",
    query_key_value=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    inner="intermediate.dense",
    outer="output.dense",
    feed_forward_norm="output.LayerNorm",
    masked_head=(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
    pooler="pooler.dense",
    classifier=("bert.pooler.dense", "tanh", "classifier"),
)
ROBERTA = replace(
    BERT,
    base="roberta.",
    masked_head=("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
    classifier=("classifier.dense", "tanh", "classifier.out_proj"),
)
DISTILBERT = _Layout(
    base="distilbert.",
    layers="transformer.layer",
    query_key_value=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    output="attention.out_lin",
    attention_norm="sa_layer_norm",
    inner="ffn.lin1",
    outer="ffn.lin2",
    feed_forward_norm="output_layer_norm",
    masked_head=("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
    pooler="",
    classifier=("pre_classifier", "relu", "classifier"),
)


def _bert(config: Fields, _generation: Fields, weights: Weights) -> Imported:
    """Devlin et al. 2019."""
    return _import(BERT, config, weights, _bert_shape(config), first_position=0)


def _roberta(config: Fields, _generation: Fields, weights: Weights) -> Imported:
    """Liu et al. 2019, and Conneau et al. 2020 for XLM-R. The masked head always uses GELU."""
    if _kind(config) == "masked":
        config.only("hidden_act", "gelu", default="gelu")
    return _import(ROBERTA, config, weights, _bert_shape(config), first_position=config.get("pad_token_id", 1) + 1)


def _distilbert(config: Fields, _generation: Fields, weights: Weights) -> Imported:
    """Sanh et al. 2019: no segments, and no pooler."""
    shape = {
        "d_model": config.need("dim"),
        "num_heads": config.need("n_heads"),
        "d_ff": config.need("hidden_dim"),
        "num_encoder_layers": config.need("n_layers"),
        "activation": config.choice("activation", ACTIVATIONS, default="gelu"),
        "norm_eps": NORM_EPS,
    }
    return _import(DISTILBERT, config, weights, shape, first_position=0)


def _bert_shape(config: Fields) -> dict[str, Any]:
    config.only("position_embedding_type", "absolute", default="absolute")
    return {
        "d_model": config.need("hidden_size"),
        "num_heads": config.need("num_attention_heads"),
        "d_ff": config.need("intermediate_size"),
        "num_encoder_layers": config.need("num_hidden_layers"),
        "activation": config.choice("hidden_act", ACTIVATIONS, default="gelu"),
        "norm_eps": config.get("layer_norm_eps", NORM_EPS),
    }


FAMILIES: dict[str, Family] = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "distilbert": _distilbert,
}


def _kind(config: Fields) -> str:
    """bare, masked or classify, from the class that saved the model."""
    classes = config.get("architectures", ["Model"])
    if isinstance(classes, list) and len(classes) == 1:
        for ending, kind in KINDS.items():
            if str(classes[0]).endswith(ending):
                return kind
    covered = ", ".join(f"*{ending}" for ending in KINDS)
    raise PretrainedError(f"{CONFIG}: architectures {classes!r} is not covered; covered: {covered}")


def _import(
    layout: _Layout, config: Fields, weights: Weights, shape: Mapping[str, Any], *, first_position: int
) -> Imported:
    """first_position: the row of the position table for the first token."""
    config.only("is_decoder", False, default=False)
    config.only("add_cross_attention", False, default=False)
    config.only("pruned_heads", {}, default={})
    kind = _kind(config)
    words = f"{layout.base}embeddings.word_embeddings.weight"
    base = layout.base if words in weights else ""
    ours = _embeddings(base, weights, first_position)
    for i in range(shape["num_encoder_layers"]):
        ours |= _block(layout, f"{base}{layout.layers}.{i}.", f"encoder.blocks.{i}.", weights)
    head: dict[str, Any] = {}
    pooler = f"{base}{layout.pooler}"
    if kind == "classify":
        dense, activation, label = layout.classifier
        if dense != pooler:
            weights.leave(f"{pooler}.")  # unused by the classifier
        ours |= weights.layer("pooler.dense", dense) | weights.layer("label", label)
        labels = _labels(config, len(ours["label.bias"]))
        is_multiple = config.only(
            "problem_type",
            "single_label_classification",
            "multi_label_classification",
            default="single_label_classification",
        )
        head = {"head": "classify", "pooler": activation, "labels": labels}
        head["multi_label"] = is_multiple == "multi_label_classification"
    elif layout.pooler and f"{pooler}.weight" in weights:
        ours |= weights.layer("pooler.dense", pooler)
        head = {"pooler": "tanh"}
    is_tied = bool(config.get("tie_word_embeddings", True))
    if kind == "masked":
        ours |= _masked_head(layout, weights, None if not is_tied else ours["encoder.embedding.tokens.weight"])
        head |= {"head": "masked", "output_bias": True}
    weights.leave("cls.seq_relationship.", f"{base}embeddings.position_ids")  # next-sentence prediction; 0, 1, 2, ...
    pad_id = config.get("pad_token_id", 0)
    model = EncoderConfig(
        vocab_size=config.need("vocab_size"),
        norm_position="post",
        positions="learned",
        embedding_scale=1.0,
        embedding_norm=True,
        tie_embeddings=is_tied,
        max_source_len=len(ours["encoder.embedding.positions"]),
        pad_id=pad_id,
        bos_id=config.get("bos_token_id", pad_id),
        eos_id=config.get("eos_token_id", pad_id),
        unk_id=pad_id,
        **shape,
        **head,
    )
    return Imported(config=model, weights=ours)


def _embeddings(base: str, weights: Weights, first_position: int) -> dict[str, Tensor]:
    theirs, ours = f"{base}embeddings.", "encoder.embedding."
    positions = weights.take(f"{theirs}position_embeddings.weight")[first_position:]
    if f"{theirs}token_type_embeddings.weight" in weights:
        positions = positions + weights.take(f"{theirs}token_type_embeddings.weight")[0]
    return {
        f"{ours}tokens.weight": weights.take(f"{theirs}word_embeddings.weight"),
        f"{ours}positions": positions.contiguous(),
        **_norm(weights, f"{theirs}LayerNorm", f"{ours}norm"),
    }


def _block(layout: _Layout, theirs: str, ours: str, weights: Weights) -> dict[str, Tensor]:
    projections = (f"{theirs}{name}" for name in layout.query_key_value)
    return {
        **weights.layer(f"{ours}self_attention.query_key_value", *projections),
        **weights.layer(f"{ours}self_attention.output", f"{theirs}{layout.output}"),
        **_norm(weights, f"{theirs}{layout.attention_norm}", f"{ours}self_residual.norm"),
        **weights.layer(f"{ours}feed_forward.inner", f"{theirs}{layout.inner}"),
        **weights.layer(f"{ours}feed_forward.outer", f"{theirs}{layout.outer}"),
        **_norm(weights, f"{theirs}{layout.feed_forward_norm}", f"{ours}feed_forward_residual.norm"),
    }


def _masked_head(layout: _Layout, weights: Weights, tied: Tensor | None) -> dict[str, Tensor]:
    """tied: the token embeddings if the output projection shares them."""
    dense, norm, product, bias = layout.masked_head
    ours = weights.layer("masked.dense", dense) | _norm(weights, norm, "masked.norm")
    ours["masked.unembedding.weight"] = weights.take(f"{product}.weight") if tied is None else tied
    own = f"{product}.bias"  # takes precedence if both exist
    ours["masked.unembedding.bias"] = weights.take(own if own in weights else bias)
    weights.leave(f"{product}.", bias)  # duplicate names of tied weights
    return ours


def _norm(weights: Weights, theirs: str, ours: str) -> dict[str, Tensor]:
    """A normalization layer, whose parameters may have their old TensorFlow names."""
    return {
        f"{ours}.{part}": weights.take(f"{theirs}.{old if f'{theirs}.{old}' in weights else part}")
        for part, old in OLD_PARTS.items()
    }


def _labels(config: Fields, count: int) -> tuple[str, ...]:
    if count == REGRESSION:
        raise PretrainedError(
            f"{CONFIG}: problem_type regression is not covered: with one label, the logit is a number"
        )
    names: Mapping[str, Any] = config.get("id2label", {})
    return tuple(str(names.get(str(place), f"LABEL_{place}")) for place in range(count))


# ---- special tokens


def with_special_tokens(imported: Imported, path: Path) -> Imported:
    """Adds the ids of the cls, sep and mask tokens from the tokenizer files in `path`.

    Raises PretrainedError if one of them is missing.
    """
    model = imported.config
    ids = _special_ids(path, model)
    wanted = ("cls", "sep", *(("mask",) if model.head == "masked" else ()))
    for name in wanted:
        if name not in ids:
            raise PretrainedError(
                f"{path}: the id of {name}_token is missing in {TOKENIZER_CONFIG}, {SPECIAL_TOKENS_MAP} and the "
                "vocabulary; save the model with its tokenizer"
            )
    config = model.replace(
        bos_id=ids["cls"],
        eos_id=ids["sep"],
        unk_id=ids.get("unk", model.unk_id),
        mask_id=ids.get("mask"),
        special_token_template=SpecialTokenTemplate(source_prefix=(ids["cls"],), source_suffix=(ids["sep"],)).to_json(),
    )
    return replace(imported, config=config)


def _special_ids(path: Path, model: ModelConfig) -> dict[str, int]:
    texts: dict[str, str] = {}
    for file in (SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG):
        for key, value in read_optional_json(path / file).items():
            text = value.get("content") if isinstance(value, Mapping) else value
            if key.endswith("_token") and isinstance(text, str):
                texts[key.removesuffix("_token")] = text
    vocabulary = _vocabulary(path)
    if not vocabulary and (path / "sentencepiece.bpe.model").is_file():
        # XLM-R adds these to its SentencePiece model, in fairseq's order.
        return {"cls": 0, "sep": 2, "unk": 3, "mask": model.vocab_size - 1}
    return {name: vocabulary[text] for name, text in texts.items() if text in vocabulary}


def _vocabulary(path: Path) -> dict[str, int]:
    """Token texts and their ids, from the first supported file that exists; {} if there is none."""
    whole = read_optional_json(path / "tokenizer.json")
    if whole:
        pieces = whole.get("model", {}).get("vocab", {})
        pairs: Iterable[tuple[str, int]] = (
            pieces.items()
            if isinstance(pieces, Mapping)
            else ((piece, place) for place, (piece, _) in enumerate(pieces))
        )
        return dict(pairs) | {added["content"]: added["id"] for added in whole.get("added_tokens", ())}
    if (path / "vocab.txt").is_file():
        lines = (path / "vocab.txt").read_text(encoding="utf-8").splitlines()
        return {line: place for place, line in enumerate(lines)}
    return read_optional_json(path / "vocab.json")
