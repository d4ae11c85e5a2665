"""Reports of a training run: metrics.csv, curves.png, the model card, the final scores and sample outputs."""

from __future__ import annotations

import csv
import io
import platform
import random
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.architectures import GenerativeModel
from model.checkpoints.training_rows import FILE, TrainingRows
from model.config import DEFAULT_LANGUAGES, LanguagePair, ModelConfig, TrainConfig
from model.encoder import Encoder
from model.tokenizer import Tokenizer
from model.training.data.context import contexts
from model.training.data.encoder_data import NO_LABEL, spans_by_text
from model.training.data.examples import Batches, Examples
from model.training.data.labelled_spans import LabelledSpan, found_spans, span_scores
from model.training.data.languages import counted, title_of
from model.training.evaluate import accuracy, bleu, greedy_batch, translate

SCORED = 500  # validation sentences translated at the end of a run
SAMPLES = 5
PROMPT_TOKENS, CONTINUATION_TOKENS = 8, 40
COLUMNS = (
    *("step", "epoch", "tokens", "seconds", "learning_rate", "train_loss", "validation_loss", "tokens_per_s"),
    *("flops", "peak_share"),  # operations since the start; share of the machine's peak since the last log line
)
SCORE = "validation_score"  # a further column with a stop metric other than the loss


