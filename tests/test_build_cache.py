"""Traces shared by models of one shape: each gets the graph that a trace of its own weights gives."""

import copy
import inspect

import pytest
import torch
from torch import Tensor, nn

from export.graphs.tracing import SOURCE, Input, Signature, trace
from export.variants import trace_model
from tests.build_cache import BuildCache, trace_once
from tests.tiny import tiny_config, tiny_model


class Scaled(nn.Module):
    """A product whose weight is folded, a bias, a buffer, a table tied to it or not, and a constant."""

    def __init__(self, scale: float = 2.0, *, is_tied: bool = True) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.table = nn.Embedding(4, 4)
        if is_tied:
            self.table.weight = self.inner.weight
        self.register_buffer("steps", torch.rand(4), persistent=False)
        self.factor = torch.tensor([scale] * 4)

    def forward(self, source_BS: Tensor) -> Tensor:
        result: Tensor = (self.inner(self.table(source_BS)) + self.steps) * self.factor
        return result


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """Counts the traces of a cache of this test alone."""
    count, real = [], inspect.unwrap(torch.onnx.export)

    def counted(*arguments, **options):
        count.append(type(arguments[0]).__name__)
        return real(*arguments, **options)

    monkeypatch.setattr(torch.onnx, "export", counted)
    trace_once(BuildCache(tmp_path))
    return count


def content(graph):
    """A graph without the names of its nodes, in which torch counts."""
    for node in graph.graph.node:
        node.name = ""
    return graph.SerializeToString(deterministic=True)


def anew(signature, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.onnx, "export", inspect.unwrap(torch.onnx.export))
        return trace(signature)


def signature_of(module):
    return Signature(module=module, arguments=(SOURCE,), outputs=("scores",))


def test_other_weights_share_a_trace_and_get_graphs_of_their_own(cached, monkeypatch):
    one, two = signature_of(Scaled()), signature_of(Scaled())
    first, second = content(trace(one)), content(trace(two))
    assert len(cached) == 1
    assert first != second
    assert (first, second) == (content(anew(one, monkeypatch)), content(anew(two, monkeypatch)))


@pytest.mark.parametrize("other", [Scaled(3.0), Scaled(is_tied=False), Scaled().half()], ids=["value", "tie", "dtype"])
def test_what_a_trace_sees_is_traced_anew(cached, monkeypatch, other):
    for signature in (signature_of(Scaled()), changed := signature_of(other)):
        found = trace(signature)
    assert len(cached) == 2
    assert content(found) == content(anew(changed, monkeypatch))


def test_other_arguments_are_traced_anew(cached):
    module = Scaled()
    trace(signature_of(module))
    trace(Signature(module=module, arguments=(Input("source", ("batch", 3)),), outputs=("scores",)))
    assert len(cached) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "is_half"),
    [("decoder", False), ("decoder", True), ("recurrent", False), ("encoder_decoder", False)],
)
def test_models_of_every_architecture_get_graphs_of_their_own(cached, monkeypatch, architecture, is_half):
    models = [tiny_model(tiny_config(architecture), seed) for seed in (1, 2)]
    models = [copy.deepcopy(model).half() if is_half else model for model in models]
    shared = [trace_model(model).graphs for model in models]
    assert len(cached) == len(shared[0])
    monkeypatch.setattr(torch.onnx, "export", inspect.unwrap(torch.onnx.export))
    for model, graphs in zip(models, shared, strict=True):
        for role, graph in trace_model(model).graphs.items():
            assert content(graph) == content(graphs[role]), role
