import collections

import numpy as np
import onnxruntime as ort
import pytest
import torch

from export.graphs.lowering import lowered
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
        return [wide, mixed, same, rows @ torch.ones(2, 6).T, rows[: count.item()], rows.sum().flatten()]


class Changing(torch.nn.Module):
    def forward(self, rows):
        changed = rows.clone()
        changed.add_(1.0)
        return changed * 2


class Entropy(torch.nn.Module):
    def forward(self, rows):
        return torch.special.entr(rows)  # which ONNX lacks


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
    graph = trace(Signature(module=module, arguments=(ROWS, count), outputs=("a", "b", "c", "d", "e", "f")))
    assert not decomposed
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((batch, 6), np.float32))
    found = run(graph, rows.numpy(), np.array([1]))
    for one, expected in zip(found, module(rows, torch.tensor([1])), strict=True):
        assert one == pytest.approx(expected.numpy(), abs=1e-6)


@pytest.mark.parametrize("kind", [Changing, Entropy])
def test_a_program_with_other_operators_is_decomposed(kind, decomposed):
    graph = trace(Signature(module=kind(), arguments=(ROWS,), outputs=("a",)))
    assert decomposed == {"programs": 1}
    rows = torch.rand(2, 6, generator=torch.Generator().manual_seed(0))
    assert run(graph, rows.numpy())[0] == pytest.approx(kind()(rows).numpy(), abs=1e-6)
