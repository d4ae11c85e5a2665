"""One table of next-token probabilities as a model of Glossa, transformers, CTranslate2 and onnxruntime-genai.

The next token depends on the last one alone, and its probability is an entry of the table, so an answer can be worked
out by hand. Peers are imported by name: requirements/bench.in has them, and types are checked without them.

V vocabulary; a row is the last token, a column the next one.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from bench.speed.unverified_bundle import save_unverified
from model.architecture_config import model_config
from model.architectures import GenerativeModel, build
from model.config import SpecialTokenTemplate
from model.tokenizer import Tokenizer

PAD, BOS, EOS, UNK = range(4)
LETTERS = "abcdefghijkl"
VOCAB = 4 + len(LETTERS)
SYMBOLS = "_^.?" + LETTERS  # of each token; "." ends an answer
REST = 1e-7  # probability of each token that a row does not name
FEED_FORWARD = 8
KINDS = ("key", "value")
MAX_LEN = 32
EPSILON = 1e-6  # of RMSNorm

Rows = Mapping[str, str]
"""By the symbol of the last token: "b .6 . .4" gives b the probability 0.6 and the end 0.4."""


def ids(symbols: str) -> list[int]:
    return [SYMBOLS.index(symbol) for symbol in symbols]


def symbols(tokens: Any) -> str:
    return "".join(SYMBOLS[int(token)] for token in tokens)


@dataclass(frozen=True, kw_only=True)
class Table:
    """starts: what the decoder of an encoder-decoder reads first, the start token and after it a language; "" for a
    decoder-only model, which begins with the prompt."""

    rows: Rows
    starts: str = ""

    @property
    def has_source(self) -> bool:
        return bool(self.starts)

    @property
    def logprobs_VV(self) -> np.ndarray:
        """float32 (V, V); rows that are not named end at once."""
        table_VV = np.full((VOCAB, VOCAB), REST)
        for last, symbol in enumerate(SYMBOLS):
            words = self.rows.get(symbol, ". 1").split()
            for name, share in zip(words[::2], words[1::2], strict=True):
                table_VV[last, SYMBOLS.index(name)] = float(share)
        logprobs_VV: np.ndarray = np.log(table_VV / table_VV.sum(1, keepdims=True)).astype(np.float32)
        return logprobs_VV


def tokenizer() -> Tokenizer:
    """Each letter is a word."""
    made = Tokenizer.train([" ".join(LETTERS)], kind="words", vocab_size=VOCAB)
    assert made.encode(" ".join(LETTERS)) == ids(LETTERS)
    return made


def save_bundle(table: Table, path: Path) -> None:
    """Of a model without attention: token vectors are the rows of a unit matrix, the output projection is the table."""
    sizes = {
        "num_decoder_layers": 1,
        "max_target_len": MAX_LEN,
        "vocab_size": VOCAB,
        "d_model": VOCAB,
        "d_ff": FEED_FORWARD,
    }
    shape = {"norm": "rms", "norm_eps": EPSILON, "positions": "none", "bias": False, "tie_embeddings": False}
    if table.has_source:
        sizes |= {"num_encoder_layers": 1, "max_source_len": MAX_LEN}
    template = SpecialTokenTemplate(
        source_suffix=(EOS,) if table.has_source else (), target_prefix=tuple(ids(table.starts))
    )
    model = build(
        model_config(
            {
                "architecture": "encoder_decoder" if table.has_source else "decoder",
                **sizes,
                **shape,
                "num_heads": 2,
                "embedding_scale": 1.0,
                "special_token_template": template.to_json(),
            }
        )
    )
    decoder = cast(GenerativeModel, model).decoder
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        decoder.embedding.tokens.weight.copy_(torch.eye(VOCAB))
        cast(nn.RMSNorm, decoder.norm).weight.fill_(_norm_gain())
        decoder.unembedding.weight.copy_(torch.from_numpy(table.logprobs_VV.T))
    source = (EOS,) if table.has_source else ()
    save_unverified(path, cast(GenerativeModel, model.eval()), tokenizer(), source=source)


def _norm_gain() -> float:
    """That with which a unit vector stays as it is."""
    return math.sqrt(1 / VOCAB + EPSILON)


def transformers_model(next_logits: Callable[[torch.Tensor], torch.Tensor], starts: str) -> Any:
    """A model of the library's own classes for `generate`. next_logits: token ids (B, T) → logits (B, V) of the token
    after each row. starts: see `Table`."""
    library = importlib.import_module("transformers")
    outputs = importlib.import_module("transformers.modeling_outputs")

    class Encoder(nn.Module):
        main_input_name = "input_ids"

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return outputs.BaseModelOutput(last_hidden_state=torch.zeros(*input_ids.shape, 1))

    class TableModel(library.PreTrainedModel, library.GenerationMixin):  # type: ignore[misc, name-defined]
        config_class = library.PretrainedConfig
        main_input_name = "input_ids"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.anchor = nn.Parameter(torch.zeros(1))  # the library asks where the weights are

        def get_encoder(self, **_: Any) -> nn.Module:
            return Encoder()

        def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
            return {"tokens": input_ids}

        def forward(
            self, tokens: torch.Tensor, attention_mask: Any = None, encoder_outputs: Any = None, **_: Any
        ) -> Any:
            return outputs.CausalLMOutput(logits=next_logits(tokens)[:, None])

    config = library.PretrainedConfig(is_encoder_decoder=bool(starts), vocab_size=VOCAB, use_cache=False)
    model = TableModel(config)
    model.generation_config = library.GenerationConfig(
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        use_cache=False,
        decoder_start_token_id=ids(starts)[0] if starts else None,
        forced_bos_token_id=ids(starts)[1] if len(starts) > 1 else None,
    )
    return model.eval()


def transformers_tokenizer() -> Any:
    """Each symbol is a token, and a text has no blanks between them."""
    tokenizers = importlib.import_module("tokenizers")
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(dict(zip(SYMBOLS, range(VOCAB), strict=True)), unk_token=SYMBOLS[UNK])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return importlib.import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=backend)


def save_ctranslate2(table: Table, path: Path) -> None:
    """As the bundle: zero layers between a unit matrix and the table."""
    specs = importlib.import_module("ctranslate2.specs")
    if table.has_source:
        spec = specs.TransformerSpec.from_config((1, 1), 2, rms_norm=True)
        spec.encoder.embeddings[0].weight = np.eye(VOCAB, dtype=np.float32)
        spec.encoder.layer_norm.gamma = np.ones(VOCAB, np.float32)
        spec.encoder.position_encodings.encodings = np.zeros((MAX_LEN, VOCAB), np.float32)
    else:
        spec = specs.TransformerDecoderModelSpec.from_config(1, 2, rms_norm=True)
    decoder = spec.decoder
    decoder.position_encodings.encodings = np.zeros((MAX_LEN, VOCAB), np.float32)
    decoder.embeddings.weight = np.eye(VOCAB, dtype=np.float32)
    decoder.layer_norm.gamma = np.full(VOCAB, _norm_gain(), np.float32)
    decoder.projection.weight = np.ascontiguousarray(table.logprobs_VV.T)
    decoder.scale_embeddings = False
    names = list(SYMBOLS)
    if table.has_source:
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
        spec.config.decoder_start_token = table.starts[0]
    else:
        spec.register_vocabulary(names)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = SYMBOLS[BOS], SYMBOLS[EOS], SYMBOLS[UNK]
    spec.config.layer_norm_epsilon = EPSILON
    _fill(spec)
    spec.validate()
    path.mkdir(parents=True, exist_ok=True)
    spec.save(str(path))


def _fill(spec: Any) -> None:
    """Gives every weight that has none zeros of its shape, and norms ones."""
    for layer in (*getattr(spec, "encoder", spec.decoder).layer, *spec.decoder.layer):
        parts = [(layer.self_attention, (3, 1)), (getattr(layer, "attention", None), (1, 2, 1))]
        for attention, widths in parts:
            if attention is not None:
                attention.layer_norm.gamma = np.ones(VOCAB, np.float32)
                for linear, width in zip(attention.linear, widths, strict=True):
                    linear.weight = np.zeros((width * VOCAB, VOCAB), np.float32)
        layer.ffn.layer_norm.gamma = np.ones(VOCAB, np.float32)
        layer.ffn.linear_0.weight = np.zeros((FEED_FORWARD, VOCAB), np.float32)
        layer.ffn.linear_1.weight = np.zeros((VOCAB, FEED_FORWARD), np.float32)


def save_genai(table: Table, path: Path) -> None:
    """A graph that looks the last token up, with a cache of zeros because the library wants one."""
    path.mkdir(parents=True, exist_ok=True)
    cache = ("batch", 1, "past", 1)
    past = [helper.make_tensor_value_info(f"past_key_values.0.{kind}", TensorProto.FLOAT, cache) for kind in KINDS]
    present = [
        helper.make_tensor_value_info(f"present.0.{kind}", TensorProto.FLOAT, ("batch", 1, "total", 1))
        for kind in KINDS
    ]
    tokens = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ("batch", length))
        for name, length in (("input_ids", "length"), ("attention_mask", "total"))
    ]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ("batch", "length", VOCAB))
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["logits"]),
        helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "axes"], ["entries"]),
        *(
            helper.make_node("Concat", [f"past_key_values.0.{kind}", "entries"], [f"present.0.{kind}"], axis=2)
            for kind in KINDS
        ),
    ]
    constants = [
        numpy_helper.from_array(table.logprobs_VV, "table"),
        numpy_helper.from_array(np.array([1, 3], np.int64), "axes"),
    ]
    graph = helper.make_graph(nodes, "table", [*tokens, *past], [logits, *present], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path / "model.onnx")
    decoder = {
        "filename": "model.onnx",
        "head_size": 1,
        "hidden_size": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            **{f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in KINDS},
        },
        "outputs": {"logits": "logits", **{f"present_{kind}_names": f"present.%d.{kind}" for kind in KINDS}},
        "session_options": {},
    }
    model = {
        "type": "llama",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "vocab_size": VOCAB,
        "context_length": MAX_LEN,
        "decoder": decoder,
    }
    config = {"model": model, "search": {"past_present_share_buffer": False, "max_length": MAX_LEN}}
    (path / "genai_config.json").write_text(json.dumps(config))
