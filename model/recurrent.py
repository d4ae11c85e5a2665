"""Recurrent translation models: an encoder and a decoder of LSTM or GRU cells, with attention or without.

| what | source |
|---|---|
| the decoder sees only the last encoder state (score none) | Sutskever et al. 2014 |
| attention by v^T tanh(W1 h + W2 s) (additive), an encoder of two directions | Bahdanau et al. 2015 |
| by s^T h (dot) or s^T W h (multiplicative), tanh(W [a; s]), which is fed to the next step | Luong et al. 2015 |

Unlike in these papers, the initial decoder states are learned projections of the last encoder states, so that the
numbers of layers and their widths may differ. The encoder runs PyTorch's kernels over packed sentences, the decoder
consists of matrix products that can be computed step by step, and attention to the source is passed as an
`AttendSource`, as for Transformers. Nothing here knows graphs or servers.

Shapes: B batch, T target positions, S source positions, M d_model, which is d2, N encoder_dim (d1), A attention_dim
(d3), G gates of a cell side by side (4 M or 3 M), P input of a layer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from model.architecture_config import RecurrentConfig
from model.attention import padding_mask
from model.dropout import Dropout, drop
from model.layers import Embedding, initialise


class EncodedSource(NamedTuple):
    """The decoder's view of a source, computed once.

    states_BSN: the encoder's states, those of padding meaningless. keys_BSA: W1 h of each for the additive score, else
    None. initial_states: the first states of the decoder's cells, (B, M) each, by `initial_state_names`.
    """

    states_BSN: Tensor
    keys_BSA: Tensor | None
    initial_states: tuple[Tensor, ...]


class AttendSource(Protocol):
    """Attends to the encoder's states with scores: their products with a query, or given ones."""

    def __call__(self, query_BTN: Tensor | None, scores_BTS: Tensor | None) -> Tensor:
        """Exactly one of query (B, T, N) and scores (B, T, S) → a (B, T, N), the states weighted by alpha."""


class SourceAttention:
    """In plain operators. `weights_BTS`: alpha of the last call, each row of which adds up to 1."""

    weights_BTS: Tensor

    def __init__(self, states_BSN: Tensor, lengths_B: Tensor, dropout: float = 0.0) -> None:
        self.states_BSN, self.dropout = states_BSN, dropout
        self.mask_B1S = padding_mask(lengths_B, states_BSN.shape[1])[:, 0]

    def __call__(self, query_BTN: Tensor | None, scores_BTS: Tensor | None) -> Tensor:
        if scores_BTS is None:
            assert query_BTN is not None
            scores_BTS = query_BTN @ self.states_BSN.to(query_BTN.dtype).mT
        scores_BTS = scores_BTS.to(torch.promote_types(scores_BTS.dtype, torch.float32))
        lowest = torch.finfo(scores_BTS.dtype).min  # not -inf, because a source without a token would give NaN
        weights_BTS = scores_BTS.masked_fill(~self.mask_B1S, lowest).softmax(-1)
        self.weights_BTS = weights_BTS.to(self.states_BSN.dtype)
        dropped_BTS = drop(self.weights_BTS, self.dropout)
        return dropped_BTS @ self.states_BSN


class Score(nn.Module):
    """The attention score of an encoder state h and a decoder state s: s^T h, s^T W h or v^T tanh(W1 h + W2 s)."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        source_dim, attention_dim = config.source_dim, config.attention_dim or config.d_model
        self.query: nn.Linear | None = None
        self.key: nn.Linear | None = None
        if config.score == "multiplicative":
            self.query = nn.Linear(config.d_model, source_dim, bias=False)  # W^T: its weight is (N, M), W is (M, N)
        elif config.score == "additive":
            self.query = nn.Linear(config.d_model, attention_dim, bias=False)  # W2 (A, M)
            self.key = nn.Linear(source_dim, attention_dim, bias=False)  # W1 (A, N)
            self.vector = nn.Parameter(torch.empty(attention_dim).uniform_(-1, 1) * attention_dim**-0.5)

    def project_source(self, states_BSN: Tensor) -> Tensor | None:
        """The part of the scores that depends only on the source, W1 h (B, S, A); None if that is the states."""
        return None if self.key is None else self.key(states_BSN)

    def forward(self, state_BTM: Tensor, keys_BSA: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Decoder states → a query (B, T, N) whose products with the encoder's are the scores, or scores (B, T, S)."""
        query_BTE = state_BTM if self.query is None else self.query(state_BTM)
        if keys_BSA is None:
            return query_BTE, None
        fits_BTSA = torch.tanh(keys_BSA[:, None] + query_BTE[:, :, None])
        return None, fits_BTSA @ self.vector.to(fits_BTSA.dtype)


