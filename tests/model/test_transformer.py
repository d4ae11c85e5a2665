"""Whole models: causality, padding, the cache against the full sequence, tying, first losses, learning to reverse."""

import io
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from model.architecture_config import model_config
from model.architectures import build
from model.attention import FullAttention, causal_mask
from model.reference.greedy import greedy
from model.transformer import Decoder, EncoderDecoder
from tests.tiny import usable

# B batch, T target positions, S source positions, V vocabulary

TINY = {
    "vocab_size": 17,
    "d_model": 16,
    "num_heads": 4,
    "d_ff": 24,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "max_source_len": 12,
    "max_target_len": 12,
}

SHAPES = [
    dict(zip(("positions", "norm", "norm_position", "gated", "tie_embeddings", "num_kv_heads"), values, strict=True))
    for values in itertools.product(
        ("sinusoidal", "learned", "rotary"), ("layer", "rms"), ("pre", "post"), (False, True), (False, True), (0, 2)
    )
]
# A quarter of them in which every two values of two fields still meet.
QUICK = [
    shape
    for shape in SHAPES
    if ((shape["norm"] == "rms") != (shape["norm_position"] == "post")) == shape["gated"]
    and (shape["gated"] != shape["tie_embeddings"]) == (shape["num_kv_heads"] == 2)
]
SLOW = [pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES if shape not in QUICK]
OTHERS = [
    {"positions": "shaw", "position_range": 3},
    {"positions": "bucketed", "position_buckets": 6, "position_range": 8, "num_kv_heads": 2},
    {"positions": "alibi"},
    {"positions": "none"},
    {"positions": "learned", "position_dim": 6, "tie_embeddings": False},
    {"positions": "rotary", "rotary_dims": 2, "qk_norm": True, "bias": False, "qkv_bias": True},
    {"positions": "rotary", "qk_norm": True, "qk_norm_span": "all", "num_kv_heads": 2, "norm_position": "res_post"},
    {"positions": "rotary", "qk_norm": True, "qk_norm_after_rotary": True, "norm": "rms", "norm_position": "sandwich"},
    {"positions": "rotary", "rotary_scaling": "yarn", "rotary_factor": 4.0, "rotary_original_len": 6},
    {"attention_scale": 1.0, "embedding_scale": 1.0, "embedding_norm": True, "output_bias": True},
    {
        "positions": "rotary",
        "rotary_scaling": "llama3",
        "rotary_factor": 8.0,
        "rotary_original_len": 6,
        "sliding_window": 4,
    },
]
# Of decoders alone: a layer with a window and faster angles, one that turns nothing, one as the configuration says.
LAYERED = {
    "positions": "rotary",
    "num_decoder_layers": 3,
    "layer_groups": (
        {"layers": (0,), "sliding_window": 3, "rotary_base": 100.0, "rotary_scaling": "none"},
        {"layers": (2,), "positions": "none"},
    ),
    "rotary_scaling": "linear",
    "rotary_factor": 2.0,
    "attention_scale": 0.7,
    "attention_softcap": 2.0,
    "logits_softcap": 3.0,
    "norm": "rms",
    "norm_position": "sandwich",
}


def tiny(**changes):
    torch.manual_seed(0)
    return build(model_config({**usable(changes.get("architecture", "encoder_decoder"), TINY), **changes})).eval()


