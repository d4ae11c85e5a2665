import json
import re

import pytest

from cli.options_file import merged, read_options, refuse_moved
from cli.terminal import UsageError
from service.options import OPTIONS
from tests.cli.command import run

EXAMPLES = {"int": 2, "float": 0.5, "bool": True, "str": "a", "tuple[str, ...]": ["a"], "tuple[int, ...]": [5]}
CHOICES = {"LengthNormalization": "gnmt", "EarlyStopping": "never", "AlignmentKind": "soft"}


@pytest.fixture
def read(tmp_path):
    def written(text):
        file = tmp_path / "options"
        file.write_text(text, encoding="utf-8")
        return read_options(str(file))

    return written


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_can_stand_in_a_file(read, name):
    kind = OPTIONS[name].type.removesuffix(" | None")
    value = {5: -1.5} if kind.startswith("Mapping") else {**EXAMPLES, **CHOICES}[kind]
    expected = tuple(value) if isinstance(value, list) else value
    assert read(json.dumps({name: value})) == {name: expected}


def test_yaml_is_read_too(read):
    assert read("beam_size: 4\nearly_stopping: false\nstop:\n- END\nlogit_bias: {7: 2}\n") == {
        "beam_size": 4,
        "early_stopping": "false",
        "stop": ("END",),
        "logit_bias": {7: 2.0},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("length_penalti: 1", "length_penalti: unknown option; did you mean length_penalty?"),
        ("zzz: 1", "zzz: unknown option; known: alignment, "),
        ("7: 1", "7: unknown option; known: "),
        ("beam_size: four", 'beam_size: must be a whole number, got "four"'),
        ("beam_size: 4.0", "beam_size: must be a whole number, got 4.0"),
        ("beam_size: true", "beam_size: must be a whole number, got true"),
        ("beam_size:", "beam_size: must be a whole number, got null"),
        ("temperature: hot", 'temperature: must be a number, got "hot"'),
        ("echo: 1", "echo: must be true or false, got 1"),
        ("prefix: 3", "prefix: must be text, got 3"),
        ("stop: END", 'stop: must be a list of texts, got "END"'),
        ("allowed_tokens: [5, a]", 'allowed_tokens: must be a list of whole numbers, got [5, "a"]'),
        ("logit_bias: [5]", "logit_bias: must be a mapping of tokens to biases, such as {5: -1.5}, got [5]"),
        ("logit_bias: {a: 1}", "logit_bias: must be a mapping of tokens to biases"),
        ("beam_size: 33", "beam_size: must be 1..32, got 33"),
        ("top_p: .nan", "top_p: must be above 0 and at most 1, got nan"),
        ("logit_bias: {5: 1000}", "logit_bias[5]: must be -100..100, got 1000"),
        ("early_stopping: perhaps", "early_stopping: must be one of true, false, never, got perhaps"),
        ("[beam_size]", 'must be a mapping of options, such as {"beam_size": 4}; got ["beam_size"]'),
        ("", 'must be a mapping of options, such as {"beam_size": 4}; got nothing'),
        ("{beam_size: 4", "not readable as JSON or YAML: "),
        ("beam_size: 2026-13-01", "not readable as JSON or YAML: "),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_a_hint(read, text, message):
    with pytest.raises(UsageError, match=r"^--options .*options: " + re.escape(message)) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_rules_between_options_are_left_to_the_server(read):
    """The beam's size may be a flag."""
    assert read("length_penalty: 0.6\nnum_hypotheses: 4") == {"length_penalty": 0.6, "num_hypotheses": 4}


def test_an_option_is_given_once():
    assert merged({"top_k": 5}, {"beam_size": 4, "model": "m"}) == {"top_k": 5, "beam_size": 4, "model": "m"}
    with pytest.raises(UsageError, match=r"^--options: beam_size: is given by a flag of its own, too"):
        merged({"beam_size": 4}, {"beam_size": 4})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--length-penalty 0.6", '--length-penalty moved to --options FILE: {"length_penalty": 0.6}'),
        ("--length-penalty=0.6 x", '--length-penalty moved to --options FILE: {"length_penalty": 0.6}'),
        ("--logprobs --top-k 5", '--logprobs, --top-k moved to --options FILE: {"token_logprobs": true, "top_k": 5}'),
        ("--stop a --stop b", '--stop moved to --options FILE: {"stop": ["a", "b"]}'),
        ("--logit-bias 5:-1", '--logit-bias moved to --options FILE: {"logit_bias": {"5": -1.0}}'),
        ("--option top_k=5 --option seed=1", '--option moved to --options FILE: {"top_k": 5, "seed": 1}'),
        ("--lark a.txt", '--lark moved to --options FILE: {"lark": "the text of a.txt"}'),
        ("--top-k five", '--top-k moved to --options FILE: {"beam_size": 4}'),
        ("--top-k", '--top-k moved to --options FILE: {"beam_size": 4}'),
    ],
)
def test_a_flag_that_moved_names_the_content_of_the_file(arguments, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        refuse_moved(arguments.split(), {"--beam", "--options"})


def test_flags_of_the_verb_and_what_follows_two_dashes_did_not_move():
    refuse_moved(["--beam", "4", "--max-tokens=5", "a", "--", "--top-k"], {"--beam", "--max-tokens"})


@pytest.mark.parametrize("verb", [("eval", "a"), ("distill", "a", "--data", "b", "--out", "c"), ("bench",)])
def test_verbs_with_a_file_of_options_refuse_their_flags(verb):
    refused = run(*verb, "--top-k", 5, fails=True)
    assert refused == 'error: --top-k moved to --options FILE: {"top_k": 5}\n'
