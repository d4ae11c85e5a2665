"""Graphs of recurrent models as traceable modules: `encode`, `decode` and `align`. They wrap the layers of
`model.recurrent` and have no weights of their own.

`encode` runs each layer as one LSTM or GRU node of ONNX, which takes a length for each row. `decode` processes one
token: plain matrix products for the cells, and one `GroupQueryAttention` node with the encoder's states as keys and as
values. Plain operators would sum a row's positions in a different order in a larger buffer, so a row's bits would
depend on the other rows; the operator reads each row to its own end. Additive scores enter the operator as a bias over
products of 0.

Every step replaces the decoder's recurrent state. At position 0 the graph uses the initial state from `encode` instead,
so a row's memory may hold anything before. `align` is a `Scan` over steps that output their attention weights, because
each step reads the attention result of the previous one.

Shapes: B batch, T block, S source, M d_model, N encoder_dim, A attention_dim, V vocabulary, D directions, G gates of a
cell, P input of a layer, H hidden size of one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from torch import Tensor, nn

from export.bundle.manifest import Role, StateKind, StateSpec
from export.graphs.decoder import next_token_logits
from export.graphs.group_query_attention import group_query_attention
from export.graphs.logprobs import logprobs_signature
from export.graphs.tracing import SOURCE, SOURCE_LENGTHS, Input, ModelGraph, Signature, state_inputs
from model.architecture_config import RecurrentConfig
from model.config import ModelConfig
from model.recurrent import Recurrent, SourceAttention, initial_state_names, state_names

GATE_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}  # indices of torch's gates in the order of ONNX
RECURRENCE_OPSET = 22  # of LSTM and GRU


class LayerNodes(nn.Module):
    """`RunLayer` as one node per layer, in float32 whatever the model's precision: CPUs have no other kernel."""

    def __init__(self, model: Recurrent) -> None:
        super().__init__()
        self.cell, self.config = model.config.cell, model.config
        self.layers = list(model.encoder.layers)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, nn.LSTM | nn.GRU)
            weights_DGP, hidden_DGH, biases_D2G = [], [], []
            for suffix in ("", "_reverse") if model.config.bidirectional else ("",):
                parts = [
                    getattr(layer, f"{part}_l0{suffix}") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                ]
                weight_GP, hidden_GH, bias_G, hidden_bias_G = (self._ordered(part) for part in parts)
                weights_DGP.append(weight_GP)
                hidden_DGH.append(hidden_GH)
                biases_D2G.append(torch.cat((bias_G, hidden_bias_G)))
            self.register_buffer(f"weight_{i}", torch.stack(weights_DGP))
            self.register_buffer(f"hidden_{i}", torch.stack(hidden_DGH))
            self.register_buffer(f"bias_{i}", torch.stack(biases_D2G))

    def _ordered(self, part: Tensor) -> Tensor:
        order = GATE_ORDER[self.cell]
        chunks = part.detach().float().chunk(len(order))
        return torch.cat([chunks[gate] for gate in order])

    def forward(self, layer: nn.LSTM | nn.GRU, x_BSP: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        i = next(i for i, own in enumerate(self.layers) if own is layer)
        directions, size = (2 if layer.bidirectional else 1), layer.hidden_size
        batch, length, _ = x_BSP.shape
        attrs: dict[str, Any] = {
            "hidden_size": size,
            "direction": "bidirectional" if layer.bidirectional else "forward",
        }
        shapes: list[Any] = [(length, directions, batch, size), (directions, batch, size)]
        if self.cell == "lstm":
            shapes.append(shapes[1])
        else:
            attrs["linear_before_reset"] = 1
        weights = (getattr(self, f"{part}_{i}") for part in ("weight", "hidden", "bias"))
        outputs: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
            "::" + self.cell.upper(),
            (x_BSP.transpose(0, 1).float(), *weights, lengths_B),
            attrs=attrs,
            dtypes=[torch.float32] * len(shapes),
            shapes=shapes,
            version=RECURRENCE_OPSET,
        )
        states_BSN = outputs[0].permute(2, 0, 1, 3).flatten(2)
        return states_BSN.to(x_BSP.dtype), outputs[1].transpose(0, 1).flatten(1).to(x_BSP.dtype)


