"""Runs that continue a checkpoint: what they take from it, what they change, and what they refuse."""

import hashlib
import json
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from model.architecture_config import EncoderConfig
from model.checkpoints.checkpoint import CheckpointError, load_checkpoint, weights_of
from model.checkpoints.training_rows import read_training_rows
from model.config import ConfigError
from model.fine_tuning import FineTuning
from model.presets import CONTINUED, continuing
from model.tokenizer import Tokenizer, TokenizerError
from model.training.data.embedded import copy_examples
from model.training.data.examples import DataError, Examples
from model.training.start import Start, read_base
from model.training.train import Interrupted, TrainError, train
from tests.model.training.test_train import DATA, PLURALS, after, one_thread, weights  # noqa: F401
from tests.tiny import as_decoder
from tests.tiny_training import MODEL, TRAIN

TUNED = CONTINUED.replace(
    steps=12, learning_rate=5e-3, batch_tokens=128, save_every_steps=4, validate_every_steps=4, log_every_steps=4
).replace(warmup_steps=2, validation_size=20, average_checkpoints=1, bf16=False)
ONE = TUNED.replace(steps=1, validate_every_steps=1)
REVERSED = Examples([(source, " ".join(reversed(source.split()))) for source, _ in DATA.pairs], "reversed")
FROZEN = FineTuning(freeze=("encoder.*",))
LORA = FineTuning(lora_rank=2, lora_alpha=4.0)
TEXTS = Examples([("", f"{word} {word} many one {word}") for word in "abcdefghij" * 20], "texts")
LETTERS = [(first, second) for first in "abcdefghij" for second in "abcdefghij"]
SPANS = Examples([(f"{first} one {second} many", "6:7:letter") for first, second in LETTERS], "spans")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that copies, a little."""
    return train(MODEL, TRAIN, data=DATA, out=tmp_path_factory.mktemp("runs") / "base")


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A masked language model."""
    config = EncoderConfig(d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, max_source_len=16, head="masked")
    return train(config, TRAIN, data=TEXTS, out=tmp_path_factory.mktemp("runs") / "masked")


@pytest.fixture(scope="module")
def lora(base, tmp_path_factory):
    """The base, tuned with LoRA to reverse."""
    return tune(base, tmp_path_factory.mktemp("runs") / "lora", tuning=LORA)


def test_the_rows_of_the_base_are_among_those_of_the_tuned_model(base, lora):
    tuned: Any = read_training_rows(lora)
    known: Any = read_training_rows(base)
    before, after_it, new = (set(rows.pairs.tolist()) for rows in (known, tuned, REVERSED.rows))
    assert before < after_it < before | new  # without those that were held out
    assert tuned.unknown == ()
    lineage = load_checkpoint(lora).lineage
    assert lineage["training_rows"] == {"sources": len(tuned.sources), "pairs": len(tuned.pairs)}


def test_what_a_base_without_rows_was_trained_on_is_unknown(base, tmp_path):
    start = Start(base=replace(read_base(base), rows=None))
    assert start.rows(REVERSED).unknown == ("the base base",)
    assert Start().rows(REVERSED).unknown == ()


def tune(path, out, *, tuning=None, head=None, config=TUNED, data=REVERSED, **arguments):
    loaded = read_base(path)
    model = continuing(loaded.config, head=head).model
    start = Start(base=loaded, new_head=head is not None, tuning=tuning or FineTuning())
    return train(model, config, data=data, out=out, start=start, **arguments)


def stored(path):
    return safetensors.numpy.load_file(path)


