"""Encoder families: BERT, RoBERTa, XLM-R and DistilBERT, without a head, with a masked-LM head, or as classifiers
of texts or tokens.

All share one layout: learned positions, a norm after the embeddings, post-norm blocks, and the heads of
`model.encoder` under other names. Inputs are single texts, so the embedding of segment 0 is added to every position.
RoBERTa numbers positions from the id after its padding token: the rows before that are dropped.

The ids of the cls, sep and mask tokens are not in config.json: `with_special_tokens` reads them from the tokenizer
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from model.architecture_config import EncoderConfig, Pooler
from model.pretrained.files import (
    ACTIVATIONS,
    CONFIG,
    Family,
    Fields,
    Imported,
    Names,
    PretrainedError,
    Weights,
    in_blocks,
    read_weights,
)

KINDS = {
    "Model": "bare",
    "ForMaskedLM": "masked",
    "ForPreTraining": "masked",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tokens",
}
OLD_PARTS = {"gamma": "weight", "beta": "bias"}  # names of norm parameters in checkpoints converted from TensorFlow
NORM_EPS = 1e-12  # of BERT, and fixed in DistilBERT
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification")
REGRESSION = 1  # with one label the output is a number


@dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """A `Family` of encoders. shape, activation: fields of `EncoderConfig` → those of config.json.

    names: of all layers; the pooler is that of a model without a head. classifier: the layer before the projection to
    the labels, and its activation. skips_padding: whether positions count from the id after the padding token.
    """

    shape: Mapping[str, str]
    activation: str = "hidden_act"
    names: Names
    classifier: tuple[str, Pooler]
    skips_padding: bool = False

    def __call__(self, config: Fields, _generation: Fields, weights: Weights) -> Imported:
        for name in ("is_decoder", "add_cross_attention", "is_encoder_decoder"):
            config.only(name, False, default=False)
        config.only("pruned_heads", {}, default={})
        config.only("position_embedding_type", "absolute", default="absolute")
        kind = _kind(config)
        problem = config.only("problem_type", *PROBLEM_TYPES, default=PROBLEM_TYPES[0]) if kind == "classify" else ""
        shape: dict[str, Any] = {ours: config.count(theirs) for ours, theirs in self.shape.items()}
        shape |= {
            "vocab_size": config.count("vocab_size"),
            "activation": config.choice(self.activation, ACTIVATIONS, default="gelu"),
            "norm_eps": config.number("layer_norm_eps", NORM_EPS),
        }
        for old, new in OLD_PARTS.items():
            weights.rename(old, new)
        names: dict[str, Any] = dict(self.names)
        head: dict[str, Any] = {}
        redundant = ["cls.seq_relationship.*", "*embeddings.position_ids"]  # next-sentence prediction; 0, 1, 2, ...
        if kind == "classify":
            names["pooler.dense"], head["pooler"] = self.classifier
            labels = _labels(config, weights.size(f"{names['label']}.bias"))
            head |= {"head": "classify", "labels": labels, "multi_label": problem == PROBLEM_TYPES[1]}
            redundant += ["pooler.*", "*.pooler.*"]  # RoBERTa's classifier has a layer of its own
        elif kind == "tokens":
            head = {"head": "tokens", "labels": _labels(config, weights.size(f"{names['tag']}.bias"))}
            redundant += ["*.pooler.*"]
        elif "pooler.dense" in names and f"{names['pooler.dense']}.weight" in weights:
            head = {"pooler": "tanh"}
        tokens, product, bias = (
            names[name] for name in ("encoder.embedding.tokens", "masked.unembedding", "masked.unembedding.bias")
        )
        is_tied = bool(config.get("tie_word_embeddings", True))
        if kind == "masked":
            head |= {"head": "masked", "output_bias": True}
            redundant.append(bias)  # a second name of the bias below
            if self.skips_padding:  # the masked head of RoBERTa always uses GELU
                config.only("hidden_act", "gelu", default="gelu")
            if f"{product}.bias" in weights or not is_tied:
                names["masked.unembedding.bias"] = f"{product}.bias"  # takes precedence if both exist
            is_tied = is_tied and weights.tie(f"{product}.weight", f"{tokens}.weight")
        if is_tied:
            names["masked.unembedding.weight"] = f"{tokens}.weight"
        positions, pad_id = self._positions(config, weights), config.get("pad_token_id", 0)
        model = EncoderConfig(
            norm_position="post",
            positions="learned",
            embedding_scale=1.0,
            embedding_norm=True,
            tie_embeddings=is_tied,
            max_source_len=len(positions),
            pad_id=pad_id,
            bos_id=config.get("bos_token_id", pad_id),
            eos_id=config.get("eos_token_id", pad_id),
            unk_id=pad_id,
            **shape,
            **head,
        )
        imported = read_weights(model, weights, names, known={"encoder.embedding.positions": positions})
        weights.drop(*redundant)
        return imported

    def _positions(self, config: Fields, weights: Weights) -> Tensor:
        """The position table, with the embedding of segment 0."""
        table = str(self.names["encoder.embedding.positions"])
        segments = table.replace("position_embeddings", "token_type_embeddings")
        positions = weights.take(table)[config.get("pad_token_id", 1) + 1 if self.skips_padding else 0 :]
        if segments in weights:
            positions = positions + weights.take(segments)[0]
        return positions.contiguous()


def _names(base: str, layers: str, block: Names, heads: Names) -> Names:
    """base: of all layers but the heads. layers: of the blocks. block: within a block."""
    return {
        "encoder.embedding.tokens": f"{base}.embeddings.word_embeddings",
        "encoder.embedding.positions": f"{base}.embeddings.position_embeddings.weight",
        "encoder.embedding.norm": f"{base}.embeddings.LayerNorm",
        **in_blocks("encoder", f"{base}.{layers}.{{}}", block),
        **heads,
    }


BERT_SHAPE = {
    "d_model": "hidden_size",
    "num_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "num_encoder_layers": "num_hidden_layers",
}
BERT_BLOCK: Names = {
    "self_attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "self_attention.output": "attention.output.dense",
    "self_residual.norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}
BERT_HEADS = {
    "pooler.dense": "bert.pooler.dense",
    "label": "classifier",
    "tag": "classifier",
    "masked.dense": "cls.predictions.transform.dense",
    "masked.norm": "cls.predictions.transform.LayerNorm",
    "masked.unembedding": "cls.predictions.decoder",
    "masked.unembedding.bias": "cls.predictions.bias",
}
ROBERTA_HEADS = {
    "pooler.dense": "roberta.pooler.dense",
    "label": "classifier.out_proj",
    "tag": "classifier",
    "masked.dense": "lm_head.dense",
    "masked.norm": "lm_head.layer_norm",
    "masked.unembedding": "lm_head.decoder",
    "masked.unembedding.bias": "lm_head.bias",
}
DISTILBERT_SHAPE = {"d_model": "dim", "num_heads": "n_heads", "d_ff": "hidden_dim", "num_encoder_layers": "n_layers"}
DISTILBERT_BLOCK: Names = {
    "self_attention.query_key_value": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "self_attention.output": "attention.out_lin",
    "self_residual.norm": "sa_layer_norm",
    "feed_forward.inner": "ffn.lin1",
    "feed_forward.outer": "ffn.lin2",
    "feed_forward_residual.norm": "output_layer_norm",
}
DISTILBERT_HEADS = {
    "label": "classifier",
    "tag": "classifier",
    "masked.dense": "vocab_transform",
    "masked.norm": "vocab_layer_norm",
    "masked.unembedding": "vocab_projector",
    "masked.unembedding.bias": "vocab_projector.bias",
}
ROBERTA = EncoderFamily(  # Liu et al. 2019, and Conneau et al. 2020 for XLM-R
    shape=BERT_SHAPE,
    names=_names("roberta", "encoder.layer", BERT_BLOCK, ROBERTA_HEADS),
    classifier=("classifier.dense", "tanh"),
    skips_padding=True,
)
FAMILIES: dict[str, Family] = {
    "bert": EncoderFamily(  # Devlin et al. 2019
        shape=BERT_SHAPE,
        names=_names("bert", "encoder.layer", BERT_BLOCK, BERT_HEADS),
        classifier=("bert.pooler.dense", "tanh"),
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "distilbert": EncoderFamily(  # Sanh et al. 2019: no segments, and no pooler
        shape=DISTILBERT_SHAPE,
        activation="activation",
        names=_names("distilbert", "transformer.layer", DISTILBERT_BLOCK, DISTILBERT_HEADS),
        classifier=("pre_classifier", "relu"),
    ),
}


def _kind(config: Fields) -> str:
    """bare, masked, classify or tokens, from the class that saved the model."""
    classes = config.get("architectures", ["Model"])
    if isinstance(classes, list) and len(classes) == 1:
        for ending, kind in KINDS.items():
            if str(classes[0]).endswith(ending):
                return kind
    covered = ", ".join(f"*{ending}" for ending in KINDS)
    raise PretrainedError(f"{CONFIG}: architectures {classes!r} is not covered; covered: {covered}")


def _labels(config: Fields, count: int) -> tuple[str, ...]:
    if count == REGRESSION:
        raise PretrainedError(
            f"{CONFIG}: problem_type regression is not covered: with one label, the logit is a number"
        )
    names: Mapping[str, Any] = config.get("id2label", {})
    return tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(count))
