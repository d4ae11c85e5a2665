import collections

import numpy as np
import onnxruntime as ort
import pytest
import torch

from export.graphs.lowering import lowered, run_promoted
from export.graphs.tracing import Input, Signature, trace

ROWS = Input("rows", ("batch", 6), torch.float32)


class Lowered(torch.nn.Module):
    """Has each operator that is lowered, at a size that the exporter knows by name only."""

    def forward(self, rows, count):
        constant = torch.tensor([[1.0], [2.0]])
        pairs = torch.unflatten(rows, -1, (3, -1)).transpose(0, 1)  # (3, batch, 2)
        wide = pairs.flatten(1).to(torch.float64).to(torch.float32)
        mixed = torch.zeros_like(rows[0]).index_add(0, torch.tensor([0, 5, 0]), wide.sum(1))
        same = (rows.detach().to(torch.float32) @ constant.repeat(3, 1)).flatten()
        others = rows @ torch.ones(2, 6).T, rows[: count.item()], rows.sum().flatten()
        within = (rows > -1).__and__(rows < 1).to(torch.promote_types(rows.dtype, torch.float32))
        return [wide, mixed, same, *others, within, 1 - rows.mT]


class Changing(torch.nn.Module):
    def forward(self, rows):
        changed = rows.clone()
        changed.add_(1.0)
        return changed * 2


class Entropy(torch.nn.Module):
    def forward(self, rows):
        return torch.special.entr(rows)  # which ONNX lacks


class Subtracting(torch.nn.Module):
    def forward(self, rows):
        return torch.rsub(rows, 1, alpha=2)


def run(graph, *values):
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip([given.name for given in session.get_inputs()], values, strict=True)))


@pytest.fixture
def decomposed(monkeypatch):
    """How often PyTorch decomposes a program."""
    counts = collections.Counter[str]()

    def counting(program, registry, *, decompose):
        def counted(*given):
            counts["programs"] += 1
            return decompose(*given)

        return lowered(program, registry, decompose=counted)

    monkeypatch.setattr("export.graphs.tracing.lowered", counting)
    return counts


@pytest.mark.parametrize("batch", [1, 5])
def test_a_lowered_program_computes_the_same(batch, decomposed):
    module, count = Lowered(), Input("count", (1,))
    graph = trace(Signature(module=module, arguments=(ROWS, count), outputs=tuple("abcdefgh")))
    assert not decomposed
    assert "Einsum" not in {node.op_type for node in graph.graph.node}
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((batch, 6), np.float32))
    found = run(graph, rows.numpy(), np.array([1]))
    for one, expected in zip(found, module(rows, torch.tensor([1])), strict=True):
        assert one == pytest.approx(expected.numpy(), abs=1e-6)


class Mixed(torch.nn.Module):
    """An integer that is added to rows of another type, and operators whose arguments agree."""

    def forward(self, rows, counts):
        return (counts - 1) + rows.exp() * 2.0


def test_only_operators_whose_arguments_differ_in_type_run_again(monkeypatch):
    ran = []

    def counting(interpreter, run, node):
        def counted(interpreter, node):
            ran.append(node.name)
            return run(interpreter, node)

        return run_promoted(interpreter, counted, node)

    monkeypatch.setattr("export.graphs.tracing.run_promoted", counting)
    graph = trace(Signature(module=Mixed(), arguments=(ROWS, Input("counts", (6,), torch.int32)), outputs=("a",)))
    assert {"sub", "add"} <= set(ran)
    assert not {"exp", "mul"} & set(ran)
    rows, counts = torch.rand(2, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6, dtype=torch.int32)
    assert run(graph, rows.numpy(), counts.numpy())[0] == pytest.approx(Mixed()(rows, counts).numpy(), abs=1e-6)


@pytest.mark.parametrize("kind", [Changing, Entropy, Subtracting])
def test_a_program_with_other_operators_is_decomposed(kind, decomposed):
    graph = trace(Signature(module=kind(), arguments=(ROWS,), outputs=("a",)))
    assert decomposed == {"programs": 1}
    rows = torch.rand(2, 6, generator=torch.Generator().manual_seed(0))
    assert run(graph, rows.numpy())[0] == pytest.approx(kind()(rows).numpy(), abs=1e-6)