def test_a_run_starts_from_the_weights_and_keeps_the_tokenizer(base, tmp_path):
    out = tune(base, tmp_path / "run", config=ONE.replace(learning_rate=1e-30))
    for name, weight in stored(base / "model.safetensors").items():
        np.testing.assert_allclose(stored(out / "model.safetensors")[name], weight, rtol=1e-6, atol=1e-12)
    assert (out / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    lineage = load_checkpoint(out).lineage
    assert (lineage["base"], lineage["base_sha256"]) == ("base", read_base(base).digest)
    assert lineage["base_lineage"]["data_sha256"] == load_checkpoint(base).lineage["data_sha256"]
    card = (out / "model_card.md").read_text()
    assert "continuing the checkpoint base." in card
    assert lineage["base_sha256"] in card


def test_the_loss_falls_on_new_data(base, tmp_path):
    constant = Examples([(source, "a b c") for source, _ in DATA.pairs], "constant")
    out = tune(base, tmp_path / "run", config=TUNED.replace(steps=40, learning_rate=1e-2), data=constant)
    rows = [line.split(",") for line in (out / "metrics.csv").read_text().splitlines()[1:]]
    losses = [float(row[5]) for row in rows if row[5]]
    assert losses[-1] < 0.5 * losses[0]


def test_an_interrupted_run_ends_in_the_same_bits(base, lora, tmp_path):
    for number, steps in enumerate((3, 4)):
        with pytest.raises(Interrupted):
            tune(base, tmp_path / "parts", tuning=LORA, resume=number > 0, should_stop=after(steps))
    tune(base, tmp_path / "parts", tuning=LORA, resume=True)
    assert weights(tmp_path / "parts") == weights(lora)


def test_the_learning_rate_of_the_history_is_that_of_the_top_layers(tmp_path):
    config = TUNED.replace(steps=4, log_every_steps=2, warmup_steps=0)
    out = train(MODEL, config, data=DATA, out=tmp_path / "run", start=Start(tuning=FineTuning(layer_decay=0.5)))
    rows = [line.split(",") for line in (out / "metrics.csv").read_text().splitlines()]
    column = rows[0].index("learning_rate")
    rates = [float(row[column]) for row in rows[1:] if row[column]]
    assert rates == pytest.approx([config.learning_rate * share for share in (0.75, 0.25)])


def test_frozen_parameters_keep_their_bits_and_the_others_change(base, tmp_path):
    config = TUNED.replace(steps=6, save_every_steps=2, average_checkpoints=3)
    out = tune(base, tmp_path / "run", tuning=FineTuning(freeze=("encoder.*", "*norm*")), config=config)
    before, now = stored(base / "model.safetensors"), stored(out / "model.safetensors")
    for name, weight in now.items():
        assert np.array_equal(weight, before[name]) == (name.startswith("encoder.") or "norm" in name), name


def test_lora_changes_the_targets_alone_by_a_product_of_low_rank(base, lora):
    out = lora
    before, now = stored(base / "model.safetensors"), stored(out / "model.safetensors")
    assert before.keys() == now.keys()
    ranks = {}
    for name, weight in now.items():
        is_target = "attention" in name and name.endswith(".weight")
        assert np.array_equal(weight, before[name]) != is_target, name
        if is_target:
            ranks[name] = np.linalg.matrix_rank(weight.astype(float) - before[name], tol=1e-5)
    assert set(ranks.values()) == {2}
    (*_, newest) = sorted((out / "states").glob("step-*"))
    state = stored(newest / "model.safetensors")
    assert all(np.array_equal(state[name], weight) for name, weight in before.items()), "the base stays as it is"
    name = "decoder.blocks.0.cross_attention.query"
    expected = before[f"{name}.weight"] + 2.0 * state[f"{name}.lora_b"].astype(float) @ state[f"{name}.lora_a"]
    np.testing.assert_allclose(now[f"{name}.weight"], expected, rtol=1e-5, atol=1e-6)
    metrics = load_checkpoint(out).metrics
    assert metrics["trained_parameters"] == sum(state[key].size for key in state if ".lora_" in key)
    assert f"| trained_parameters | {metrics['trained_parameters']} |" in (out / "model_card.md").read_text()


@pytest.fixture(scope="module")
def kept(base, tmp_path_factory):
    """The same training whose adapter is kept, and one that is merged."""
    folder = tmp_path_factory.mktemp("adapters")
    tuning, config = LORA.replace(lora_train=("*.norm.bias",)), TUNED.replace(steps=4)
    adapter = tune(base, folder / "adapter", tuning=tuning.replace(lora_merge=False), config=config)
    merged = tune(base, folder / "merged", tuning=tuning, config=config)
    return adapter, merged


def test_a_kept_adapter_loads_as_the_merged_checkpoint(kept):
    adapter, merged = kept
    assert not (adapter / "model.safetensors").exists()
    loaded, expected = (weights_of(load_checkpoint(path).model) for path in kept)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], weight) for name, weight in expected.items())
    small, whole = (adapter / "adapter.safetensors").stat().st_size, (merged / "model.safetensors").stat().st_size
    assert small < whole
    assert load_checkpoint(adapter).metrics["validation_loss"] == load_checkpoint(merged).metrics["validation_loss"]


