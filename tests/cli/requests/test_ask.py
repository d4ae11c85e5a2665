"""Texts to a server: flags become options of decoding, answers and scores are printed."""

import dataclasses
import json
import math

import pytest

from cli.requests.ask import marked, show_alignment
from glossa.client.types import Alignment
from service.options import DecodingOptions
from tests.cli.command import ask, run
from tests.edge import RESULT, TOKENIZERS, answered

MARKED = [(0, 3), (8, 11)]


async def test_flags_become_options(edge, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "null"}')
    flags = ["--beam-size", 4, "--num-hypotheses", 2, "--length-penalty", 0.6, "--min-tokens", 2, "--max-tokens", 9]
    flags += ["--stop", ".", "--stop", "!", "--prefix", "zwei", "--bad-word", "black cat", "--repetition-penalty", 1.2]
    flags += ["--logprobs", "--top-logprobs", 3, "--no-repeat-ngram-size", 3, "--option", "early-stopping=never"]
    await ask(edge, "translate", "a cat", *flags, "--logit-bias", "5:-1", "--logit-bias", "6:2")
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
    assert "--num-hypotheses" in await ask(edge, "generate", "a cat", "--alternatives", fails=True)


async def test_options_that_are_none_are_refused_before_asking(edge, tmp_path):
    unknown = await ask(edge, "translate", "a cat", "--option", "beem-size=4", fails=True)
    assert unknown == "error: --option beem_size: unknown option; did you mean beam_size?\n"
    assert "top_k: must be a whole number, got 'x'" in await ask(
        edge, "translate", "a cat", "--option", "top_k=x", fails=True
    )
    twice = await ask(edge, "translate", "a cat", "--beam-size", 2, "--option", "beam_size=3", fails=True)
    assert "beam_size: is given by a flag of its own" in twice
    assert "nowhere.lark" in await ask(edge, "generate", "a", "--lark", tmp_path / "nowhere.lark", fails=True)
    assert "early_stopping must be one of" in await ask(
        edge, "translate", "a", "--option", "early_stopping=x", fails=True
    )
    assert edge.pool.requests == []
    refused = await ask(edge, "translate", "a cat", "--num-hypotheses", 2, fails=True)
    assert "--num-hypotheses: must be at most --beam-size 1, got 2; set --beam-size" in refused


async def test_answers_are_listed_with_their_scores(edge):
    tops = tuple(((token, -0.5), (4, -3.0)) for token in RESULT.tokens)
    second = dataclasses.replace(RESULT, text="zwei Häuser", score=-12.5, alternatives=tops)
    edge.pool.answer = answered(dataclasses.replace(RESULT, alternatives=tops), second)
    listed = await ask(edge, "translate", "a cat", "--beam-size", 2, "--num-hypotheses", 2)
    assert listed == " 1   -0.3750  zwei rote Häuser\n 2  -12.5000  zwei Häuser\n"
    lines = await ask(edge, "translate", "--beam-size", 2, "--num-hypotheses", 2, lines="a cat\n\na cat\n")
    assert lines == listed + "\n" + listed
    output = await ask(edge, "translate", "a cat", "--beam-size", 2, "--num-hypotheses", 2, "--top-logprobs", 2)
    assert len(output.splitlines()) == 2 + 2 * len(RESULT.tokens)
    assert output.splitlines()[1].split()[0] == "-0.5000"
    assert output.splitlines()[1].endswith("-3.0000")
    whole = json.loads(await ask(edge, "translate", "a cat", "--beam-size", 2, "--num-hypotheses", 2, "--json"))
    assert [hypothesis["score"] for hypothesis in whole["hypotheses"]] == [-0.375, -12.5]
    assert whole["text"] == "zwei rote Häuser"


async def test_the_seed_of_a_sampled_answer_is_shown(edge):
    assert (await ask(edge, "translate", "a cat", "--seed", 7)).endswith("seed 7\n")
    drawn = await ask(edge, "translate", "a cat", "--num-sequences", 2)
    assert drawn.endswith(f"seed {edge.pool.requests[-1].seed}\n")


def test_an_alignment_is_printed_as_words(capsys):
    hard = Alignment(source_spans=((0, 1), (1, 5), (5, 5)), target_spans=((0, 3), (3, 3)), positions=(1, 2))
    show_alignment(hard, "a cat", "cat")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["cat", "cat"], ["(end)", "(end)"]]
    soft = dataclasses.replace(hard, positions=(), rows=((0.25, 0.75, 0.0), (0.0, 0.0, 1.0)))
    show_alignment(soft, "a cat", "cat")
    assert capsys.readouterr().out.splitlines()[0].split() == ["cat", "cat", "0.75", "a", "0.25", "(end)", "0.00"]


