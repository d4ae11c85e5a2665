"""Encoder families: BERT and its relatives, ModernBERT and EmbeddingGemma, without a head, with a masked-LM head, or as
classifiers of texts or tokens. `fields.encoder` has what each family means by its fields.

Inputs are single texts, so of learned positions the embedding of segment 0 is added to each. RoBERTa numbers positions
from the id after its padding token: the rows before that are dropped.

The ids of the cls, sep and mask tokens are not in config.json: `with_special_tokens` reads them from the tokenizer
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from model.architecture_config import EncoderConfig, Pooler
from model.pretrained.decoder import GAINS, SANDWICH_BLOCK, halves
from model.pretrained.fields import encoder as of
from model.pretrained.fields.layers import unbiased
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
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification")
REGRESSION = 1  # with one label the output is a number
BLOCK = "encoder.blocks.{}."
POSITIONS = "encoder.embedding.positions"


@dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """A `Family` of encoders. describe: config.json → fields of `EncoderConfig` except special tokens and heads.

    names: of all layers; the pooler is that of a model without a head. kinds: of the heads. classifier: the layer
    before the projection to the labels, and its activation. skips_padding: whether positions count from the id after
    the padding token. head_activation: the field for a masked head of another activation; "": there is none. biases:
    see `unbiased`. changes: functions of stored parameters.
    """

    describe: Callable[[Fields], dict[str, Any]]
    names: Names
    kinds: tuple[str, ...] = tuple(KINDS)
    classifier: tuple[str, Pooler] = ("", "none")
    skips_padding: bool = False
    head_activation: str = ""
    biases: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def __call__(self, config: Fields, _generation: Fields, weights: Weights) -> Imported:
        for name in ("is_decoder", "add_cross_attention", "is_encoder_decoder"):
            config.only(name, False, default=False)
        config.only("pruned_heads", {}, default={})
        kind = self._kind(config)
        problem = config.only("problem_type", *PROBLEM_TYPES, default=PROBLEM_TYPES[0]) if kind == "classify" else ""
        has_bias = not self.biases or any(config.get(name, False) for name in self.biases)
        fields = {"bias": has_bias, "output_bias": kind == "masked", **self.describe(config)}
        for old, new in OLD_PARTS.items():
            weights.rename(old, new)
        names: dict[str, Any] = {**self.names, **unbiased(self.names, config, self.biases)}
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
        is_tied = bool(config.get("tie_word_embeddings", True))
        if kind == "masked":
            head["head"] = "masked"
            self._check_activation(config, fields["activation"])
            redundant.append(names["masked.unembedding.bias"])  # in BERT a second name
            is_tied = _tie(weights, names, is_tied=is_tied)
        if is_tied:
            names["masked.unembedding.weight"] = f"{names['encoder.embedding.tokens']}.weight"
        known, pad_id = {}, config.get("pad_token_id", 0)
        if POSITIONS in names:
            known[POSITIONS] = self._positions(config, weights)
            fields["max_source_len"] = len(known[POSITIONS])
        model = EncoderConfig(
            vocab_size=config.count("vocab_size"),
            tie_embeddings=is_tied,
            pad_id=pad_id,
            bos_id=config.get("bos_token_id", pad_id),
            eos_id=_first(config.get("eos_token_id", pad_id)),
            unk_id=pad_id,
            **fields,
            **head,
        )
        imported = read_weights(model, weights, names, known=known, changes=self.changes)
        weights.drop(*redundant)
        return imported

    def _check_activation(self, config: Fields, activation: str) -> None:
        """Raises PretrainedError for a masked head of another activation than the layers."""
        if self.skips_padding:  # the masked head of RoBERTa always uses GELU
            config.only("hidden_act", "gelu", default="gelu")
        if self.head_activation and config.choice(self.head_activation, ACTIVATIONS, default="gelu") != activation:
            raise config.refuse(self.head_activation, f"covered: that of the layers, {activation}")

    def _kind(self, config: Fields) -> str:
        """bare, masked, classify or tokens, from the class that saved the model."""
        classes = config.get("architectures", ["Model"])
        if isinstance(classes, list) and len(classes) == 1:
            for ending in self.kinds:
                if str(classes[0]).endswith(ending):
                    return KINDS[ending]
        covered = ", ".join(f"*{ending}" for ending in self.kinds)
        raise PretrainedError(f"{CONFIG}: architectures {classes!r} is not covered; covered: {covered}")

    def _positions(self, config: Fields, weights: Weights) -> Tensor:
        """The position table, with the embedding of segment 0."""
        table = str(self.names[POSITIONS])
        segments = table.replace("position_embeddings", "token_type_embeddings")
        positions = weights.take(table)[config.get("pad_token_id", 1) + 1 if self.skips_padding else 0 :]
        if segments in weights:
            positions = positions + weights.take(segments)[0]
        return positions.contiguous()


def _tie(weights: Weights, names: dict[str, Any], *, is_tied: bool) -> bool:
    """Whether the product of a masked head is the embedding. Corrects the name of its bias."""
    product, table = names["masked.unembedding"], names["encoder.embedding.tokens"]
    if f"{product}.bias" in weights or not is_tied:
        names["masked.unembedding.bias"] = f"{product}.bias"  # takes precedence if both exist
    return is_tied and weights.tie(f"{product}.weight", f"{table}.weight")


def _first(token: Any) -> Any:
    """The token that ends a text, of several that end an answer."""
    return token[0] if isinstance(token, list) and token else token


def _names(base: str, layers: str, block: Names, heads: Names) -> Names:
    """base: of all layers but the heads. layers: of the blocks. block: within a block."""
    return {
        "encoder.embedding.tokens": f"{base}.embeddings.word_embeddings",
        "encoder.embedding.positions": f"{base}.embeddings.position_embeddings.weight",
        "encoder.embedding.norm": f"{base}.embeddings.LayerNorm",
        **in_blocks("encoder", f"{base}.{layers}.{{}}", block),
        **heads,
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
MODERNBERT_BLOCK: Names = {
    "self_residual.norm": "attn_norm",
    "self_attention.query_key_value": "attn.Wqkv",
    "self_attention.output": "attn.Wo",
    "feed_forward_residual.norm": "mlp_norm",
    "feed_forward.inner": "mlp.Wi",
    "feed_forward.gate": "mlp.Wi",
    "feed_forward.outer": "mlp.Wo",
}
MODERNBERT: Names = {
    "encoder.embedding.tokens": "model.embeddings.tok_embeddings",
    "encoder.embedding.norm": "model.embeddings.norm",
    **in_blocks("encoder", "model.layers.{}", MODERNBERT_BLOCK),
    "encoder.norm": "model.final_norm",
    "masked.dense": "head.dense",
    "masked.norm": "head.norm",
    "masked.unembedding": "decoder",
    "masked.unembedding.bias": "decoder.bias",
}
GEMMA: Names = {
    "encoder.embedding.tokens": "model.embed_tokens",
    **in_blocks("encoder", "model.layers.{}", SANDWICH_BLOCK),
    "encoder.norm": "model.norm",
}
ROBERTA = EncoderFamily(  # Liu et al. 2019, Conneau et al. 2020 for XLM-R, Martin et al. 2020 for CamemBERT
    describe=of.bert,
    names=_names("roberta", "encoder.layer", BERT_BLOCK, ROBERTA_HEADS),
    classifier=("classifier.dense", "tanh"),
    skips_padding=True,
)
FAMILIES: dict[str, Family] = {
    "bert": EncoderFamily(
        describe=of.bert,
        names=_names("bert", "encoder.layer", BERT_BLOCK, BERT_HEADS),
        classifier=("bert.pooler.dense", "tanh"),
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": EncoderFamily(  # no segments, and no pooler
        describe=of.distilbert,
        names=_names("distilbert", "transformer.layer", DISTILBERT_BLOCK, DISTILBERT_HEADS),
        classifier=("pre_classifier", "relu"),
    ),
    "modernbert": EncoderFamily(
        describe=of.modernbert,
        names=MODERNBERT,
        kinds=("Model", "ForMaskedLM"),
        head_activation="classifier_activation",
        biases={
            "attention_bias": f"{BLOCK}self_attention.*",
            "mlp_bias": f"{BLOCK}feed_forward.*",
            "norm_bias": "*norm",
            "classifier_bias": "masked.dense",
        },
        changes=halves(BLOCK),
    ),
}
BIDIRECTIONAL: dict[str, Family] = {  # of decoders that attend in both directions
    "gemma3_text": EncoderFamily(
        describe=of.embedding_gemma,
        names=GEMMA,
        kinds=("Model",),
        biases={"attention_bias": f"{BLOCK}self_attention.*"},
        changes={name.replace("decoder", "encoder", 1): change for name, change in GAINS.items()},
    ),
}


def _labels(config: Fields, count: int) -> tuple[str, ...]:
    if count == REGRESSION:
        raise PretrainedError(
            f"{CONFIG}: problem_type regression is not covered: with one label, the logit is a number"
        )
    names: Mapping[str, Any] = config.get("id2label", {})
    return tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(count))
