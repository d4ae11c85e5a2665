"""Selects the quantization scheme of a precision: the first of its candidates whose quality is close to that of fp32.

Every scheme is measured as it will be served, on a fixed number of texts. Quality is that of greedy responses to
development sentences, compared with those of fp32 and with references, or, for a decoder-only model, the cost of each
token of given texts. Candidates come in the order of their speed. The measured speed, of decode steps or of encoder
passes over texts, is told and decides nothing: it depends on what else the machine does. This module neither quantizes
(`export.passes.quantize`) nor checks what graphs compute (`export.verification`).

    SchemeSelectionError (ValueError)    there is no text to measure on, or no scheme is good enough
"""

from __future__ import annotations

import itertools
import math
import operator
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from export.bundle.manifest import PAD_MULTIPLE, SchemeMeasurement
from export.bundle.pooling import pool
from export.scheme_speed import ROWS, measure_speeds
from export.texts import MAX_SENTENCES, Development
from export.verification.golden import Answer, answer_greedily
from export.verification.inputs import Ids
from export.verification.ort_graphs import OrtGraphs, round_up
from model.architecture_config import EncoderConfig
from model.config import LanguagePair, ModelConfig
from model.tokenizer import Tokenizer
from model.training.evaluate import bleu

BASELINE = "fp32"
MAX_WINDOWS = 400  # of the texts that a decoder-only model scores
FOLDS = 10  # of sentences, by whose BLEU its standard error is estimated
READ_ROWS = 8  # texts that are scored together: each has logits of all its positions
TOKENS_BESIDE_SOURCE = 16  # new tokens that a response may have beyond twice its source's length
WINDOW = 64  # tokens of a scored text
T = TypeVar("T")
Measure = Literal["BLEU", "answers that differ", "readings that differ", "neighbours that differ", "nats per token"]
# Maximum loss of a scheme against fp32, unless the caller sets one. Differing answers are a weaker signal than BLEU:
# two different translations may be equally good. 0.03 nats are 3 % of perplexity. A reading is one label, one filled
# mask. Vectors are for finding texts: the nearest one to each text, of all development texts, may be another one.
MAX_LOSS: Mapping[Measure, float] = {
    "BLEU": 0.3,
    "answers that differ": 0.25,
    "readings that differ": 0.05,
    "neighbours that differ": 0.03,
    "nats per token": 0.03,
}
MAX_LOSS_IN_4_BITS = {**MAX_LOSS, "nats per token": 0.1}
MASKED_EACH = 7  # one token in this many is masked and predicted


class SchemeSelectionError(ValueError):
    """There is no text to measure on, or no scheme is good enough."""


class Choice(NamedTuple):
    """The selected scheme, the measurements of all schemes, fp32 first, the standard error of each one's loss, and why
    schemes before it that are within the bound were passed over."""

    scheme: str
    figures: tuple[SchemeMeasurement, ...]
    errors: Mapping[str, float]
    passed_over: Mapping[str, str]


def select_scheme(
    baseline: OrtGraphs,
    schemes: Mapping[str, OrtGraphs],
    development: Development,
    tokenizer: Tokenizer,
    config: ModelConfig,
    *,
    max_loss: float | None = None,
    problem_of: Callable[[OrtGraphs], str] = lambda _: "",
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[int, int], object] = lambda *_: None,
) -> Choice:
    """Return the first of the schemes that loses at most `max_loss` against `baseline`, the graphs of fp32.

    max_loss: BLEU points with references; without references the share of differing answers; nats per token for a
    decoder-only model; for an encoder-only model the share of differing outputs. tell: gets how many batches of how
    many, at most, are read. problem_of: why verification would refuse a scheme, which then gives way to the next one
    within the bound; "" if it would not. Raises SchemeSelectionError when no scheme is within it, with the measurements
    of each.
    """
    graphs = {BASELINE: baseline, **schemes}
    batches = _batches(development, tokenizer, config)
    measured = partial(_measured, graphs, batches, tell)
    measure: Measure = "nats per token"
    if not config.has_decoder:
        measure = "readings that differ" if _has_readings(config) else "neighbours that differ"
        quality = _encoded(measured, config)
    elif config.has_encoder:
        measure = "BLEU" if development.references else "answers that differ"
        quality = _answered(measured, batches, development, tokenizer, config)
    else:
        quality = _read(measured, has_blocks=config.supports_chunked_prefill)
    bounds = MAX_LOSS_IN_4_BITS if all(name.startswith("w4") for name in schemes) else MAX_LOSS
    bound = bounds[measure] if max_loss is None else max_loss
    errors = {name: fields.pop("loss_error") for name, fields in quality.items()}
    speeds = measure_speeds(graphs, [item.ids for item in batches[0]], config, clock)
    figures = {name: SchemeMeasurement(scheme=name, **quality[name], **speeds[name], chosen=False) for name in graphs}
    losses = {name: _loss(figures[name], measure) for name in schemes}
    within = [name for name in schemes if losses[name] <= bound]
    if not within:
        lost = "; ".join(
            f"{name} loses {losses[name]:.3g} ± {errors[name]:.2g} ({_summary(figures[name])})" for name in schemes
        )
        least = min(losses.values())
        raise SchemeSelectionError(
            f"no scheme is within {bound:g} {measure} of fp32 ({_summary(figures[BASELINE])}) on {development.name}: "
            f"{lost}; fix: serve fp32, allow the loss with --max-loss {_above(least)}, or give --development and "
            "--calibration text like that which will be read"
        )
    best, passed_over = within[-1], dict[str, str]()
    for name in within[:-1]:  # verification itself tells of the last one
        if not (problem := problem_of(schemes[name])):
            best = name
            break
        passed_over[name] = problem
    figures[best] = replace(figures[best], chosen=True)
    return Choice(best, tuple(figures.values()), errors, passed_over)