class EncodeGraph(ModelGraph[Recurrent]):
    """source → encoder states, the attention's inputs from them, and the initial states of the decoder's cells."""

    def __init__(self, model: Recurrent) -> None:
        super().__init__(model)
        self.run = LayerNodes(model)

    def forward(self, source_BS: Tensor, lengths_B: Tensor) -> list[Tensor]:
        states_BSN, keys_BSA, firsts = self.model.encode(source_BS, lengths_B, self.run)
        read = [] if self.model.config.score == "none" else [states_BSN[:, None]]
        read += [] if keys_BSA is None else [keys_BSA[:, None]]
        return [states_BSN, *read, *firsts]


class GraphSourceAttention:
    """`AttendSource` for one token per row."""

    def __init__(self, states_B1SN: Tensor, lengths_B: Tensor) -> None:
        self.states_B1SN, self.lengths_B = states_B1SN, lengths_B

    def __call__(self, query_BTN: Tensor | None, scores_BTS: Tensor | None) -> Tensor:
        states_B1SN = self.states_B1SN
        batch, _, length, size = states_B1SN.shape
        query_B1N = states_B1SN.new_zeros((batch, 1, size)) if query_BTN is None else query_BTN
        nothing_B0N = query_B1N.new_zeros((batch, 0, size))
        source_length = torch.tensor(0, dtype=torch.int32) + length
        added = () if scores_BTS is None else (None, None, None, scores_BTS[:, None])
        inputs = (query_B1N, nothing_B0N, nothing_B0N, states_B1SN, states_B1SN, self.lengths_B - 1, source_length)
        (mixed_B1N,) = group_query_attention((*inputs, *added), (query_B1N,), num_heads=1, kv_num_heads=1, scale=1.0)
        return mixed_B1N


class DecodeGraph(ModelGraph[Recurrent]):
    """One token per row → next-token logits (see `export.graphs.decoder.DecodeGraph`) and the new recurrent state."""

    def forward(
        self,
        tokens_B1: Tensor,
        starts_B: Tensor,
        past: Sequence[Tensor],
        firsts: Sequence[Tensor],
        source_lengths_B: Tensor | None = None,
        states_B1SN: Tensor | None = None,
        keys_B1SA: Tensor | None = None,
    ) -> list[Tensor]:
        decoder = self.model.decoder
        nothing = [past[-1].new_zeros(())] if self.model.config.input_feeding else []
        is_first_B1 = (starts_B == 0)[:, None]
        # The old state is read only here, before any new state is written, because both may share memory.
        begun = [torch.where(is_first_B1, one, other) for one, other in zip((*firsts, *nothing), past, strict=True)]
        attend = None
        if source_lengths_B is not None and states_B1SN is not None:
            attend = GraphSourceAttention(states_B1SN, source_lengths_B)
        keys_BSA = None if keys_B1SA is None else keys_B1SA.squeeze(1)
        vectors_B1M, carried = decoder(tokens_B1, begun, keys_BSA, attend)
        return [next_token_logits(decoder.unembedding, vectors_B1M[:, 0]), *carried]


class WatchGraph(ModelGraph[Recurrent]):
    """One token per row → the new recurrent state and the attention weights over the source (B, S): body of `align`."""

    def forward(
        self,
        tokens_B: Tensor,
        states: Sequence[Tensor],
        source_lengths_B: Tensor,
        states_B1SN: Tensor,
        keys_B1SA: Tensor | None = None,
    ) -> list[Tensor]:
        attend = SourceAttention(states_B1SN.squeeze(1), source_lengths_B)
        keys_BSA = None if keys_B1SA is None else keys_B1SA.squeeze(1)
        _, carried = self.model.decoder(tokens_B[:, None], states, keys_BSA, attend)
        return [*carried, attend.weights_BTS[:, 0].float()]


