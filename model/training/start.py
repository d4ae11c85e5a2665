"""The start of a run: nothing, a tokenizer, or a checkpoint whose model it continues (`Base`), with its old head or a
new one.

A base gives the configuration, the tokenizer and the weights. Only fields that neither change the shape of a parameter
nor the meaning of a weight may differ from it. Everything that does not fit is refused before training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.adapters import A, B, merge
from model.architectures import Model, build
from model.checkpoints.checkpoint import Adapter, CheckpointError, digest_of_checkpoint, load_checkpoint, weights_of
from model.checkpoints.training_rows import TrainingRows, read_training_rows
from model.config import ConfigError, ModelConfig, check
from model.fine_tuning import FineTuning
from model.prompts.templates import NO_TEMPLATES, Templates
from model.tokenizer import MASK_ID, SEPARATOR, Tokenizer, TokenizerError
from model.training.data.encoder_data import NO_LABEL, spans_by_text
from model.training.data.examples import Examples
from model.training.data.labelled_spans import labels_of
from model.training.objective.freezing import choose_trained

HEADS = ("pooler.", "masked.", "label.", "tag.", "attention.")  # parameters of an encoder that belong to its head


@dataclass(frozen=True)
class Base:
    """A checkpoint that a run continues, without its weights, which are read again when the model is built.

    digest: SHA-256 of its digests.json.
    """

    path: Path
    digest: str
    config: ModelConfig
    tokenizer: Tokenizer
    lineage: Mapping[str, Any]
    rows: TrainingRows | None = None  # that it was trained on; None: unknown
    templates: Templates = NO_TEMPLATES


def read_base(path: Path) -> Base:
    """Reads and verifies a whole checkpoint. Raises CheckpointError."""
    loaded = load_checkpoint(path)
    rows = read_training_rows(path, loaded.lineage)
    digest = digest_of_checkpoint(path)
    return Base(path, digest, loaded.config, loaded.tokenizer, loaded.lineage, rows, loaded.templates)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start of a run: a base, a tokenizer from a file for training from scratch, and what is trained.

    new_head: the head of the base is left out and one with fresh parameters takes its place.
    """

    base: Base | None = None
    new_head: bool = False
    tokenizer: Tokenizer | None = None
    tuning: FineTuning = field(default_factory=FineTuning)

    def __post_init__(self) -> None:
        if self.base is not None and self.tokenizer is not None:
            _check_same_vocabulary(self.tokenizer, self.base.tokenizer)
        elif self.tokenizer is not None and self.tokenizer.has_two_vocabularies:
            fix = "import, fine-tuning (--from), export and serving take two; give a tokenizer with one"
            raise TokenizerError(f"tokenizer: training from scratch is not covered with two vocabularies; {fix}")
        if self.tuning.lora_rank and self.base is None:
            raise ConfigError("lora_rank", "needs a base, whose other weights stay as they are; give --from CHECKPOINT")

    def identity(self) -> dict[str, Any]:
        """The values that a resumed run must share; none for a plain run from scratch."""
        parts: dict[str, Any] = {}
        if self.tuning != FineTuning():
            parts["fine_tuning"] = self.tuning.to_json()
        if self.base is not None:
            parts["base"] = self.base.digest
        if self.new_head:
            parts["new_head"] = True
        if self.tokenizer is not None:
            parts["tokenizer"] = hashlib.sha256(self.tokenizer.to_json().encode()).hexdigest()
        return parts

    def known_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, unless one is to be trained."""
        return self.base.tokenizer if self.base is not None else self.tokenizer

    def fields_of(self, model: ModelConfig, data: Examples, tokenizer: Tokenizer) -> dict[str, Any]:
        """The fields of a model's configuration that follow from its data and its tokenizer, except the vocabulary.
        Raises ConfigError."""
        if model.head == "masked":
            return {"mask_id": MASK_ID} if self.known_tokenizer() is None else {}
        if model.context_sentences:
            check(SEPARATOR in tokenizer.special, "context_sentences", f"needs a tokenizer with the token {SEPARATOR}")
            separator = tokenizer.special[SEPARATOR]  # it ends a sentence: an answer ends there, too
            return {"separator_id": separator, "extra_eos_ids": tuple({*model.extra_eos_ids, separator})}
        if model.is_tagger and not model.labels:
            return {"labels": labels_of(span.label for spans in spans_by_text(data) for span in spans)}
        if model.is_classifier and not model.labels:
            none = {NO_LABEL} if model.multi_label else set()
            return {"labels": tuple(sorted({label for _, label in data.pairs} - none))}
        return {}

    def build(self, config: ModelConfig) -> Model:
        """The model with the base's weights, of which only the parameters to be trained require gradients. New ones are
        drawn from torch's generator. Raises ConfigError for what does not fit, CheckpointError for a damaged base."""
        model: Model = build(config)
        fresh = set[str]()
        if self.base is not None:
            weights = weights_of(load_checkpoint(self.base.path).model)
            if digest_of_checkpoint(self.base.path) != self.base.digest:
                raise CheckpointError(f"{self.base.path}: was replaced while the run started; start it again")
            fresh = _load(model, weights, has_new_head=self.new_head, path=self.base.path)
        choose_trained(model, self.tuning, fresh=fresh)
        return model

    def finished_weights(self, model: Model) -> tuple[dict[str, Tensor], Adapter | None]:
        """The weights of a checkpoint, and the adapter if they are one. Merges LoRA matrices into the model.

        To be called before the model is scored, so that the scores are those of the merged weights.
        """
        parameters = model.named_parameters()
        own = {name: weight.detach() for name, weight in parameters if weight.requires_grad or name.endswith((A, B))}
        merge(model)
        if self.tuning.lora_merge:
            return weights_of(model), None
        assert self.base is not None
        return own, Adapter(self.base.path, self.base.digest, self.tuning.lora_scale)

    def rows(self, examples: Examples) -> TrainingRows:
        """The rows of a run on these examples, and of the base."""
        if self.base is None:
            return examples.rows
        return examples.rows.joined(self.base.rows, f"the base {self.base.path.resolve().name}")

    def lineage(self) -> dict[str, Any]:
        """The base, its lineage, and the settings that are not the defaults, for the lineage and the model card."""
        parts: dict[str, Any] = {}
        if self.base is not None:
            parts |= {"base": self.base.path.resolve().name, "base_sha256": self.base.digest}
            parts["base_lineage"] = self.base.lineage
        if self.tuning != FineTuning():
            parts["fine_tuning"] = self.tuning.to_json()
        return parts