def _above(loss: float) -> str:
    """The loss, rounded up to two digits; 0 for a gain."""
    if loss <= 0:
        return "0"
    digits = max(1 - math.floor(math.log10(loss)), 0)
    return f"{math.ceil(loss * 10**digits) / 10**digits:g}"


def _loss(figures: SchemeMeasurement, measure: Measure) -> float:
    different = None if figures.exact_match is None else 1.0 - figures.exact_match
    loss = {"BLEU": figures.bleu_loss, "nats per token": figures.nats_loss}.get(measure, different)
    assert loss is not None, measure
    return loss


def _summary(figures: SchemeMeasurement) -> str:
    parts = [f"BLEU {figures.bleu:.2f}"] if figures.bleu is not None else []
    if figures.nats_per_token is not None and figures.equal_tokens is not None:
        parts += [f"{figures.nats_per_token:.3f} nats per token", f"{figures.equal_tokens:.1%} of tokens equal"]
    if figures.exact_match is not None:
        parts.append(f"{figures.exact_match:.1%} of {figures.evaluation_samples} answers equal")
    return ", ".join([*parts, f"{figures.tokens_per_s:.0f} tokens/s"])


class _Item(NamedTuple):
    number: int  # index in the development texts
    ids: Ids  # a source with its end, or a text with its beginning


def _batches(development: Development, tokenizer: Tokenizer, config: ModelConfig) -> list[list[_Item]]:
    """Return batches of up to ROWS texts of similar lengths; the batch order does not depend on the lengths."""
    items = []
    for index, ids in enumerate(tokenizer.encode_batch(list(development.texts[:MAX_SENTENCES]))):
        if config.has_encoder:
            source = tuple(config.template.wrap_source(ids, development.languages))
            items += [_Item(index, source)] if len(source) <= config.max_source_len else []
        else:
            items += [_Item(index, window) for window in _windows(ids, config)]
    if not items:
        raise SchemeSelectionError(
            f"{development.name}: no text in it can be read by this model, of {len(development.texts)}; "
            "fix: give development text of the kind that it is for"
        )
    random.Random(1).shuffle(items)
    most, rows = (MAX_SENTENCES, ROWS) if config.has_encoder else (MAX_WINDOWS, READ_ROWS)
    items = sorted(items[:most], key=lambda item: len(item.ids))
    batches = [items[start : start + rows] for start in range(0, len(items), rows)]
    random.Random(2).shuffle(batches)
    return batches


def _windows(ids: Sequence[int], config: ModelConfig) -> list[Ids]:
    """Split a text into windows, each after the prompt prefix; every window leaves at least one token to predict."""
    size = min(WINDOW, config.max_target_len) - len(config.template.target_prefix)
    pieces = [ids[start : start + size] for start in range(0, len(ids), size)] if size > 0 else []
    windows = [tuple(config.template.wrap_prompt(piece)) for piece in pieces if piece]
    return [window for window in windows if len(window) > 1]


Fields = dict[str, Any]  # of SchemeMeasurement, and loss_error


Measured = Callable[[Callable[[OrtGraphs, list[_Item]], list[Any]]], dict[str, list[Any]]]
"""`_measured` of the graphs and batches of a selection."""