class LstmCell(nn.Module):
    """One step in two products; gates in torch's order: input, forget, candidate, output."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, 4 * size)
        self.hidden = nn.Linear(size, 4 * size)

    def forward(self, input_BTG: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """W x + b, (B, 1, G), and hidden and cell state (B, 1, M) → the next ones; the hidden state is the output."""
        hidden_BTM, cell_BTM = states
        gates_BTG = input_BTG + self.hidden(hidden_BTM)
        opened, kept, candidate, shown = gates_BTG.chunk(4, dim=-1)
        cell_BTM = kept.sigmoid() * cell_BTM + opened.sigmoid() * candidate.tanh()
        return shown.sigmoid() * cell_BTM.tanh(), cell_BTM


class GruCell(nn.Module):
    """One step in two products; gates in torch's order: reset, update, candidate. The reset gate acts after the
    product, as in cuDNN and ONNX with linear_before_reset."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, 3 * size)
        self.hidden = nn.Linear(size, 3 * size)

    def forward(self, input_BTG: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """W x + b, (B, 1, G), and the hidden state (B, 1, M) → the next one."""
        (hidden_BTM,) = states
        reset, update, candidate = input_BTG.chunk(3, dim=-1)
        own_reset, own_update, own_candidate = self.hidden(hidden_BTM).chunk(3, dim=-1)
        update = (update + own_update).sigmoid()
        candidate = (candidate + (reset + own_reset).sigmoid() * own_candidate).tanh()
        return ((1 - update) * candidate + update * hidden_BTM,)


def initial_state_names(config: RecurrentConfig) -> tuple[str, ...]:
    """The states of a decoder's cells, layer by layer, to which the encoder gives first values."""
    parts = ("hidden", "cell") if config.cell == "lstm" else ("hidden",)
    return tuple(f"{part}.{i}" for i in range(config.num_decoder_layers) for part in parts)


def state_names(config: RecurrentConfig) -> tuple[str, ...]:
    """The states that a decoder carries to the next step, (B, M) each: those of its cells, and with input feeding the
    vector of the token before, which is 0 at first."""
    return (*initial_state_names(config), "fed") if config.input_feeding else initial_state_names(config)


class RunLayer(Protocol):
    """Runs one layer of an encoder over whole sentences."""

    def __call__(self, layer: nn.LSTM | nn.GRU, x_BSP: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, S, P) → states (B, S, N), and the last ones of both directions side by side, (B, N)."""


def run_packed(layer: nn.LSTM | nn.GRU, x_BSP: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """By PyTorch's kernels, in the type of the weights. Sentences are packed, so that nothing of a row depends on its
    padding."""
    x_BSP = x_BSP.to(next(layer.parameters()).dtype)
    packed = nn.utils.rnn.pack_padded_sequence(x_BSP, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
    with torch.autocast(x_BSP.device.type, enabled=False):
        packed, last = layer(packed)
    last_DBH = last[0] if isinstance(last, tuple) else last
    states_BSN, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=x_BSP.shape[1])
    return states_BSN, last_DBH.transpose(0, 1).flatten(1)


class RecurrentEncoder(nn.Module):
    """Embedding and recurrent layers, in two directions if the configuration is bidirectional."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, 0)
        directions = 2 if config.bidirectional else 1
        make = nn.LSTM if config.cell == "lstm" else nn.GRU
        self.layers = nn.ModuleList(
            make(
                config.source_dim if i else config.d_model,
                config.source_dim // directions,
                batch_first=True,
                bidirectional=config.bidirectional,
            )
            for i in range(config.num_encoder_layers)
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, source_BS: Tensor, lengths_B: Tensor, run: RunLayer = run_packed) -> tuple[Tensor, Tensor]:
        """Right-padded ids and lengths → states (B, S, N), those of padding meaningless, and the last layer's last ones
        of both directions side by side, (B, N)."""
        states_BSN: Tensor = self.embedding(source_BS)
        last_BN = states_BSN
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, nn.LSTM | nn.GRU)
            x_BSP = self.dropout(states_BSN) if i else states_BSN
            states_BSN, last_BN = run(layer, x_BSP, lengths_B)
        return states_BSN, last_BN