async def test_targets_are_scored(edge):
    edge.pool.answer = answered(RESULT)
    arguments = ["score", "--model", "en-de"]
    output = await ask(
        edge, *arguments, "a cat", "zwei rote Häuser", "--length-penalty", 0.5, "--option", "top_logprobs=1"
    )
    assert [line.split() for line in output.splitlines()[:3]] == [
        ["score", "-0.3750"],
        ["cumulative_logprob", "-1.8750"],
        ["perplexity", "1.4550"],
    ]
    assert len(output.splitlines()) == 3 + len(RESULT.tokens)
    options = edge.pool.requests[0].options
    assert (options.length_penalty, options.top_logprobs) == (0.5, 1)
    assert json.loads(await ask(edge, *arguments, "a cat", "zwei", "--json"))["score"] == -0.375
    lines = await ask(edge, *arguments, "--open", lines="a cat\tzwei\na cat\trote\n")
    assert lines == "-0.3750\t-1.8750\t1.4550\n" * 2
    assert edge.pool.requests[-1].prefix[-1] != 2
    assert "give both TEXT and TARGET" in await ask(edge, *arguments, "a cat", fails=True)
    assert "line 1: expected 2 tab-separated" in await ask(edge, *arguments, lines="a cat\n", fails=True)
    assert "line 1: INVALID_ARGUMENT: target" in await ask(edge, *arguments, lines="a cat\tx\n", fails=True)


async def test_line_breaks_in_answers_are_escaped_so_that_lines_correspond(edge):
    edge.pool.answer = answered(dataclasses.replace(RESULT, text="zwei\nrote\r\nHäuser"))
    assert (
        await ask(edge, "translate", lines="a cat\n\na cat\n") == "zwei\\nrote\\r\\nHäuser\n\nzwei\\nrote\\r\\nHäuser\n"
    )
    assert json.loads(await ask(edge, "translate", "--json", lines="a cat\n"))["text"] == "zwei\nrote\r\nHäuser"
    assert "printed as \\n and \\r" in " ".join(run("generate", "--help").split())


async def test_uncertain_words_are_marked_and_the_confidence_is_printed(edge):
    edge.calibrate()
    tokens, logprobs = TOKENIZERS["translation"].encode(RESULT.text), map(math.log, (0.75, 0.5, 0.25, 0.9))
    sure = dataclasses.replace(RESULT, tokens=(*tokens, 2), token_logprobs=tuple(logprobs))
    edge.pool.answer = answered(sure)
    shown = "0.50  zwei rote [Häuser]\n"
    assert await ask(edge, "translate", "a cat", "--confidence") == shown
    assert await ask(edge, "translate", "--confidence", lines="a cat\n\na cat\n") == f"{shown}\n{shown}"
    certain = await ask(edge, "translate", "a cat", "--confidence", "--uncertain-below", 0)
    assert certain == "0.50  zwei rote Häuser\n"
    found = json.loads(await ask(edge, "translate", "a cat", "--confidence", "--json"))["confidence"]
    assert found["uncertain"] == [[10, 16]]
    edge.pool.answer = answered(sure, sure)
    several = await ask(edge, "translate", "a cat", "--confidence", "--beam-size", 2, "--num-hypotheses", 2)
    assert several == f" 1   -0.3750  {shown} 2   -0.3750  {shown}"


async def test_marks_are_printed_with_the_confidence_and_no_word_is_marked_as_uncertain(edge):
    """The places of uncertain words are those of the text without its marks."""
    edge.calibrate()
    tokens, logprobs = TOKENIZERS["translation"].encode(RESULT.text), map(math.log, (0.75, 0.5, 0.25, 0.9))
    sure = dataclasses.replace(RESULT, tokens=(*tokens, 2), token_logprobs=tuple(logprobs))
    edge.pool.answer = answered(sure)
    text, flags = "the <b>black</b> {x} house", ("--markup", "tags,placeholders")
    kept = await ask(edge, "translate", text, *flags)
    assert sorted(mark for mark in ("<b>", "</b>", "{x}") if mark in kept) == ["</b>", "<b>", "{x}"]
    assert await ask(edge, "translate", text, *flags, "--confidence") == f"0.50  {kept}"
    assert await ask(edge, "translate", *flags, "--confidence", lines=f"{text}\n") == f"0.50  {kept}"
    found = json.loads(await ask(edge, "translate", text, *flags, "--confidence", "--json"))
    assert [found["markup"]["plain_text"][slice(*span)] for span in found["confidence"]["uncertain"]] == ["Häuser"]
    assert await ask(edge, "translate", "a cat", *flags, "--confidence") == "0.50  zwei rote [Häuser]\n"
    edge.pool.answer = answered(sure, sure)
    several = await ask(edge, "translate", text, *flags, "--confidence", "--beam-size", 2, "--num-hypotheses", 2)
    assert several == f" 1   -0.3750  0.50  {kept} 2   -0.3750  0.50  {kept}"