def _load(model: Model, weights: Mapping[str, Tensor], *, has_new_head: bool, path: Path) -> set[str]:
    """Copies the base's weights; returns the names of the parameters that it lacks, all of which belong to a new head.

    Raises ConfigError, with name and shapes, for any other difference.
    """
    parameters = dict(model.named_parameters())

    def is_head(name: str) -> bool:
        return has_new_head and name.startswith(HEADS)

    fresh = {name for name in parameters if is_head(name) and _shape(weights, name) != parameters[name].shape}
    if has_new_head:  # also where it has the same shape; a pooler is below the head and kept if it fits
        fresh |= {name for name in parameters if name.startswith(HEADS) and not name.startswith("pooler.")}
    for name in sorted((parameters.keys() ^ weights.keys()) - fresh):
        if name in parameters or not is_head(name):
            problem = "is missing in it" if name in parameters else "has no place in the model"
            raise ConfigError("from", f"{path}: the weight {name} {problem}; choose another base or configuration")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in fresh:
                continue
            if parameter.shape != weights[name].shape:
                wanted, got = tuple(parameter.shape), tuple(weights[name].shape)
                raise ConfigError("from", f"{path}: the weight {name} must have shape {wanted}, got {got}")
            parameter.copy_(weights[name])
    return fresh


def _shape(weights: Mapping[str, Tensor], name: str) -> torch.Size | None:
    return weights[name].shape if name in weights else None


def _check_same_vocabulary(given: Tokenizer, base: Tokenizer) -> None:
    """Raises TokenizerError unless both give the same bytes to every id, with which the base was trained."""
    if given.vocab_size > base.vocab_size:
        sizes = f"must have at most the base's {base.vocab_size} entries, got {given.vocab_size}"
        raise TokenizerError(f"tokenizer: {sizes}; leave --tokenizer out: the base brings its own")
    for token, (ours, theirs) in enumerate(zip_longest(given.pieces, base.pieces, fillvalue=b"")):
        if ours != theirs:
            raise TokenizerError(
                f"tokenizer: token {token} is {ours!r}, that of the base is {theirs!r}; leave --tokenizer out: the "
                "base brings its own"
            )