def metrics_csv(history: Sequence[Mapping[str, float]]) -> bytes:
    """One row per log line or validation; a value that a row lacks is empty."""
    text = io.StringIO()
    has_score = any(SCORE in row for row in history)
    writer = csv.DictWriter(text, (*COLUMNS, SCORE) if has_score else COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue().encode()


def curves_png(history: Sequence[Mapping[str, float]]) -> bytes:
    """Training and validation loss, learning rate and throughput over optimiser steps, as a PNG.

    The axis of the loss is logarithmic if the loss falls to less than a third, so that its end is readable.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes half a second and is needed once per run
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(8, 9), layout="constrained")
    FigureCanvasAgg(figure)
    losses, rates, speeds = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1, 1))
    for axes, column, marker, label in (
        (losses, "train_loss", "", "training loss, mean since the last point"),
        (rates, "learning_rate", "", "learning rate"),
        (speeds, "tokens_per_s", "", "throughput"),
        (losses, "validation_loss", "o", "validation loss"),
    ):
        points = [(row["step"], row[column]) for row in history if column in row]
        axes.plot([step for step, _ in points], [value for _, value in points], marker=marker, label=label)
        axes.grid(alpha=0.3, which="both")
        axes.legend(loc="best")
    values = [value for row in history for name in ("train_loss", "validation_loss") if (value := row.get(name, 0)) > 0]
    if values and max(values) > 3 * min(values):
        losses.set_yscale("log")
        losses.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        losses.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        losses.yaxis.set_minor_formatter(NullFormatter())
    losses.set(title="Training curves", ylabel="loss (nats per target token)")
    rates.set(ylabel="learning rate")
    speeds.set(ylabel="throughput\n(target tokens/s)", xlabel="optimiser steps")
    speeds.yaxis.set_major_formatter(EngFormatter(sep=""))
    for axes in (rates, speeds):
        axes.set_ylim(bottom=0)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    return image.getvalue()


def final_scores(
    model: GenerativeModel, tokenizer: Tokenizer, validation: Examples
) -> tuple[dict[str, Any], list[str]]:
    """Scores on a sample of the validation examples, and a few sample outputs. The model is in evaluation mode.

    A model with context translates each sentence alone, and again after the sentences before it and their references.
    Data of several pairs of languages also gets a BLEU for each pair.
    """
    if not model.config.has_encoder:
        return {}, _continuations(model, tokenizer, validation)
    longest = model.config.max_source_len - model.config.template.num_source_special
    fitting = [index for index, (source, _) in enumerate(validation.pairs) if len(tokenizer.encode(source)) <= longest]
    indices = random.Random("scores").sample(fitting, min(SCORED, len(fitting)))
    pairs = [validation.pairs[index] for index in indices]
    hypotheses = _translations(model, tokenizer, validation, indices)
    references = [target for _, target in pairs]
    score = bleu(hypotheses, references)
    scores = {
        "bleu": round(score.score, 2),
        "bleu_signature": score.signature,
        "bleu_sentences": len(pairs),
        "exact_match": _exact_match(hypotheses, references),
        **_scores_by_languages(validation, indices, hypotheses),
    }
    if model.config.context_sentences and validation.sizes:
        windows = contexts(validation.sizes, model.config.context_sentences)
        before = [[validation.pairs[other] for other in windows[index]] for index in indices]
        hypotheses = _translations(model, tokenizer, validation, indices, before)
        scores["bleu_with_context"] = round(bleu(hypotheses, references).score, 2)
        scores["exact_match_with_context"] = _exact_match(hypotheses, references)
    titles = [f"{title_of(pair)}: " * (pair != DEFAULT_LANGUAGES) for pair in map(validation.languages_of, indices)]
    samples = [
        f"{title}{source}\n  model:     {hypothesis}\n  reference: {reference}"
        for title, (source, reference), hypothesis in zip(titles[:SAMPLES], pairs, hypotheses, strict=False)
    ]
    return scores, samples


def _translations(
    model: GenerativeModel,
    tokenizer: Tokenizer,
    validation: Examples,
    indices: Sequence[int],
    before: Sequence[Sequence[tuple[str, str]]] = (),
) -> list[str]:
    """Greedy translations of the sources at some indices, each between its languages. before: their contexts."""
    found = dict[int, str]()
    for languages in dict.fromkeys(map(validation.languages_of, indices)):
        chosen = [number for number, index in enumerate(indices) if validation.languages_of(index) == languages]
        texts = [validation.pairs[indices[number]][0] for number in chosen]
        contexts_of = [before[number] for number in chosen if before]
        answers = translate(model, tokenizer, texts, languages=languages, contexts=contexts_of)
        found |= zip(chosen, answers, strict=True)
    return [found[number] for number in range(len(indices))]


def _scores_by_languages(validation: Examples, indices: Sequence[int], hypotheses: Sequence[str]) -> dict[str, float]:
    """The BLEU of each pair of languages, as "bleu de to en", where there are several."""
    compared: dict[LanguagePair, list[tuple[str, str]]] = {}
    for index, hypothesis in zip(indices, hypotheses, strict=True):
        compared.setdefault(validation.languages_of(index), []).append((hypothesis, validation.pairs[index][1]))
    if len(compared) < 2:
        return {}
    scores = {title_of(pair): bleu(*zip(*texts, strict=True)) for pair, texts in compared.items()}
    return {f"bleu {name}": round(score.score, 2) for name, score in scores.items()}


def _exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    exact = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return round(exact / len(references), 4)


def encoder_scores(
    model: Encoder, tokenizer: Tokenizer, validation: Examples, batches: Batches
) -> tuple[dict[str, Any], list[str]]:
    """As `final_scores`, for an encoder-only model. batches: of the validation examples."""
    if model.tag is not None:
        return _tagger_scores(model, tokenizer, validation, batches)
    name = "masked_accuracy" if model.masked is not None else "label_accuracy"
    texts = [source or target for source, target in validation.pairs]
    chosen = random.Random("samples").sample(range(len(texts)), min(SAMPLES, len(texts)))
    sample = _filled if model.masked is not None else _labelled
    samples = [sample(model, tokenizer, texts[index], validation.pairs[index][1]) for index in chosen]
    return {name: round(accuracy(model, batches), 4), "scored": batches.tokens}, samples


def _tagger_scores(
    model: Encoder, tokenizer: Tokenizer, validation: Examples, batches: Batches
) -> tuple[dict[str, Any], list[str]]:
    texts, expected = [text for text, _ in validation.pairs], spans_by_text(validation)
    found = found_spans(model, tokenizer, texts)
    scores = span_scores(found, expected)
    shown = random.Random("samples").sample(range(len(texts)), min(SAMPLES, len(texts)))

    def listed(index: int, spans: Sequence[LabelledSpan]) -> str:
        return ", ".join(f"{texts[index][start:end]} ({label})" for start, end, label in spans) or "none"

    samples = [
        f"{texts[index]}\n  model:     {listed(index, found[index])}\n  reference: {listed(index, expected[index])}"
        for index in shown
    ]
    figures = {f"span_{name}": round(value, 4) for name, value in scores._asdict().items()}
    return {**figures, "token_accuracy": round(accuracy(model, batches), 4), "scored": batches.tokens}, samples


@torch.no_grad()
def _states(model: Encoder, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    template, device = model.config.template, next(model.parameters()).device
    room = model.config.max_source_len - template.num_source_special
    source = torch.tensor([template.wrap_source(ids[:room])], device=device)
    lengths = torch.tensor([source.shape[1]], device=device)
    return model(source, lengths), lengths


@torch.no_grad()
def _filled(model: Encoder, tokenizer: Tokenizer, text: str, _: str) -> str:
    """A text with its middle token masked and replaced by the model's prediction."""
    ids = tokenizer.encode(text)[: model.config.max_source_len // 2]
    index = len(ids) // 2
    assert model.config.mask_id is not None
    states, _lengths = _states(model, [*ids[:index], model.config.mask_id, *ids[index + 1 :]])
    masked = states[0, [len(model.config.template.source_prefix) + index]]
    parts = ids[:index], [ids[index]], ids[index + 1 :], [int(model.token_logits(masked).argmax())]
    before, hidden, after, predicted = map(tokenizer.decode, parts)
    return f"{before} [{hidden.strip()}] {after}\n  model:     {predicted.strip()}"


@torch.no_grad()
def _labelled(model: Encoder, tokenizer: Tokenizer, text: str, label: str) -> str:
    states, lengths = _states(model, tokenizer.encode(text))
    logits, labels = model.classify(states, lengths).logits_BL[0], model.config.labels
    predicted = labels[int(logits.argmax())]
    if model.config.multi_label:
        likely = [name for name, logit in zip(labels, logits.tolist(), strict=True) if logit > 0]
        predicted = ", ".join(likely) or NO_LABEL
    return f"{text}\n  model:     {predicted}\n  reference: {label}"


def _continuations(model: GenerativeModel, tokenizer: Tokenizer, validation: Examples) -> list[str]:
    lines = [line for _, text in validation.pairs for line in text.splitlines() if line.strip()]
    texts = random.Random("samples").sample(lines, min(SAMPLES, len(lines)))
    room = model.config.max_target_len
    starts = [tokenizer.encode(text)[: min(PROMPT_TOKENS, room // 2)] for text in texts]
    prompts = [model.config.template.wrap_prompt(start) for start in starts]
    new_tokens = min(CONTINUATION_TOKENS, room + 1 - max(map(len, prompts)))
    continuations = greedy_batch(model, prompts, max_tokens=new_tokens)
    return [
        f"{tokenizer.decode(prompt)} | {tokenizer.decode(ids)}"
        for prompt, ids in zip(prompts, continuations, strict=True)
    ]


def lineage_of(config: TrainConfig, data: Examples, validation: Examples, rows: TrainingRows) -> dict[str, Any]:
    """The lineage of a model: all information needed to train it again. rows: all that the model was trained on."""
    return {
        "seed": config.seed,
        "git_commit": _git_commit(),
        "data": data.name,
        "data_sha256": data.digest,
        "data_examples": len(data.pairs),
        **({"languages": counted(data.languages)} if data.languages else {}),
        "validation": validation.name,
        "validation_sha256": validation.digest,
        "validation_examples": len(validation.pairs),
        "validation_in_training": rows.overlap(validation.pairs, validation.sizes).figures(),
        **rows.lineage(),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "tokenizers", "safetensors", "sacrebleu")},
        },
        "processor": processor_name(),
    }


def model_card(
    model: ModelConfig,
    train: TrainConfig,
    metrics: Mapping[str, Any],
    lineage: Mapping[str, Any],
    samples: Sequence[str],
) -> str:
    """The model card in Markdown."""
    kinds = {
        "encoder_decoder": "Translation model (encoder-decoder)",
        "decoder": "Language model (decoder-only)",
        "encoder": f"{_encoder_kind(model)} (encoder alone)",
        "recurrent": f"Translation model (recurrent, score {model.score})",
    }
    parts = [
        f"# {kinds[model.architecture]}",
        f"Trained by Glossa on {lineage['data']} ({lineage['data_examples']:,} examples)"
        + (f", continuing the checkpoint {lineage['base']}." if "base" in lineage else "."),
        _training_rows(lineage),
        table("Scores", metrics),
        table("Lineage", {name: value for name, value in lineage.items() if not isinstance(value, Mapping | list)}),
        *([table("Languages", _example_counts(lineage["languages"]))] if "languages" in lineage else []),
        table("Versions", lineage["versions"]),
        table("Model", model.to_json()),
        table("Training", train.to_json()),
        *([table("Fine-tuning", lineage["fine_tuning"])] if "fine_tuning" in lineage else []),
        "## Samples from the validation set\n\n```text\n" + "\n\n".join(samples) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _training_rows(lineage: Mapping[str, Any]) -> str:
    """The known overlap between training data and other data."""
    rows, seen = lineage["training_rows"], lineage["validation_in_training"]
    pairs = f" and {rows['pairs']:,} pairs" if rows["pairs"] else ""
    missing = f" Not recorded: the rows of {', '.join(rows['unknown'])}." if "unknown" in rows else ""
    return (
        f"`{FILE}` holds digests of the {rows['sources']:,} different sources or texts{pairs} that it was trained on: "
        f"`glossa eval` counts the rows of a test set that are among them; {seen['sources']:,} of the validation set "
        f"are. Who can guess a text can find out whether it is among them.{missing}"
    )


def _example_counts(languages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The pairs of languages in a lineage by title, and the number of examples of each."""
    pairs = [LanguagePair(one.get("source_language", ""), one.get("target_language", "")) for one in languages]
    return {title_of(pair): f"{one['examples']:,} examples" for pair, one in zip(pairs, languages, strict=True)}


def _encoder_kind(model: ModelConfig) -> str:
    if model.is_tagger:
        return "Token classifier"
    return "Classifier" if model.is_classifier else "Masked language model"


def table(title: str, values: Mapping[str, Any]) -> str:
    """A section of a model card: names and values."""
    cells = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    rows = ["| {} | {} |".format(name, cell.replace("|", "\\|")) for name, cell in cells.items()]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *rows])


def _git_commit() -> str | None:
    """The commit of Glossa's checkout that contains this code; None if it was installed without one."""
    code = Path(__file__).resolve()
    command = ["git", "-C", str(code.parent), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    root, commit = printed.splitlines()
    return commit if Path(root) == code.parents[2] else None  # another root: a project that Glossa is installed in


def processor_name() -> str:
    """The processor's name if the system reports it; timings are meaningless without it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
