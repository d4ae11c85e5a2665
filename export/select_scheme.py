"""Selects the quantization scheme of a precision: the fastest scheme whose quality is close to that of fp32.

Every scheme is measured as it will be served. Quality is that of greedy responses to development sentences, compared
with those of fp32 and with references, or, for a decoder-only model, the token-by-token cost of given texts. Speed is
that of decode steps, or of encoder passes over texts. This module neither quantizes (`export.passes.quantize`) nor
checks what graphs compute (`export.verification`).

    SchemeSelectionError (ValueError)    there is no text to measure on, or no scheme is good enough
"""

from __future__ import annotations

import itertools
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
from export.texts import MAX_SENTENCES, Development
from export.verification.golden import Answer, answer_greedily, encode_for_decode
from export.verification.inputs import Ids
from export.verification.ort_graphs import OrtGraphs, round_up
from model.config import LanguagePair, ModelConfig
from model.tokenizer import Tokenizer
from model.training.evaluate import bleu

BASELINE = "fp32"
BUDGET_S = 60.0  # for all schemes together
ROWS = 32  # batch size of responses, and of the decode steps whose speed counts
TIMED_ROUNDS, TIMED_STEPS, TIMED_CAPACITY = 15, 4, 32
TIMED_LEAST, TIMED_S = 3, 10.0  # minimum number of rounds; after it, no round starts later than this
TOKENS_BESIDE_SOURCE = 16  # new tokens that a response may have beyond twice its source's length
WINDOW = 64  # tokens of a scored text
READ_AT_ONCE = 16  # of them, before the others follow one by one
T = TypeVar("T")
Measure = Literal["BLEU", "answers that differ", "readings that differ", "nats per token"]
# Maximum loss of a scheme against fp32, unless the caller sets one. Differing answers are a weaker signal than BLEU:
# two different translations may be equally good. 0.05 nats are 5 % of perplexity. A reading is one label, one filled
# mask, or one vector; vectors differ when their cosine is below SAME_COSINE.
MAX_LOSS: Mapping[Measure, float] = {
    "BLEU": 0.3,
    "answers that differ": 0.25,
    "readings that differ": 0.05,
    "nats per token": 0.05,
}
MASKED_EACH = 7  # one token in this many is masked and predicted
SAME_COSINE = 0.98  # between two vectors of one text


class SchemeSelectionError(ValueError):
    """There is no text to measure on, or no scheme is good enough."""


class Choice(NamedTuple):
    """The selected scheme, and the measurements of all schemes, fp32 first."""

    scheme: str
    figures: tuple[SchemeMeasurement, ...]


def select_scheme(
    baseline: OrtGraphs,
    schemes: Mapping[str, OrtGraphs],
    development: Development,
    tokenizer: Tokenizer,
    config: ModelConfig,
    *,
    max_loss: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[int, int], object] = lambda *_: None,
) -> Choice:
    """Return the fastest of the schemes that lose at most `max_loss` against `baseline`, the graphs of fp32.

    max_loss: BLEU points with references; without references the share of differing answers; nats per token for a
    decoder-only model; for an encoder-only model the share of differing outputs. tell: gets how many batches of how
    many, at most, are read. Raises SchemeSelectionError when no scheme is within it, with the measurements of each.
    """
    graphs = {BASELINE: baseline, **schemes}
    batches = _batches(development, tokenizer, config)
    measured = partial(_measured, graphs, batches, clock, tell)
    measure: Measure = "nats per token"
    if not config.has_decoder:
        measure, quality = "readings that differ", _encoded(measured, config)
    elif config.has_encoder:
        measure = "BLEU" if development.references else "answers that differ"
        quality = _answered(measured, batches, development, tokenizer, config)
    else:
        quality = _read(measured, batches)
    bound = MAX_LOSS[measure] if max_loss is None else max_loss
    speeds = measure_speeds(graphs, [item.ids for item in batches[0]], config, clock)
    figures = {name: SchemeMeasurement(scheme=name, **quality[name], **speeds[name], chosen=False) for name in graphs}
    losses = {name: _loss(figures[name], measure) for name in schemes}
    within = [name for name in schemes if losses[name] <= bound]
    if not within:
        lost = "; ".join(f"{name} loses {losses[name]:.3g} ({_summary(figures[name])})" for name in schemes)
        raise SchemeSelectionError(
            f"no scheme is within {bound:g} {measure} of fp32 ({_summary(figures[BASELINE])}) on {development.name}: "
            f"{lost}; fix: calibrate with text like that which will be read, name another scheme, allow more loss, "
            "or stay with fp32"
        )
    best = max(within, key=lambda name: figures[name].tokens_per_s)
    figures[best] = replace(figures[best], chosen=True)
    return Choice(best, tuple(figures.values()))


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
    items = sorted(items[:MAX_SENTENCES], key=lambda item: len(item.ids))
    batches = [items[start : start + ROWS] for start in range(0, len(items), ROWS)]
    random.Random(2).shuffle(batches)
    return batches


