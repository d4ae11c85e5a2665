"""Encoder families of `model.pretrained.decoder`: BERT, RoBERTa, XLM-R and DistilBERT, bare, with a masked head or
classifying.

All are one layout: learned positions, a norm behind the embeddings, post-norm blocks, and heads that `model.encoder`
has under other names. Texts are single, so the embedding of the first segment is part of every position. RoBERTa counts
positions from the id after its padding: the rows before that are left out.

Which ids stand around texts, and which is the mask, is no part of their config.json: `with_special_tokens` reads it
from the tokenizer's files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from model.architecture_config import EncoderConfig
from model.config import ModelConfig, SpecialTokenTemplate
from model.pretrained.files import ACTIVATIONS, CONFIG, Family, Fields, Imported, PretrainedError, Weights

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
KINDS = {"Model": "bare", "ForMaskedLM": "masked", "ForPreTraining": "masked", "ForSequenceClassification": "classify"}
PARTS = ("weight", "bias")
OLD_PARTS = {"weight": "gamma", "bias": "beta"}  # of norms in checkpoints that began as TensorFlow's
NORM_EPS = 1e-12  # of BERT, and fixed in DistilBERT
REGRESSION = 1  # so many labels are no labels, but a number


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where a family keeps what all of them have. Names of layers are below `layers`.N., heads at the top.

    masked_head: dense layer, norm, product with the vocabulary, and the bias of the last. classifier: a dense layer,
    its activation, and the product with the labels.
    """

    base: str  # of all but the heads, where there is one
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
    """Liu et al. 2019, and Conneau et al. 2020 for XLM-R. The masked head's activation is GELU, whatever the layers'
    is."""
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
    """bare, masked or classify, by the class that saved the model."""
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
    """first_position: the row of the table of positions that belongs to the first token."""
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
            weights.leave(f"{pooler}.")  # nobody asks it
        ours |= _linear(weights, dense, "pooler.dense") | _linear(weights, label, "label")
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
        ours |= _linear(weights, pooler, "pooler.dense")
        head = {"pooler": "tanh"}
    is_tied = bool(config.get("tie_word_embeddings", True))
    if kind == "masked":
        ours |= _masked_head(layout, weights, None if not is_tied else ours["encoder.embedding.tokens.weight"])
        head |= {"head": "masked", "output_bias": True}
    weights.leave("cls.seq_relationship.", f"{base}embeddings.position_ids")  # next sentences; numbers in their order
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
    query_key_value = {
        f"{ours}self_attention.query_key_value.{part}": weights.stack(
            *(f"{theirs}{name}.{part}" for name in layout.query_key_value)
        )
        for part in PARTS
    }
    return {
        **query_key_value,
        **_linear(weights, f"{theirs}{layout.output}", f"{ours}self_attention.output"),
        **_norm(weights, f"{theirs}{layout.attention_norm}", f"{ours}self_residual.norm"),
        **_linear(weights, f"{theirs}{layout.inner}", f"{ours}feed_forward.inner"),
        **_linear(weights, f"{theirs}{layout.outer}", f"{ours}feed_forward.outer"),
        **_norm(weights, f"{theirs}{layout.feed_forward_norm}", f"{ours}feed_forward_residual.norm"),
    }


def _masked_head(layout: _Layout, weights: Weights, tied: Tensor | None) -> dict[str, Tensor]:
    """tied: the embeddings, where they are the product with the vocabulary as well."""
    dense, norm, product, bias = layout.masked_head
    ours = _linear(weights, dense, "masked.dense") | _norm(weights, norm, "masked.norm")
    ours["masked.unembedding.weight"] = weights.take(f"{product}.weight") if tied is None else tied
    own = f"{product}.bias"  # where there are both, this is the one that is added
    ours["masked.unembedding.bias"] = weights.take(own if own in weights else bias)
    weights.leave(f"{product}.", bias)  # second names of what is tied
    return ours


def _linear(weights: Weights, theirs: str, ours: str) -> dict[str, Tensor]:
    return {f"{ours}.{part}": weights.take(f"{theirs}.{part}") for part in PARTS}


def _norm(weights: Weights, theirs: str, ours: str) -> dict[str, Tensor]:
    names = {part: f"{theirs}.{OLD_PARTS[part]}" for part in PARTS}
    return {
        f"{ours}.{part}": weights.take(old if (old := names[part]) in weights else f"{theirs}.{part}") for part in PARTS
    }


def _labels(config: Fields, count: int) -> tuple[str, ...]:
    if count == REGRESSION:
        raise PretrainedError(
            f"{CONFIG}: problem_type regression is not covered: there is one label, whose logit is a number"
        )
    names: Mapping[str, Any] = config.get("id2label", {})
    return tuple(str(names.get(str(place), f"LABEL_{place}")) for place in range(count))


# ---- special tokens


def with_special_tokens(imported: Imported, path: Path) -> Imported:
    """With the ids of the tokens around texts and of the mask, as the tokenizer's files in `path` say.

    Raises PretrainedError where one of them is not told.
    """
    model = imported.config
    ids = _special_ids(path, model)
    wanted = ("cls", "sep", *(("mask",) if model.head == "masked" else ()))
    for name in wanted:
        if name not in ids:
            raise PretrainedError(
                f"{path}: the id of {name}_token is not told by {TOKENIZER_CONFIG}, {SPECIAL_TOKENS_MAP} and the "
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
        for key, value in _read(path / file).items():
            text = value.get("content") if isinstance(value, Mapping) else value
            if key.endswith("_token") and isinstance(text, str):
                texts[key.removesuffix("_token")] = text
    vocabulary = _vocabulary(path)
    if not vocabulary and (path / "sentencepiece.bpe.model").is_file():
        # What XLM-R adds to its SentencePiece model, in the order in which fairseq has it.
        return {"cls": 0, "sep": 2, "unk": 3, "mask": model.vocab_size - 1}
    return {name: vocabulary[text] for name, text in texts.items() if text in vocabulary}


def _vocabulary(path: Path) -> dict[str, int]:
    """Ids by the texts of tokens, from whichever file there is; none if there is none that is read here."""
    whole = _read(path / "tokenizer.json")
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
    return _read(path / "vocab.json")


def _read(file: Path) -> dict[str, Any]:
    """The object in a JSON file; {} if there is no such file."""
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{file}: cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise PretrainedError(f"{file}: must hold an object")
    return values
