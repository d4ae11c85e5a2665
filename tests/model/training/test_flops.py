import itertools
import math
from math import prod

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.architectures import build
from model.fine_tuning import FineTuning
from model.training.data.examples import IGNORED, Batch
from model.training.flops import StepFlops, fastest_product, measured_flops, peak_flops_per_s, shortest_s
from model.training.objective.freezing import choose_trained
from model.training.objective.loss import batch_loss
from tests.tiny import ENCODERS, tiny_config, tiny_tokenizer

LENGTHS, TARGETS = (5, 9, 3), (4, 6, 7)  # ragged on both sides


def ragged(lengths, vocab_size, pad_id):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, vocab_size, (len(lengths), max(lengths)), generator=generator)
    for row, length in enumerate(lengths):
        ids[row, length:] = pad_id
    return ids


def batch_for(config):
    """A batch of LENGTHS and TARGETS for a model, or of one label or one masked token for each text."""
    source, lengths = ragged(LENGTHS, config.vocab_size, config.pad_id), torch.tensor(LENGTHS)
    if config.has_decoder:
        inputs = ragged(TARGETS, config.vocab_size, config.pad_id)
        target = inputs.masked_fill(torch.arange(inputs.shape[1]) >= torch.tensor(TARGETS)[:, None], IGNORED)
        if not config.has_encoder:
            source, lengths = source[:, :0], torch.zeros(3, dtype=torch.int64)
        return Batch(source, lengths, inputs, target, sum(TARGETS))
    if config.is_classifier:
        return Batch(source, lengths, source[:, :0], torch.tensor([[0], [1], [1]]), 3)
    target = torch.full_like(source, IGNORED)
    target[:, 1] = 1
    return Batch(source, lengths, source[:, :0], target, 3)


def model_of(config, tuning=None):
    torch.manual_seed(1)
    model = build(config).train()
    choose_trained(model, tuning or FineTuning())
    return model


# Of the shapes of a matrix and a vector, whose product torch's counter leaves out.
VECTORS = {torch.ops.aten.mv: lambda matrix, *_, **__: 2 * prod(matrix)}


def check_count(model):
    """Compares with torch's counter itself."""
    batch = batch_for(model.config)
    with FlopCounterMode(display=False, custom_mapping=VECTORS) as counter:
        torch.autograd.backward(batch_loss(model, batch).smoothed)
    assert measured_flops(model, batch) == counter.get_total_flops()


def check_fit(model, *, rel=0, r_drop_weight=0.0):
    """Compares with what torch counts in a batch that is larger than those of the fit."""
    batch = batch_for(model.config)
    expected = measured_flops(model, batch, r_drop_weight=r_drop_weight)
    assert StepFlops(model, r_drop_weight=r_drop_weight)(batch) == pytest.approx(expected, rel=rel, abs=0)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


CONFIGS = [
    ("encoder_decoder", {"positions": "shaw", "position_range": 3}),
    ("encoder_decoder", {"num_experts": 4, "experts_per_token": 2}),
    slow("encoder_decoder", {"output_bias": True, "encoder_num_heads": 2, "encoder_d_ff": 48, "num_decoder_layers": 1}),
    slow("decoder", {"positions": "alibi", "parallel_residual": True}),
    ("decoder", {"compression_stride": 2, "sliding_window": 4, "num_decoder_layers": 3, "num_kv_heads": 1}),
    ("encoder", ENCODERS["attention"]),
    *(slow("encoder", fields) for head, fields in ENCODERS.items() if head != "attention"),
    slow("encoder_decoder", {}),
    slow("encoder_decoder", {"num_kv_heads": 2, "head_dim": 12, "qk_norm": True}),
    slow("encoder_decoder", {"gated": True, "activation": "silu", "positions": "rotary", "norm": "rms"}),
    slow("decoder", {}),
    slow("encoder", {"head": "classify", "labels": ("a", "b")}),
]
RECURRENT = [
    {},
    slow({"score": "additive", "attention_dim": 24, "cell": "gru", "num_encoder_layers": 3}),
    slow({"score": "none", "input_feeding": False}),
    slow({"score": "dot", "encoder_dim": 32, "input_feeding": False}),
    slow({"bidirectional": False, "cell": "gru", "num_decoder_layers": 1, "tie_embeddings": False}),
]


@pytest.mark.parametrize(("architecture", "fields"), CONFIGS)
def test_a_step_takes_the_products_that_torch_counts(architecture, fields):
    vocab_size = tiny_tokenizer(with_mask=True).vocab_size
    model = model_of(tiny_config(architecture, vocab_size=vocab_size, **fields))
    check_count(model)
    check_fit(model)


