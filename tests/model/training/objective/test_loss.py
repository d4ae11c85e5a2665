import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from model.architecture_config import DecoderConfig
from model.architectures import build
from model.training.data.examples import IGNORED, Batch
from model.training.objective import loss
from model.training.objective.loss import (
    BF16_INSTRUCTIONS,
    batch_loss,
    drop_padding,
    projected_cross_entropy,
    takes_bf16,
)
from tests.tiny import tiny_config


def example(positions, vocabulary=37, width=16, dtype=torch.float32):
    generator = torch.Generator().manual_seed(positions)
    hidden = torch.randn(positions, width, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).requires_grad_()
    targets = torch.randint(vocabulary, (positions,), generator=generator)
    return hidden, weight, targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("positions", [1, 7, 8, 9, 50])  # around and across the chunks of 8
def test_values_and_gradients_are_those_of_cross_entropy(positions, smoothing, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK", 8)
    hidden, weight, targets = example(positions)
    got = projected_cross_entropy(hidden, weight, targets, smoothing=smoothing)
    expected = F.cross_entropy(hidden @ weight.T, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(got.smoothed, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.plain, F.cross_entropy(hidden @ weight.T, targets, reduction="sum"))
    for mine, theirs in zip(
        torch.autograd.grad(got.smoothed / 3, (hidden, weight)),
        torch.autograd.grad(expected / 3, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_values_and_gradients_with_a_bias_are_those_of_cross_entropy(smoothing, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK", 8)
    hidden, weight, targets = example(50)
    bias = torch.linspace(-3, 3, len(weight)).requires_grad_()
    got = projected_cross_entropy(hidden, weight, targets, bias_V=bias, smoothing=smoothing)
    exact = [part.detach().double().requires_grad_() for part in (hidden, weight, bias)]
    logits = exact[0] @ exact[1].T + exact[2]
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(got.smoothed.double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(got.plain.double(), F.cross_entropy(logits, targets, reduction="sum"), rtol=1e-6, atol=0)
    gradients = torch.autograd.grad(got.smoothed, (hidden, weight, bias)), torch.autograd.grad(expected, exact)
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_side_leaves_the_gradient_of_the_other_as_it_is(frozen, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK", 8)
    hidden, weight, targets = example(20)
    both = torch.autograd.grad(
        projected_cross_entropy(hidden, weight, targets, smoothing=0.1).smoothed, (hidden, weight)
    )
    given = (hidden, weight.detach()) if frozen else (hidden.detach(), weight)
    got = projected_cross_entropy(given[0], given[1], targets, smoothing=0.1).smoothed
    (gradient,) = torch.autograd.grad(got, given[1 - frozen])
    assert torch.equal(gradient, both[1 - frozen])


def test_bfloat16_products_stay_close_to_float32():
    hidden, weight, targets = example(2000, vocabulary=500, width=64, dtype=torch.bfloat16)
    got = projected_cross_entropy(hidden, weight / 8, targets, smoothing=0.1)
    exact = F.cross_entropy(hidden.float() @ weight.T / 8, targets, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(got.smoothed, exact, rtol=1e-3, atol=0)
    mine, theirs = (torch.autograd.grad(value, weight)[0] for value in (got.smoothed, exact))
    assert (mine - theirs).norm() < 0.01 * theirs.norm()


def test_a_target_of_vanishing_probability_gives_a_finite_loss():
    hidden = torch.tensor([[1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    got = projected_cross_entropy(hidden, weight, torch.tensor([1]))
    assert torch.isfinite(got.smoothed)
    torch.testing.assert_close(torch.autograd.grad(got.smoothed, hidden)[0], torch.tensor([[2.0]]))


def test_the_plain_loss_carries_no_gradient():
    hidden, weight, targets = example(5)
    assert not projected_cross_entropy(hidden, weight, targets).plain.requires_grad


def test_without_gradients_none_are_computed():
    hidden, weight, targets = example(5)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        got = projected_cross_entropy(hidden, weight, targets, smoothing=0.1)
    assert counter.get_total_flops() == 2 * hidden.numel() * len(weight)  # the logits
    expected = F.cross_entropy(hidden @ weight.T, targets, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(got.smoothed, expected)
    assert not got.smoothed.requires_grad


def test_padding_is_dropped():
    hidden = torch.arange(12.0).view(2, 3, 2)
    kept, targets = drop_padding(hidden, torch.tensor([[5, 6, 0], [7, IGNORED, IGNORED]]))
    assert kept.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert targets.tolist() == [5, 6, 0, 7]  # 0 is a token like others


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder", "recurrent"])
def test_the_bias_of_the_logits_is_part_of_the_loss_and_trained(architecture):
    model = build(tiny_config(architecture, vocab_size=20, max_target_len=9, dropout=0.0, output_bias=True))
    output = model.decoder.unembedding
    target = torch.tensor([[7, 8, 9, 2]])
    batch = Batch(torch.tensor([[5, 6, 2]]), torch.tensor([3]), torch.tensor([[1, 7, 8, 9]]), target, 4)
    with torch.no_grad():
        output.bias.copy_(torch.linspace(-2, 2, 20))
    states = (
        model(batch.source_BS, batch.lengths_B, batch.input_BT) if model.config.has_encoder else model(batch.input_BT)
    )
    expected = F.cross_entropy(output(states)[0], target[0], reduction="sum")
    got = batch_loss(model, batch)
    torch.testing.assert_close(got.plain, expected.detach())
    mine, theirs = (torch.autograd.grad(value, output.bias, retain_graph=True)[0] for value in (got.smoothed, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_the_loss_of_a_batch_does_not_depend_on_padding(architecture):
    config = tiny_config(
        architecture, vocab_size=20, d_model=16, num_heads=2, d_ff=32, max_target_len=9, num_decoder_layers=3
    )
    torch.manual_seed(1)
    model = build(config).eval()
    rows = [([5, 6, 2], [7, 8, 9, 2]), ([10, 2], [11, 2])]

    def batch(pairs, width):
        fill = [[*source, *[0] * (width - len(source))] for source, _ in pairs]
        inputs = [[1, *target[:-1], *[0] * (width - len(target))] for _, target in pairs]
        targets = [[*target, *[IGNORED] * (width - len(target))] for _, target in pairs]
        lengths = torch.tensor([len(source) for source, _ in pairs])
        return Batch(torch.tensor(fill), lengths, torch.tensor(inputs), torch.tensor(targets), 0)

    together = batch_loss(model, batch(rows, 6), smoothing=0.1)
    single = [batch_loss(model, batch([row], max(map(len, row))), smoothing=0.1) for row in rows]
    torch.testing.assert_close(together.smoothed, sum(part.smoothed for part in single))
    torch.testing.assert_close(together.plain, sum(part.plain for part in single))
    logits = model.decoder.unembedding(
        model(torch.tensor([rows[0][0]]), torch.tensor([3]), torch.tensor([[1, 7, 8, 9]]))
        if config.has_encoder
        else model(torch.tensor([[1, 7, 8, 9]]))
    )
    expected = F.cross_entropy(logits[0], torch.tensor(rows[0][1]), reduction="sum")
    torch.testing.assert_close(single[0].plain, expected)


@pytest.mark.parametrize(
    ("wanted", "capabilities", "taken"),
    [
        (True, {}, True),
        (False, {"avx512_bf16": True}, False),
        ("auto", {"avx512_bf16": True}, True),
        ("auto", {"avx512_bf16": False, "amx_bf16": True}, True),
        ("auto", {"architecture": "aarch64", "bf16": True}, True),
        ("auto", {"avx2": True, "avx512_f": True, "avx512_bf16": False}, False),
    ],
)
def test_bfloat16_is_for_processors_that_have_it(wanted, capabilities, taken, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert takes_bf16(wanted, torch.device("cpu")) is taken


def test_this_torch_names_the_processors_instructions():
    assert isinstance(torch.cpu.get_capabilities()["architecture"], str)
    if torch.cpu.get_capabilities()["architecture"] == "x86_64":
        assert set(BF16_INSTRUCTIONS[:2]) <= set(torch.cpu.get_capabilities())


def test_bfloat16_is_used_when_requested():
    config = DecoderConfig(vocab_size=20, d_model=16, num_heads=2, d_ff=32, max_target_len=9)
    torch.manual_seed(1)
    model = build(config)
    tokens = torch.randint(4, 20, (3, 9))
    batch = Batch(torch.zeros(3, 0), torch.zeros(3), tokens, tokens, 27)
    exact, rounded = batch_loss(model, batch).smoothed, batch_loss(model, batch, bf16=True).smoothed
    assert exact != rounded
    torch.testing.assert_close(exact, rounded, rtol=0.02, atol=0)
    (gradient,) = torch.autograd.grad(rounded, model.decoder.unembedding.weight)
    assert gradient.dtype == torch.float32
