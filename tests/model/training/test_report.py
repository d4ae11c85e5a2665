import csv
import io
import struct
import subprocess

import pytest

from model.config import TrainConfig
from model.tokenizer import Tokenizer
from model.training import report
from model.training.data.encoder_data import encoder_batches
from model.training.data.examples import Examples
from model.training.data.labelled_spans import found_spans, write_spans
from model.training.evaluate import translate
from model.training.report import curves_png, encoder_scores, final_scores, metrics_csv, model_card, table
from tests.tiny import TEXTS, tiny_config, tiny_encoder, tiny_model, tiny_tokenizer

HISTORY = [
    {"step": 10, "epoch": 0, "tokens": 500, "seconds": 1.5, "learning_rate": 0.1, "train_loss": 4.0, "tokens_per_s": 9},
    {"step": 10, "epoch": 0, "tokens": 500, "seconds": 1.6, "validation_loss": 3.5},
    {"step": 20, "epoch": 1, "tokens": 990, "seconds": 3.0, "learning_rate": 0.2, "train_loss": 0.5, "tokens_per_s": 8},
]


def test_metrics_leave_empty_what_a_row_lacks():
    rows = list(csv.DictReader(io.StringIO(metrics_csv(HISTORY).decode())))
    assert [row["validation_loss"] for row in rows] == ["", "3.5", ""]
    assert [row["learning_rate"] for row in rows] == ["0.1", "", "0.2"]
    with pytest.raises(ValueError, match="surprise"):
        metrics_csv([{"surprise": 1.0}])


def git(directory, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(directory), *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("root", "has_commit"), [("", True), (".venv/site-packages", False)])
def test_the_lineage_names_the_commit_of_glossa_and_of_no_other_project(root, has_commit, tmp_path, monkeypatch):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "first")
    module = tmp_path / root / "model" / "training" / "report.py"
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(report, "__file__", str(module))
    examples = Examples([("a", "b")], "pairs")
    commit = report.lineage_of(TrainConfig(steps=1), examples, examples, examples.rows)["git_commit"]
    assert commit == (git(tmp_path, "rev-parse", "HEAD") if has_commit else None)


@pytest.mark.parametrize("history", [HISTORY, HISTORY[1:2], []], ids=["all", "only validation", "nothing"])
def test_curves_are_a_picture_of_800_by_900_pixels(history):
    image = curves_png(history)
    assert image.startswith(b"\x89PNG")
    assert struct.unpack(">II", image[16:24]) == (800, 900)


def test_a_table_keeps_its_columns():
    assert table("Scores", {"loss": 1 / 3, "a": "b|c"}).splitlines() == [
        "## Scores",
        "",
        "| | |",
        "|---|---|",
        "| loss | 0.333333 |",
        r"| a | b\|c |",
    ]


@pytest.mark.parametrize(
    ("architecture", "fields", "title"),
    [
        ("encoder_decoder", {}, "Translation model (encoder-decoder)"),
        ("decoder", {}, "Language model (decoder-only)"),
        ("recurrent", {}, "Translation model (recurrent, score "),
    ],
)
def test_a_card_names_the_kind_of_model(architecture, fields, title):
    lineage = {
        **{"data": "letters", "data_examples": 1234, "versions": {"torch": "2"}},
        "training_rows": {"sources": 1200, "pairs": 1230, "unknown": ["the base b"]},
        "validation_in_training": {"sources": 3, "pairs": 1},
    }
    config = tiny_config(architecture, **fields)
    card = model_card(config, TrainConfig(steps=1), {"bleu": 12.5}, lineage, ["a sample"])
    assert card.startswith(f"# {title}")
    assert "Trained by Glossa on letters (1,234 examples)." in card
    assert "digests of the 1,200 different sources or texts and 1,230 pairs that it was trained on" in card
    assert "3 of the validation set are." in card
    assert "Not recorded: the rows of the base b." in card
    assert "| bleu | 12.5 |" in card
    assert "```text\na sample\n```" in card


def test_translations_are_scored_against_the_references():
    model, tokenizer = tiny_model(tiny_config()), tiny_tokenizer()
    scores, samples = final_scores(model, tokenizer, Examples([(text, text) for text in TEXTS], "texts"))
    assert scores["bleu_sentences"] == len(TEXTS)
    assert 0.0 <= scores["exact_match"] <= 1.0
    assert len(samples) == len(TEXTS)
    assert all("\n  reference: " in sample for sample in samples)


def test_a_model_with_context_is_scored_with_and_without_it():
    """In a random model nothing is right but by its own answers, which only the right context gives."""
    tokenizer = Tokenizer.train(TEXTS, kind="words", vocab_size=64, with_separator=True)
    fields = {"vocab_size": tokenizer.vocab_size, "context_sentences": 1, "separator_id": 4, "extra_eos_ids": (4,)}
    model = tiny_model(tiny_config(**fields), seed=2)
    first, second = TEXTS[:2]
    opening = translate(model, tokenizer, [first])[0]
    after = translate(model, tokenizer, [second], contexts=[[(first, opening)]])[0]
    assert after != translate(model, tokenizer, [second])[0]
    scores, _ = final_scores(model, tokenizer, Examples([(first, opening), (second, after)], "texts", [2]))
    assert (scores["exact_match"], scores["exact_match_with_context"]) == (0.5, 1.0)
    scores, _ = final_scores(model, tokenizer, Examples([(first, opening), (second, after)], "texts", [1, 1]))
    assert (scores["exact_match"], scores["exact_match_with_context"]) == (0.5, 0.5)


def test_a_language_model_continues_texts():
    model, tokenizer = tiny_model(tiny_config("decoder")), tiny_tokenizer()
    scores, samples = final_scores(model, tokenizer, Examples([("", text) for text in TEXTS], "texts"))
    assert scores == {}
    assert all(sample.partition(" | ")[0] in " ".join(TEXTS) for sample in samples)


def test_a_tagger_is_scored_by_the_spans_that_it_finds():
    model, tokenizer = tiny_encoder("tokens"), tiny_tokenizer(with_mask=True)
    found = found_spans(model, tokenizer, TEXTS)
    assert any(found)
    right = Examples([(text, write_spans(spans)) for text, spans in zip(TEXTS, found, strict=True)], "texts")
    scores, samples = encoder_scores(
        model, tokenizer, right, encoder_batches(right, tokenizer, model.config, TrainConfig(steps=1))
    )
    assert (scores["span_precision"], scores["span_recall"], scores["span_f1"]) == (1.0, 1.0, 1.0)
    assert scores["scored"] == sum(len(text.split()) for text in TEXTS)
    assert all("\n  reference: " in sample for sample in samples)
    nothing = Examples([(text, "-") for text in TEXTS], "texts")
    batches = encoder_batches(nothing, tokenizer, model.config, TrainConfig(steps=1))
    assert encoder_scores(model, tokenizer, nothing, batches)[0]["span_f1"] == 0.0


@pytest.mark.parametrize(("kind", "name"), [("masked", "masked_accuracy"), ("classify", "label_accuracy")])
def test_an_encoder_is_scored_by_what_its_head_predicts(kind, name):
    model, tokenizer = tiny_encoder(kind), tiny_tokenizer(with_mask=True)
    examples = Examples([(text, "calm") for text in TEXTS], "texts")
    batches = encoder_batches(examples, tokenizer, model.config, TrainConfig(steps=1))
    scores, samples = encoder_scores(model, tokenizer, examples, batches)
    assert 0.0 <= scores[name] <= 1.0
    assert scores["scored"] == batches.tokens
    assert all("\n  model:     " in sample for sample in samples)
