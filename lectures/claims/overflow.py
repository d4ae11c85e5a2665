"""The scale of attention scores: gradients with it and without, and scores that are too large for float16 all the same
in the formula, in exported graphs, and for what the export decides."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from export.options import ExportOptions
from export.to_onnx import export_model
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.graphs import encode, fresh_model, sessions
from model.architecture_config import EncoderConfig
from model.attention import split_heads
from model.corpus.corpus import scenes
from model.encoder import Encoder
from model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

HEAD_DIM = 64
LARGEST = float(np.finfo(np.float16).max)  # 65,504
DIMENSIONS = (4, 16, 64, 256, 1024)  # of queries and keys, for the gradients
KEYS, DRAWS = 32, 200
KEPT, LOST = 0.9, 0.5  # of the gradient at the smallest dimension that is left at the largest
CLOSE = 0.1  # error of a graph, of the largest value, above which the export must have left it out
SCORES = (10.0, 1e3, 1e4, 1e5)  # largest score of the first layer, after the scale
GRAPHS = {
    "plain": "the formula in float16, scaled after the product",
    "fp16": "exported fp16 graph",
    "fp32": "exported fp32 graph",
}
SCALES: dict[str, Callable[[int], float]] = {"1/sqrt(d)": lambda dim: dim**-0.5, "none": lambda _: 1.0}


def measure(lab: Lab) -> Measured:
    """By dimension: gradients with and without the scale. By largest score: error of each graph relative to the largest
    value in float64, null if not finite; and what an export decides about fp16."""
    texts = scenes(1, 40, "train")
    tokenizer = Tokenizer.train(texts, kind="words", vocab_size=4000)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=HEAD_DIM,
        num_heads=1,
        d_ff=128,
        num_encoder_layers=1,
        max_source_len=128,
    )
    slopes = {name: [gradient(dim, scale) for dim in DIMENSIONS] for name, scale in SCALES.items()}
    found: Measured = {
        "gradients": slopes,
        "scores": [],
        "products": [],
        "errors": {name: [] for name in GRAPHS},
        "left_out": [],
    }
    for score in lab.pick(SCORES, SCORES[:1]):
        model = fresh_model(config)
        assert isinstance(model, Encoder)
        source_1S = torch.tensor([config.template.wrap_source(tokenizer.encode(texts[0]))])
        largest = scale_scores(model, source_1S, score)
        found["scores"].append(largest)
        found["products"].append(largest * HEAD_DIM**0.5)
        for name, error in errors(model, source_1S).items():
            found["errors"][name].append(error)
        found["left_out"].append(left_out(model, tokenizer, texts))
    return found


def gradient(dimension: int, scale: Callable[[int], float]) -> float:
    """Norm of the gradient of the softmax by its scores, the Jacobian diag(p) - p p^T: the mean over `DRAWS` queries
    and `KEYS` keys each, whose components are independent and normal with variance 1, in float64. Vaswani et al. 2017
    argue with such components: their products have a variance of `dimension`."""
    rng = np.random.default_rng(1)
    query_ND = rng.normal(size=(DRAWS, dimension))
    key_NSD = rng.normal(size=(DRAWS, KEYS, dimension))
    scores_NS = torch.from_numpy(np.einsum("nd,nsd->ns", query_ND, key_NSD) * scale(dimension))
    p_NS = scores_NS.softmax(-1)
    jacobian_NSS = torch.diag_embed(p_NS) - p_NS[:, :, None] * p_NS[:, None, :]
    return float(jacobian_NSS.flatten(1).norm(dim=1).mean())


def layer_inputs(model: Encoder, source_1S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values (1, 1, S, D) of the first layer."""
    block: Any = model.encoder.blocks[0]
    x_1SM = block.self_residual.norm(model.encoder.embedding(source_1S))
    query, key, value = (
        split_heads(part, 1) for part in block.self_attention.query_key_value(x_1SM).split(HEAD_DIM, dim=-1)
    )
    return query, key, value


@torch.no_grad()
def scale_scores(model: Encoder, source_1S: torch.Tensor, score: float) -> float:
    """Multiplies the query and key weights so that the largest score of the text becomes `score`; returns it."""
    block: Any = model.encoder.blocks[0]
    weights = block.self_attention.query_key_value.weight

    def largest() -> float:
        query, key, _ = layer_inputs(model, source_1S)
        return float((query @ key.transpose(-2, -1)).abs().max()) / math.sqrt(HEAD_DIM)

    weights[: 2 * HEAD_DIM] *= (score / largest()) ** 0.5
    return largest()


@torch.no_grad()
def errors(model: Encoder, source_1S: torch.Tensor) -> dict[str, float | None]:
    """The error of each graph against PyTorch in float64."""
    query, key, value = layer_inputs(model, source_1S)
    exact = copy.deepcopy(model).double()
    weights = (query.double() @ key.double().transpose(-2, -1) * HEAD_DIM**-0.5).softmax(-1)
    plain = formula_in_half(*(part[0, 0].half().numpy() for part in (query, key, value)))
    lengths = torch.tensor([source_1S.shape[1]])
    states = exact(source_1S, lengths).numpy()
    found = {"plain": relative(plain, (weights @ value.double())[0, 0].numpy())}
    for name, stored in (("fp16", copy.deepcopy(model).half()), ("fp32", model)):
        with tempfile.TemporaryDirectory() as scratch:
            graph = sessions(stored, Path(scratch))["encode"]
            found[name] = relative(encode(graph, source_1S.numpy()), states)
    return found


def relative(actual: np.ndarray, expected: np.ndarray) -> float | None:
    """The largest difference by the largest value; None if a value is not finite."""
    actual = actual.astype(np.float64)
    return float(np.abs(actual - expected).max() / np.abs(expected).max()) if np.isfinite(actual).all() else None


def formula_in_half(query_SD: np.ndarray, key_SD: np.ndarray, value_SD: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(d)) v in the order of the formula, each result stored in float16."""
    with np.errstate(over="ignore", invalid="ignore"):
        products_SS = (query_SD.astype(np.float32) @ key_SD.T.astype(np.float32)).astype(np.float16)
        scores_SS = (products_SS / np.float16(HEAD_DIM**0.5)).astype(np.float16)
        powers_SS = np.exp((scores_SS - scores_SS.max(-1, keepdims=True)).astype(np.float32))
        mixed_SD: np.ndarray = ((powers_SS / powers_SS.sum(-1, keepdims=True)) @ value_SD).astype(np.float16)
    return mixed_SD


def left_out(model: Encoder, tokenizer: Tokenizer, texts: list[str]) -> str:
    """Why `glossa export` leaves fp16 out of this model's bundle; empty if it does not."""
    with tempfile.TemporaryDirectory() as scratch:
        options = ExportOptions(fp16_if_possible=True, texts=tuple(texts))
        manifest = export_model(model, tokenizer, Path(scratch) / "bundle", options)
    reason: str = manifest.parity.get("left_out", {}).get("fp16", "")
    return reason


def judge(measured: Measured) -> Finding:
    scores, found, reasons = measured["scores"], measured["errors"], measured["left_out"]
    left = {name: values[-1] / values[0] for name, values in measured["gradients"].items()}
    usual = [place for place, score in enumerate(scores) if score < 1.01 * SCORES[0]]
    close = [error is not None and error < CLOSE for error in found["fp16"]]
    is_kept = [not reason for reason in reasons]
    held = [
        left["1/sqrt(d)"] > KEPT,
        left["none"] < LOST,
        bool(usual) and all(is_kept[place] and close[place] for place in usual),
        any(error is None for error in found["plain"])
        and all(close[place] for place in range(len(scores)) if is_kept[place]),
    ]
    kept = [f"{score:,.0f}" for score, is_in in zip(scores, is_kept, strict=True) if is_in]
    return Finding(
        verdict=verdict_of(held),
        explanation=f"From {DIMENSIONS[0]} to {DIMENSIONS[-1]:,} dimensions the gradient of the softmax keeps "
        f"{left['1/sqrt(d)']:.0%} of its norm with the scale, {left['none']:.0%} without it. {overflowing(measured)} "
        f"An export adds the fp16 graph only where it is close to PyTorch: here at scores of "
        f"{', '.join(kept) or 'none of these'}.",
        header=("largest score", "q·k", *GRAPHS.values(), "fp16 in the bundle"),
        rows=[
            (
                f"{score:,.0f}",
                f"{measured['products'][place]:,.0f}",
                *(shown(found[name][place]) for name in GRAPHS),
                decision(reasons[place]),
            )
            for place, score in enumerate(scores)
        ],
    )


def overflowing(measured: Measured) -> str:
    """Where the formula and the fp16 graph leave the numbers of float16."""
    limits = {}
    for name in ("plain", "fp16"):
        wrong = [
            score for score, error in zip(measured["scores"], measured["errors"][name], strict=True) if error is None
        ]
        limits[name] = f"is not finite from scores of {wrong[0]:,.0f}" if wrong else "is finite at all of these scores"
    return (
        f"Products above {LARGEST:,.0f}, the largest number of float16, overflow: the formula as it is written "
        f"{limits['plain']}; the exported fp16 graph, which scales before it adds up, {limits['fp16']}."
    )


def decision(reason: str) -> str:
    """What the export did with the fp16 graph, in short; the export reports an error without an end as 1e+30."""
    if not reason:
        return "yes"
    return "left out: not finite" if "error 1e+30" in reason else f"left out: {reason.split(' (')[0]}"


def shown(error: float | None) -> str:
    return "not finite" if error is None else f"error {error:.1g}"


def draw(measured: Measured, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for name, values in measured["gradients"].items():
        left.plot(DIMENSIONS, values, marker="o", label=f"scale {name}")
    left.set(xscale="log", xlabel="dimensions of a head", ylabel="gradient of the softmax")
    left.set_ylim(bottom=0)
    left.legend(loc="lower left")
    top = 10.0  # where values that are not finite are drawn
    for name, label in GRAPHS.items():
        values = [top if error is None else error for error in measured["errors"][name]]
        right.plot(measured["scores"], values, marker="o", label=label)
    right.axhline(top, linestyle=":", color="grey", label="not finite")
    right.axvline(LARGEST / HEAD_DIM**0.5, linestyle="--", color="grey", label="products leave float16")
    right.set(xscale="log", yscale="log", xlabel="largest attention score", ylabel="error, of the largest value")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=3)


CLAIM = Claim(
    name="overflow",
    title="The scale keeps scores in range",
    statement="Products of queries and keys grow with their dimension; dividing by sqrt(d) keeps them where "
    "softmax has gradients (Vaswani et al. 2017, section 3.2.1). Larger scores overflow float16, and the "
    "export notices.",
    experiment=f"Gradients: {DRAWS} random normal queries, {KEYS} keys each, norm of the softmax's Jacobian. "
    f"Range: an encoder of one layer and one head of {HEAD_DIM} dimensions, with weights multiplied until the "
    "largest score has the given size: the formula in float16, and the exported fp16 and fp32 graphs; errors "
    "against float64, divided by the largest value. Then `glossa export` chooses precisions.",
    measure=measure,
    judge=judge,
    draw=draw,
    size=(9.0, 4.2),
)
