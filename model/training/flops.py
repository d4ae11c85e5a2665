"""Floating-point operations of a training step, counted from the configuration, and the machine's peak, measured.

Only matrix products count, 2 m n k operations for (m, k) by (k, n): element-wise work is a few per cent of them, and
published figures leave it out (Kaplan et al. 2020, 2.1; Chowdhery et al. 2022, appendix B). The backward pass computes
two products of the same size for each one, so a step takes three times the forward pass; with frozen parameters it
computes fewer (`products`). What is computed counts: the padding of a batch, the masked half of causal scores. Looking
up an embedding is no product; the projection to the vocabulary counts for the predicted positions alone.

Nothing here trains or builds a model.

The walk goes through a model as its `forward` does, and names layers as the model does. A flag `carries` is whether a
tensor needs a gradient.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from model.architecture_config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    RecurrentConfig,
    TransformerConfig,
)
from model.config import ModelConfig
from model.training.data.examples import Batch
from model.training.products import BatchShape, Products, Trained, product
from model.training.recurrent_flops import count_recurrent

SIZES = 128, 8192  # of the square matrices whose products measure the peak: the smallest and the largest
ENOUGH = 1024  # a smaller size does not end the measurement: on a busy machine each product may wait for its threads
PRODUCT_S = 0.001  # at least; short, so that some are done without an interruption by other work
MEASURED_S = 0.025  # the product of each size is repeated for this long,
REPEATS = 3  # and at least so often,
PATIENCE_S = 2.0  # and so much longer while no product of the smallest size takes less than PRODUCT_S: all have waited


def training_flops(config: ModelConfig, batch: Batch, trained: Trained | None = None, *, passes: int = 1) -> int:
    """Floating-point operations of the forward and backward passes of a batch; R-Drop has two passes.

    trained: by default all parameters.
    """
    products = _counted(config, BatchShape.of(batch), trained or Trained())
    return passes * (products.forward + products.backward)


def forward_flops(config: ModelConfig, shape: BatchShape, trained: Trained | None = None) -> int:
    """Floating-point operations of a forward pass up to the logits that the loss needs."""
    return _counted(config, shape, trained or Trained()).forward


def _counted(config: ModelConfig, shape: BatchShape, trained: Trained) -> Products:
    products = Products(trained)
    if isinstance(config, RecurrentConfig):
        count_recurrent(products, config, shape)
        return products
    if isinstance(config, EncoderConfig):
        _head(products, config, shape, carries=_encoder(products, config, shape))
        return products
    assert isinstance(config, DecoderConfig | EncoderDecoderConfig), config.architecture
    source_carries = isinstance(config, EncoderDecoderConfig) and _encoder(products, config, shape)
    carries = _decoder(products, config, shape, source_carries=source_carries)
    products.project(config, shape.predicted, carries=carries)
    return products


def _encoder(products: Products, config: EncoderConfig | EncoderDecoderConfig, shape: BatchShape) -> bool:
    stack, trained = config.encoder_stack, products.trained
    carries = "encoder.embedding" in trained
    for layer in range(config.num_encoder_layers):
        block = _Block(products, stack, f"encoder.blocks.{layer}", shape.rows, shape.source)
        carries = block.run(carries, bias="encoder.position_encoding" in trained)
    return carries or "encoder.norm" in trained


def _decoder(
    products: Products, config: DecoderConfig | EncoderDecoderConfig, shape: BatchShape, *, source_carries: bool
) -> bool:
    trained, source = products.trained, _Source(shape.source, source_carries) if config.has_encoder else None
    carries = "decoder.embedding" in trained
    for layer in range(config.num_decoder_layers):
        block = _Block(products, config, f"decoder.blocks.{layer}", shape.rows, shape.target)
        stride = config.compression_stride if config.is_compressed(layer) else 0
        carries = block.run(carries, bias="decoder.position_encoding" in trained, source=source, stride=stride)
    return carries or "decoder.norm" in trained


class _Source(NamedTuple):
    """The encoder's states: positions of each row, and whether they need a gradient."""

    positions: int
    carries: bool


