"""Logits of `decode` in every weight precision."""

import pytest
import torch
from torch import nn

from export.graphs.decoder import next_token_logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_logits_are_float32_in_every_precision(dtype):
    torch.manual_seed(1)
    unembedding, states_PM = nn.Linear(8, 5).to(dtype), torch.randn(3, 8, dtype=dtype)
    logits_PV = next_token_logits(unembedding, states_PM)
    assert logits_PV.dtype == torch.float32
    expected_PV = states_PM.double() @ unembedding.weight.double().T + unembedding.bias.double()
    torch.testing.assert_close(logits_PV.double(), expected_PV, atol=1e-6 if dtype == torch.float32 else 5e-3, rtol=0)