class RecurrentDecoder(nn.Module):
    """Embedding, cells, attention where there is a score, tanh(W [a; s]), and the output projection."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        size, make = config.d_model, LstmCell if config.cell == "lstm" else GruCell
        self.embedding = Embedding(config, 0)
        self.cells: Any  # an LstmCell or GruCell by layer
        self.cells = nn.ModuleList(make(size, size) for _ in range(config.num_decoder_layers))
        # Beside the input of the first cell, which is there for all tokens of a target beforehand.
        gates = self.cells[0].hidden.out_features
        self.feed = nn.Linear(size, gates, bias=False) if config.input_feeding else None
        self.initial = nn.ModuleList(nn.Linear(config.source_dim, size) for _ in initial_state_names(config))
        self.score = Score(config) if config.score != "none" else None
        self.combine = nn.Linear(size if self.score is None else config.source_dim + size, size, bias=False)
        self.dropout = Dropout(config.dropout)
        self.unembedding = nn.Linear(size, config.vocab_size, bias=config.output_bias)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight

    def initial_states(self, last_BN: Tensor) -> tuple[Tensor, ...]:
        """tanh(W h + b) of the encoder's last states for each of `initial_state_names`, (B, M)."""
        return tuple(torch.tanh(first(last_BN)).to(last_BN.dtype) for first in self.initial)

    def forward(
        self, tokens_BT: Tensor, states: Sequence[Tensor], keys_BSA: Tensor | None, attend: AttendSource | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Token ids (B, T) and what is carried, (B, M) each by `state_names` → vectors (B, T, M), which `unembedding`
        turns into logits, and what is carried on. attend: where there is a score."""
        x_BTM: Tensor = self.embedding(tokens_BT)
        carried = [state[:, None] for state in states]
        input_BTG = self.cells[0].input(x_BTM)
        tops: list[Tensor] = []
        for t in range(tokens_BT.shape[1]):
            gates_BTG = input_BTG[:, t : t + 1]
            if self.feed is None:
                top_BTM, carried = self._step(gates_BTG, carried)
            else:
                top_BTM, carried = self._step(gates_BTG + self.feed(carried.pop()), carried)
                top_BTM = self._combined(top_BTM, keys_BSA, attend)
                carried.append(top_BTM)
            tops.append(top_BTM)
        vectors_BTM = torch.cat(tops, dim=1)
        if self.feed is None:
            vectors_BTM = self._combined(vectors_BTM, keys_BSA, attend)
        return self.dropout(vectors_BTM), [state[:, 0] for state in carried]

    def _step(self, gates_BTG: Tensor, carried: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One token through all cells: the state of the last one, and the states of all."""
        new: list[Tensor] = []
        size = len(carried) // len(self.cells)
        for i, cell in enumerate(self.cells):
            if i:
                gates_BTG = cell.input(self.dropout(new[-size]))
            new += cell(gates_BTG, carried[i * size : (i + 1) * size])
        return new[-size], new

    def _combined(self, state_BTM: Tensor, keys_BSA: Tensor | None, attend: AttendSource | None) -> Tensor:
        """tanh(W [a; s]), Luong et al. 2015, equation 5; without attention tanh(W s)."""
        if self.score is not None:
            assert attend is not None
            mixed_BTN = attend(*self.score(state_BTM, keys_BSA))
            state_BTM = torch.cat((mixed_BTN.to(state_BTM.dtype), state_BTM), dim=-1)
        return torch.tanh(self.combine(state_BTM)).to(state_BTM.dtype)


class Recurrent(nn.Module):
    """Encoder and decoder."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config)
        if config.share_embeddings:
            self.encoder.embedding.tokens.weight = self.decoder.embedding.tokens.weight
        _initialise(self)

    def encode(self, source_BS: Tensor, lengths_B: Tensor, run: RunLayer = run_packed) -> EncodedSource:
        """Right-padded token ids (B, S) and lengths (B,)."""
        states_BSN, last_BN = self.encoder(source_BS, lengths_B, run)
        score = self.decoder.score
        keys_BSA = None if score is None else score.project_source(states_BSN)
        return EncodedSource(states_BSN, keys_BSA, self.decoder.initial_states(last_BN))

    def start(self, source: EncodedSource) -> list[Tensor]:
        """The states of a decoder before its first token."""
        fed = [torch.zeros_like(source.initial_states[0])] if self.config.input_feeding else []
        return [*source.initial_states, *fed]

    def source_attention(self, source: EncodedSource, lengths_B: Tensor) -> SourceAttention | None:
        """Attention to a source; None for models without a score."""
        if self.config.score == "none":
            return None
        return SourceAttention(source.states_BSN, lengths_B, self.config.dropout if self.training else 0.0)

    def forward(self, source_BS: Tensor, lengths_B: Tensor, target_BT: Tensor) -> Tensor:
        """Vectors (B, T, M) for a right-shifted target (B, T); `decoder.unembedding` turns them into logits."""
        source = self.encode(source_BS, lengths_B)
        attend = self.source_attention(source, lengths_B)
        vectors_BTM: Tensor
        vectors_BTM, _ = self.decoder(target_BT, self.start(source), source.keys_BSA, attend)
        return vectors_BTM

    def decode(
        self, tokens_BT: Tensor, states: Sequence[Tensor], source: EncodedSource, lengths_B: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, T, V) of the next T tokens of each row, and the states after them."""
        attend = self.source_attention(source, lengths_B)
        vectors_BTM, carried = self.decoder(tokens_BT, states, source.keys_BSA, attend)
        return self.decoder.unembedding(vectors_BTM), carried


def _initialise(model: Recurrent) -> None:
    """As Transformers, but the encoder's layers start as PyTorch's do; biases are 0 except those of forget gates, which
    are 1 (Gers et al. 2000)."""
    initialise(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LstmCell):
                module.hidden.bias.chunk(4)[1].fill_(1.0)
            elif isinstance(module, nn.LSTM | nn.GRU):
                for name, parameter in module.named_parameters():
                    if name.startswith("bias"):
                        parameter.zero_()
                    if name.startswith("bias_hh") and isinstance(module, nn.LSTM):
                        parameter.chunk(4)[1].fill_(1.0)
