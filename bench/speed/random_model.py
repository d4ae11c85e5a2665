"""Random weights whose answers have a known length, so that engines can be compared without training a model.

The source's tokens determine the length of the answer. Tokens of the classes after the last length never end, so
every engine generates exactly its token limit without suppressing the end token; tokens of class n
end after about n tokens (within two or three, when n is small within five), as translations do: no engine needs
or has advance knowledge of the length.

Two coordinates of the residual stream do that, which no layer writes but `_encode_lengths`. All else is as random as
`model.layers.initialise` makes it.
"""

from __future__ import annotations

import random

import torch
from torch import nn

from model.architecture_config import EncoderDecoderConfig
from model.architectures import build
from model.config import ModelConfig
from model.layers import Block
from model.positions import sinusoidal_table
from model.transformer import EncoderDecoder, EncoderStack

SHORTEST, LONGEST = 5, 60  # answers whose length the source determines
CLASSES = 64  # of tokens, by their ids: LONGEST - SHORTEST + 1 lengths, the others never end
ENDLESS = 4 * LONGEST  # the length that the tokens of the last classes stand for
PER_POSITION = 0.1  # how fast the coordinate END rises
END, LENGTH = 0, 1  # coordinates: whether the answer ends here; how long the source makes it
END_WEIGHT = 300.0  # of the end token: rising by half a position outweighs every other logit, of which none exceeds 15


def random_model(
    *, layers: int = 6, width: int = 512, words: int = 32000, positions: int = 512, seed: int = 1
) -> EncoderDecoder:
    """Random weights but for two coordinates of the residual stream, which only `_encode_lengths` writes.

    positions: the longest source and target.
    """
    torch.manual_seed(seed)
    model = build(
        EncoderDecoderConfig(
            vocab_size=words,
            d_model=width,
            num_heads=width // 64,
            d_ff=4 * width,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            positions="learned",  # kept in checkpoints, unlike a computed table; the graphs are the same
            max_source_len=positions,
            max_target_len=positions,
        )
    ).eval()
    assert isinstance(model, EncoderDecoder)
    with torch.no_grad():
        _encode_lengths(model)
    return model


def _encode_lengths(model: EncoderDecoder) -> None:
    """Makes every token hold at LENGTH how long an answer it stands for, the last cross-attention subtract the mean of
    that from the position at END, and the end token win where END is above 0."""
    config = model.config
    for stack in (model.encoder, model.decoder):
        table_PM = sinusoidal_table(config, len(stack.embedding.positions))
        # Centred: norms subtract the mean, and a common one would shift the two coordinates.
        stack.embedding.positions.copy_(table_PM - table_PM.mean(1, keepdim=True))
        stack.embedding.positions[:, [END, LENGTH]] = 0
        for block in stack.blocks:
            assert isinstance(block, Block)
            outputs = [block.self_attention.output, block.feed_forward.outer]
            if block.cross_attention is not None:
                outputs.append(block.cross_attention.output)
            for output in outputs:
                output.weight[[END, LENGTH]] = 0
    _silence_end(model.encoder)
    table = model.decoder.unembedding.weight
    classes = torch.arange(config.vocab_size) % CLASSES
    lengths = torch.where(classes <= LONGEST - SHORTEST, classes + SHORTEST, ENDLESS)
    table[:, END], table[:, LENGTH] = 0.0, lengths / LONGEST / config.d_model**0.5
    table[:4] = 0.0
    table[config.eos_id, END] = END_WEIGHT
    last = model.decoder.blocks[-1]
    assert isinstance(last, Block)
    assert last.cross_attention is not None
    cross = last.cross_attention
    value = cross.key_value.weight[config.d_model]  # of the first head
    value[:] = 0.0
    value[LENGTH] = 1.0
    short, long = (_mean_length(model, length) for length in (SHORTEST, LONGEST))
    length_per_token = (long - short) / (LONGEST - SHORTEST)
    cross.output.weight[END, 0] = -PER_POSITION / length_per_token
    first = SHORTEST - short / length_per_token  # the length of which the attention would find 0
    positions = model.decoder.embedding.positions
    positions[:, END] = PER_POSITION * (torch.arange(len(positions)) - first)


def _silence_end(stack: EncoderStack) -> None:
    """The end token ends every source, and its weight at END would dominate the inputs of the layers."""
    for module in stack.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight[END] = 0.0


def _mean_length(model: EncoderDecoder, length: int) -> float:
    """What the decoder finds at LENGTH in a source that asks for an answer of `length` tokens, in the mean."""
    rng = random.Random(2)
    sources = [
        [rng.randrange(1, model.config.vocab_size // CLASSES) * CLASSES + length - SHORTEST for _ in range(length - 1)]
        for _ in range(8)
    ]
    tokens = torch.tensor([[*source, model.config.eos_id] for source in sources])
    states, _ = model.encode(tokens, torch.full((len(sources),), length))
    return float(states[:, :, LENGTH].mean())


def random_source(config: ModelConfig, rng: random.Random, length: int, answer: int) -> tuple[int, ...]:
    """A source of `length` tokens, end token included, whose answer has about `answer` of SHORTEST to LONGEST tokens,
    or never ends (ENDLESS)."""
    first = answer - SHORTEST
    classes = range(first, first + 1) if answer <= LONGEST else range(LONGEST - SHORTEST + 1, CLASSES)
    tokens = (rng.randrange(1, config.vocab_size // CLASSES) * CLASSES + rng.choice(classes) for _ in range(length - 1))
    return (*tokens, config.eos_id)
