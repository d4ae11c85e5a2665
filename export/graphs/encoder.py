"""The graph `encode` of encoder-decoder models, and of encoder-only models with their pooler and head.

Shapes: B batch, S source, N masked positions, M d_model, V vocabulary, L labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from export.graphs.group_query_attention import GraphEncoderAttention
from export.graphs.signature import Signature
from model.encoder import Encoder
from model.transformer import EncoderDecoder


class EncoderGraph(nn.Module):
    """An encoder-only model: source → its states, and the outputs of pooler and head for each text.

    places int64 (N,), for models that fill masks: flat indices into the padded batch, row * S + position. N is at least
    1, even when no position is requested. place_logprobs float32 (N, V): log-softmax of the logits there. label_logits
    float32 (B, L).
    """

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_BS: Tensor, lengths_B: Tensor, places_N: Tensor | None = None) -> list[Tensor]:
        model = self.model
        states_BSM = model.encoder(source_BS, lengths_B, GraphEncoderAttention.of(model, source_BS, lengths_B))
        told = [states_BSM]
        if model.pooler is not None:
            told.append(model.pool(states_BSM))
        if places_N is not None:
            logits_NV = model.token_logits(states_BSM.flatten(0, 1)[places_N])
            told.append(logits_NV.float().log_softmax(-1))
        elif model.config.is_classifier:
            logits_BL, weights_BS = model.classify(states_BSM, lengths_B)
            told += [logits_BL.float(), *([] if weights_BS is None else [weights_BS])]
        return told


class EncodeGraph(nn.Module):
    """source → encoder states, and the cross-attention keys and values of each decoder layer.

    Attention in one node takes 5 % off 3 layers of d256 for 8 sources of 12 tokens, and 10 % for one source.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_BS: Tensor, lengths_B: Tensor) -> list[Tensor]:
        attend = GraphEncoderAttention.of(self.model, source_BS, lengths_B)
        states_BSM = self.model.encoder(source_BS, lengths_B, attend)
        layers = self.model.decoder.project_source(states_BSM)
        return [states_BSM, *(tensor for layer in layers for tensor in layer)]


def encoder_signature(model: Encoder) -> Signature:
    batch, source, places = 2, 5, 3
    config = model.config
    axes = {name: torch.export.Dim(name) for name in ("batch", "source", "places")}
    arguments: list[Tensor] = [torch.ones(batch, source, dtype=torch.int64), torch.full((batch,), source).int()]
    dynamic_axes: list[Any] = [{0: axes["batch"], 1: axes["source"]}, {0: axes["batch"]}]
    inputs, outputs = ["source", "source_lengths"], ["encoder_states"]
    if model.pooler is not None:
        outputs.append("pooled")
    if model.masked is not None:
        arguments.append(torch.arange(places))
        dynamic_axes.append({0: axes["places"]})
        inputs.append("places")
        outputs.append("place_logprobs")
    elif config.is_classifier:
        outputs += ["label_logits", *(["token_weights"] if model.attention is not None else [])]
    return Signature(
        module=EncoderGraph(model),
        arguments=tuple(arguments),
        dynamic_axes=tuple(dynamic_axes),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )
