"""The products of a recurrent translation model, as `flops` counts them.

The first states of a sentence are constants or projections, so the backward pass leaves out a product of its first
step here and there; the count does not.

Shapes: M d_model, N the width of the encoder's states.
"""

from __future__ import annotations

from model.architecture_config import RecurrentConfig
from model.training.products import BatchShape, Products, product


def count_recurrent(products: Products, config: RecurrentConfig, shape: BatchShape) -> None:
    """Adds all products up to the logits that the loss needs."""
    source_carries = _encoder(products, config, shape)
    carries = _decoder(products, config, shape, source_carries=source_carries)
    products.project(config, shape.predicted, carries=carries)


def _encoder(products: Products, config: RecurrentConfig, shape: BatchShape) -> bool:
    trained, directions = products.trained, 2 if config.bidirectional else 1
    size = config.source_dim // directions
    gates = (4 if config.cell == "lstm" else 3) * size
    carries, width = "encoder.embedding" in trained, config.d_model
    for layer in range(config.num_encoder_layers):
        name = f"encoder.layers.{layer}"
        state = carries or name in trained  # of the layer itself, from its second step on
        for end in ("", "_reverse")[:directions]:
            inputs, states = (product(shape.source_tokens, inner, gates) for inner in (width, size))
            products.add(inputs, carries, f"{name}.weight_ih_l0{end}" in trained)
            products.add(states, state, f"{name}.weight_hh_l0{end}" in trained)
        carries, width = state, config.source_dim
    return carries


def _decoder(products: Products, config: RecurrentConfig, shape: BatchShape, *, source_carries: bool) -> bool:
    trained, width, targets = products.trained, config.d_model, shape.rows * shape.target
    gates = (4 if config.cell == "lstm" else 3) * width
    states = config.num_decoder_layers * (2 if config.cell == "lstm" else 1)
    first = [
        products.linear(f"decoder.initial.{state}", shape.rows, config.source_dim, width, carries=source_carries)
        for state in range(states)
    ]
    carries = top = "decoder.embedding" in trained
    if config.input_feeding:  # what a step reads comes from all parts of the step before
        parts = ("cells", "feed", "score", "combine")
        fed = carries or source_carries or any(first) or any(f"decoder.{part}" in trained for part in parts)
        top = products.linear("decoder.feed", targets, width, gates, carries=fed) or carries
    for cell in range(config.num_decoder_layers):
        name, own = f"decoder.cells.{cell}", len(first) // config.num_decoder_layers
        products.linear(f"{name}.input", targets, width, gates, carries=top if cell else carries)
        top = top or any(first[cell * own : (cell + 1) * own]) or name in trained
        products.linear(f"{name}.hidden", targets, width, gates, carries=top)
    combined, carries = width, top
    if config.score != "none":
        combined, carries = width + config.source_dim, _attention(products, config, shape, top, source_carries)
    return products.linear("decoder.combine", targets, combined, width, carries=carries or top)


def _attention(products: Products, config: RecurrentConfig, shape: BatchShape, state: bool, source: bool) -> bool:
    """state, source: whether the decoder's and the encoder's states need gradients."""
    width, source_dim, targets = config.d_model, config.source_dim, shape.rows * shape.target
    name, query_dim = "decoder.score", source_dim
    if config.score == "additive":
        query_dim = config.attention_dim or width
        key = products.linear(f"{name}.key", shape.rows * shape.source, source_dim, query_dim, carries=source)
        query = products.linear(f"{name}.query", targets, width, query_dim, carries=state)
        fits = product(targets * shape.source, query_dim, 1)
        scores = products.add(fits, key or query, f"{name}.vector" in products.trained)
    else:
        query = state
        if config.score == "multiplicative":
            query = products.linear(f"{name}.query", targets, width, source_dim, carries=state)
        scores = products.add(product(targets, query_dim, shape.source), query, source)
    return products.add(product(targets, shape.source, source_dim), scores, source)  # the mean of the states
