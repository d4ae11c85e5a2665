"""Memory-compressed attention against its definition, key by key."""

import math

import pytest
import torch

from model.architecture_config import model_config
from model.architectures import build
from model.attention import split_heads
from model.checkpoints.checkpoint import load_checkpoint
from model.corpus import corpus
from model.memory_compressed_attention import (
    CachedMemoryCompressedAttention,
    KeyValueCompression,
    MemoryCompressedAttention,
)
from model.presets import find_preset
from model.training.data.examples import Batch, Examples
from model.training.objective.loss import batch_loss
from model.training.train import train

SHAPE = {
    "architecture": "decoder",
    "vocab_size": 11,
    "d_model": 16,
    "d_ff": 24,
    "num_decoder_layers": 4,
    "sliding_window": 3,
}


def config(**changes):
    return model_config({**SHAPE, "num_heads": 4, "num_kv_heads": 2, "compression_stride": 3, **changes})


def lively(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return layer.eval()


def model():
    torch.manual_seed(1)
    return lively(build(config()))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9, 11])
def test_a_query_sees_complete_windows_before_it_and_the_positions_up_to_its_own(length):
    torch.manual_seed(0)
    compression, stride, dim = lively(KeyValueCompression(config())), 3, 4
    query, key, value = torch.randn(1, length, 16), torch.randn(1, length, 8), torch.randn(1, length, 8)
    out = MemoryCompressedAttention(config(), compression)(query, key, value)

    def compressed(convolution, x, head, position):
        total = convolution.bias[head * dim : (head + 1) * dim].clone()
        for offset in range(stride):
            place = position - stride + 1 + offset
            if place >= 0:
                weight = convolution.weight[head * dim : (head + 1) * dim, :, offset]
                total += weight @ x[0, place, head * dim : (head + 1) * dim]
        return total

    for position in range(length):
        seen = [*range(stride - 1, position // stride * stride, stride), position]
        for head in range(4):
            keys = torch.stack([compressed(compression.key, key, head // 2, place) for place in seen])
            values = torch.stack([compressed(compression.value, value, head // 2, place) for place in seen])
            weights = (keys @ query[0, position, head * dim : (head + 1) * dim] * 0.5).softmax(-1)
            torch.testing.assert_close(out[0, position, head * dim : (head + 1) * dim], weights @ values)


def test_compression_begins_as_the_mean_of_a_window():
    compression, key = KeyValueCompression(config()), torch.randn(2, 6, 8)
    compressed, _ = compression.compress(key, key)
    torch.testing.assert_close(compressed[:, 2], key[:, :3].mean(1))
    torch.testing.assert_close(compressed[:, 5], key[:, 3:].mean(1))


@torch.no_grad()
def test_what_comes_later_changes_nothing_before_it():
    decoder, tokens = model(), torch.randint(4, 11, (1, 13))
    before = decoder(tokens)
    for place in range(1, 13):
        changed = tokens.clone()
        changed[0, place] = 4 + (changed[0, place] - 3) % 7
        after = decoder(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-6)
        assert (after[:, place] - before[:, place]).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("blocks", [(1,) * 10, (4, 1, 1, 4), (10,)], ids=str)
def test_decoding_with_a_cache_is_the_whole_sequence(blocks):
    decoder, tokens = model(), torch.randint(4, 11, (2, 10))
    expected = decoder.decoder.unembedding(decoder(tokens))
    caches, start = decoder.decoder.empty_caches(2, 12), 0
    for length in blocks:
        block = tokens[:, start : start + length]
        logits = decoder.decode(block, torch.tensor([start, start]), caches)
        torch.testing.assert_close(logits, expected[:, start : start + length])
        start += length


@torch.no_grad()
def test_rows_may_stand_at_different_positions():
    torch.manual_seed(2)
    compression, starts = lively(KeyValueCompression(config())), torch.tensor([4, 8])
    query, key, value = torch.randn(2, 9, 16), torch.randn(2, 9, 8), torch.randn(2, 9, 8)
    expected = MemoryCompressedAttention(config(), compression)(query, key, value)
    rows, keys, values = torch.arange(2), split_heads(key, 2).clone(), split_heads(value, 2).clone()
    attend = CachedMemoryCompressedAttention(config(), keys, values, starts, compression)
    actual = attend(query[rows, starts][:, None], key[rows, starts][:, None], value[rows, starts][:, None])
    torch.testing.assert_close(actual[:, 0], expected[rows, starts])


def test_the_answer_trains_the_convolutions_of_every_second_layer():
    torch.manual_seed(3)
    decoder = build(config()).train()
    assert [compression is not None for compression in decoder.decoder.compressions] == [False, True, False, True]
    tokens = torch.randint(4, 11, (2, 7))
    batch = Batch(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), tokens, tokens, 14)
    batch_loss(decoder, batch).smoothed.backward()
    for compression in decoder.decoder.compressions:
        for convolution in () if compression is None else (compression.key, compression.value):
            gradient = convolution.weight.grad
            assert gradient is not None
            assert gradient.any()


@pytest.mark.slow
def test_it_learns_to_continue_scenes(tmp_path):
    preset = find_preset("scenes")
    model = preset.model.replace(
        positions="sinusoidal",
        compression_stride=3,
        sliding_window=16,
        num_decoder_layers=2,
        num_experts=4,
        d_model=64,
        d_ff=128,
    )
    settings = preset.train.replace(
        steps=60, minutes=0.0, warmup_steps=10, save_every_steps=30, validate_every_steps=30, validation_size=20
    )
    data = Examples([("", text) for text in corpus.scenes(1, 800, "train")], "scenes")
    train(model, settings, data=data, out=tmp_path / "run")
    trained = load_checkpoint(tmp_path / "run")
    assert trained.metrics["validation_loss"] < 0.6 * math.log(trained.config.vocab_size)