async def test_what_confidence_needs_is_named(edge):
    refused = await ask(edge, "translate", "a cat", "--uncertain-below", 0.3, fails=True)
    assert refused == "error: --uncertain-below needs --confidence\n"
    assert "export it with --calibrate" in await ask(edge, "translate", "a cat", "--confidence", fails=True)


async def test_a_batch_answers_each_line_and_goes_on_after_one_that_fails(edge, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("a cat\n\nzebra\na cat\n\n")
    found = await ask(edge, "translate", "--batch", file, fails=True)
    lines = [line for line in found.splitlines() if not line.startswith(("line 3: ", "error: 1 of 5 lines"))]
    assert lines == ["zwei rote Häuser", "", "", "zwei rote Häuser", ""]
    assert "line 3: INVALID_ARGUMENT: text: the model's closed vocabulary does not know these words: zebra" in found
    assert len({request.request_id.partition("/")[0] for request in edge.pool.requests}) == 1, "one call"


async def test_a_batch_of_standard_input_as_json(edge):
    found = await ask(
        edge, "translate", "--batch", "-", "--json", "--max-tokens", 9, lines="a cat\nzebra\n", fails=True
    )
    answer, error = [json.loads(line) for line in found.splitlines()[:2]]
    assert answer["text"] == "zwei rote Häuser"
    assert (error["line"], error["error"]["code"], error["error"]["reason"]) == (2, "INVALID_ARGUMENT", "INVALID_FIELD")
    assert await ask(edge, "translate", "--batch", "-", lines="a cat\n") == "zwei rote Häuser\n"
    assert await ask(edge, "translate", "--batch", "-", lines="") == ""


async def test_a_batch_needs_a_file_and_no_text(edge, tmp_path):
    assert "give one of TEXT, --document FILE and --batch FILE" in await ask(
        edge, "translate", "a", "--batch", "-", fails=True
    )
    assert "nowhere.txt" in await ask(edge, "translate", "--batch", tmp_path / "nowhere.txt", fails=True)
    assert "is not served here" in await ask(
        edge, "translate", "--batch", "-", "--model", "xx", lines="a cat\n", fails=True
    )


async def test_marks_and_terms_are_asked_for(edge, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("house\tSchloss|Haus\tignore_case\n")
    printed = await ask(
        edge, "translate", "a <b>black</b> {x} house", "--markup", "tags,placeholders", "--glossary", terms
    )
    shown = printed.splitlines()
    assert shown[0].replace("<b>", "").replace("</b>", "").replace("{x} ", "") == "zwei rote Häuser"
    assert shown[1] == "terms without their translation: house"
    (request,) = edge.pool.requests
    assert len(request.source) == 4
    assert "--markup: must be some of tags,placeholders,urls,numbers, got 'x'" in await ask(
        edge, "translate", "a cat", "--markup", "tags,x", fails=True
    )
    assert "glossary.name: no glossary 'estate'" in await ask(
        edge, "translate", "a cat", "--glossary", "estate", fails=True
    )
    terms.write_text("house\n")
    assert "line 1: must be SOURCE" in await ask(edge, "translate", "a cat", "--glossary", terms, fails=True)
    assert "nowhere.tsv" in await ask(edge, "translate", "a cat", "--glossary", tmp_path / "nowhere.tsv", fails=True)


def test_words_are_in_brackets_outside_a_terminal():
    assert marked("das ist gut", MARKED, in_terminal=False) == "[das] ist [gut]"
    assert marked("das ist gut", MARKED) == "[das] ist [gut]", "standard output of a test is no terminal"
    assert marked("das ist gut", []) == "das ist gut"


def test_a_terminal_underlines_them():
    shown = marked("das ist gut", [(4, 7)], in_terminal=True)
    assert shown == "das \x1b[33m\x1b[4mist\x1b[0m gut"


@pytest.mark.parametrize("text", ["", "a"])
def test_a_text_without_marks_stays(text):
    assert marked(text, [], in_terminal=True) == text
