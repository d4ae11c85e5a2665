"""The command as its users meet it: the whole path on a toy task, and one clear line for what cannot be done."""

import asyncio
import dataclasses
import json
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import cli.local_server
import cli.main
from glossa.client.types import Alignment
from service.options import DecodingOptions
from tests.edge import RESULT, answered, running

PAIRS = [("a b c", "a b c"), ("x y", "x y")]


def run(*arguments, fails=False):
    result = CliRunner().invoke(cli.main.app, [str(argument) for argument in arguments])
    assert result.exit_code == (1 if fails else 0), result.output
    return result.output


def refusal_to_serve(*arguments):
    """What `glossa serve` says when it does not start; in a process of its own, as it takes over signals and stderr."""
    command = [sys.executable, "-m", "cli.main", "serve", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1, result
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "checkpoint"
    run("train", "tiny-copy", "--steps", 3, "--out", out)
    return out


@pytest.fixture(scope="module")
def exported(trained):
    out = trained.parent / "bundle"
    assert "passed" in run("export", trained, out)
    return out


@pytest.fixture
def test_set(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    return path


def test_the_whole_path_from_training_to_a_served_bundle(trained, exported, test_set):
    assert json.loads(run("verify", exported, "--checkpoint", trained, "--json"))["passed"]
    in_torch = json.loads(run("eval", trained, "--data", test_set, "--json"))
    served = json.loads(run("eval", exported, "--data", test_set, "--json"))
    assert served["BLEU"] == in_torch["BLEU"]
    assert served["sentences"] == len(PAIRS)
    assert served["signature"].startswith("nrefs:1|case:mixed")
    assert json.loads(run("eval", exported, "--data", test_set, "--beam", 2, "--json"))["sentences"] == len(PAIRS)
    assert "export it to use --beam" in run("eval", trained, "--data", test_set, "--beam", 2, fails=True)


def test_a_directory_of_transformers_becomes_a_checkpoint(tmp_path):
    from tests.decoders import make_decoder
    from tests.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    make_decoder("llama", vocab_size=tokenizer.vocab_size).save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs" / "tokenizer.json")
    figures = json.loads(run("import", tmp_path / "theirs", tmp_path / "ours", "--max-length", 100, "--json"))
    expected = {"model_type": "llama", "context": "100 of 160", "begins": [], "ends": [2]}
    assert figures == {**figures, **expected, "vocabulary": tokenizer.vocab_size}
    assert (tmp_path / "ours" / "digests.json").exists()
    assert "already holds" in run("import", tmp_path / "theirs", tmp_path / "ours", fails=True)
    assert "no such directory" in run("import", tmp_path / "nowhere", tmp_path / "others", fails=True)


def test_a_running_server_translates_from_the_command_line(exported):
    with cli.local_server.serving(exported) as (address, ops):
        before = cli.main.counters(cli.local_server.fetch(f"{ops}/metrics"))
        streamed = run("translate", "a b c", "--address", address)
        whole = json.loads(run("translate", "a b c", "--address", address, "--json"))
        lines = CliRunner().invoke(cli.main.app, ["translate", "--address", address], input="a b c\n\na b c\n").output
        after = cli.main.counters(cli.local_server.fetch(f"{ops}/metrics"))
        refused = run("translate", "a", "--address", address, "--model", "nobody", fails=True)
        unknown = run("translate", "a zebra", "--address", address, fails=True)
        wrong_task = run("generate", "a", "--address", address, fails=True)
        assert cli.local_server.is_ready(ops)
    assert not cli.local_server.is_ready(ops)
    assert streamed.rstrip("\n") == whole["text"]
    assert lines == whole["text"] + "\n\n" + whole["text"] + "\n"
    assert (
        after["glossa_generated_tokens_total"]
        == before["glossa_generated_tokens_total"] + 4 * whole["generated_tokens"]
    )
    assert "NOT_FOUND" in refused
    assert "nobody" in refused
    assert "zebra" in unknown
    assert "FAILED_PRECONDITION" in wrong_task


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


async def ask(edge, *arguments, fails=False, lines=None):
    """What the command prints, standard error included, when it talks to a server without engines."""
    command = [*map(str, arguments), "--address", edge.address]
    result = await asyncio.to_thread(CliRunner().invoke, cli.main.app, command, input=lines)
    assert result.exit_code == (1 if fails else 0), result.output
    return result.output


async def test_flags_become_options(edge, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "null"}')
    flags = ["--beam-size", 4, "--num-hypotheses", 2, "--length-penalty", 0.6, "--min-tokens", 2, "--max-tokens", 9]
    flags += ["--stop", ".", "--stop", "!", "--prefix", "zwei", "--ban", "black cat", "--repetition-penalty", 1.2]
    flags += ["--logprobs", "--top-logprobs", 3, "--no-repeat-ngram-size", 3, "--option", "early-stopping=never"]
    await ask(edge, "translate", "a cat", *flags, "--option", "logit_bias=5:-1,6:2")
    assert edge.pool.requests[0].options == DecodingOptions(
        beam_size=4,
        num_hypotheses=2,
        length_penalty=0.6,
        min_tokens=2,
        max_tokens=9,
        stop=(".", "!"),
        prefix="zwei",
        bad_words=("black cat",),
        repetition_penalty=1.2,
        token_logprobs=True,
        top_logprobs=3,
        no_repeat_ngram_size=3,
        early_stopping="never",
        logit_bias={5: -1.0, 6: 2.0},
    )
    flags = ["--temperature", 0.5, "--top-k", 5, "--top-p", 0.9, "--min-p", 0.1, "--seed", 7, "--num-sequences", 2]
    await ask(edge, "generate", "a cat", *flags, "--json-schema", schema)
    assert edge.pools["en"].requests[0].options == DecodingOptions(
        temperature=0.5, top_k=5, top_p=0.9, min_p=0.1, seed=7, num_sequences=2, json_schema='{"type": "null"}'
    )
    await ask(edge, "generate", "a cat", "--alternatives", "--num-hypotheses", "2", "--regex", "a|b")
    assert edge.pools["en"].requests[1].options == DecodingOptions(
        return_alternatives=True, num_hypotheses=2, regex="a|b"
    )
    assert "options.num_hypotheses" in await ask(edge, "generate", "a cat", "--alternatives", fails=True)


async def test_options_that_are_none_are_refused_before_asking(edge, tmp_path):
    unknown = await ask(edge, "translate", "a cat", "--option", "beem-size=4", fails=True)
    assert unknown == "error: --option beem_size: unknown option; did you mean beam_size?\n"
    assert "cannot take 'x'" in await ask(edge, "translate", "a cat", "--option", "top_k=x", fails=True)
    twice = await ask(edge, "translate", "a cat", "--beam-size", 2, "--option", "beam_size=3", fails=True)
    assert "beam_size: is given by a flag of its own" in twice
    assert "nowhere.lark" in await ask(edge, "generate", "a", "--lark", tmp_path / "nowhere.lark", fails=True)
    assert "early_stopping must be one of" in await ask(
        edge, "translate", "a", "--option", "early_stopping=x", fails=True
    )
    assert edge.pool.requests == []
    refused = await ask(edge, "translate", "a cat", "--num-hypotheses", 2, fails=True)
    assert "options.num_hypotheses: must be at most beam_size 1, got 2; set beam_size" in refused


async def test_answers_are_listed_with_their_scores(edge):
    tops = tuple(((token, -0.5), (4, -3.0)) for token in RESULT.tokens)
    second = dataclasses.replace(RESULT, text="zwei Häuser", score=-12.5, alternatives=tops)
    edge.pool.answer = answered(dataclasses.replace(RESULT, alternatives=tops), second)
    listed = await ask(edge, "translate", "a cat", "--beam-size", 2, "--num-hypotheses", 2)
    assert listed == " 1   -0.3750  zwei rote Häuser\n 2  -12.5000  zwei Häuser\n"
    lines = await ask(edge, "translate", "--beam-size", 2, "--num-hypotheses", 2, lines="a cat\n\na cat\n")
    assert lines == listed + "\n" + listed
    told = await ask(edge, "translate", "a cat", "--beam-size", 2, "--num-hypotheses", 2, "--top-logprobs", 2)
    assert len(told.splitlines()) == 2 + 2 * len(RESULT.tokens)
    assert told.splitlines()[1].split()[0] == "-0.5000"
    assert told.splitlines()[1].endswith("-3.0000")
    whole = json.loads(await ask(edge, "translate", "a cat", "--beam-size", 2, "--num-hypotheses", 2, "--json"))
    assert [hypothesis["score"] for hypothesis in whole["hypotheses"]] == [-0.375, -12.5]
    assert whole["text"] == "zwei rote Häuser"


async def test_the_seed_of_a_sampled_answer_is_shown(edge):
    assert (await ask(edge, "translate", "a cat", "--seed", 7)).endswith("seed 7\n")
    drawn = await ask(edge, "translate", "a cat", "--num-sequences", 2)
    assert drawn.endswith(f"seed {edge.pool.requests[-1].seed}\n")


def test_an_alignment_is_shown_as_words(capsys):
    hard = Alignment(source_spans=((0, 1), (1, 5), (5, 5)), target_spans=((0, 3), (3, 3)), positions=(1, 2))
    cli.main.show_alignment(hard, "a cat", "cat")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["cat", "cat"], ["(end)", "(end)"]]
    soft = dataclasses.replace(hard, positions=(), rows=((0.25, 0.75, 0.0), (0.0, 0.0, 1.0)))
    cli.main.show_alignment(soft, "a cat", "cat")
    assert capsys.readouterr().out.splitlines()[0].split() == ["cat", "cat", "0.75", "a", "0.25", "(end)", "0.00"]


async def test_targets_are_scored(edge):
    edge.pool.answer = answered(RESULT)
    arguments = ["score", "--model", "en-de"]
    told = await ask(edge, *arguments, "a cat", "zwei rote Häuser", "--option", "length_penalty=0.5")
    assert [line.split() for line in told.splitlines()[:3]] == [
        ["score", "-0.3750"],
        ["cumulative_logprob", "-1.8750"],
        ["perplexity", "1.4550"],
    ]
    assert len(told.splitlines()) == 3 + len(RESULT.tokens)
    assert edge.pool.requests[0].options.length_penalty == 0.5
    assert json.loads(await ask(edge, *arguments, "a cat", "zwei", "--json"))["score"] == -0.375
    lines = await ask(edge, *arguments, "--open", lines="a cat\tzwei\na cat\trote\n")
    assert lines == "-0.3750\t-1.8750\t1.4550\n" * 2
    assert edge.pool.requests[-1].prefix[-1] != 2
    assert "give both TEXT and TARGET" in await ask(edge, *arguments, "a cat", fails=True)
    assert "line 1: expected 2 tab-separated" in await ask(edge, *arguments, lines="a cat\n", fails=True)
    assert "line 1: INVALID_ARGUMENT: target" in await ask(edge, *arguments, lines="a cat\tx\n", fails=True)


def test_a_finished_run_is_not_written_over(trained):
    assert "choose another directory" in run("train", "tiny-copy", "--steps", 3, "--out", trained, fails=True)


def test_an_unknown_preset_is_answered_with_the_closest_one(tmp_path):
    assert "did you mean 'tatoeba-small'" in run("train", "tatoeba-smal", "--out", tmp_path / "x", fails=True)


def test_a_broken_line_of_a_tsv_is_named(tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("one\tein\nbroken\n")
    said = run("train", "tatoeba-small", "--data", data, "--out", tmp_path / "x", fails=True)
    assert f"{data}:2: expected 2 tab-separated fields, got 1" in said
    assert not (tmp_path / "x").exists()


def test_arguments_that_do_not_fit_together_are_refused(tmp_path, test_set):
    assert "--source and --target" in run("train", "tatoeba-small", "--out", tmp_path / "x", fails=True)
    alone = run("train", "tatoeba-small", "--source", test_set, "--out", tmp_path / "x", fails=True)
    assert "--source and --target" in alone
    assert "--source and --reference" in run("eval", tmp_path, fails=True)


def test_a_checkpoint_cut_short_is_not_exported(trained, tmp_path):
    cut = tmp_path / "cut"
    cut.mkdir()
    for file in trained.iterdir():
        if file.is_file():
            data = file.read_bytes()
            (cut / file.name).write_bytes(data[:-10] if file.name == "model.safetensors" else data)
    assert "model.safetensors" in run("export", cut, tmp_path / "bundle", fails=True)
    assert not (tmp_path / "bundle").exists()


def test_a_quantised_bundle_says_what_its_form_was_measured_to_lose(trained, tmp_path):
    out = tmp_path / "bundle"
    report = json.loads(
        run("export", trained, out, "--precision", "int8", "--scheme", "w8a8-dynamic", "--max-loss", 100, "--json")
    )
    assert report["passed"]
    told = report["quantized"]["int8"]
    assert told["quantization"]["scheme"] == "w8a8-dynamic"
    assert [(figures["scheme"], figures["chosen"]) for figures in told["comparison"]] == [
        ("fp32", False),
        ("w8a8-dynamic", True),
    ]
    assert sorted(path.name for path in out.iterdir()) == ["int8", "manifest.json", "tokenizer.json"]
    shown = run("verify", out)
    assert "int8: row, 8-bit weights" in " ".join(shown.split())


def test_forms_that_do_not_fit_are_refused(trained, tmp_path):
    out = tmp_path / "bundle"
    assert "must be of fp32, fp16, int8, int4" in run("export", trained, out, "--precision", "int2", fails=True)
    refusal = run("export", trained, out, "--precision", "fp32", "--scheme", "w8a8-static", fails=True)
    assert "static is one of int8, which is not among the precisions fp32" in refusal
    assert "scheme: must be auto, w8a8-dynamic or" in run(
        "export", trained, out, "--precision", "int8", "--scheme", "x", fails=True
    )
    assert "different ones, got int8, int8" in run("export", trained, out, "--precision", "int8,int8", fails=True)


def test_a_server_that_cannot_start_says_why(exported, tmp_path):
    anywhere = ("--port", 0, "--http-port", 0)
    assert "did you mean port" in refusal_to_serve(f"m={exported}", "--prt", "1")
    assert "NAME=BUNDLE" in refusal_to_serve(exported)
    assert "manifest.json" in refusal_to_serve(f"m={tmp_path}", *anywhere)
    assert "cuda" in refusal_to_serve(f"m={exported}", *anywhere, "--device", "cuda")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refusal_to_serve(f"m={exported}", "--port", port, "--http-port", 0)


def test_every_setting_is_listed():
    listed = run("serve", "--settings")
    assert "--kv-cache-bytes" in listed
    assert "--drain-delay-s" in listed


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["a=b"], {"models": ["a=b"]}),
        (["a=b", "--port", "1", "c=d"], {"models": ["a=b", "c=d"], "port": "1"}),
        (["--max-queue=7"], {"max_queue": "7"}),
        (["--no-reflection", "--log-text"], {"reflection": False, "log_text": True}),
        (
            ["--no-reflection", "a=b", "--log-text", "c=d"],
            {"models": ["a=b", "c=d"], "reflection": False, "log_text": True},
        ),
    ],
)
def test_setting_flags(arguments, flags):
    assert cli.main.setting_flags(arguments) == flags


def test_doctor_finds_a_bad_bundle(exported, tmp_path):
    assert str(exported) in run("doctor", exported)
    assert "fix:" in run("doctor", tmp_path, fails=True)


def test_healthcheck_of_a_port_nobody_listens_on():
    assert "no ready server" in run("healthcheck", "--http-port", cli.local_server.free_port(), fails=True)
