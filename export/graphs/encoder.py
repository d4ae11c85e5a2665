"""The graph `encode` of encoder-decoder models, and of encoder-only models with their pooler and head; the graph
`embed` of those with layers after the pooling.

Shapes: B batch, S source, N masked positions, M d_model, V vocabulary, L labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from export.graphs.group_query_attention import ATTENTION_OPSET, encoder_attention, encoder_operators
from export.graphs.tracing import OPSET, SOURCE, SOURCE_LENGTHS, Input, ModelGraph, Signature
from model.encoder import Encoder
from model.transformer import EncoderDecoder


class EncoderGraph(ModelGraph[Encoder]):
    """An encoder-only model: source → its states, and the outputs of pooler and head for each text.

    places int64 (N,), for models that fill masks: flat indices into the padded batch, row * S + position. N is at least
    1, even when no position is requested. place_logprobs float32 (N, V): log-softmax of the logits there. label_logits
    float32 (B, L). token_label_logits float32 (B, S, L).
    """

    def forward(self, source_BS: Tensor, lengths_B: Tensor, places_N: Tensor | None = None) -> list[Tensor]:
        model = self.model
        states_BSM = model.encoder(source_BS, lengths_B, encoder_attention(model, source_BS, lengths_B))
        outputs = [states_BSM]
        if model.pooler is not None:
            outputs.append(model.pool(states_BSM))
        if places_N is not None:
            logits_NV = model.token_logits(states_BSM.flatten(0, 1)[places_N])
            outputs.append(logits_NV.float().log_softmax(-1))
        elif model.config.is_classifier:
            logits_BL, weights_BS = model.classify(states_BSM, lengths_B)
            outputs += [logits_BL.float(), *([] if weights_BS is None else [weights_BS])]
        elif model.config.is_tagger:
            outputs.append(model.tag_logits(states_BSM).float())
        return outputs


class EmbedGraph(ModelGraph[Encoder]):
    """Pooled vectors of texts, float32 (B, M), through the layers after the pooling: float32 (B, D)."""

    def forward(self, vectors_BM: Tensor) -> Tensor:
        dtype = next(self.model.dense.parameters()).dtype
        return self.model.project(vectors_BM.to(dtype)).float()


class EncodeGraph(ModelGraph[EncoderDecoder]):
    """source → encoder states, and the cross-attention keys and values of each decoder layer.

    Attention in one node takes 5 % off 3 layers of d256 for 8 sources of 12 tokens, and 10 % for one source.
    """

    def forward(self, source_BS: Tensor, lengths_B: Tensor) -> list[Tensor]:
        attend = encoder_attention(self.model, source_BS, lengths_B)
        states_BSM = self.model.encoder(source_BS, lengths_B, attend)
        layers = self.model.decoder.project_source(states_BSM)
        return [states_BSM, *(tensor for layer in layers for tensor in layer)]


def encoder_signature(model: Encoder) -> Signature:
    """Return the signature of `encode` of an encoder-only model."""
    arguments, outputs = [SOURCE, SOURCE_LENGTHS], ["encoder_states"]
    if model.pooler is not None:
        outputs.append("pooled")
    if model.masked is not None:
        arguments.append(Input("places", ("places",)))
        outputs.append("place_logprobs")
    elif model.config.is_classifier:
        outputs += ["label_logits", *(["token_weights"] if model.attention is not None else [])]
    elif model.config.is_tagger:
        outputs.append("token_label_logits")
    return Signature(
        module=EncoderGraph(model), arguments=tuple(arguments), outputs=tuple(outputs), opset=encoder_opset(model)
    )


def embed_signature(model: Encoder) -> Signature:
    """Return the signature of `embed`, of a model with layers after the pooling."""
    pooled = Input("pooled_vector", ("batch", model.config.d_model), torch.float32)
    return Signature(module=EmbedGraph(model), arguments=(pooled,), outputs=("embedding",))


def encoder_opset(model: EncoderDecoder | Encoder) -> int:
    """Return the version of ONNX that the operators of `encode` need."""
    return ATTENTION_OPSET if "Attention" in encoder_operators(model) else OPSET