def _windows(ids: Sequence[int], config: ModelConfig) -> list[Ids]:
    """Split a text into windows, each after the prompt prefix; every window leaves at least one token to predict."""
    size = min(WINDOW, config.max_target_len) - len(config.template.target_prefix)
    pieces = [ids[start : start + size] for start in range(0, len(ids), size)] if size > 0 else []
    windows = [tuple(config.template.wrap_prompt(piece)) for piece in pieces if piece]
    return [window for window in windows if len(window) > 1]


Fields = dict[str, Any]  # of SchemeMeasurement


Measured = Callable[[Callable[[OrtGraphs, list[_Item]], list[Any]]], dict[str, list[Any]]]
"""`_measured` of the graphs and batches of a selection."""


def _measured(
    graphs: Mapping[str, OrtGraphs],
    batches: Sequence[list[_Item]],
    clock: Callable[[], float],
    tell: Callable[[int, int], object],
    run: Callable[[OrtGraphs, list[_Item]], list[T]],
) -> dict[str, list[T]]:
    """Return the results of `run` by scheme, of as many batches as fp32 completes in its share of the budget."""
    share_s = BUDGET_S / (2 * len(graphs))  # half: other schemes may take longer than fp32, and speed is measured too
    started_s, count = clock(), 0
    found: dict[str, list[T]] = {name: [] for name in graphs}
    while count < len(batches) and (not count or clock() - started_s <= share_s):
        found[BASELINE] += run(graphs[BASELINE], batches[count])
        count += 1
        tell(count, len(graphs) * len(batches))
    others = [name for name in graphs if name != BASELINE]
    for done, (name, batch) in enumerate(itertools.product(others, batches[:count]), 1):
        found[name] += run(graphs[name], batch)
        tell(count + done, count * len(graphs))
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
        scores = {
            name: bleu([tokenizer.decode(list(answer)) for answer in found], references).score
            for name, found in answers.items()
        }
        for name, score in scores.items():
            quality[name] |= {"bleu": round(score, 3), "bleu_loss": round(scores[BASELINE] - score, 3)}
    return quality


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
        states = outputs["encoder_states"]
        return [states[row, : len(source)].mean(0) for row, source in enumerate(sources)]

    return _compared(measured(run), _is_same)


def _compared(results: Mapping[str, list[T]], is_same: Callable[[T, T], bool]) -> dict[str, Fields]:
    """Count the results, and those equal to the results of fp32."""
    wanted = results[BASELINE]
    return {
        name: {"evaluation_samples": len(wanted), "exact_match": round(_share(found, wanted, is_same), 4)}
        for name, found in results.items()
    }


def _hidden_positions(ids: Ids, config: ModelConfig) -> tuple[int, ...]:
    first, last = len(config.template.source_prefix), len(ids) - len(config.template.source_suffix)
    return tuple(range(first, last, MASKED_EACH))


def _is_same(one: Any, other: Any) -> bool:
    """Report whether two outputs are equal; vectors are if they point in almost the same direction."""
    if not isinstance(one, np.ndarray):
        return bool(one == other)
    return float(one @ other) >= SAME_COSINE * float(np.linalg.norm(one) * np.linalg.norm(other))


class _Reading(NamedTuple):
    """The summed -log-probability of the tokens of given texts, and the most likely token at each position."""

    nats: float
    best: list[int]


