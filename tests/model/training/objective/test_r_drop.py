import pytest
import torch
from torch.nn import functional as F

from model.architecture_config import EncoderConfig
from model.architectures import build
from model.config import ConfigError, TrainConfig
from model.training.data.examples import Batch
from model.training.objective import r_drop
from model.training.objective.loss import batch_loss
from model.training.objective.r_drop import check_r_drop, paired_cross_entropy, paired_label_loss, twice
from tests.tiny import tiny_config


def by_definition(logits, targets, weight, smoothing):
    """Equation 4 of the paper, halved, from the logits (2 N, V) of both passes."""
    first, second = logits.log_softmax(-1).chunk(2)
    both = torch.cat((targets, targets))
    entropy = F.cross_entropy(logits, both, reduction="sum", label_smoothing=smoothing)
    forward = F.kl_div(second, first, reduction="sum", log_target=True)  # KL(first, second)
    backward = F.kl_div(first, second, reduction="sum", log_target=True)
    return (entropy + weight * (forward + backward) / 2) / 2


def example(positions=21, vocabulary=37, width=16):
    generator = torch.Generator().manual_seed(positions)
    hidden = torch.randn(2 * positions, width, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).requires_grad_()
    bias = torch.randn(vocabulary, generator=generator).requires_grad_()
    targets = torch.randint(vocabulary, (positions,), generator=generator)
    return hidden, weight, bias, targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [0.5, 5.0])
def test_values_and_gradients_are_those_of_the_definition(weight, smoothing, monkeypatch):
    monkeypatch.setattr(r_drop, "CHUNK", 8)  # 21 positions: two chunks and a part
    hidden, matrix, bias, targets = example()
    loss, plain = paired_cross_entropy(hidden, matrix, targets, bias_V=bias, weight=weight, smoothing=smoothing)
    exact = [part.detach().double().requires_grad_() for part in (hidden, matrix, bias)]
    logits = exact[0] @ exact[1].T + exact[2]
    expected = by_definition(logits, targets, weight, smoothing)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    both = torch.cat((targets, targets))
    torch.testing.assert_close(plain.double(), F.cross_entropy(logits, both, reduction="sum") / 2, rtol=1e-5, atol=0)
    gradients = torch.autograd.grad(loss / 3, (hidden, matrix, bias)), torch.autograd.grad(expected / 3, exact)
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)


def test_bfloat16_products_stay_close_to_float32():
    hidden, matrix, _, targets = example(400, 500, 64)
    rounded = hidden.detach().to(torch.bfloat16).requires_grad_()
    loss, _ = paired_cross_entropy(rounded, matrix / 8, targets, bias_V=None, weight=5.0, smoothing=0.1)
    exact = by_definition(rounded.float() @ matrix.T / 8, targets, 5.0, 0.1)
    torch.testing.assert_close(loss, exact, rtol=2e-3, atol=0)
    mine, theirs = (torch.autograd.grad(value, matrix)[0] for value in (loss, exact))
    assert (mine - theirs).norm() < 0.02 * theirs.norm()


def test_labels_have_the_loss_of_the_definition():
    hidden, matrix, _, targets = example()
    logits = hidden @ matrix.T
    torch.testing.assert_close(
        paired_label_loss(logits, targets, weight=5.0, smoothing=0.1), by_definition(logits, targets, 5.0, 0.1)
    )


BATCH = Batch(
    torch.tensor([[5, 6, 7], [8, 9, 0]]),
    torch.tensor([3, 2]),
    torch.tensor([[1, 4, 5, 6], [1, 7, 0, 0]]),
    torch.tensor([[4, 5, 6, 2], [7, 2, 0, 0]]),
    6,
)


def test_without_dropout_it_is_the_loss_of_one_pass():
    torch.manual_seed(0)
    model = build(tiny_config()).eval()
    once = batch_loss(model, BATCH, smoothing=0.1)
    paired = batch_loss(model, BATCH, smoothing=0.1, r_drop_weight=5.0)
    torch.testing.assert_close(paired.smoothed, once.smoothed)
    torch.testing.assert_close(paired.plain, once.plain)


def test_dropout_makes_the_passes_differ():
    torch.manual_seed(0)
    model = build(tiny_config().replace(dropout=0.3)).train()
    losses = []
    for weight in (1e-6, 5.0):
        torch.manual_seed(1)
        losses.append(batch_loss(model, BATCH, r_drop_weight=weight).smoothed.item())
    assert losses[1] > losses[0] + 0.1


def test_a_classifier_trains_with_it():
    config = EncoderConfig(
        head="classify", labels=("a", "b"), vocab_size=40, d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1,
        max_source_len=16, dropout=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = build(config).train()
    batch = Batch(BATCH.source_BS, BATCH.lengths_B, BATCH.input_BT, torch.tensor([[0], [1]]), 2)
    loss = batch_loss(model, batch, r_drop_weight=5.0)
    loss.smoothed.backward()
    assert model.label.weight.grad.abs().sum() > 0
    model.eval()  # without dropout it is the loss of one pass
    once, paired = batch_loss(model, batch, smoothing=0.1), batch_loss(model, batch, smoothing=0.1, r_drop_weight=5.0)
    torch.testing.assert_close((paired.smoothed, paired.plain), (once.smoothed, once.plain))


def test_rows_are_doubled_and_counted_once():
    doubled = twice(BATCH)
    assert doubled.source_BS.tolist() == BATCH.source_BS.tolist() * 2
    assert doubled.tokens == BATCH.tokens


def test_it_is_refused_without_dropout_and_for_several_labels():
    train = TrainConfig(steps=1, r_drop_weight=5.0)
    with pytest.raises(ConfigError, match="r_drop_weight: needs dropout"):
        check_r_drop(tiny_config(), train)
    several = EncoderConfig(head="classify", multi_label=True, dropout=0.1)
    with pytest.raises(ConfigError, match="multi_label"):
        check_r_drop(several, train)
    check_r_drop(tiny_config(), TrainConfig(steps=1))
