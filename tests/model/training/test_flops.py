import itertools
import math
from math import prod

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.architectures import build
from model.fine_tuning import FineTuning
from model.training.data.examples import IGNORED, Batch
from model.training.flops import fastest_product, forward_flops, peak_flops_per_s, shortest_s, training_flops
from model.training.objective.freezing import choose_trained
from model.training.objective.loss import batch_loss
from model.training.products import BatchShape, Trained, product
from tests.tiny import ENCODERS, tiny_config, tiny_tokenizer

LENGTHS, TARGETS = (5, 9, 3), (4, 6, 7)  # ragged on both sides

# torch counts products, not those of a matrix and a vector; these are of the additive score.
VECTORS = {torch.ops.aten.mv: lambda matrix, vector, *_, **__: 2 * prod(matrix)}


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


@pytest.fixture
def _plain_products(monkeypatch):
    """Recurrent layers compute by products that torch can count, not by one operator of oneDNN."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


def counted(config, *, backward=True, r_drop_weight=0.0, tuning=None):
    """Operations that torch counts in the loss of a batch."""
    return counted_and_trained(config, backward=backward, r_drop_weight=r_drop_weight, tuning=tuning)[0]


def counted_and_trained(config, *, backward=True, r_drop_weight=0.0, tuning=None):
    """The same, and what is trained."""
    torch.manual_seed(1)
    model = build(config).train()
    choose_trained(model, tuning or FineTuning())
    with (
        FlopCounterMode(display=False, custom_mapping=VECTORS) as counter,
        torch.set_grad_enabled(backward),
    ):
        loss = batch_loss(model, batch_for(config), r_drop_weight=r_drop_weight)
        if backward:
            loss.smoothed.backward()
    return counter.get_total_flops(), Trained.of(model)


TRANSFORMERS = {
    "plain": {},
    "grouped queries": {"num_kv_heads": 2, "head_dim": 12, "qk_norm": True},
    "gated": {"gated": True, "activation": "silu", "positions": "rotary", "norm": "rms"},
    "shaw": {"positions": "shaw", "position_range": 3},
    "experts": {"num_experts": 4, "experts_per_token": 2},
    "bias of the logits": {"output_bias": True},
}
CONFIGS = [
    *(("encoder_decoder", fields) for fields in TRANSFORMERS.values()),
    ("encoder_decoder", {"encoder_num_heads": 2, "encoder_d_ff": 48, "num_decoder_layers": 1}),
    ("decoder", {}),
    ("decoder", {"positions": "alibi", "parallel_residual": True}),
    ("decoder", {"compression_stride": 2, "sliding_window": 4, "num_decoder_layers": 3, "num_kv_heads": 1}),
    *(("encoder", fields) for fields in ENCODERS.values()),
    ("encoder", {"head": "classify", "labels": ("a", "b")}),
]
RECURRENT = [
    {},
    {"score": "none", "input_feeding": False},
    {"score": "dot", "encoder_dim": 32, "input_feeding": False},
    {"score": "additive", "attention_dim": 24, "cell": "gru", "num_encoder_layers": 3},
    {"bidirectional": False, "cell": "gru", "num_decoder_layers": 1, "tie_embeddings": False},
]


@pytest.mark.parametrize(("architecture", "fields"), CONFIGS)
def test_a_step_takes_the_products_that_torch_counts(architecture, fields):
    vocab_size = tiny_tokenizer(with_mask=True).vocab_size
    config = tiny_config(architecture, vocab_size=vocab_size, **fields)
    batch = batch_for(config)
    assert forward_flops(config, BatchShape.of(batch)) == counted(config, backward=False)
    assert training_flops(config, batch) == counted(config, backward=True)


@pytest.mark.usefixtures("_plain_products")
@pytest.mark.parametrize("fields", RECURRENT)
def test_a_recurrent_step_takes_the_products_that_torch_counts(fields):
    """Backward, torch skips the gradients of the first states, which are constants, and those of vectors."""
    config = tiny_config("recurrent", **fields)
    batch = batch_for(config)
    assert forward_flops(config, BatchShape.of(batch)) == counted(config, backward=False)
    assert training_flops(config, batch) == pytest.approx(counted(config, backward=True), rel=0.05)


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


@pytest.mark.parametrize("fields", [{}, {"tie_embeddings": False, "share_embeddings": False}, *TRANSFORMERS.values()])
@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=TUNINGS)
def test_products_of_frozen_parts_are_those_that_torch_computes(tuning, fields):
    config = tiny_config(vocab_size=tiny_tokenizer(with_mask=True).vocab_size, **fields)
    expected, trained = counted_and_trained(config, tuning=tuning)
    batch = batch_for(config)
    assert training_flops(config, batch, trained) == expected
    forward = forward_flops(config, BatchShape.of(batch), trained)
    assert forward == counted(config, backward=False, tuning=tuning)
    assert (
        forward < expected < training_flops(config, batch) + 3 * (forward - forward_flops(config, BatchShape.of(batch)))
    )


DECODERS = [
    {"positions": "learned", "norm_position": "post"},
    {"positions": "bucketed", "qk_norm": True},
    {"parallel_residual": True},
    {"compression_stride": 2, "sliding_window": 4, "num_decoder_layers": 3, "num_kv_heads": 1},
]


@pytest.mark.parametrize("fields", DECODERS)
@pytest.mark.parametrize(
    "tuning",
    [
        FineTuning(freeze=("*tokens*", "*unembedding*")),
        FineTuning(freeze=("*embedding*", "decoder.blocks.0.*")),
        FineTuning(freeze=("*embedding*", "*self_attention*")),
        FineTuning(freeze=("*embedding*", "*query_key_value*", "*residual*")),
        FineTuning(lora_rank=2, lora_targets=("*1.*",)),
    ],
)
def test_products_of_a_frozen_language_model_are_those_that_torch_computes(tuning, fields):
    config = tiny_config("decoder", vocab_size=tiny_tokenizer(with_mask=True).vocab_size, **fields)
    expected, trained = counted_and_trained(config, tuning=tuning)
    assert training_flops(config, batch_for(config), trained) == expected


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("freeze", [("encoder.*",), ("encoder.blocks.0.*", "encoder.embedding.*")])
def test_products_of_a_head_alone_are_those_that_torch_computes(kind, freeze):
    config = tiny_config("encoder", vocab_size=tiny_tokenizer(with_mask=True).vocab_size, **ENCODERS[kind])
    expected, trained = counted_and_trained(config, tuning=FineTuning(freeze=freeze))
    assert training_flops(config, batch_for(config), trained) == expected


@pytest.mark.usefixtures("_plain_products")
@pytest.mark.parametrize("fields", RECURRENT)
@pytest.mark.parametrize(
    "tuning",
    [
        FineTuning(freeze=("encoder.*",)),
        FineTuning(freeze=("*embedding*",)),
        FineTuning(freeze=("encoder.*", "*embedding*", "decoder.cells.*", "decoder.initial.*")),
        FineTuning(lora_rank=2, lora_targets=("*",)),
    ],
)
def test_products_of_a_frozen_recurrent_model_are_those_that_torch_computes(tuning, fields):
    config = tiny_config("recurrent", **fields)
    expected, trained = counted_and_trained(config, tuning=tuning)
    assert training_flops(config, batch_for(config), trained) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("freeze", [("*embedding*",), ("encoder.*", "decoder.blocks.*")])
def test_r_drop_of_a_frozen_vocabulary_leaves_out_its_gradient(freeze):
    config = tiny_config(vocab_size=tiny_tokenizer(with_mask=True).vocab_size, dropout=0.1, output_bias=True)
    expected, trained = counted_and_trained(config, r_drop_weight=1.0, tuning=FineTuning(freeze=freeze))
    assert training_flops(config, batch_for(config), trained, passes=2) == expected


@pytest.mark.parametrize(("architecture", "fields"), [("encoder_decoder", {}), ("encoder", ENCODERS["tokens"])])
def test_r_drop_takes_two_passes(architecture, fields):
    config = tiny_config(architecture, vocab_size=tiny_tokenizer(with_mask=True).vocab_size, dropout=0.1, **fields)
    assert training_flops(config, batch_for(config), passes=2) == counted(config, backward=True, r_drop_weight=1.0)


def test_a_grouped_convolution_of_keys_takes_the_products_that_torch_counts():
    """Forward: backward, torch counts the gradient of the weights of all groups for each of them."""
    config = tiny_config("decoder", compression_stride=2, sliding_window=4, num_kv_heads=2)
    assert forward_flops(config, BatchShape.of(batch_for(config))) == counted(config, backward=False)


def test_operations_grow_with_the_square_of_the_length_by_attention_alone():
    config = tiny_config("decoder", vocab_size=100)
    flops = [forward_flops(config, BatchShape(1, 0, length, 0, 0)) for length in (10, 20)]
    attention = 4 * config.d_model * config.num_decoder_layers
    assert flops[1] - 2 * flops[0] == attention * (20**2 - 2 * 10**2)


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
        return product(size, size, size) / 1e11 + (0.02 if size <= 512 else 0.0)

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
    assert fastest_product(seconds.__getitem__) == max(product(size, size, size) / s for size, s in seconds.items())


def test_a_product_counts_a_multiplication_and_an_addition():
    assert product(2, 3, 5) == 60