class _Block(NamedTuple):
    """One block of a Transformer and its input."""

    products: Products
    config: TransformerConfig
    name: str
    rows: int
    positions: int  # of each row

    def run(self, carries: bool, *, bias: bool, source: _Source | None = None, stride: int = 0) -> bool:
        """carries: whether the input needs a gradient; returns this of the output. bias: whether one on the scores
        does, that of all layers. stride: of compressed keys, 0: there are none."""
        config, trained = self.config, self.products.trained
        if config.parallel_residual:
            attended = self._self_attention(carries or self._norm("self"), bias=bias, stride=stride)
            return self._feed_forward(carries or self._norm("feed_forward")) or attended
        is_pre = config.norm_position == "pre"
        carries = self._self_attention(carries or (is_pre and self._norm("self")), bias=bias, stride=stride) or carries
        carries = carries or self._norm("self")
        if source is not None:
            carries = self._cross_attention(carries or (is_pre and self._norm("cross")), source) or carries
            carries = carries or self._norm("cross")
        carries = self._feed_forward(carries or (is_pre and self._norm("feed_forward"))) or carries
        return carries or f"{self.name}.feed_forward_residual" in trained

    def _norm(self, part: str) -> bool:
        return f"{self.name}.{part}_residual.norm" in self.products.trained

    def _self_attention(self, carries: bool, *, bias: bool, stride: int) -> bool:
        config, products, trained = self.config, self.products, self.products.trained
        name, tokens, head_dim = f"{self.name}.self_attention", self.rows * self.positions, config.attention_head_dim
        kv_width = config.attention_kv_heads * head_dim
        width = config.num_heads * head_dim
        projected = products.linear(
            f"{name}.query_key_value", tokens, config.d_model, width + 2 * kv_width, carries=carries
        )
        query, key = (projected or f"{name}.{side}_norm" in trained for side in ("query", "key"))
        value, keys = projected, self.positions
        if stride:
            keys = self.positions // stride  # each query's own key is an element-wise product
            convolution = product(tokens, stride * head_dim, kv_width)
            key = products.add(convolution, key, f"{self.name}.compression.key.weight" in trained)
            value = products.add(convolution, value, f"{self.name}.compression.value.weight" in trained)
            key, value = (
                carried or f"{self.name}.compression.{side}" in trained  # also its bias
                for carried, side in ((key, "key"), (value, "value"))
            )
        if config.positions == "shaw":  # the scores of learned distances (Shaw et al. 2018)
            distances = 2 * config.position_range + 1
            scores = product(tokens * config.num_heads, head_dim, distances)
            bias = products.add(scores, query, f"{self.name}.shaw" in trained)
        mixed = self._mixed(keys, query, key, value, bias=bias)
        return products.linear(f"{name}.output", tokens, width, config.d_model, carries=mixed)

    def _cross_attention(self, carries: bool, source: _Source) -> bool:
        config, products, name = self.config, self.products, f"{self.name}.cross_attention"
        queries, width = self.rows * self.positions, config.num_heads * config.attention_head_dim
        kv_width = config.attention_kv_heads * config.attention_head_dim
        keys = self.rows * source.positions
        held = products.linear(f"{name}.key_value", keys, config.d_model, 2 * kv_width, carries=source.carries)
        query = products.linear(f"{name}.query", queries, config.d_model, width, carries=carries)
        mixed = self._mixed(source.positions, query, held, held, bias=False)
        return products.linear(f"{name}.output", queries, width, config.d_model, carries=mixed)

    def _mixed(self, keys: int, query: bool, key: bool, value: bool, *, bias: bool) -> bool:
        """The scores of queries and keys, and the mean of the values by their weights."""
        config = self.config
        size = self.rows * config.num_heads * product(self.positions, config.attention_head_dim, keys)
        scores = self.products.add(size, query, key) or bias
        return self.products.add(size, scores, value)

    def _feed_forward(self, carries: bool) -> bool:
        config, tokens, name = self.config, self.rows * self.positions, f"{self.name}.feed_forward"
        if not config.num_experts:
            return self._one_feed_forward(name, tokens, carries)
        routed = self.products.linear(f"{name}.router", tokens, config.d_model, config.num_experts, carries=carries)
        read, experts = tokens * config.experts_per_token, config.num_experts
        for expert in range(experts):  # as if all had as many tokens, which matters where only some are trained
            share = read * (expert + 1) // experts - read * expert // experts
            routed = self._one_feed_forward(f"{name}.experts.{expert}", share, carries) or routed
        return routed

    def _one_feed_forward(self, name: str, tokens: int, carries: bool) -> bool:
        config, products = self.config, self.products
        inner = products.linear(f"{name}.inner", tokens, config.d_model, config.d_ff, carries=carries)
        if config.gated:
            inner = products.linear(f"{name}.gate", tokens, config.d_model, config.d_ff, carries=carries) or inner
        return products.linear(f"{name}.outer", tokens, config.d_ff, config.d_model, carries=inner)


