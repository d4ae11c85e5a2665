"""Structural checks of traced and optimized graphs: required nodes and their counts.

`export.verification` checks what the graphs compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from onnx import ModelProto, TensorProto

from export.bundle.manifest import Role
from export.export_errors import ExportError
from export.graphs.attention import seen_attention
from export.graphs.decoder import cache_window
from export.graphs.group_query_attention import EncoderOperator
from export.graphs.tracing import versions
from export.passes.fuse_rotary import ROTARY_MULTIPLE
from export.passes.optimize import attributes_of, makers_of
from model.architecture_config import EncoderDecoderConfig, RecurrentConfig
from model.config import ModelConfig
from model.recurrent import state_names

TOTALS, TOTAL_INPUT = (
    ("total_length", "total_slots", "window_total"),
    6,
)  # of `decode`; the input of attention that reads them
CAP = ("Div", "Tanh", "Mul")  # of the logits


def _check_counts(graph: ModelProto, role: Role, nodes: Mapping[str, int], *, packed: int) -> None:
    """Check the number of nodes of each type, the number of attention nodes with packed query, key and value, and that
    the graph has no functions. Raises ExportError."""
    operators = Counter(node.op_type for node in graph.graph.node)
    found = sum(node.op_type == "GroupQueryAttention" and not node.input[1] for node in graph.graph.node)
    counts = {f"{name} nodes": (operators[name], expected) for name, expected in nodes.items()}
    counts["attention nodes with packed query, key and value"] = found, packed
    counts["functions"] = len(graph.functions), 0
    for what, (actual, expected) in counts.items():
        if actual != expected:
            raise ExportError(f"{role}: the graph must have {expected} {what}, got {actual}; versions: {versions()}")


def check_graph(
    graph: ModelProto, role: Role, config: ModelConfig, *, encoder_operators: Sequence[EncoderOperator] = ()
) -> None:
    """Check a graph for silent tracing and pass errors. Raises ExportError.

    encoder_operators: with which each layer of `encode` attends; see
    `export.graphs.group_query_attention.encoder_operators`.
    """
    if role == "logprobs":
        _check_counts(graph, role, {"LogSoftmax": 1, "TopK": 1}, packed=0)
        return
    if role == "embed":
        _check_counts(graph, role, {}, packed=0)
        return
    if config.is_recurrent:
        _check_recurrent_graph(graph, role, config)
        return
    # Operations on queries or keys outside the operator prevent packing.
    is_rotary, is_apart = config.positions == "rotary", config.positions == "shaw" or config.qk_norm
    layers = range(config.num_decoder_layers)
    nodes, packable, softmaxes, compressed, blocks = 0, 0, 0, 0, config.num_decoder_layers
    if role == "decode":
        turning = config.rotary_dims or config.attention_head_dim
        is_odd = turning % ROTARY_MULTIPLE > 0 or config.attention_head_dim % ROTARY_MULTIPLE > 0
        nodes = config.num_decoder_layers * (int(config.has_encoder) + int(not config.carries_states))
        compressed = sum(map(config.is_compressed, layers))
        packable = sum(
            not (is_apart or config.is_compressed(layer) or (is_odd and config.layer(layer).positions == "rotary"))
            for layer in (() if config.carries_states else layers)
        )
    elif role == "align":
        softmaxes = config.num_decoder_layers * (1 if config.carries_states else 2)
        blocks -= 1  # nothing after the last layer's attention is computed
    elif role == "attend":
        softmaxes = sum(seen.layers for seen in seen_attention(config))
        own, theirs = int(config.has_decoder) * blocks, int(config.has_encoder) * config.num_encoder_layers
        blocks = own + theirs - 1
    else:
        blocks = config.num_encoder_layers
        nodes, softmaxes = encoder_operators.count("GroupQueryAttention"), encoder_operators.count("")
        packable = 0 if is_apart or is_rotary else nodes
        softmaxes += int(config.head == "attention")
    members = config.ensemble_size if isinstance(config, EncoderDecoderConfig) else 1
    softmaxes = members if role == "decode" and members > 1 else softmaxes
    routers = blocks if config.num_experts else 0
    counts = {
        "GroupQueryAttention": nodes,
        "Attention": encoder_operators.count("Attention") if role == "encode" else 0,
        "Conv": 2 * compressed,
        "Softmax": softmaxes + routers,
        "TopK": routers,
        "NonZero": routers * config.num_experts,
        "LogSoftmax": int(role == "encode" and config.head == "masked"),
    }
    _check_counts(graph, role, counts, packed=packable)
    if role == "decode":
        _check_states(graph, [f"self_state.{layer}" for layer in layers if config.carries_states])
        _check_decode(graph, cache_window(config), members)


def _check_recurrent_graph(graph: ModelProto, role: Role, config: ModelConfig) -> None:
    assert isinstance(config, RecurrentConfig)
    is_decode, names = role == "decode", state_names(config)
    counts = {
        config.cell.upper(): config.num_encoder_layers if role == "encode" else 0,
        "GroupQueryAttention": int(is_decode and config.score != "none"),
        "Softmax": int(role == "align"),
    }
    _check_counts(graph, role, counts, packed=0)
    if is_decode:
        _check_states(graph, names)
        _check_logits(graph)


def _check_states(graph: ModelProto, names: Iterable[str]) -> None:
    for name in names:
        if not _is_read_first(graph, name):
            raise ExportError(f"decode: must read past.{name} once, and before it writes present.{name}")


def _is_read_first(graph: ModelProto, name: str) -> bool:
    """Report whether present.NAME may share memory with past.NAME.

    That requires that exactly one node reads the values of past.NAME and that present.NAME depends on this node.
    """
    readers = [node for node in graph.graph.node if f"past.{name}" in node.input and node.op_type != "Shape"]
    if len(readers) != 1:
        return False
    makers, todo, seen = makers_of(graph.graph), [f"present.{name}"], set[str]()
    while todo:
        value = todo.pop()
        if value in readers[0].output:
            return True
        if value in makers and value not in seen:
            todo.extend(makers[value].input)
        seen.add(value)
    return False


def _check_decode(graph: ModelProto, longest_window: int, members: int) -> None:
    _check_totals(graph)
    _check_windows(graph, longest_window)
    _check_logits(graph, members)


def _check_totals(graph: ModelProto) -> None:
    """Raise ExportError unless attention alone reads the lengths that CUDA needs in main memory, as its input: another
    reader would be on the device, and a graph with copies between the two cannot be captured."""
    for node in graph.graph.node:
        for i, name in enumerate(node.input):
            if name in TOTALS and (node.op_type, i) != ("GroupQueryAttention", TOTAL_INPUT):
                raise ExportError(f"decode: only attention may read {name}, got {node.op_type}; versions: {versions()}")


def _check_windows(graph: ModelProto, longest: int) -> None:
    """Raise ExportError unless exactly the layers whose window is at most `longest` read the lengths of caches that
    hold a window. Verification cannot tell with rows that are shorter."""
    makers = makers_of(graph.graph)
    for node in graph.graph.node:
        if node.op_type != "GroupQueryAttention" or not node.input[3] or node.input[TOTAL_INPUT] not in TOTALS:
            continue
        window = attributes_of(node).get("local_window_size", 0)
        expected = ("window_lengths", "window_total") if 0 < window <= longest else ("lengths", "total_length")
        maker = makers.get(node.input[TOTAL_INPUT - 1])
        found = (maker.input[0] if maker is not None else "", node.input[TOTAL_INPUT])
        if found != expected and found[1] != "total_slots":
            raise ExportError(
                f"decode: attention with a window of {window} must read {' and '.join(expected)}, got "
                f"{' and '.join(found)}; versions: {versions()}"
            )


def _check_logits(graph: ModelProto, members: int = 1) -> None:
    """Raise ExportError unless the head's products are float32, by a cast or by the type of the head's weights;
    an ensemble has one for each member."""
    makers = makers_of(graph.graph)
    types = {tensor.name: tensor.data_type for tensor in graph.graph.initializer}
    if members > 1:
        heads = [makers[node.input[0]] for node in graph.graph.node if node.op_type == "Softmax"]
    else:
        head = makers["logits"]
        while head.op_type in CAP:
            head = makers[head.input[0]]
        heads = [head]
    found = {head.attribute[0].i if head.op_type == "Cast" else types[head.input[1]] for head in heads}
    if found != {TensorProto.FLOAT}:
        raise ExportError("decode: logits must be float32, whatever the precision of the graph")
