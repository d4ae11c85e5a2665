import csv
import errno
import io
import itertools
import json
import os
import re
import shutil
import signal
from typing import Any

import pytest
import torch
from rich.console import Console

from bench.promises import kill_resume
from model.architecture_config import EncoderConfig
from model.checkpoints.checkpoint import CheckpointError, load_checkpoint
from model.checkpoints.training_rows import read_training_rows
from model.config import ConfigError
from model.fine_tuning import FineTuning
from model.presets import PRESETS
from model.training.data.embedded import copy_examples, embedded_examples
from model.training.data.examples import DataError, Examples, batches_of, split
from model.training.distributed.ranks import RankLost
from model.training.evaluate import translate
from model.training.flops import measured_flops
from model.training.progress import Display
from model.training.start import Start
from model.training.train import Interrupted, TrainError, train
from model.training.training_state import DamagedStateWarning, list_states
from tests.full_disk import FullDisk
from tests.tiny import as_decoder
from tests.tiny_training import MODEL, TRAIN, with_figures

DATA = copy_examples(300, seed=1)
CLOCK = ("seconds", "tokens_per_s", "peak_share")  # columns of metrics.csv


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run from start to end without interruption."""
    with with_figures():
        return train(MODEL, TRAIN, data=DATA, out=tmp_path_factory.mktemp("runs") / "undisturbed")


def after(steps):
    """should_stop that is true after this many steps of a process."""
    stops = iter([*[False] * (steps - 1), True])
    return lambda: next(stops)


def interrupted(out, steps, *, resume=False, model=MODEL, config=TRAIN, data=DATA):
    with pytest.raises(Interrupted, match=r"state saved in .*; go on with --resume"):
        train(model, config, data=data, out=out, resume=resume, should_stop=after(steps))


def weights(out):
    return (out / "model.safetensors").read_bytes()


def losses(out):
    """Everything in metrics.csv but the clock."""
    rows = csv.DictReader(io.StringIO((out / "metrics.csv").read_text()))
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in rows]


def test_a_finished_run_leaves_everything_needed(undisturbed):
    checkpoint = load_checkpoint(undisturbed)
    assert checkpoint.config == MODEL.replace(vocab_size=checkpoint.tokenizer.vocab_size)
    assert checkpoint.metrics["steps"] == 24
    assert checkpoint.metrics["bleu_signature"].startswith("nrefs:1")
    assert checkpoint.lineage["data_sha256"] != checkpoint.lineage["validation_sha256"]
    assert (undisturbed / "curves.png").read_bytes().startswith(b"\x89PNG")
    card = (undisturbed / "model_card.md").read_text()
    assert checkpoint.lineage["data_sha256"] in card
    assert card.count("  reference: ") == 5
    assert [row["step"] for row in losses(undisturbed)] == ["4", "6", "8", "12", "12", "16", "18", "20", "24", "24"]
    assert [path.name[-2:] for path in list_states(undisturbed / "states")] == ["15", "20", "24"]


@pytest.mark.parametrize(
    "stops", [[7, 1, 14], *(pytest.param(stops, marks=pytest.mark.slow) for stops in ([1], [5, 6]))]
)
def test_an_interrupted_run_ends_in_the_same_bits(stops, undisturbed, tmp_path):
    for number, steps in enumerate(stops):
        interrupted(tmp_path / "run", steps, resume=number > 0)
    train(MODEL, TRAIN, data=DATA, out=tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(undisturbed)
    assert losses(tmp_path / "run") == losses(undisturbed)


@pytest.mark.parametrize(
    ("changes", "documents", "text"),
    [
        ({"dropout": 0.0}, "lines", "b"),
        ({"positions": "rotary"}, "stream", "a b c d e f g h i j\n" * 200),
    ],
)
def test_a_language_model_resumes_exactly_in_bfloat16_too(changes, documents, text, tmp_path):
    model = as_decoder(MODEL, **changes)
    config = TRAIN.replace(documents=documents, bf16=True, steps=8)
    data = Examples([("", text)] if documents == "stream" else [("", line) for line, _ in DATA.pairs], "texts")
    whole = train(model, config, data=data, out=tmp_path / "whole")
    interrupted(tmp_path / "parts", 3, model=model, config=config, data=data)
    train(model, config, data=data, out=tmp_path / "parts", resume=True)
    assert weights(tmp_path / "parts") == weights(whole)
    metrics = load_checkpoint(whole).metrics
    assert metrics["validation_perplexity"] > 1
    assert "bleu" not in metrics
    assert (whole / "model_card.md").read_text().count(" | ") > 5  # prompt | continuation


@pytest.mark.parametrize("documents", [pytest.param("lines", marks=pytest.mark.slow), "stream"])
def test_a_run_with_bpe_dropout_resumes_exactly(documents, tmp_path):
    """Its tokenizer, segmentations and scores on held-out text, which are of the ordinary segmentation."""
    words = ["reader", "readers", "read", "lower", "lowest", "newest", "newer", "wide", "wider", "widest"]
    lines = [" ".join(words[(place + shift) % 10] for shift in (0, 3, 5 + place % 3)) for place in range(240)]
    is_stream = documents == "stream"
    data = Examples([("", "\n".join(lines))] if is_stream else [(line, line[::-1]) for line in lines], "words")
    model = (as_decoder(MODEL) if is_stream else MODEL).replace(max_target_len=24)
    config = TRAIN.replace(tokenizer="bpe", vocab_size=320, documents=documents, steps=12, bpe_dropout=0.2)
    whole = train(model, config, data=data, out=tmp_path / "whole")
    interrupted(tmp_path / "parts", 7, model=model, config=config, data=data)
    train(model, config, data=data, out=tmp_path / "parts", resume=True)
    assert weights(tmp_path / "parts") == weights(whole)
    assert losses(tmp_path / "parts") == losses(whole)
    plain = train(model, config.replace(bpe_dropout=0.0), data=data, out=tmp_path / "plain")
    assert weights(plain) != weights(whole)
    assert (plain / "tokenizer.json").read_bytes() == (whole / "tokenizer.json").read_bytes()


def test_bpe_dropout_needs_merges_and_leaves_nothing_otherwise(tmp_path):
    with pytest.raises(ConfigError, match="bpe_dropout: needs tokenizer: bpe, got words; set that"):
        train(MODEL, TRAIN.replace(bpe_dropout=0.1), data=DATA, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_killed_processes_resume_to_the_same_bits(tmp_path):
    kill_resume.run(tmp_path / "undisturbed", kills=1)
    kill_resume.killed_run(tmp_path / "killed", kills=1, seed=11)
    assert weights(tmp_path / "killed") == weights(tmp_path / "undisturbed")


def test_a_damaged_state_is_passed_over_loudly(undisturbed, tmp_path):
    interrupted(tmp_path / "run", 12)
    *_, older, newest = list_states(tmp_path / "run" / "states")
    path = newest / "optimiser.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(DamagedStateWarning, match=r"DAMAGED TRAINING STATE step-00000012: .*cut short.*going back"):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(undisturbed)
    assert older.name == "step-00000010"


def test_when_every_state_is_damaged_the_error_names_them(tmp_path):
    interrupted(tmp_path / "run", 12)
    for state in list_states(tmp_path / "run" / "states"):
        (state / "digests.json").unlink()
    with pytest.warns(DamagedStateWarning), pytest.raises(CheckpointError, match="every state is damaged"):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "failing", [5, 30, 60, *(pytest.param(failing, marks=pytest.mark.slow) for failing in (1, 12, 20, 50))]
)
def test_a_run_stopped_by_a_full_disk_resumes_to_the_same_bits(failing, undisturbed, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(CheckpointError, match="cannot be saved: No space left on device"):
        train(MODEL, TRAIN, data=DATA, out=out, disk=FullDisk(failing))
    train(MODEL, TRAIN, data=DATA, out=out, resume=True)
    assert weights(out) == weights(undisturbed)


def test_an_old_state_that_cannot_be_deleted_does_not_end_the_run(undisturbed, tmp_path, monkeypatch, capsys):
    def fails(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("model.training.train.prune", fails)
    train(MODEL, TRAIN, data=DATA, out=tmp_path / "run")
    assert "states: an old state cannot be deleted: Input/output error; it takes room" in capsys.readouterr().err
    assert weights(tmp_path / "run") == weights(undisturbed)


def test_the_directory_of_another_run_is_refused(undisturbed, tmp_path):
    with pytest.raises(TrainError, match="holds another training run; resume it with --resume, or choose another"):
        train(MODEL, TRAIN, data=DATA, out=undisturbed)
    (tmp_path / "tokenizer.json").write_text("dear")
    for resume in (False, True):
        with pytest.raises(TrainError, match="holds other files; choose another directory"):
            train(MODEL, TRAIN, data=DATA, out=tmp_path, resume=resume)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("tokenizer.json", "dear")]


def test_a_finished_run_is_resumed_with_its_settings_alone(undisturbed, tmp_path, capsys):
    train(MODEL, TRAIN, data=DATA, out=undisturbed, resume=True)
    assert f"{undisturbed} is finished already" in capsys.readouterr().err
    with pytest.raises(TrainError, match=r"was started with seed=1 in its train configuration, got 2"):
        train(MODEL, TRAIN.replace(seed=2), data=DATA, out=undisturbed, resume=True)
    imported = tmp_path / "imported"
    shutil.copytree(undisturbed, imported, ignore=shutil.ignore_patterns("states"))
    with pytest.raises(TrainError, match=r"holds a checkpoint without .*run\.json, so of another run"):
        train(MODEL, TRAIN, data=DATA, out=imported, resume=True)


def test_a_run_that_was_killed_before_its_marker_begins_again(tmp_path):
    (tmp_path / "run" / "states").mkdir(parents=True)
    train(MODEL, TRAIN.replace(steps=1), data=DATA, out=tmp_path / "run", resume=True)
    interrupted(tmp_path / "other", 2)
    (tmp_path / "other" / "tokenizer.json").unlink()
    (tmp_path / "other" / "states" / "run.json").unlink()
    with pytest.raises(TrainError, match="holds other files"):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "other", resume=True)


def test_resuming_with_something_else_names_what_differs(tmp_path):
    out = tmp_path / "run"
    interrupted(out, 2)
    with pytest.raises(TrainError, match=r"was started with d_ff=32 in its model configuration, got 64"):
        train(MODEL.replace(d_ff=64), TRAIN, data=DATA, out=out, resume=True)
    with pytest.raises(TrainError, match=r"was started with seed=1 in its train configuration, got 2"):
        train(MODEL, TRAIN.replace(seed=2), data=DATA, out=out, resume=True)
    with pytest.raises(TrainError, match="was started with other data: SHA-256"):
        train(MODEL, TRAIN, data=copy_examples(300, seed=2), out=out, resume=True)
    with pytest.raises(TrainError, match="was started with other validation: SHA-256"):
        train(MODEL, TRAIN, data=DATA, validation=DATA, out=out, resume=True)
    (out / "states" / "run.json").write_text("{")
    with pytest.raises(TrainError, match=r"run\.json: cannot be read"):
        train(MODEL, TRAIN, data=DATA, out=out, resume=True)


def test_resuming_needs_the_settings_of_fine_tuning(tmp_path):
    frozen, patient = (Start(tuning=tuning) for tuning in (FineTuning(freeze=("encoder.*",)), FineTuning(patience=3)))
    with pytest.raises(Interrupted):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "frozen", start=frozen, should_stop=after(2))
    with pytest.raises(TrainError, match=r"was started with freeze=\['encoder\.\*'\] in its fine_tuning .*, got \[\]"):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "frozen", resume=True)
    interrupted(tmp_path / "plain", 2)
    with pytest.raises(TrainError, match="was started with patience=0 in its fine_tuning configuration, got 3"):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "plain", start=patient, resume=True)


def test_resuming_a_finished_run_changes_nothing(undisturbed):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.iterdir()}
    train(MODEL, TRAIN, data=DATA, out=undisturbed, resume=True)
    assert {path: path.stat().st_mtime_ns for path in undisturbed.iterdir()} == before


def test_ctrl_c_saves_the_state_and_names_the_flag_to_resume(tmp_path):
    def press():
        os.kill(os.getpid(), signal.SIGINT)
        return False

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="stopped after step 2, state saved"):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "run", should_stop=press)
    assert signal.getsignal(signal.SIGINT) is before
    assert [path.name for path in list_states(tmp_path / "run" / "states")] == ["step-00000002"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RankLost])
def test_a_run_that_ends_before_its_first_step_leaves_nothing(tmp_path, monkeypatch, error):
    def ends(*_, **__):
        raise error

    monkeypatch.setattr("model.training.train.divided", ends)
    with pytest.raises(error):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_learns_the_copy_task(tmp_path):
    preset = PRESETS["tiny-copy"]
    model = preset.model.replace(d_model=64, d_ff=128)
    config = preset.train.replace(steps=240, warmup_steps=40, learning_rate=4e-3)
    out = train(
        model,
        config,
        data=embedded_examples("copy"),
        out=tmp_path / "run",
        display=Display(Console(file=io.StringIO())),
    )
    checkpoint = load_checkpoint(out)
    texts = [text for text, _ in copy_examples(100, seed=99).pairs]
    copies = translate(checkpoint.model, checkpoint.tokenizer, texts)
    assert sum(copy == text for copy, text in zip(copies, texts, strict=True)) > 80
    assert checkpoint.metrics["bleu"] > 80


def test_a_log_step_is_one_line_of_figures(tmp_path):
    stream = io.StringIO()
    train(
        MODEL, TRAIN.replace(log_every_steps=1), data=DATA, out=tmp_path / "run", display=Display(Console(file=stream))
    )
    line = (
        r"^step 1  \d+%  \d+:\d\d left  loss \d\.\d{3}  lr \d\.\de-\d\d  [\d,]+ tokens/s  \d+% of peak  "
        r"\d+ tokens  [\d.]+ MFLOP$"
    )
    assert re.search(line, stream.getvalue(), re.MULTILINE), stream.getvalue()


def test_a_minutes_run_ends_by_the_clock(tmp_path):
    config = TRAIN.replace(steps=0, minutes=0.02, save_every_steps=1000)
    out = train(MODEL, config, data=DATA, out=tmp_path / "run")
    metrics = load_checkpoint(out).metrics
    assert 1.2 <= metrics["seconds"] < 10.0
    assert metrics["steps"] > 1


def test_a_given_validation_set_is_used_and_all_data_trained_on(tmp_path):
    out = train(MODEL, TRAIN.replace(steps=1), data=DATA, validation=copy_examples(30, seed=5), out=tmp_path / "run")
    lineage = load_checkpoint(out).lineage
    assert lineage["data_examples"] == 300
    assert lineage["validation_examples"] == 30


def test_the_average_is_kept_only_when_it_is_better(tmp_path):
    metrics = load_checkpoint(train(MODEL, TRAIN, data=DATA, out=tmp_path / "run")).metrics
    assert metrics["validation_loss"] <= metrics["validation_loss_last_state"]
    assert metrics["averaged_states"] in (1, 2)


def test_a_loss_that_explodes_is_reported(tmp_path):
    config = TRAIN.replace(learning_rate=1e30, clip_norm=0.0, warmup_steps=0)
    with pytest.raises(TrainError, match=r"the loss is (nan|inf) after step \d+; lower --learning-rate"):
        train(MODEL, config, data=DATA, out=tmp_path / "run")


def test_accumulated_batches_are_one_batch(tmp_path):
    """The mean is over the tokens of all batches of a step, so cutting a batch in two changes nothing but rounding."""
    model = MODEL.replace(dropout=0.0, bias=False)  # a key bias has no gradient but noise, which Adam makes large
    pairs = Examples([("a b c", "c b a")] * 64, "equal lengths")
    held_out = copy_examples(20, seed=1)
    config = TRAIN.replace(steps=2, average_checkpoints=1, tokenizer="bpe", vocab_size=300)
    for accumulate, tokens in ((1, 192), (2, 96)):
        changed = config.replace(accumulate=accumulate, batch_tokens=tokens)
        train(model, changed, data=pairs, validation=held_out, out=tmp_path / str(accumulate))
    one, two = (dict(load_checkpoint(tmp_path / name).model.named_parameters()) for name in ("1", "2"))
    for name, parameter in one.items():
        torch.testing.assert_close(parameter, two[name], rtol=0, atol=1e-5)


def test_the_card_and_metrics_agree(undisturbed):
    metrics, card = json.loads((undisturbed / "metrics.json").read_bytes()), (undisturbed / "model_card.md").read_text()
    for name in ("validation_loss", "training_flops", "peak_flops_per_s", "peak_share", "tokens_per_s"):
        assert f"| {name} | {metrics[name]:.6g} |" in card
    speed = metrics["training_flops"] * metrics["tokens_per_s"] / metrics["target_tokens"]
    assert metrics["peak_share"] == pytest.approx(speed / metrics["peak_flops_per_s"], rel=1e-3, abs=1e-4)


def test_operations_and_tokens_add_up_over_the_batches_of_all_steps(undisturbed):
    """An oracle with the tensors that training reads, batch by batch."""
    checkpoint = load_checkpoint(undisturbed)
    part, _ = split(DATA, size=TRAIN.validation_size, seed=TRAIN.seed)
    batches = batches_of(part, checkpoint.tokenizer, checkpoint.config, TRAIN)
    keys = itertools.chain.from_iterable(batches.plan(epoch) for epoch in range(100))
    seen = [batches.load(batch) for batch in itertools.islice(keys, TRAIN.steps * TRAIN.accumulate)]
    flops = sum(measured_flops(checkpoint.model.train(), batch) for batch in seen)
    assert checkpoint.metrics["training_flops"] == flops == int(losses(undisturbed)[-1]["flops"])
    assert checkpoint.metrics["target_tokens"] == sum(batch.tokens for batch in seen)


ENCODER = EncoderConfig(d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, max_source_len=16)
PLURALS = Examples(
    [
        (f"{'many' if number % 2 else 'one'} {word}", "many" if number % 2 else "one")
        for number, word in enumerate("abcdefghij" * 20)
    ],
    "plurals",
)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["masked", pytest.param("attention", marks=pytest.mark.slow)])
def test_an_encoder_resumes_to_the_same_bits(tmp_path, head):
    model = ENCODER.replace(head=head, dropout=0.2)
    data = DATA if head == "masked" else PLURALS
    whole = train(model, TRAIN, data=data, out=tmp_path / "whole")
    interrupted(tmp_path / "parts", 7, model=model, data=data)
    train(model, TRAIN, data=data, out=tmp_path / "parts", resume=True)
    assert weights(whole) == weights(tmp_path / "parts")
    metrics = json.loads((whole / "metrics.json").read_text())
    assert 0.0 <= metrics["masked_accuracy" if head == "masked" else "label_accuracy"] <= 1.0
    assert "encoder alone" in (whole / "model_card.md").read_text()


@pytest.mark.parametrize(
    ("head", "pooler", "multi_label"),
    [
        ("classify", "tanh", False),
        ("attention", "none", True),
        pytest.param("classify", "none", False, marks=pytest.mark.slow),
        pytest.param("classify", "none", True, marks=pytest.mark.slow),
        pytest.param("classify", "tanh", True, marks=pytest.mark.slow),
        pytest.param("attention", "none", False, marks=pytest.mark.slow),
    ],
)
def test_a_classifier_learns_what_can_be_read_off_one_word(tmp_path, head, pooler, multi_label):
    model = ENCODER.replace(head=head, pooler=pooler, multi_label=multi_label)
    config = TRAIN.replace(steps=40, learning_rate=1e-2, label_smoothing=0.0)
    out = train(model, config, data=PLURALS, out=tmp_path / "run")
    assert json.loads((out / "metrics.json").read_text())["label_accuracy"] == 1.0
    loaded = load_checkpoint(out)
    assert loaded.config.labels == ("many", "one")
    assert loaded.tokenizer.unknown_words("labels") == ["labels"]


def test_a_single_label_is_learnt_from_texts_with_and_without_it(tmp_path):
    data = Examples([(text, label if label == "many" else "-") for text, label in PLURALS.pairs], "plurals or not")
    model = ENCODER.replace(head="attention", multi_label=True, num_encoder_layers=0, positions="none")
    config = TRAIN.replace(steps=60, learning_rate=1e-1, label_smoothing=0.0)
    out = train(model, config, data=data, out=tmp_path / "run")
    assert load_checkpoint(out).config.labels == ("many",)
    assert json.loads((out / "metrics.json").read_text())["label_accuracy"] == 1.0
    assert "model:     -\n" in (out / "model_card.md").read_text()


def test_masks_are_learnt_where_the_rest_of_the_text_determines_them(tmp_path):
    texts = Examples([("", f"{word} {word} {word} {word}") for word in "abcdefgh" * 25], "echoes")
    model, config = ENCODER.replace(head="masked"), TRAIN.replace(steps=60, learning_rate=1e-2, label_smoothing=0.0)
    out = train(model, config, data=texts, validation=texts, out=tmp_path / "run")
    assert json.loads((out / "metrics.json").read_text())["masked_accuracy"] > 0.95
    assert load_checkpoint(out).config.mask_id == 4


def test_a_model_with_context_gets_its_separator_and_needs_documents(tmp_path):
    """The separator ends a sentence, so it ends an answer."""
    pairs = [pair for number in range(60) for pair in ((f"a {number % 20}", "b"), ("c", "d"))]
    model = MODEL.replace(context_sentences=1)
    train(model, TRAIN.replace(steps=2), data=Examples(pairs, "texts", [2] * 60), out=tmp_path / "x")
    found = load_checkpoint(tmp_path / "x")
    separator = found.tokenizer.special["<sep>"]
    assert (found.model.config.separator_id, found.model.config.extra_eos_ids) == (separator, (separator,))
    assert found.metrics["exact_match_with_context"] >= 0
    with pytest.raises(DataError, match="texts: has no documents, which a model with context_sentences needs"):
        train(model, TRAIN, data=Examples(pairs, "texts"), out=tmp_path / "y")


def test_validation_rows_among_the_training_rows_are_a_warning(tmp_path):
    seen = Examples([*DATA.pairs[:3], ("z z z z z z z z z", "z")], "validation")
    stream = io.StringIO()
    display = Display(Console(file=stream, width=200))
    out = train(MODEL, TRAIN.replace(steps=1), data=DATA, validation=seen, out=tmp_path, display=display)
    assert "warning: 3 of 4 validation sources were in the training data, 3 with the same" in stream.getvalue()
    assert load_checkpoint(out).lineage["validation_in_training"] == {"sources": 3, "pairs": 3}
    assert "3 of the validation set are." in (out / "model_card.md").read_text()


def test_the_rows_of_a_checkpoint_are_those_that_were_not_held_out(undisturbed):
    rows: Any = read_training_rows(undisturbed)
    training, held_out = split(DATA, size=20, seed=TRAIN.seed)
    assert rows.overlap(training.pairs).pairs == list(range(len(training.pairs)))
    assert rows.overlap(held_out.pairs).sources == []
    assert load_checkpoint(undisturbed).lineage["validation_in_training"] == {"sources": 0, "pairs": 0}