def _read(measured: Measured, batches: Sequence[list[_Item]]) -> dict[str, Fields]:
    """Score texts with every next token given: the cost of each token, and the most likely token instead."""
    readings = measured(lambda scheme, batch: [read_batch(scheme, batch)])
    best = {name: [token for reading in found for token in reading.best] for name, found in readings.items()}
    nats = {name: sum(reading.nats for reading in found) / len(best[name]) for name, found in readings.items()}
    return {
        name: {
            "evaluation_samples": sum(map(len, batches[: len(found)])),
            "nats_per_token": round(nats[name], 4),
            "nats_loss": round(nats[name] - nats[BASELINE], 4),
            "equal_tokens": round(_share(best[name], best[BASELINE]), 4),
        }
        for name, found in readings.items()
    }


def read_batch(scheme: OrtGraphs, batch: Sequence[_Item]) -> _Reading:
    """Score texts: the first tokens of all as prompts, the others one by one; finished texts drop off the end."""
    texts = sorted((item.ids for item in batch), key=len, reverse=True)
    position = min(READ_AT_ONCE, len(texts[-1]) - 1)  # index of the next token
    buffers = scheme.buffers(len(texts), round_up(len(texts[0]), PAD_MULTIPLE))
    blocks, starts = [list(text[:position]) for text in texts], [0] * len(texts)
    nats, best = 0.0, list[int]()
    while blocks:
        rows = {name: array[: len(blocks)] for name, array in buffers.items()}
        prediction = scheme.decode(blocks, starts, rows, {}, top_k=1)
        nats -= float(sum(prediction.logprobs[row, texts[row][position]] for row in range(len(blocks))))
        best += [int(token) for token in prediction.top_ids[:, 0]]
        blocks = [[text[position]] for text in texts if len(text) > position + 1]
        starts = [position] * len(blocks)
        position += 1
    return _Reading(nats, best)


def _share(some: Sequence[T], wanted: Sequence[T], is_same: Callable[[T, T], bool] = operator.eq) -> float:
    return sum(map(is_same, some, wanted)) / len(wanted)


def measure_speeds(
    graphs: Mapping[str, OrtGraphs], sources: Sequence[Ids], config: ModelConfig, clock: Callable[[], float]
) -> dict[str, dict[str, Any]]:
    """Return the median speeds of all schemes, measured in turns: with many rows or the whole batch, and with one row.

    Decode steps are timed after `sources`; for encoder-only models, encoding the sources is timed. The result holds
    fields of a `SchemeMeasurement` by scheme.
    """
    if config.has_decoder:
        many, single = (_decode_rates(graphs, sources, rows, config, clock) for rows in (ROWS, 1))
    else:
        many, single = (
            _rates(
                {name: partial(scheme.encode, some) for name, scheme in graphs.items()}, sum(map(len, some)), 1, clock
            )
            for some in (sources, sources[:1])
        )
    return {
        name: {"tokens_per_s": round(many[name], 1), "single_stream_tokens_per_s": round(single[name], 1)}
        for name in graphs
    }


def _decode_rates(
    graphs: Mapping[str, OrtGraphs], given: Sequence[Ids], rows: int, config: ModelConfig, clock: Callable[[], float]
) -> dict[str, float]:
    sources = [given[row % len(given)] for row in range(rows)]
    position = min(TIMED_CAPACITY // 2, config.max_target_len - 1)
    runs = dict[str, Callable[[], None]]()
    for name, scheme in graphs.items():
        cross = encode_for_decode(scheme, sources) if config.has_encoder else {}
        buffers = scheme.buffers(rows, round_up(position + 1, PAD_MULTIPLE))
        runs[name], _ = scheme.step([[config.eos_id]] * rows, [position] * rows, buffers, cross, top_k=0)
        runs[name]()
    return _rates(runs, rows * TIMED_STEPS, TIMED_STEPS, clock)


def _rates(
    runs: Mapping[str, Callable[[], object]], tokens: int, steps: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Return tokens per second by the median of rounds; each round has `steps` runs and `tokens` tokens altogether."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    started_s = clock()
    for done in range(TIMED_ROUNDS):
        if done >= TIMED_LEAST and clock() - started_s > TIMED_S:
            break
        for name, run in runs.items():
            before_s = clock()
            for _ in range(steps):
                run()
            seconds[name].append(clock() - before_s)
    return {name: tokens / max(statistics.median(seconds[name]), 1e-9) for name in runs}