def _measured(
    graphs: Mapping[str, OrtGraphs],
    batches: Sequence[list[_Item]],
    tell: Callable[[int, int], object],
    run: Callable[[OrtGraphs, list[_Item]], list[T]],
) -> dict[str, list[T]]:
    """Return the results of `run` by scheme, of all batches."""
    found: dict[str, list[T]] = {name: [] for name in graphs}
    for done, (name, batch) in enumerate(itertools.product(graphs, batches), 1):
        found[name] += run(graphs[name], batch)
        tell(done, len(batches) * len(graphs))
    return found


def _answered(
    measured: Measured,
    batches: Sequence[list[_Item]],
    development: Development,
    tokenizer: Tokenizer,
    config: ModelConfig,
) -> dict[str, Fields]:
    """Compare greedy responses to sources with those of fp32 and with references."""

    def run(scheme: OrtGraphs, batch: list[_Item]) -> list[Ids]:
        sources = [item.ids for item in batch]
        return [answer.tokens for answer in answer_sources(scheme, sources, development.languages, config)]

    answers = measured(run)
    quality = _compared(answers, operator.eq)
    if development.references:
        indices = [item.number for batch in batches for item in batch][: len(answers[BASELINE])]
        references = [development.references[index] for index in indices]
        texts = {name: [tokenizer.target.decode(list(answer)) for answer in found] for name, found in answers.items()}
        scores = {name: bleu(found, references).score for name, found in texts.items()}
        folds = {name: _fold_scores(found, references) for name, found in texts.items()}
        for name, score in scores.items():
            losses = [one - other for one, other in zip(folds[BASELINE], folds[name], strict=True)]
            quality[name] |= {"bleu": round(score, 3), "bleu_loss": round(scores[BASELINE] - score, 3)}
            quality[name]["loss_error"] = _standard_error(losses)
    return quality


def _fold_scores(texts: Sequence[str], references: Sequence[str]) -> list[float]:
    """The BLEU of each of FOLDS parts of the texts."""
    folds = min(FOLDS, len(texts))
    return [bleu(texts[first::folds], references[first::folds]).score for first in range(folds)]


def _standard_error(values: Sequence[float]) -> float:
    """Of the mean of independent values; of a single one, which tells none, its size."""
    if len(values) == 1:
        return round(abs(values[0]), 4)
    return round(statistics.stdev(values) / math.sqrt(len(values)), 4)


def answer_sources(
    graphs: OrtGraphs, sources: Sequence[Ids], languages: LanguagePair, config: ModelConfig
) -> list[Answer]:
    """Return greedy answers to sources in one batch, of up to twice their length and TOKENS_BESIDE_SOURCE tokens."""
    start = config.template.wrap_prompt((), languages)
    most = min(config.max_target_len + 1 - len(start), 2 * max(map(len, sources)) + TOKENS_BESIDE_SOURCE)
    return answer_greedily(graphs, sources, [start] * len(sources), config.eos_ids, most)


def _encoded(measured: Measured, config: ModelConfig) -> dict[str, Fields]:
    """Compare the outputs of an encoder-only model with those of fp32: tokens at masks, labels, or whole vectors."""

    def run(scheme: OrtGraphs, batch: list[_Item]) -> list[Any]:
        sources, positions = [item.ids for item in batch], [_hidden_positions(item.ids, config) for item in batch]
        if config.mask_id is not None and config.head == "masked":
            sources = [
                tuple(config.mask_id if position in hidden else token for position, token in enumerate(source))
                for source, hidden in zip(sources, positions, strict=True)
            ]
            return [int(row.argmax()) for row in scheme.encode(sources, positions)["place_logprobs"]]
        outputs = scheme.encode(sources)
        if config.multi_label:
            return [tuple(row > 0) for row in outputs["label_logits"]]
        if config.is_classifier:
            return [int(row.argmax()) for row in outputs["label_logits"]]
        if config.is_tagger:
            best = outputs["token_label_logits"].argmax(-1)
            return [tuple(best[row, : len(source)].tolist()) for row, source in enumerate(sources)]
        assert isinstance(config, EncoderConfig)
        states = outputs["encoder_states"]
        vectors = [pool(config.pooling, states[row, : len(source)]) for row, source in enumerate(sources)]
        return [scheme.embed(vector_M) for vector_M in vectors] if config.dense else vectors

    found = measured(run)
    if not _has_readings(config):
        found = {name: nearest(vectors) for name, vectors in found.items()}
    return _compared(found, operator.eq)


