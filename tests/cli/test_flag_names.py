"""Errors name the flag that gave a value, as it was typed, or the file that gave a field."""

import pytest

from cli.flag_names import Flags, flags_of, with_flags_named
from tests.cli.command import ask, run

FILES = {
    "bad.yaml": "preset: tiny-copy\ntrain: {batch_tokens: 0}\n",
    "unknown.yaml": "preset: tiny-copy\nmodel: {nope: 1}\n",
    "rate.yaml": "train: {learning_rate: -1}\n",
    "pairs.tsv": "a b\ta b\nx y\tx y\n",
}
TRAIN = ("train", "tiny-copy", "--out", "OUT")
CONTINUE = ("train", "--from", "CHECKPOINT", "--out", "OUT")
EXPORT = ("export", "CHECKPOINT", "OUT")
EVAL = ("eval", "BUNDLE", "--data", "pairs.tsv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TRAIN, "--steps", 0), "error: --steps: must be above 0, got 0"),
        ((*TRAIN, "--minutes", 0), "error: --minutes: must be above 0, got 0.0"),
        ((*TRAIN, "--minutes", "nan"), "error: --minutes: must be above 0, got nan"),
        ((*TRAIN, "--minutes", 1, "--steps", 3), "error: --steps and --minutes: give one of them"),
        ((*TRAIN, "--learning-rate", 0), "error: --learning-rate: must be above 0, got 0.0"),
        ((*TRAIN, "--layer-decay", 3), "error: --layer-decay: must be 0.01..1.0, got 3.0"),
        ((*TRAIN, "--patience", -1), "error: --patience: must be at least 0, got -1"),
        ((*TRAIN, "--stop-metric", "bleu"), "error: --stop-metric: bleu needs --patience of at least 1"),
        ((*TRAIN, "--patience", 2, "--stop-metric", "f1"), "error: --stop-metric: must be one of loss, bleu for this"),
        ((*TRAIN, "--keep-adapter"), "error: --keep-adapter: needs updates to keep; give --lora-rank"),
        ((*TRAIN, "--freeze", "no.*"), "error: --freeze: 'no.*' matches no parameter"),
        ((*TRAIN, "--source-language", "a b"), "error: --source-language: must be"),
        ((*TRAIN, "--data", "nowhere.tsv"), "error: --data nowhere.tsv: no such file; check the path"),
        ((*TRAIN, "--tokenizer", "pairs.tsv"), "error: --tokenizer pairs.tsv: not a SentencePiece model"),
        ((*CONTINUE, "--head", "classify"), "error: --head: goes with an encoder alone"),
        (("train", "--from", "nowhere", "--out", "OUT"), "error: --from nowhere: no such directory"),
        (("train", "bad.yaml", "--out", "OUT"), "error: bad.yaml: batch_tokens: must be at least 1, got 0"),
        (("train", "bad.yaml", "--out", "OUT", "--steps", 5), "error: bad.yaml: batch_tokens: must be at least 1"),
        (("train", "unknown.yaml", "--out", "OUT"), "error: unknown.yaml: nope: unknown key"),
        ((*CONTINUE, "rate.yaml"), "error: rate.yaml: learning_rate: must be above 0, got -1"),
        ((*EXPORT, "--precision", "fp32,fp32"), "error: --precision: must be one or several different ones"),
        ((*EXPORT, "--precision", "int8", "--scheme", "w9"), "error: --scheme: must be auto, w8a8-dynamic or"),
        ((*EXPORT, "--development", "nowhere.tsv"), "error: --development nowhere.tsv: cannot be read"),
        (("verify", "BUNDLE", "--checkpoint", "nowhere"), "error: --checkpoint nowhere: no such directory"),
        pytest.param(
            (*EVAL, "--beam-size", 0),
            "INVALID_ARGUMENT: --beam-size: must be 1..32, got 0",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("distill", *EVAL[1:], "--out", "OUT", "--beam", 99),
            "source 1: INVALID_ARGUMENT: --beam: must be 1..32",
            marks=pytest.mark.slow,
        ),
        (("serve", "m=BUNDLE", "--tls-key", "x"), "error: settings: tls_certificate must be given with --tls-key"),
        (("bench", "--concurrency", 1, "--input", "nowhere"), "error: --input nowhere: No such file or directory"),
    ],
)
def test_errors_name_flags_and_files(arguments, message, trained, trained_bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    places = {"CHECKPOINT": str(trained), "BUNDLE": str(trained_bundle), "OUT": "out"}
    words = [places.get(word, str(word).replace("=BUNDLE", f"={trained_bundle}")) for word in map(str, arguments)]
    assert message in run(*words, fails=True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--beam-size", 99), "INVALID_ARGUMENT: --beam-size: must be 1..32, got 99"),
        (("--option", "beam-size=99"), "INVALID_ARGUMENT: --option beam_size: must be 1..32, got 99"),
        (("--max-tokens", 9999), "INVALID_ARGUMENT: --max-tokens: must be"),
        (("--length-penalty", 0.5), "INVALID_ARGUMENT: --length-penalty: must be left out without --beam-size"),
        (("--source-language", "xx"), "INVALID_ARGUMENT: --source-language: must be left out"),
        (("--model", "zz"), "NOT_FOUND: --model 'zz' is not served here"),
    ],
)
async def test_answers_of_a_server_do_too(flags, message, edge):
    assert message in await ask(edge, "translate", *flags, "a cat", fails=True)


def test_other_messages_stay():
    flags = Flags({"data": "--data", "steps": "--steps", "lora_rank": "--lora-rank"}, {"data": ["a.tsv"], "steps": 1})
    for message in ("out: exists", "a.tsv:3: the target is empty", "5 steps: too few", "the text has 3 lora_rank"):
        with flags_of(flags):
            assert with_flags_named(message) == message
    assert with_flags_named("steps: must be 1") == "steps: must be 1", "outside of a verb"
    with flags_of(flags):
        assert with_flags_named("lora_rank: must be 1") == "--lora-rank: must be 1"
    with flags_of(Flags(flags.names, flags.values, may_be_of_file=True)):
        assert with_flags_named("lora_rank: must be 1") == "lora_rank: must be 1"
        assert with_flags_named("line 2: steps[3]: must be 1") == "line 2: --steps[3]: must be 1"
