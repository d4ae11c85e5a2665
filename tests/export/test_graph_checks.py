"""Graphs of the wrong structure are refused."""

from collections import Counter

import onnx
import pytest

from export.export_errors import ExportError
from export.graph_checks import check_graph
from export.graphs import encoder_decoder, recurrent
from export.graphs.group_query_attention import encoder_operators
from export.graphs.tracing import trace
from export.passes.optimize import name_weights, optimize
from export.variants import trace_model
from tests.export.graphs.kinds import KINDS
from tests.tiny import tiny_config, tiny_model


def test_a_graph_without_its_fusions_is_refused():
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    traced = trace(encoder_decoder.signatures(model)["decode"])
    with pytest.raises(ExportError, match=r"decode: the graph must have 1 attention nodes with packed .*, got 0"):
        check_graph(traced, "decode", model.config)
    check_graph(optimize(traced), "decode", model.config)
    with pytest.raises(ExportError, match="must have 2 GroupQueryAttention nodes, got 1"):
        check_graph(traced, "decode", tiny_config("decoder", num_decoder_layers=2))


def test_logits_in_half_precision_are_refused():
    """Verification cannot see it: on a CPU the runtime computes it in float32 all the same."""
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1)).half()
    graph = optimize(trace(encoder_decoder.signatures(model)["decode"]))
    check_graph(graph, "decode", model.config)
    (cast,) = [node for node in graph.graph.node if "logits" in node.output]
    assert cast.op_type == "Cast"
    graph.graph.node.remove(cast)
    (head,) = [node for node in graph.graph.node if cast.input[0] in node.output]
    head.output[0] = "logits"
    with pytest.raises(ExportError, match="decode: logits must be float32"):
        check_graph(graph, "decode", model.config)


@pytest.mark.parametrize(
    "kind",
    [
        "alibi-window",
        "compressed",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("bucketed", "shaw", "parallel")),
    ],
)
def test_attention_alone_reads_the_total_length(kind):
    """Whatever follows from it is an input: on CUDA its value is in main memory, and a captured graph copies nothing
    from there."""
    model = tiny_model(KINDS[kind])
    graph = trace_model(model).graphs["decode"].graph
    totals = {"total_length", "total_slots"}
    read = [(node.op_type, i) for node in graph.node for i, name in enumerate(node.input) if name in totals]
    assert read == [("GroupQueryAttention", 6)] * model.config.num_decoder_layers


def test_a_graph_that_computes_from_the_total_length_is_refused():
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    graph = optimize(trace(encoder_decoder.signatures(model)["decode"]))
    graph.graph.node.insert(0, onnx.helper.make_node("Add", ["total_length", "total_length"], ["twice"]))
    with pytest.raises(ExportError, match="decode: only attention may read total_length, got Add"):
        check_graph(graph, "decode", model.config)


def test_a_layer_with_a_window_that_reads_the_length_of_the_context_is_refused():
    """Verification cannot tell where its rows are shorter than the window."""
    groups = ({"layers": (0,), "sliding_window": 16}, {"layers": (1,), "sliding_window": 500})
    model = tiny_model(tiny_config("decoder", positions="rotary", max_target_len=512, layer_groups=groups))
    graph = optimize(trace(encoder_decoder.signatures(model)["decode"]))
    check_graph(graph, "decode", model.config)
    own, other = [node for node in graph.graph.node if node.op_type == "GroupQueryAttention"]
    assert (own.input[6], other.input[6]) == ("window_total", "total_length"), "500 need no less than the context"
    own.input[5] = other.input[5]
    with pytest.raises(
        ExportError, match="a window of 16 must read window_lengths and window_total, got lengths and w"
    ):
        check_graph(graph, "decode", model.config)


def traced(role):
    config = tiny_config("recurrent")
    signature = recurrent.signatures(tiny_model(config), attention=True)[role]
    return name_weights(optimize(trace(signature)), {}), config


def test_a_state_that_is_read_after_it_may_have_been_written_is_refused():
    graph, config = traced("decode")
    check_graph(graph, "decode", config)
    first = next(node for node in graph.graph.node if "past.hidden.0" in node.input)
    late = onnx.helper.make_node("Add", ["past.hidden.0", first.output[0]], ["late"])
    graph.graph.node.append(late)
    with pytest.raises(ExportError, match=r"must read past\.(hidden\.0|fed) once, and before it writes present"):
        check_graph(graph, "decode", config)


def test_a_state_that_does_not_depend_on_what_was_is_refused():
    graph, config = traced("decode")
    last = next(node for node in graph.graph.node if "present.fed" in node.output)
    last.output[0] = "made"
    graph.graph.node.append(onnx.helper.make_node("Identity", ["first_hidden.0"], ["present.fed"]))
    with pytest.raises(ExportError, match=r"must read past\.(hidden\.0|fed) once, and before it writes present"):
        check_graph(graph, "decode", config)


@pytest.mark.parametrize(
    ("changes", "attention", "softmaxes", "opset"),
    [
        pytest.param({}, 2, 0, 24, id="plain"),
        pytest.param({"num_kv_heads": 2}, 2, 0, 24, id="grouped", marks=pytest.mark.slow),
        pytest.param({"positions": "alibi", "num_encoder_layers": 1}, 0, 1, 23, id="biases"),
        pytest.param({"head_dim": 4}, 0, 2, 23, id="narrow heads", marks=pytest.mark.slow),
    ],
)
def test_half_precision_encoders_attend_in_one_node_where_it_reads_lengths(changes, attention, softmaxes, opset):
    """On CUDA the node of float32 encoders would attend to padding."""
    model = tiny_model(tiny_config("encoder_decoder", **changes)).half()
    graph = trace(encoder_decoder.signatures(model)["encode"])
    found = Counter(node.op_type for node in graph.graph.node)
    assert (found["Attention"], found["Softmax"], found["GroupQueryAttention"]) == (attention, softmaxes, 0)
    assert {entry.version for entry in graph.opset_import if entry.domain == ""} == {opset}
    operators = encoder_operators(model)
    check_graph(optimize(graph), "encode", model.config, encoder_operators=operators)
    with pytest.raises(ExportError, match="encode: the graph must have"):
        check_graph(
            graph, "encode", model.config, encoder_operators=["" if operator else "Attention" for operator in operators]
        )