def test_a_kept_adapter_has_its_frozen_matrices(base, tmp_path):
    tuning = LORA.replace(freeze=("*.lora_a",))
    kept = tune(base, tmp_path / "kept", tuning=tuning.replace(lora_merge=False), config=ONE)
    merged = tune(base, tmp_path / "merged", tuning=tuning, config=ONE)
    loaded, expected = (weights_of(load_checkpoint(path).model) for path in (kept, merged))
    assert all(torch.equal(loaded[name], weight) for name, weight in expected.items())
    before = stored(base / "model.safetensors")
    assert not all(np.array_equal(before[name], weight) for name, weight in loaded.items())


def test_an_adapter_without_its_base_is_refused(base, kept, tmp_path):
    def copied(name, other):
        shutil.copytree(base if other is None else other, tmp_path / name / "base")
        shutil.copytree(kept[0], tmp_path / name / "run")
        values = json.loads((tmp_path / name / "run" / "adapter.json").read_bytes())
        text = json.dumps({**values, "base": "../base"})
        (tmp_path / name / "run" / "adapter.json").write_text(text)
        digests = json.loads((tmp_path / name / "run" / "digests.json").read_bytes())
        data = (tmp_path / name / "run" / "adapter.json").read_bytes()
        digests["adapter.json"] = {"sha256": sha256(data), "bytes": len(data)}
        (tmp_path / name / "run" / "digests.json").write_text(json.dumps(digests))
        return tmp_path / name / "run"

    load_checkpoint(copied("right", None))
    with pytest.raises(CheckpointError, match=r"must have SHA-256 [0-9a-f]{64}, got [0-9a-f]{64}; put the right one"):
        load_checkpoint(copied("wrong", kept[1]))
    moved = copied("moved", None)
    shutil.rmtree(moved.parent / "base")
    with pytest.raises(CheckpointError, match=r"adapter\.json: the base .*/moved/base is no checkpoint; put"):
        load_checkpoint(moved)
    (moved / "adapter.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"adapter\.safetensors: must be \d+ bytes, got 0"):
        load_checkpoint(moved)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("head", [pytest.param("classify", marks=pytest.mark.slow), "tokens"])
def test_a_masked_model_gets_a_new_head(masked, tmp_path, head):
    data = SPANS if head == "tokens" else PLURALS
    out = tune(masked, tmp_path / "run", head=head, data=data, config=TUNED.replace(steps=60, learning_rate=1e-2))
    tuned = load_checkpoint(out)
    assert tuned.config.head == head
    assert tuned.config.labels == (("B-letter", "I-letter", "O") if head == "tokens" else ("many", "one"))
    assert tuned.metrics["token_accuracy" if head == "tokens" else "label_accuracy"] > 0.9
    assert not any(name.startswith("masked.") for name in weights_of(tuned.model))
    frozen = tune(masked, tmp_path / "frozen", head=head, data=data, tuning=FROZEN, config=ONE)
    before, now = stored(masked / "model.safetensors"), stored(frozen / "model.safetensors")
    assert all(np.array_equal(now[name], before[name]) for name in now if name.startswith("encoder."))


def test_a_masked_model_and_a_language_model_are_continued(masked, tmp_path):
    tuned = load_checkpoint(tune(masked, tmp_path / "masked", data=TEXTS, config=ONE))
    assert (tuned.config.head, tuned.config.mask_id) == ("masked", 4)
    model = as_decoder(MODEL)
    base = train(model, TUNED, data=TEXTS, out=tmp_path / "decoder")
    before = load_checkpoint(base).metrics["validation_loss"]
    tuned = load_checkpoint(tune(base, tmp_path / "tuned", data=TEXTS, config=TUNED.replace(steps=30)))
    assert tuned.metrics["validation_loss"] < before


def test_a_new_head_has_the_labels_of_the_held_out_part_too(masked, tmp_path):
    texts = [text for text, _ in PLURALS.pairs[:60]]
    rare = Examples([(text, f"label{place}") for place, text in enumerate(texts)], "rare")
    out = tune(masked, tmp_path / "run", head="classify", data=rare, config=ONE)
    assert len(load_checkpoint(out).config.labels) == 60


def test_the_seed_draws_a_new_head(masked):
    start = Start(base=(loaded := read_base(masked)), new_head=True)
    config = continuing(loaded.config, head="classify").model.replace(labels=("a", "b"))
    heads = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        heads.append(weights_of(start.build(config))["label.weight"])
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_a_classifier_is_continued_with_its_labels_or_gets_a_new_head(masked, tmp_path):
    classifier = tune(masked, tmp_path / "classifier", head="classify", data=PLURALS, config=ONE)
    again = tune(classifier, tmp_path / "again", data=PLURALS, config=ONE)
    assert load_checkpoint(again).config.labels == ("many", "one")
    renamed = Examples([(text, f"{label}!") for text, label in PLURALS.pairs], "renamed")
    with pytest.raises(DataError, match=r"label 'many!' is none of the model's: many, one; .*new head"):
        tune(classifier, tmp_path / "renamed", data=renamed)
    assert not (tmp_path / "renamed").exists()
    new = tune(classifier, tmp_path / "new", head="classify", data=renamed, tuning=FROZEN, config=ONE)
    assert load_checkpoint(new).config.labels == ("many!", "one!")
    with torch.random.fork_rng():
        torch.manual_seed(TUNED.seed)
        start = Start(base=read_base(classifier), new_head=True)
        fresh = start.build(load_checkpoint(classifier).config)
    drawn, known = weights_of(fresh)["label.weight"], weights_of(load_checkpoint(classifier).model)["label.weight"]
    assert not torch.equal(drawn, known), "a new head, although its labels are the old ones"


def test_the_run_belongs_to_its_base(base, tmp_path):
    with pytest.raises(Interrupted):
        tune(base, tmp_path / "run", should_stop=after(2))
    other = tune(base, tmp_path / "other", config=ONE)
    with pytest.raises(TrainError, match="was started with other base: SHA-256"):
        tune(other, tmp_path / "run", resume=True)
    with pytest.raises(TrainError, match=r"was started with freeze=\[\] in its fine_tuning|freeze=None"):
        tune(base, tmp_path / "run", resume=True, tuning=FineTuning(freeze=("*norm*",)))
    model = load_checkpoint(base).config
    with pytest.raises(TrainError, match="was started with other base"):
        train(model, TUNED, data=REVERSED, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        (FineTuning(freeze=("no.*",)), r"freeze: 'no\.\*' matches no parameter"),
        (FineTuning(lora_rank=1, lora_targets=("no",)), "lora_targets: 'no' matches no linear layer"),
        (FineTuning(patience=1, stop_metric="f1"), "stop_metric: must be one of loss, bleu for this model, got f1"),
    ],
)
def test_a_run_that_cannot_start_leaves_nothing(base, tmp_path, tuning, message):
    with pytest.raises(ConfigError, match=message):
        tune(base, tmp_path / "run", tuning=tuning)
    assert not (tmp_path / "run").exists()


