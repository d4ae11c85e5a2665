"""`Ensemble`: several encoder-decoders of one configuration and one tokenizer that generate one answer together.

Each member reads the same source and the same tokens; the next token has the mean of the members' distributions
(Hansen and Salamon 1990), log(1/K sum_k p_k), as the ensembles of Wu et al. 2016 have it. To everything that uses a
model an ensemble is an encoder-decoder with the layers of all members one after another: decoding, exporters and the
service need nothing else. Its states are those of the members side by side.

Shapes: B batch, T target positions, S source positions, K members, M d_model of a member, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from model.architecture_config import EncoderDecoderConfig, TransformerConfig
from model.attention import Attend, AttendSource, Recur
from model.config import ConfigError
from model.layers import Block, Embedding, norm_layer
from model.positions import PositionEncoding
from model.transformer import DecoderStack, EncoderDecoder, EncoderStack, LayerCache

T = TypeVar("T")
LEAST = 1e-37  # probability; smaller ones are no normal float32
VECTOR = 16  # float32 of the widest vectors of processors


class MemberEnds(nn.Module):
    """The layers of a member's stack before and after its blocks."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        layer: TransformerConfig,
        max_len: int,
        *,
        is_causal: bool,
        vocab_size: int = 0,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(config, max_len, vocab_size=vocab_size)
        self.position_encoding = PositionEncoding(layer, max_len, is_causal=is_causal)
        self.norm = norm_layer(config) if config.has_last_norm else nn.Identity()


class EnsembleEncoder(EncoderStack):
    """The encoders of all members: `members` have the ends of each, `blocks` those of all, one after another."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        nn.Module.__init__(self)
        member, layer = config.member, config.member.encoder_stack
        self.config, self.size = layer, config.ensemble_size
        length, size = member.max_source_len, member.source_vocab_size
        ends = (MemberEnds(member, layer, length, is_causal=False, vocab_size=size) for _ in range(self.size))
        self.members = nn.ModuleList(ends)
        self.blocks = nn.ModuleList(Block(layer, has_cross_attention=False) for _ in range(config.num_encoder_layers))

    def forward(self, source_BS: Tensor, lengths_B: Tensor, attends: Sequence[Attend] | None = None) -> Tensor:
        """As `EncoderStack.forward`, with an attention for every layer of every member → states (B, S, K * M)."""
        layers = list(zip(self.blocks, attends or self.attends(source_BS, lengths_B), strict=True))
        states = []
        for ends, own in zip(self.members, shares(layers, self.size), strict=True):
            assert isinstance(ends, MemberEnds)
            x_BSM, positions = ends.embedding(source_BS), ends.position_encoding(source_BS)
            for block, attend in own:
                x_BSM = block(x_BSM, attend, positions)
            states.append(ends.norm(x_BSM))
        return torch.cat(states, dim=-1)


class MeanDistribution(nn.Module):
    """The output projections of all members, and logits of the mean of the distributions that they give.

    The logits are log-probabilities plus a constant for each position, the mean of the members' log-sum-exps: they have
    the scale of a member's, which options that multiply logits, such as a repetition penalty, depend on.
    """

    def __init__(self, outputs: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.outputs = nn.ModuleList(outputs)

    def forward(self, states_PN: Tensor) -> Tensor:
        """States (..., K * M) → logits (..., V): float32, or float64 for states in float64."""
        chances, highest = [], []
        for output, states_PM in zip(self.outputs, states_PN.chunk(len(self.outputs), dim=-1), strict=True):
            logits_PV = output(states_PM)
            if logits_PV.dtype in (torch.float16, torch.bfloat16):
                logits_PV = logits_PV.float()
            chances.append(logits_PV.softmax(-1))
            highest.append(logits_PV.amax(-1, keepdim=True))
        share = 1.0 / len(chances)
        mean_PV = functools.reduce(torch.add, chances) * share
        most_PK = torch.cat([chances_PV.amax(-1, keepdim=True) for chances_PV in chances], dim=-1)
        logs_PN = _log(torch.cat((mean_PV, most_PK), dim=-1).clamp_min(LEAST))
        vocabulary, constant_P1 = mean_PV.shape[-1], functools.reduce(torch.add, highest) * share
        for member in range(len(chances)):  # highest - log(most) is the log-sum-exp of a member
            log_P1 = logs_PN[..., vocabulary + member : vocabulary + member + 1]
            constant_P1 = constant_P1 - log_P1 * share
        logits: Tensor = logs_PN[..., :vocabulary] + constant_P1
        return logits

    @property
    def weight(self) -> Tensor:
        """(V, M), of the first member: for its dtype and its device."""
        first = self.outputs[0]
        assert isinstance(first, nn.Linear)
        return first.weight


class EnsembleDecoder(DecoderStack):
    """The decoders of all members; `unembedding` is their mean distribution."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        nn.Module.__init__(self)
        member = config.member
        self.config, self.size = config, config.ensemble_size
        ends = [MemberEnds(member, member, member.max_target_len, is_causal=True) for _ in range(self.size)]
        self.members = nn.ModuleList(ends)
        self.blocks = nn.ModuleList(Block(member, has_cross_attention=True) for _ in range(config.num_decoder_layers))
        outputs = [nn.Linear(member.d_model, member.vocab_size, bias=member.output_bias) for _ in range(self.size)]
        if member.tie_embeddings:
            for output, own in zip(outputs, ends, strict=True):
                output.weight = own.embedding.tokens.weight
        self.unembedding = MeanDistribution(outputs)  # type: ignore[assignment]  # used as the product is, by its users

    def forward(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor | None,
        attends: Sequence[Attend | Recur],
        attends_source: Sequence[AttendSource | None],
    ) -> Tensor:
        """As `DecoderStack.forward`, with an attention for every layer of every member → states (B, T, K * M)."""
        states = []
        layers = list(zip(self.blocks, attends, attends_source, strict=True))
        for ends, own in zip(self.members, shares(layers, self.size), strict=True):
            assert isinstance(ends, MemberEnds)
            x_BTM, positions = ends.embedding(tokens_BT, starts_B), ends.position_encoding(tokens_BT, starts_B)
            for block, attend, attend_source in own:
                x_BTM = block(x_BTM, attend, positions, attend_source)
            states.append(ends.norm(x_BTM))
        return torch.cat(states, dim=-1)

    def project_source(self, states_BSM: Tensor) -> list[LayerCache]:
        """Encoder states (B, S, K * M) → cross-attention keys and values of every layer of every member."""
        cross = []
        for own_BSM, blocks in zip(states_BSM.chunk(self.size, -1), shares(self.blocks, self.size), strict=True):
            for block in blocks:
                assert isinstance(block, Block)
                assert block.cross_attention is not None
                cross.append(LayerCache(*block.cross_attention.project_source(own_BSM)))
        return cross


