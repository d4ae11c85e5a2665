"""How an encoder checkpoint of sentence-transformers makes one vector of a text: the modules after its Transformer.

modules.json lists them: one that pools the states, dense layers, and possibly one that scales the vector to length 1.
Others are refused by name. Files are read as sentence-transformers 6.2 reads them; a field that it does not know is
named among the unknown ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from model.architecture_config import EncoderConfig
from model.config import ConfigError, ModelConfig
from model.config_parts import DenseLayer, Prompts
from model.config_parts import prompts as checked_prompts
from model.pretrained.files import (
    CONFIG,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Fields,
    Imported,
    PretrainedError,
    load_weights,
    read_json,
    read_optional_json,
)
from model.tokenizer import Tokenizer

MODULES, VECTORS = "modules.json", "config_sentence_transformers.json"
_OLD_NAMES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")  # of 2019 and 2020
TRANSFORMERS = ("sentence_bert_config.json", *(f"sentence_{name}_config.json" for name in _OLD_NAMES))
FILES = (MODULES, VECTORS, *TRANSFORMERS)
POOLINGS = {  # theirs → ours
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "lasttoken": "last",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
}
FLAGS = {  # of older files
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
DEFAULT_FLAGS = {"pooling_mode_mean_tokens": True}
ACTIVATIONS = {  # classes of torch → ours
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
VECTOR = "sentence_embedding"
EMPTY_PROMPTS = ("query", "document")  # of every SentenceTransformer, if only by name
NO_EFFECT = ("attn_implementation", "dtype", "torch_dtype", "trust_remote_code", "use_safetensors")
ARGUMENTS = (  # of the constructors of transformers: older and newer name, and what changes no vector
    ("model_args", "model_kwargs", NO_EFFECT),
    ("tokenizer_args", "processor_kwargs", ("model_max_length", "trust_remote_code", "use_fast")),
    ("config_args", "config_kwargs", ("trust_remote_code",)),
)
COVERED = "Transformer in the directory itself, Pooling, Dense and Normalize of sentence_transformers, in this order"
FIX = f"remove {MODULES} to import the encoder alone, whose vectors are the mean of its states"


class Module(NamedTuple):
    """An entry of modules.json: the name of its class, and its folder."""

    kind: str
    folder: str

    @property
    def config(self) -> str:
        """The name of its configuration file."""
        return f"{self.folder}/{CONFIG}"


@dataclass(frozen=True, kw_only=True)
class SentenceVectors:
    """What the files of a checkpoint say, by the fields of `EncoderConfig`. dense: by folder. max_length: of a text in
    tokens; 0: the model's. options, unknown: see `Imported`."""

    pooling: str
    pools_prompt: bool
    dense: Mapping[str, DenseLayer]
    normalized: bool
    prompts: Prompts
    default_prompt: str
    max_length: int
    options: Mapping[str, Any]
    unknown: tuple[str, ...]


def modules_of(path: Path) -> list[Module]:
    """The modules of a directory, without those that do nothing outside training; [] without modules.json. Raises
    PretrainedError for what is not covered."""
    if not (path / MODULES).is_file():
        return []
    modules = list[Module]()
    for item in _list(path / MODULES):
        name, folder = str(item.get("type")), str(item.get("path"))
        package, _, kind = name.rpartition(".")
        if kind == "Dropout":
            continue
        is_own = package.partition(".")[0] == "sentence_transformers"
        if not is_own or kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
            raise PretrainedError(f"{path / MODULES}: module {name} is not covered; covered: {COVERED}; {FIX}")
        if folder and (not re.fullmatch(r"[\w.-]+", folder) or folder.strip(".") == ""):
            raise PretrainedError(f"{path / MODULES}: path {folder!r} must be the name of a folder beside the file")
        if folder in [module.folder for module in modules]:
            raise PretrainedError(f"{path / MODULES}: path {folder!r} is that of two modules; give each its own folder")
        modules.append(Module(kind, folder))
    kinds = " ".join(module.kind for module in modules)
    if not re.fullmatch("Transformer Pooling( Dense)*( Normalize)?", kinds) or modules[0].folder:
        listed = ", ".join(f"{module.kind} ({module.folder or 'the directory'})" for module in modules)
        raise PretrainedError(f"{path / MODULES}: modules {listed} are not covered; covered: {COVERED}; {FIX}")
    return modules