def test_a_base_that_does_not_fit_is_refused(base, tmp_path):
    start = Start(base=(loaded := read_base(base)))
    config = loaded.config
    with pytest.raises(
        ConfigError, match=r"from: .*encoder.blocks.0.feed_forward.inner.weight must have shape \(64, 16"
    ):
        start.build(config.replace(d_ff=64))
    with pytest.raises(ConfigError, match=r"from: .*the weight decoder\.blocks\.1\.\S+ is missing in it"):
        start.build(config.replace(num_decoder_layers=2))
    with pytest.raises(ConfigError, match="lora_rank: needs a base"):
        Start(tuning=LORA)
    with pytest.raises(CheckpointError, match="no such directory"):
        read_base(tmp_path / "nothing")


def test_a_tokenizer_for_a_base_must_be_its_own(base):
    loaded = read_base(base)
    Start(base=loaded, tokenizer=Tokenizer.load(base / "tokenizer.json"))
    other = Tokenizer.train(["z y x"], kind="words", vocab_size=40)
    with pytest.raises(TokenizerError, match=r"token 4 is b' x', that of the base is b' .*leave --tokenizer"):
        Start(base=loaded, tokenizer=other)
    longer = Tokenizer.train([text for text, _ in DATA.pairs] + ["zz"], kind="words", vocab_size=60)
    with pytest.raises(TokenizerError, match="must have at most the base's 30 entries, got 31"):
        Start(base=loaded, tokenizer=longer)
    values = json.loads((base / "tokenizer.json").read_text())
    removed = max(values["model"]["vocab"], key=values["model"]["vocab"].__getitem__)
    del values["model"]["vocab"][removed]
    with pytest.raises(TokenizerError, match="token 29 is b'', that of the base is b' "):
        Start(base=loaded, tokenizer=Tokenizer(values))


def test_a_given_tokenizer_is_used_from_scratch(tmp_path):
    tokenizer = Tokenizer.train([text for text, _ in DATA.pairs], kind="bpe", vocab_size=270)
    out = train(MODEL, TUNED, data=copy_examples(100, seed=2), out=tmp_path / "run", start=Start(tokenizer=tokenizer))
    assert load_checkpoint(out).tokenizer.to_json() == tokenizer.to_json()
    assert load_checkpoint(out).config.vocab_size == tokenizer.vocab_size