def signatures(model: Recurrent, *, attention: bool = False) -> dict[Role, Signature]:
    """Return the signature of every graph that `model` needs; `attention` adds `align`, which requires a score."""
    config, dtype = model.config, model.decoder.unembedding.weight.dtype
    kept = states(config, "")
    names = state_names(config)
    carried = [state for state in kept if state.kind == "recurrent"]
    firsts = state_inputs((state for state in kept if state.name.startswith("first_")), dtype)
    read = state_inputs((state for state in kept if state.name.startswith("cross_")), dtype)
    source = (SOURCE_LENGTHS, *read) if read else ()
    encode = Signature(
        module=EncodeGraph(model),
        arguments=(SOURCE, SOURCE_LENGTHS),
        outputs=("encoder_states", *(one.name for one in (*read, *firsts))),
    )
    step = Input("tokens", ("batch", 1)), Input("starts", ("batch",)), state_inputs(carried, dtype, "past.")
    decode = Signature(
        module=DecodeGraph(model),
        arguments=(*step, firsts, *source),
        outputs=("logits", *(f"present.{name}" for name in names)),
    )
    made: dict[Role, Signature] = {"encode": encode, "decode": decode, "logprobs": logprobs_signature(config)}
    if attention:
        made["align"] = Signature(
            module=WatchGraph(model),
            arguments=(Input("token", ("batch",)), state_inputs(carried, dtype, "before."), *source),
            outputs=(*(f"after.{name}" for name in names), "weights"),
            finish=scan_steps,
        )
    return made


def states(config: ModelConfig, dtype: str) -> tuple[StateSpec, ...]:
    """Return the tensors kept between calls: of the decoder's cells, then the source tensors that attention reads."""
    assert isinstance(config, RecurrentConfig)

    def state(name: str, kind: StateKind, *shape: int | str) -> StateSpec:
        return StateSpec(name=name, kind=kind, dtype=dtype, shape=("batch", *shape))

    kept = [state(name, "recurrent", config.d_model) for name in state_names(config)]
    kept += [state(f"first_{name}", "cross_kv", config.d_model) for name in initial_state_names(config)]
    if config.score != "none":
        kept.append(state("cross_value.0", "cross_kv", 1, "source", config.source_dim))
    if config.score == "additive":
        kept.append(state("cross_key.0", "cross_kv", 1, "source", config.attention_dim or config.d_model))
    return tuple(kept)


def scan_steps(step: ModelProto) -> ModelProto:
    """Wrap the graph of `WatchGraph` as the body of a Scan over the tokens of a whole target. Inputs: tokens (B, T),
    the source tensors of the step, and the initial states. Output: cross_attention float32 (1, B, 1, T, S)."""
    inner, inputs = step.graph, {value.name: value for value in step.graph.input}
    names = [name.removeprefix("before.") for name in inputs if name.startswith("before.")]
    outside = [value for name, value in inputs.items() if name != "token" and not name.startswith("before.")]
    firsts, nodes = list[ValueInfoProto](), list[NodeProto]()
    for name in names:
        before = inputs[f"before.{name}"].type.tensor_type
        if name == "fed":  # zeros, in the shape of the other states
            shape = helper.make_node("Shape", [firsts[0].name], ["shape.fed"])
            zero = helper.make_tensor("zero", before.elem_type, [1], [0.0])
            nodes += [shape, helper.make_node("ConstantOfShape", ["shape.fed"], ["first_fed"], value=zero)]
        else:
            first = helper.make_value_info(f"first_{name}", helper.make_tensor_type_proto(before.elem_type, None))
            first.type.tensor_type.CopyFrom(before)
            firsts.append(first)
    body = helper.make_graph(
        inner.node,
        "step",
        [*(inputs[f"before.{name}"] for name in names), inputs["token"]],
        inner.output,
    )
    nodes.append(
        helper.make_node(
            "Scan",
            [*(f"first_{name}" for name in names), "tokens"],
            [*(f"last.{name}" for name in names), "weights_BTS"],
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[1],
            scan_output_axes=[1],
        )
    )
    nodes.append(helper.make_node("Unsqueeze", ["weights_BTS", "axes.layer_head"], ["cross_attention"]))
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "block"])
    weights = helper.make_tensor_value_info("cross_attention", TensorProto.FLOAT, [1, "batch", 1, "block", "source"])
    axes = helper.make_tensor("axes.layer_head", TensorProto.INT64, [2], [0, 2])
    for i, node in enumerate(nodes):
        node.name = f"{node.op_type}_outer_{i}"
    graph = helper.make_graph(
        nodes, inner.name, [tokens, *outside, *firsts], [weights], initializer=[*inner.initializer, axes]
    )
    model = helper.make_model(graph, opset_imports=step.opset_import, ir_version=step.ir_version)
    model.producer_name = step.producer_name
    return model