def randomised(model):
    """Weights away from their special first values: biases not 0, gains not 1, the padding's vector not 0."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def tokens(*shape, seed=1):
    return torch.randint(4, 17, shape, generator=torch.Generator().manual_seed(seed))


def logits(model, target_BT, source_BS=None, lengths_B=None):
    states = model(target_BT) if source_BS is None else model(source_BS, lengths_B, target_BT)
    return model.decoder.unembedding(states)


def source_of(model, lengths):
    """() for a decoder-only model, else a ragged source."""
    return (tokens(len(lengths), max(lengths), seed=2), torch.tensor(lengths)) if model.config.has_encoder else ()


def decoding(model, source, batch, capacity):
    """`decode` with everything but tokens and starts filled in."""
    caches = model.decoder.empty_caches(batch, capacity)
    if not source:
        return lambda block, starts: model.decode(block, starts, caches)
    _, cross = model.encode(*source)
    return lambda block, starts: model.decode(block, starts, caches, cross, source[1])


ARCHITECTURES = pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])


@ARCHITECTURES
@pytest.mark.parametrize(
    "shape", [*QUICK, *OTHERS, *SLOW], ids=lambda shape: "-".join(str(value) for value in shape.values())
)
def test_cached_decoding_is_the_full_sequence(architecture, shape):
    check_cached_decoding(architecture, shape)


def test_cached_decoding_of_layers_that_differ_is_the_full_sequence():
    check_cached_decoding("decoder", LAYERED)


@torch.no_grad()
def check_cached_decoding(architecture, shape):
    model = randomised(tiny(architecture=architecture, **shape))
    target, source = tokens(3, 8), source_of(model, [5, 1, 3])
    expected = logits(model, target, *source)

    step = decoding(model, source, batch=3, capacity=8)
    steps = [step(target[:, i : i + 1], torch.full((3,), i)) for i in range(8)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=1e-5, atol=1e-5)

    # Ragged: rows begin with 4, 1 and 2 tokens in one right-padded block and then go on at their own positions.
    step, starts, rows = decoding(model, source, batch=3, capacity=9), torch.tensor([4, 1, 2]), torch.arange(3)
    prefill = step(target[:, :4], torch.zeros(3, dtype=torch.long))
    for row, length in enumerate(starts):
        torch.testing.assert_close(prefill[row, :length], expected[row, :length], rtol=1e-5, atol=1e-5)
    for places in (starts + i for i in range(4)):
        stepped = step(target[rows, places][:, None], places)
        torch.testing.assert_close(stepped[:, 0], expected[rows, places], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_each_layer_has_its_own_window_and_rotation():
    model = randomised(tiny(architecture="decoder", **LAYERED))
    assert [layer.sliding_window for layer in model.decoder.layers] == [3, 0, 0]
    tables = [model.decoder.position_encoding, *model.decoder.other_encodings]
    assert [table.kind for table in tables] == ["rotary", "rotary", "none"]
    angles = [torch.atan2(table.sin, table.cos)[1] for table in tables[:2]]
    expected = [base ** -(torch.arange(2).repeat(2) / 2) / factor for base, factor in ((10000.0, 2.0), (100.0, 1.0))]
    torch.testing.assert_close(angles, expected)
    seen = []
    for block in model.decoder.blocks:
        block.self_attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[2]))
    model(tokens(1, 5))
    assert torch.equal(seen[0][0], tables[1].cos[None, :5])
    assert torch.equal(seen[1][0], tables[0].cos[None, :5])
    assert seen[2] is None


@torch.no_grad()
def test_capped_logits_have_their_bias_after_the_cap():
    model = randomised(tiny(architecture="decoder", logits_softcap=0.5, output_bias=True))
    states, output = model(tokens(2, 5)), model.decoder.unembedding
    expected = 0.5 * torch.tanh(states @ output.weight.T / 0.5) + output.bias
    torch.testing.assert_close(output(states), expected)


@ARCHITECTURES
@settings(max_examples=25)
@given(cuts=st.sets(st.integers(1, 7), max_size=7), spare=st.integers(0, 3))
@torch.no_grad()
def test_a_sequence_may_be_cut_into_any_blocks(architecture, cuts, spare):
    model = tiny(architecture=architecture, positions="rotary")
    target, source = tokens(2, 8), source_of(model, [4, 2])
    step, edges = decoding(model, source, batch=2, capacity=8 + spare), [0, *sorted(cuts), 8]
    parts = [step(target[:, a:b], torch.full((2,), a)) for a, b in itertools.pairwise(edges)]
    torch.testing.assert_close(torch.cat(parts, dim=1), logits(model, target, *source), rtol=1e-5, atol=1e-5)


@ARCHITECTURES
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@torch.no_grad()
def test_a_later_token_changes_no_bit_of_an_earlier_output(architecture, positions):
    model = randomised(tiny(architecture=architecture, positions=positions))
    target, source = tokens(2, 8), source_of(model, [5, 3])
    before = logits(model, target, *source)
    for j in range(8):
        changed = target.clone()
        changed[:, j] = (changed[:, j] + 1) % 17
        after = logits(model, changed, *source)
        assert torch.equal(after[:, :j], before[:, :j])
        assert not torch.equal(after[:, j], before[:, j])


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@torch.no_grad()
def test_the_content_of_padding_changes_no_bit(positions):
    model = randomised(tiny(positions=positions))
    (source, lengths), target = source_of(model, [6, 2, 4]), tokens(3, 5)
    other = torch.where(torch.arange(6) < lengths[:, None], source, (source + 3) % 17)
    assert not torch.equal(other, source)
    states, changed = model.encode(source, lengths)[0], model.encode(other, lengths)[0]
    for row, length in enumerate(lengths):
        assert torch.equal(states[row, :length], changed[row, :length])
    assert torch.equal(logits(model, target, source, lengths), logits(model, target, other, lengths))


@torch.no_grad()
def test_the_amount_of_padding_does_not_matter():
    model = randomised(tiny())
    (source, lengths), target = source_of(model, [4, 2]), tokens(2, 5)
    longer = torch.cat((source, tokens(2, 8, seed=9)), dim=1)
    expected = logits(model, target, source, lengths)
    torch.testing.assert_close(logits(model, target, longer, lengths), expected, rtol=1e-5, atol=1e-5)
    for row, length in enumerate(lengths):
        single = logits(model, target[row : row + 1], source[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(single[0], expected[row], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_without_positions_the_encoder_does_not_know_the_order():
    model = randomised(tiny(positions="learned"))
    source, lengths = tokens(2, 7), torch.tensor([7, 7])
    order = torch.tensor([4, 2, 6, 0, 1, 5, 3])
    with_positions, _ = model.encode(source, lengths)
    assert not torch.allclose(model.encode(source[:, order], lengths)[0], with_positions[:, order], atol=1e-3)
    model.encoder.embedding.positions.zero_()
    states, _ = model.encode(source, lengths)
    torch.testing.assert_close(model.encode(source[:, order], lengths)[0], states[:, order], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_rotary_decoder_sees_distances_not_positions():
    model = randomised(tiny(architecture="decoder", positions="rotary"))
    block = tokens(1, 5)

    def shifted(start):
        """The block at positions start..start+4, attending only to itself."""
        attend = FullAttention(model.config, causal_mask(5))
        return model.decoder(block, torch.tensor([start]), [attend] * 2, [None] * 2)

    torch.testing.assert_close(shifted(7), shifted(0), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_every_source_token_reaches_every_target_position():
    model = randomised(tiny())
    (source, lengths), target = source_of(model, [5]), tokens(1, 3)
    before = logits(model, target, source, lengths)
    for j in range(5):
        changed = source.clone()
        changed[0, j] = (changed[0, j] + 1) % 17
        assert ((logits(model, target, changed, lengths) - before).abs().amax(-1) > 1e-6).all()


@ARCHITECTURES
def test_every_weight_takes_part_in_the_loss(architecture):
    for shape in ({"positions": "learned", "gated": True}, {"norm": "rms", "tie_embeddings": False, "num_kv_heads": 1}):
        model = randomised(tiny(architecture=architecture, **shape))
        target, source = tokens(4, 6), source_of(model, [5, 4, 5, 2])
        functional.cross_entropy(
            logits(model, target, *source).flatten(0, 1), tokens(4, 6, seed=5).flatten()
        ).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@ARCHITECTURES
def test_attention_dropout_and_residual_dropout_are_for_training_only(architecture):
    model = tiny(architecture=architecture, dropout=0.3)
    target, source = tokens(2, 5), source_of(model, [4, 4])
    assert torch.equal(logits(model, target, *source), logits(model, target, *source))
    model.train()
    assert not torch.equal(logits(model, target, *source), logits(model, target, *source))


def test_tied_weights_are_one_tensor_counted_and_saved_once():
    tied, untied = tiny(), tiny(tie_embeddings=False, share_embeddings=False)
    assert isinstance(tied, EncoderDecoder)
    assert tied.encoder.embedding.tokens.weight is tied.decoder.embedding.tokens.weight
    assert tied.decoder.unembedding.weight is tied.decoder.embedding.tokens.weight
    assert len({weight.data_ptr() for name, weight in untied.state_dict().items() if "tokens" in name}) == 2

    def parameters(model):
        return sum(parameter.numel() for parameter in model.parameters())

    def saved_bytes(model):
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        return file.tell()

    matrix = 17 * 16
    assert parameters(untied) - parameters(tied) == 2 * matrix
    assert saved_bytes(untied) - saved_bytes(tied) > 2 * matrix * 4 * 0.9


def test_a_tied_models_state_loads_into_another_and_stays_tied():
    model, other = randomised(tiny()), tiny()
    other.load_state_dict(model.state_dict())
    assert other.decoder.unembedding.weight is other.decoder.embedding.tokens.weight
    target, source = tokens(2, 4), source_of(model, [3, 2])
    assert torch.equal(logits(other, target, *source), logits(model, target, *source))


@ARCHITECTURES
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@torch.no_grad()
def test_the_first_loss_of_a_tied_model_is_near_that_of_guessing(architecture, norm_position, positions):
    vocabulary = 4000
    shape = {"vocab_size": vocabulary, "d_model": 64, "d_ff": 128, "positions": positions}
    model = tiny(architecture=architecture, norm_position=norm_position, **shape)
    ids = torch.randint(4, vocabulary, (16, 12))
    source = (ids, torch.full((16,), 12)) if model.config.has_encoder else ()
    loss = functional.cross_entropy(logits(model, ids, *source).flatten(0, 1), torch.randint(4, vocabulary, (16 * 12,)))
    assert loss.item() == pytest.approx(math.log(vocabulary), rel=0.1)


def test_fresh_embeddings_have_unit_size_after_scaling_and_padding_none():
    weight = tiny(vocab_size=1000, d_model=64).decoder.embedding.tokens.weight.detach() * math.sqrt(64)
    assert weight[1:].std().item() == pytest.approx(1.0, abs=0.02)
    assert (weight[0] == 0).all()


def test_the_same_seed_gives_the_same_weights():
    assert all(torch.equal(a, b) for a, b in zip(tiny().parameters(), tiny().parameters(), strict=True))


@pytest.mark.parametrize(("norm_position", "kind"), [("pre", nn.LayerNorm), ("post", nn.Identity)])
def test_only_the_pre_norm_order_ends_with_a_norm(norm_position, kind):
    model = tiny(norm_position=norm_position)
    assert isinstance(model.decoder.norm, kind)
    assert isinstance(model, EncoderDecoder)
    assert isinstance(model.encoder.norm, kind)


@torch.no_grad()
def test_source_and_target_have_their_own_limits():
    model = tiny(max_source_len=5, max_target_len=3)
    source, lengths = tokens(1, 5), torch.tensor([5])
    assert logits(model, tokens(1, 3), source, lengths).shape == (1, 3, 17)
    with pytest.raises(IndexError):
        logits(model, tokens(1, 4), source, lengths)
    with pytest.raises(IndexError):
        logits(model, tokens(1, 3), tokens(1, 6), torch.tensor([6]))


def test_the_configuration_decides_the_kind_of_model():
    assert isinstance(tiny(), EncoderDecoder)
    assert isinstance(tiny(architecture="decoder"), Decoder)
    assert not any("cross" in name for name, _ in tiny(architecture="decoder").named_parameters())


@ARCHITECTURES
@pytest.mark.parametrize(("positions", "norm"), [("rotary", "rms"), ("sinusoidal", "layer")])
@torch.no_grad()
def test_bfloat16_stays_near_float32_cached_or_not(architecture, positions, norm):
    model = tiny(architecture=architecture, positions=positions, norm=norm)
    target, source = tokens(2, 6), source_of(model, [5, 3])
    expected = logits(model, target, *source)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = logits(model, target, *source)
        step = decoding(model, source, batch=2, capacity=6)
        stepped = torch.cat([step(target[:, i : i + 1], torch.full((2,), i)) for i in range(6)], dim=1)
    for seen in (whole, stepped, logits(model.bfloat16(), target, *source)):
        assert seen.dtype == torch.bfloat16
        torch.testing.assert_close(seen.float(), expected, rtol=0, atol=0.1)


def batch_of_reversals(batch, length, generator):
    """Sources and their reversals, eos (2) after each: (B, length + 1) both."""
    ids = torch.randint(4, 12, (batch, length), generator=generator)
    eos = torch.full((batch, 1), 2)
    return torch.cat((ids, eos), dim=1), torch.cat((ids.flip(1), eos), dim=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "shape"),
    [
        ("encoder_decoder", {}),
        ("encoder_decoder", {"norm_position": "post", "positions": "learned", "activation": "gelu"}),
        ("decoder", {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "num_kv_heads": 2}),
    ],
)
def test_reversing_is_learnt_completely(architecture, shape):
    torch.manual_seed(0)
    length, steps = 4, 250
    sizes = {"vocab_size": 12, "d_model": 32, "num_heads": 4, "d_ff": 64, "num_encoder_layers": 1}
    model = build(model_config({"num_decoder_layers": 2, **usable(architecture, sizes), **shape}))
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        source, answer = batch_of_reversals(64, length, generator)
        bos = torch.ones(64, 1, dtype=torch.long)
        if model.config.has_encoder:
            out = logits(model, torch.cat((bos, answer[:, :-1]), dim=1), source, torch.full((64,), length + 1))
        else:  # bos, source, eos, then the answer: only the answer counts
            out = logits(model, torch.cat((bos, source, answer[:, :-1]), dim=1))[:, length + 1 :]
        optimiser.param_groups[0]["lr"] = 5e-3 * min(1, (step + 1) / 30) * (1 - step / steps)
        optimiser.zero_grad()
        functional.cross_entropy(out.flatten(0, 1), answer.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    model.eval()
    sources, answers = batch_of_reversals(20, length, torch.Generator().manual_seed(2))
    for source, answer in zip(sources.tolist(), answers.tolist(), strict=True):
        if model.config.has_encoder:
            assert greedy(model, [1], source=source, max_tokens=length + 3) == answer
        else:
            assert greedy(model, [1, *source], max_tokens=length + 3) == answer