@pytest.mark.parametrize("fields", RECURRENT)
def test_a_recurrent_step_takes_the_products_that_torch_counts(fields):
    """Backward, torch skips the gradients of the first states, which are constants."""
    model = model_of(tiny_config("recurrent", **fields))
    check_count(model)
    check_fit(model, rel=0.02)


def test_a_language_model_takes_six_operations_a_weight_and_token_and_those_of_attention():
    """Kaplan et al. 2020, 2.1, with the backward pass; the products of scores and of values have T^2 D a head."""
    model = model_of(tiny_config("decoder", vocab_size=100, bias=False, positions="rotary"))
    batch = batch_for(model.config)
    rows, length = batch.input_BT.shape
    layers = sum(weight.numel() for name, weight in model.named_parameters() if "blocks" in name and weight.dim() > 1)
    projected = batch.tokens * model.decoder.unembedding.weight.numel()
    attention = 2 * rows * length**2 * model.config.d_model * model.config.num_decoder_layers
    assert StepFlops(model)(batch) == 6 * (rows * length * layers + projected + attention)


@pytest.mark.parametrize("kv_heads", [slow(1), 2, slow(4)])
def test_compressed_keys_take_the_products_of_their_convolution(kv_heads):
    """A stride of 2 beside one of 4: 2 D more weights in each group, for keys and values, in one of three layers."""
    fields = {"sliding_window": 4, "num_decoder_layers": 2, "num_kv_heads": kv_heads}
    models = [model_of(tiny_config("decoder", vocab_size=100, compression_stride=s, **fields)) for s in (2, 4)]
    batch = batch_for(models[0].config)
    rows, length = batch.input_BT.shape
    width, head_dim = models[0].config.d_model, models[0].config.attention_head_dim
    convolutions = 2 * rows * length * 2 * head_dim * kv_heads * head_dim
    slots = 2 * rows * length * width * (length // 4 - length // 2)
    flops = [StepFlops(model)(batch) for model in models]
    assert flops[1] - flops[0] == 6 * (convolutions + slots)


def test_a_recurrent_cell_takes_the_products_of_its_gates():
    """Without attention, in one direction: 8 M^2 weights a token in a layer of either side, for input and state."""
    model = model_of(tiny_config("recurrent", score="none", input_feeding=False, bidirectional=False, encoder_dim=0))
    batch = batch_for(model.config)
    (rows, length), read, width = batch.input_BT.shape, int(batch.lengths_B.sum()), model.config.d_model
    projected = batch.tokens * model.decoder.unembedding.weight.numel() + rows * length * width**2
    cells = 8 * width**2 * (2 * read + 2 * rows * length)
    assert StepFlops(model)(batch) == pytest.approx(6 * (cells + projected + rows * 4 * width**2), rel=0.05)


def test_a_model_and_random_generators_stay_as_they_are():
    model = model_of(tiny_config(dropout=0.1))
    before, drawn = {name: weight.clone() for name, weight in model.state_dict().items()}, torch.get_rng_state()
    StepFlops(model)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    batch_loss(model, batch_for(model.config)).smoothed.backward()
    assert all(weight.grad is not None for weight in model.parameters())


TUNINGS = {  # of translation models
    "embeddings": FineTuning(freeze=("*embedding*",)),
    "encoder": FineTuning(freeze=("encoder.*",)),
    "encoder and the tied embeddings": FineTuning(freeze=("encoder.*", "*embedding*")),
    "all but the last block": FineTuning(freeze=("encoder.*", "*embedding*", "decoder.blocks.0.*", "decoder.norm*")),
    "all but the last norm": FineTuning(freeze=("encoder.*", "*embedding*", "decoder.blocks.*")),
    "LoRA on one layer at the top": FineTuning(lora_rank=2, lora_targets=("decoder.blocks.1.*outer",)),
    "feed-forwards": FineTuning(freeze=("*feed_forward.*",)),
    "attention": FineTuning(freeze=("*attention.*",)),
    "LoRA on attention": FineTuning(lora_rank=2),
    "LoRA on all linear layers": FineTuning(lora_rank=3, lora_targets=("*",)),
    "LoRA on cross-attention beside norms": FineTuning(
        lora_rank=2, lora_targets=("*.0.cross_attention*",), lora_train=("decoder.blocks.1.*norm*",)
    ),
    "LoRA on keys of the source": FineTuning(lora_rank=2, lora_targets=("*key_value",), freeze=("*lora_a",)),
}


QUICK = (
    "encoder and the tied embeddings",
    "LoRA on all linear layers",
    "LoRA on keys of the source",
)


@pytest.mark.parametrize(
    "tuning",
    [pytest.param(TUNINGS[name], id=name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in TUNINGS],
)
def test_products_of_frozen_parts_are_those_that_torch_computes(tuning):
    config = tiny_config(vocab_size=tiny_tokenizer(with_mask=True).vocab_size)
    check_fit(model_of(config, tuning))
    assert StepFlops(model_of(config, FineTuning(freeze=("encoder.*",))))(batch_for(config)) < StepFlops(
        model_of(config)
    )(batch_for(config))


@pytest.mark.parametrize(
    "tuning", [FineTuning(freeze=("*experts.0.*",)), FineTuning(lora_rank=2, lora_targets=("*experts.1*",))]
)
def test_of_a_mixture_some_experts_may_be_trained(tuning):
    """A batch of other tokens: the experts of a fit read as many each."""
    vocab_size = tiny_tokenizer(with_mask=True).vocab_size
    model = model_of(tiny_config(vocab_size=vocab_size, num_experts=3, experts_per_token=1), tuning)
    check_fit(model, rel=0.01)


@pytest.mark.parametrize("kind", ENCODERS)
def test_products_of_a_head_alone_are_those_that_torch_computes(kind):
    config = tiny_config("encoder", vocab_size=tiny_tokenizer(with_mask=True).vocab_size, **ENCODERS[kind])
    check_fit(model_of(config, FineTuning(freeze=("encoder.*",))))


@pytest.mark.parametrize(
    "tuning", [FineTuning(freeze=("encoder.*",)), FineTuning(lora_rank=2, lora_targets=("*",))], ids=["frozen", "LoRA"]
)
@pytest.mark.parametrize("fields", RECURRENT)
def test_products_of_a_frozen_recurrent_model_are_those_that_torch_computes(tuning, fields):
    check_fit(model_of(tiny_config("recurrent", **fields), tuning), rel=0.02)


@pytest.mark.parametrize("tuning", [slow(FineTuning()), FineTuning(freeze=("*embedding*",))], ids=["all", "layers"])
def test_r_drop_takes_two_passes(tuning):
    config = tiny_config(vocab_size=tiny_tokenizer(with_mask=True).vocab_size, dropout=0.1, output_bias=True)
    model, batch = model_of(config, tuning), batch_for(config)
    check_fit(model, r_drop_weight=1.0)
    assert StepFlops(model, r_drop_weight=1.0)(batch) == 2 * StepFlops(model)(batch)


def test_the_peak_is_above_what_a_small_product_reaches_and_is_measured_once():
    threads = torch.get_num_threads()
    before = torch.get_rng_state()
    peak = peak_flops_per_s(torch.device("cpu"), torch.float32, threads)
    assert 1e8 < peak < 1e14
    assert peak_flops_per_s(torch.device("cpu"), torch.float32, threads) == peak
    assert torch.equal(torch.get_rng_state(), before)


def test_small_products_that_wait_for_their_threads_do_not_end_the_measurement():
    measured = []

    def seconds_of(size):
        """Of 100 GFLOP/s, but for 20 ms that threads of a busy machine wait for one another."""
        measured.append(size)
        return 2 * size**3 / 1e11 + (0.02 if size <= 512 else 0.0)

    assert fastest_product(seconds_of) == pytest.approx(1e11)
    assert measured == [128, 256, 512, 1024]


@pytest.mark.parametrize(
    ("waiting", "expected_s", "shortest"), [(40, 1e-3, 1e-4), (40, math.inf, 0.03), (99, 1e-3, 0.03)]
)
def test_products_that_have_all_waited_are_repeated_for_a_while(monkeypatch, waiting, expected_s, shortest):
    """The first ones take 30 ms, the others 0.1 ms; 68 of 30 ms are 2 seconds."""
    ends_s = itertools.accumulate(itertools.chain(itertools.repeat(0.03, waiting), itertools.repeat(1e-4)))
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert shortest_s(lambda: clock.__setitem__(0, next(ends_s)), expected_s=expected_s) == pytest.approx(shortest)
    assert clock[0] < 2.1


def test_a_fast_device_is_measured_with_products_that_keep_it_busy():
    seconds = {128: 2e-5, 256: 2e-5, 512: 2e-5, 1024: 3e-5, 2048: 1e-4, 4096: 5e-4, 8192: 4e-3}
    assert fastest_product(seconds.__getitem__) == max(2 * size**3 / s for size, s in seconds.items())