class Ensemble(EncoderDecoder):
    """Encoder-decoders that answer together; made from trained members, and not trained itself."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.encoder = EnsembleEncoder(config)
        self.decoder = EnsembleDecoder(config)
        if config.share_embeddings:
            for theirs, own in zip(self.encoder.members, self.decoder.members, strict=True):
                assert isinstance(theirs, MemberEnds)
                assert isinstance(own, MemberEnds)
                theirs.embedding.tokens.weight = own.embedding.tokens.weight


def ensemble_config(members: Sequence[EncoderDecoderConfig]) -> EncoderDecoderConfig:
    """The configuration of an ensemble of models with these. Raises ConfigError unless they have one shape and the same
    special tokens."""
    if len(members) < 2:
        raise ConfigError("ensemble_size", f"an ensemble has at least two members, got {len(members)}")
    first = members[0].replace(dropout=0.0)
    for number, other in enumerate(members[1:], start=2):
        theirs, ours = other.replace(dropout=0.0).to_json(), first.to_json()
        for field in ours:
            if theirs.get(field) != ours[field]:
                got = f"member {number} has {theirs.get(field)!r}, member 1 {ours[field]!r}"
                raise ConfigError(field, f"must be the same in all members of an ensemble: {got}")
    return first.replace(
        ensemble_size=len(members),
        num_encoder_layers=first.num_encoder_layers * len(members),
        num_decoder_layers=first.num_decoder_layers * len(members),
    )


def ensemble_weights(members: Sequence[Mapping[str, Tensor]], config: EncoderDecoderConfig) -> dict[str, Tensor]:
    """The weights of an ensemble by the names of its parameters, from those of its members by theirs."""
    layers = {"encoder": config.member.num_encoder_layers, "decoder": config.member.num_decoder_layers}
    result = dict[str, Tensor]()
    for number, weights in enumerate(members):
        for name, tensor in weights.items():
            result[_ensemble_name(name, number, layers)] = tensor
    return result


def _ensemble_name(name: str, number: int, layers: Mapping[str, int]) -> str:
    """The name of a parameter of the member of this number, from 0."""
    stack, part, rest = name.split(".", 2)
    match part:
        case "blocks":
            layer, of_layer = rest.split(".", 1)
            return f"{stack}.blocks.{int(layer) + number * layers[stack]}.{of_layer}"
        case "unembedding":
            return f"{stack}.unembedding.outputs.{number}.{rest}"
        case _:  # embedding, position_encoding, norm
            return f"{stack}.members.{number}.{part}.{rest}"


def _log(chances_PV: Tensor) -> Tensor:
    """The logarithm, of rows that fill whole vectors: processors compute what is left at the end of a batch with
    another function, and the answer of a row would depend on the others in its last bit."""
    size = chances_PV.shape[-1]
    if missing := -size % VECTOR:
        chances_PV = torch.cat((chances_PV, *[chances_PV[..., :1]] * missing), dim=-1)
    return chances_PV.log()[..., :size]


def shares(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items of each member: equal parts, in order."""
    every = list(items)
    part = len(every) // size
    for start in range(0, len(every), part):
        yield every[start : start + part]