def _head(products: Products, config: EncoderConfig, shape: BatchShape, *, carries: bool) -> None:
    width, labels, linear = config.d_model, len(config.labels), products.linear
    if config.head == "masked":
        carries = linear("masked.dense", shape.predicted, width, width, carries=carries)
        carries = carries or "masked.norm" in products.trained
        linear("masked.unembedding", shape.predicted, width, config.vocab_size, carries=carries)
    elif config.head == "tokens":
        linear("tag", shape.predicted, width, labels, carries=carries)
    elif config.head == "attention":
        scores = linear("attention.score", shape.rows * shape.source, width, 1, carries=carries)
        carries = products.add(product(shape.rows, shape.source, width), scores, carries)  # the mean of the states
        linear("attention.label", shape.rows, width, labels, carries=carries)
    else:
        if config.pooler != "none":
            carries = linear("pooler.dense", shape.rows, width, width, carries=carries)
        linear("label", shape.rows, width, labels, carries=carries)


@functools.cache
def peak_flops_per_s(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """The speed of the fastest product of two square matrices, in operations per second.

    Measured once per process. threads: `torch.get_num_threads()`, on which the figure depends.
    """
    assert threads == torch.get_num_threads(), threads
    return fastest_product(
        lambda size: shortest_s(
            _multiplication(size, device, dtype), expected_s=PRODUCT_S if size == SIZES[0] else float("inf")
        )
    )


def fastest_product(seconds_of: Callable[[int], float]) -> float:
    """The best speed over the sizes, which double until a product takes PRODUCT_S and has ENOUGH rows, so that
    processors and accelerators are both busy, in operations per second.

    seconds_of: measures the product of two square matrices of a size, in seconds.
    """
    size, most = SIZES
    fastest = 0.0
    while True:
        product_s = seconds_of(size)
        fastest = max(fastest, product(size, size, size) / product_s)
        if (product_s >= PRODUCT_S and size >= ENOUGH) or size >= most:
            return fastest
        size *= 2


def _multiplication(size: int, device: torch.device, dtype: torch.dtype) -> Callable[[], None]:
    """Multiplies two matrices and waits for the result. Draws no random numbers: a run's generators stay as they are.
    The first call, which prepares the device, is done."""
    factor = torch.full((size, size), 0.5, device=device, dtype=dtype)
    result = torch.empty_like(factor)

    def multiply() -> None:
        torch.mm(factor, factor, out=result)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    multiply()
    return multiply


def shortest_s(run: Callable[[], None], *, expected_s: float) -> float:
    """The shortest time that `run` takes, of REPEATS and of as many as begin in MEASURED_S, or in PATIENCE_S more
    while none is as short as expected."""
    ends_s, times_s = time.perf_counter() + MEASURED_S, list[float]()
    while len(times_s) < REPEATS or time.perf_counter() < ends_s + (min(times_s) >= expected_s) * PATIENCE_S:
        began_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)