def module_files(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that modules have in folders of their own, there or not: configurations, and weights."""
    modules = modules_of(path)[1:]
    weights = tuple(f"{module.folder}/{WEIGHTS}" for module in modules if module.kind == "Dense")
    return tuple(module.config for module in modules), weights


def sentence_vectors(path: Path) -> SentenceVectors | None:
    """What the files of a directory say; None without modules.json. Raises PretrainedError for what is not covered."""
    if not (modules := modules_of(path)):
        return None
    file = next((name for name in TRANSFORMERS if (path / name).is_file()), TRANSFORMERS[0])
    transformer, vectors = (Fields(read_optional_json(path / name), file=name) for name in (file, VECTORS))
    pooling = Fields(read_json(path / modules[1].config), file=modules[1].config)
    dense = {
        module.folder: Fields(read_json(path / module.config), file=module.config)
        for module in modules[2:]
        if module.kind == "Dense"
    }
    normalize = [
        Fields(read_optional_json(path / module.config), file=module.config)
        for module in modules
        if module.kind == "Normalize"
    ]
    for config in (*dense.values(), *normalize):
        config.only("module_input_name", VECTOR, default=VECTOR)
        config.only("module_output_name", VECTOR, default=VECTOR)
    prompts, default_prompt = _prompts(vectors)
    similarity = vectors.get("similarity_fn_name", "cosine")
    found = SentenceVectors(
        pooling=_pooling(pooling),
        pools_prompt=_flag(pooling, "include_prompt", default=True),
        dense={folder: _dense_layer(config) for folder, config in dense.items()},
        normalized=bool(normalize),
        prompts=prompts,
        default_prompt=default_prompt,
        max_length=_max_length(transformer, path),
        options={} if similarity == "cosine" else {"similarity_fn_name": similarity},
        unknown=(),
    )
    vectors.only("model_type", "SentenceTransformer", default="SentenceTransformer")
    vectors.get("__version__", None)
    for name in ("word_embedding_dimension", "embedding_dimension"):
        pooling.get(name, None)  # tensors have the width
    configs = (transformer, vectors, pooling, *dense.values(), *normalize)
    return replace(found, unknown=tuple(f"{config.file}: {name}" for config in configs for name in config.unread))


def _list(file: Path) -> list[dict[str, Any]]:
    try:
        items = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{file}: cannot be read: {error}") from error
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise PretrainedError(f"{file}: must hold a list of modules")
    return items


def _flag(config: Fields, name: str, *, default: bool) -> bool:
    return bool(config.only(name, False, True, default=default))


def _pooling(config: Fields) -> str:
    flags = {name: _flag(config, name, default=DEFAULT_FLAGS.get(name, False)) for name in FLAGS}
    chosen = [FLAGS[name] for name, is_chosen in flags.items() if is_chosen]
    if "pooling_mode" in config:  # of newer files: a name, or several
        named = config.need("pooling_mode")
        chosen = list(map(str, named)) if isinstance(named, list) else [str(named)]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        problem = f"pooling {' and '.join(chosen) or 'without a mode'} is not covered"
        raise PretrainedError(f"{config.file}: {problem}; covered: one of {', '.join(POOLINGS)}; {FIX}")
    return POOLINGS[chosen[0]]


def _dense_layer(config: Fields) -> DenseLayer:
    """The layer; `with_sentence_vectors` compares it with its weights."""
    config.only("use_residual", False, default=False)
    config.count("in_features")
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    package, _, kind = str(name).rpartition(".")
    if kind not in ACTIVATIONS or not package.startswith("torch."):
        raise config.refuse("activation_function", f"covered: {', '.join(ACTIVATIONS)} of torch.nn; {FIX}")
    bias = _flag(config, "bias", default=True)
    return DenseLayer.from_json({"size": config.count("out_features"), "bias": bias, "activation": ACTIVATIONS[kind]})


def _prompts(config: Fields) -> tuple[Prompts, str]:
    """The prompts, and the name of the default one."""
    texts = config.get("prompts", {})
    if not isinstance(texts, dict):
        raise config.refuse("prompts", "it must be an object of names and texts")
    named = {name: "" if text is None else text for name, text in texts.items()}
    try:
        found = checked_prompts(tuple(named.items()), "prompts")
    except ConfigError as error:
        raise PretrainedError(f"{config.file}: {error}") from error
    default = config.get("default_prompt_name", "")
    if default and default not in [*named]:
        if default in EMPTY_PROMPTS:
            return found, ""
        raise config.refuse("default_prompt_name", f"it must be one of the prompts: {', '.join(named) or 'none'}")
    return found, default


def _max_length(config: Fields, path: Path) -> int:
    """The longest text in tokens, special ones included; 0: as the model has it."""
    config.only("do_lower_case", False, default=False)
    config.only("transformer_task", "feature-extraction", default="feature-extraction")
    config.only("module_output_name", "token_embeddings", default="token_embeddings")
    config.get("unpad_inputs", None)
    for name in ("query_length", "document_length", "query_expansion"):
        config.only(name, None, default=None)
    processing = config.inner("processing_kwargs")
    if any(processing.get(name, None) for name in processing.unread):
        raise config.refuse("processing_kwargs")
    output = config.inner("modality_config").inner("text")
    output.only("method_output_name", "last_hidden_state", default="last_hidden_state")
    lengths = [config.count("max_seq_length")] if config.get("max_seq_length", None) is not None else []
    for names in ARGUMENTS:
        for name in names[:2]:
            arguments = config.inner(name)
            for known in names[2]:
                arguments.get(known, None)
            if arguments.unread:
                raise arguments.refuse(arguments.unread[0], "remove it if it changes no vector")
            if "model_max_length" in arguments:
                lengths.append(arguments.count("model_max_length"))
    if not lengths:
        tokenizer = Fields(read_optional_json(path / TOKENIZER_CONFIG), file=TOKENIZER_CONFIG)
        lengths += [tokenizer.count("model_max_length")] if "model_max_length" in tokenizer else []
    return lengths[0] if lengths else 0


def with_sentence_vectors(imported: Imported, path: Path, *, allow_pickle: bool = False) -> Imported:
    """Sets what a text's vector is, and reads the weights of its layers. Raises PretrainedError."""
    if (found := sentence_vectors(path)) is None:
        return imported
    if imported.config.architecture != "encoder":
        raise PretrainedError(f"{path / MODULES}: vectors of a model with a decoder are not covered; {FIX}")
    weights, width = dict(imported.weights), imported.config.d_model
    for place, (folder, layer) in enumerate(found.dense.items()):
        for name, tensor in _dense_weights(path / folder, layer, width, allow_pickle=allow_pickle).items():
            weights[f"dense.{place}.{name}"] = tensor
        width = layer.size
    config = imported.config.replace(
        pooling=found.pooling,
        pools_prompt=found.pools_prompt,
        dense=tuple(layer.to_json() for layer in found.dense.values()),
        normalized=found.normalized,
        prompts=found.prompts,
        default_prompt=found.default_prompt,
    )
    options, unknown = {**imported.options, **found.options}, (*imported.unknown, *found.unknown)
    changed = replace(imported, config=config, weights=weights, options=options, unknown=unknown)
    return changed.shortened(found.max_length) if found.max_length else changed


def check_prompts(config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Raises PretrainedError for a prompt that spells a special token: in Glossa that is plain text."""
    names = [name for name, token in tokenizer.special.items() if name.strip() and not tokenizer.pieces[token]]
    for name, text in config.prompts if isinstance(config, EncoderConfig) else ():
        if spelt := [special for special in names if special in text]:
            problem = f"{text!r:.200} is not covered: {spelt[0]!r} in it would be plain text, not the special token"
            raise PretrainedError(f"{VECTORS}: prompts: {name} {problem}; remove it, or the prompt")


def _dense_weights(path: Path, layer: DenseLayer, width: int, *, allow_pickle: bool) -> dict[str, Tensor]:
    """The weights of a layer over vectors of this width, by their names. Raises PretrainedError."""
    stored = load_weights(path, allow_pickle=allow_pickle)
    shapes = {"linear.weight": (layer.size, width), **({"linear.bias": (layer.size,)} if layer.bias else {})}
    taken = {name: stored.take(name) for name in shapes}
    for name, shape in shapes.items():
        if taken[name].shape != shape:
            raise PretrainedError(f"{path}: {name} must have shape {shape}, got {tuple(taken[name].shape)}")
    stored.finish()
    return taken