def _has_readings(config: ModelConfig) -> bool:
    """Report whether an encoder-only model answers with tokens or labels, not with vectors alone."""
    is_masked = config.head == "masked" and config.mask_id is not None
    return is_masked or config.is_classifier or config.is_tagger


def _compared(results: Mapping[str, list[T]], is_same: Callable[[T, T], bool]) -> dict[str, Fields]:
    """Count the results, and those equal to the results of fp32."""
    wanted = results[BASELINE]
    fields = dict[str, Fields]()
    for name, found in results.items():
        same = [float(is_same(one, other)) for one, other in zip(found, wanted, strict=True)]
        share, error = round(statistics.fmean(same), 4), _standard_error(same)
        fields[name] = {"evaluation_samples": len(wanted), "exact_match": share, "loss_error": error}
    return fields


def _hidden_positions(ids: Ids, config: ModelConfig) -> tuple[int, ...]:
    first, last = len(config.template.source_prefix), len(ids) - len(config.template.source_suffix)
    return tuple(range(first, last, MASKED_EACH))


def nearest(vectors: Sequence[np.ndarray]) -> list[int]:
    """The index of the other vector whose direction is nearest to that of each."""
    directions_NM = np.stack(vectors)
    directions_NM /= np.linalg.norm(directions_NM, axis=1, keepdims=True)
    cosines_NN = directions_NM @ directions_NM.T
    np.fill_diagonal(cosines_NN, -np.inf)
    found: list[int] = cosines_NN.argmax(1).tolist()
    return found


class _Reading(NamedTuple):
    """The summed -log-probability of the tokens of a given text, and the most likely token at each position."""

    nats: float
    best: list[int]


def _read(measured: Measured, *, has_blocks: bool) -> dict[str, Fields]:
    """Score texts with every next token given: the cost of each token, and the most likely token instead."""
    read = read_blocks if has_blocks else read_steps
    readings = measured(lambda scheme, batch: read(scheme, [item.ids for item in batch]))
    wanted = [token for reading in readings[BASELINE] for token in reading.best]
    nats = {name: sum(reading.nats for reading in found) / len(wanted) for name, found in readings.items()}
    fields = dict[str, Fields]()
    for name, found in readings.items():
        best = [token for reading in found for token in reading.best]
        pairs = zip(found, readings[BASELINE], strict=True)
        losses = [(one.nats - other.nats) / len(other.best) for one, other in pairs]
        fields[name] = {
            "evaluation_samples": len(found),
            "nats_per_token": round(nats[name], 4),
            "nats_loss": round(nats[name] - nats[BASELINE], 4),
            "loss_error": _standard_error(losses),
            "equal_tokens": round(statistics.fmean(map(operator.eq, best, wanted)), 4),
        }
    return fields


def read_blocks(scheme: OrtGraphs, texts: Sequence[Ids]) -> list[_Reading]:
    """Score texts, each as one block."""
    requested = [(row, place) for row, text in enumerate(texts) for place in range(len(text) - 1)]
    buffers = scheme.buffers(len(texts), round_up(max(map(len, texts)), PAD_MULTIPLE))
    blocks = [list(text[:-1]) for text in texts]
    prediction = scheme.decode(blocks, [0] * len(texts), buffers, {}, top_k=1, requested=requested)
    following = [texts[row][place + 1] for row, place in requested]
    nats, best = -prediction.logprobs[range(len(requested)), following], prediction.top_ids[:, 0]
    ends = np.cumsum([len(block) for block in blocks])[:-1]
    return [
        _Reading(float(own.sum()), ids.tolist())
        for own, ids in zip(np.split(nats, ends), np.split(best, ends), strict=True)
    ]


def read_steps(scheme: OrtGraphs, texts: Sequence[Ids]) -> list[_Reading]:
    """Score texts of models that read one token at a time; finished texts drop off the end."""
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    buffers = scheme.buffers(len(texts), round_up(len(texts[order[0]]), PAD_MULTIPLE))
    nats, best = [0.0 for _ in texts], [list[int]() for _ in texts]
    for position in range(len(texts[order[0]]) - 1):
        going = [text for text in order if len(texts[text]) > position + 1]
        rows = {name: array[: len(going)] for name, array in buffers.items()}
        blocks = [[texts[text][position]] for text in going]
        prediction = scheme.decode(blocks, [position] * len(going), rows, {}, top_k=1)
        for row, text in enumerate(going):
            nats[text] -= float(prediction.logprobs[row, texts[text][position + 1]])
            best[text].append(int(prediction.top_ids[row, 0]))
    return [_Reading(*reading) for reading in zip(nats, best, strict=True)]
