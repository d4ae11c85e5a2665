import contextlib
import itertools
import json
import random
import re
import string
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokenizer import Tokenizer
from service.decoding.grammar import MAX_NODES, MAX_PATTERN_PROPERTIES, MAX_PATTERNS, Grammar, _shortened
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest, Unsatisfiable
from service.options import MAX_GRAMMAR_BYTES, MAX_WIDTH, GrammarKind
from tests.grammars import near_valid

TEXTS = [
    "the old tree",
    "a small red house.",
    "two trees, 12 houses",
    "größer als Größe",
    "日本語の本",
    '{"name":"tree"}',
]
TOKENIZERS = {
    "bpe": Tokenizer.train(TEXTS * 3, kind="bpe", vocab_size=330),
    "words": Tokenizer.train(TEXTS[:3], kind="words", vocab_size=60),
}
VOCABULARIES = {kind: Vocabulary.of(tokenizer, eos_ids=(2,)) for kind, tokenizer in TOKENIZERS.items()}
BPE, WORDS = VOCABULARIES["bpe"], VOCABULARIES["words"]
EOS = 2
BOTH = pytest.mark.parametrize("kind", VOCABULARIES)
INSTANT = settings(max_examples=40)


def possible(grammar, state, size):
    scores_V = np.zeros(size, np.float32)
    if grammar.applies(state, ()):
        grammar.apply(scores_V, state, ())
    assert set(scores_V.tolist()) <= {0.0, -np.inf}
    return np.flatnonzero(scores_V == 0).tolist()


def walk(grammar, vocabulary, rng, most=60):
    """A random answer's tokens. Its text is complete if the last one is the end token."""
    state, tokens = grammar.initial_state(), list[int]()
    while len(tokens) < most and EOS not in tokens:
        choices = possible(grammar, state, len(vocabulary))
        if not choices:
            break
        assert not {0, 1, 3} & set(choices)  # no special token but the end
        tokens.append(EOS if EOS in choices and rng.random() < 0.3 else rng.choice(choices))
        state = grammar.next_state(state, tokens[-1])
    return tokens


def written(vocabulary, tokens):
    text = b"".join(vocabulary.pieces[token] for token in tokens)
    return text.removeprefix(b" ") if vocabulary.strips_leading_space else text


def answers(grammar, kind, seeds=range(30)):
    """Texts of random answers that came to their end."""
    found = []
    for seed in seeds:
        tokens = walk(grammar, VOCABULARIES[kind], random.Random(seed))
        if tokens[-1:] == [EOS]:
            found.append(TOKENIZERS[kind].decode(tokens))
    assert found
    return found


# ---- what is allowed


words = st.text("theold räs.", min_size=1, max_size=8) | st.sampled_from(
    ["the old tree", "a house", "日本", "two trees"]
)


@BOTH
@given(texts=st.lists(words, min_size=1, max_size=4), seed=st.integers(0, 99))
@INSTANT
def test_a_token_is_allowed_if_and_only_if_some_match_continues_with_it(kind, texts, seed):
    vocabulary, rng = VOCABULARIES[kind], random.Random(seed)
    try:
        grammar = Grammar("regex", "|".join(map(re.escape, texts)), vocabulary)
    except InvalidRequest:
        grammar = None
    tokens, whole = list[int](), [text.encode() for text in texts]
    state: Any = grammar.initial_state() if grammar else None
    while True:
        here = written(vocabulary, tokens)
        expected = [
            token
            for token in range(len(vocabulary))
            if (text := written(vocabulary, [*tokens, token])) != here and any(t.startswith(text) for t in whole)
        ]
        expected = sorted([*expected, EOS]) if here in whole else expected
        if grammar is None:
            assert not expected
            return
        choices = possible(grammar, state, len(vocabulary))
        assert choices == expected, (texts, here)
        if not (choices := [token for token in choices if token != EOS]):
            return
        tokens.append(rng.choice(choices))
        state = grammar.next_state(state, tokens[-1])


@BOTH
@pytest.mark.parametrize(
    "regex",
    [
        r"[a-z]{1,9}( [a-z]{2,7}){0,3}\.?",
        r"(?i)THE (old|small) (tree|house)s?",
        r"[a-zA-Z]+(, [0-9a-z]+)*",
        r"[0-9]{2,4}|two|a",
        r"^the .{3,12}$",
        r"(?s:.{0,9})",
    ],
)
def test_answers_match_the_whole_regular_expression(kind, regex):
    for text in answers(Grammar("regex", regex, VOCABULARIES[kind]), kind):
        assert re.fullmatch(regex, text), text


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["tree", "house", 7, None]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 30}, "maxItems": 2},
        "is_old": {"type": "boolean"},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}


def check_schema(value):
    assert set(value) <= set(SCHEMA["properties"])
    assert set(value) >= set(SCHEMA["required"])
    assert len(value["name"]) <= 6
    assert value["kind"] in ["tree", "house", 7, None]
    assert len(value["sizes"]) <= 2
    assert all(type(size) is int and 0 <= size <= 30 for size in value["sizes"])
    assert isinstance(value.get("is_old", True), bool)


def test_answers_follow_the_schema_and_hold_no_blank_between_their_parts():
    grammar = Grammar("json_schema", json.dumps(SCHEMA), BPE)
    for text in answers(grammar, "bpe", range(60)):
        check_schema(json.loads(text))
        assert not re.search(r'[\s](?=(?:[^"]|"(?:[^"\\]|\\.)*")*$)', text), text


def test_what_a_schema_bounds_is_bounded():
    """A model that wants to go on for ever comes to the end: nothing can be put between the parts."""
    grammar = Grammar("json_schema", json.dumps(SCHEMA), BPE)
    state, tokens = grammar.initial_state(), list[int]()
    while EOS not in tokens:
        choices = possible(grammar, state, len(BPE))
        tokens.append(max(choices, key=lambda token: (token != EOS, -len(BPE.pieces[token]), token)))
        state = grammar.next_state(state, tokens[-1])
        assert len(tokens) < 150


def test_a_schema_cannot_loosen_how_json_is_written():
    schema = {"type": "array", "minItems": 2, "maxItems": 2, "items": {"const": 1}}
    schema["x-guidance"] = {"item_separator": " ; ", "whitespace_flexible": True}
    assert set(answers(Grammar("json_schema", json.dumps(schema), BPE), "bpe")) == {"[1,1]"}


def test_answers_follow_a_lark_grammar():
    text = """
        start: sum
        sum: sum "+" product | product   // left-recursive
        product: product "*" value | value
        value: NUMBER | "(" sum ")"
        NUMBER: /[1-9][0-9]{0,2}/
        """
    for answer in answers(Grammar("lark", text, BPE), "bpe"):
        assert re.fullmatch(r"[0-9+*()]+", answer)
        assert eval(answer) > 0


def test_a_character_may_be_spread_over_tokens():
    grammar = Grammar("regex", "[ö日]{3}", BPE)
    for text in answers(grammar, "bpe"):
        assert re.fullmatch("[ö日]{3}", text)


def test_every_tokenization_of_a_match_is_allowed():
    grammar = Grammar("regex", "the old tree", BPE)
    state = grammar.initial_state()
    for byte in b"the old tree":
        state = grammar.next_state(state, BPE.pieces.index(bytes([byte])))
    assert possible(grammar, state, len(BPE)) == [EOS]


def test_a_stripped_leading_space_is_no_part_of_the_match():
    grammar = Grammar("regex", "(the|a) .*", WORDS)
    assert {WORDS.pieces[token] for token in possible(grammar, grammar.initial_state(), len(WORDS))} == {b" the", b" a"}
    state = grammar.next_state(grammar.initial_state(), WORDS.pieces.index(b" the"))
    assert all(WORDS.pieces[token].startswith(b" ") for token in possible(grammar, state, len(WORDS)))


def test_a_grammar_that_no_token_can_continue_allows_nothing():
    grammar = Grammar("regex", "the zebra", WORDS)
    state = grammar.next_state(grammar.initial_state(), WORDS.pieces.index(b" the"))
    assert possible(grammar, state, len(WORDS)) == []


def test_tokens_with_the_same_text_are_all_allowed():
    vocabulary = Vocabulary(
        (b"", b"", b"", b"", b"a", b" a", b"a", b"b", b"\xff"), eos_ids=(EOS,), strips_leading_space=True
    )
    grammar = Grammar("regex", "ab?", vocabulary)
    assert possible(grammar, grammar.initial_state(), len(vocabulary)) == [4, 5, 6]
    assert possible(grammar, grammar.next_state(grammar.initial_state(), 6), len(vocabulary)) == [EOS, 7]


def test_states_are_values():
    grammar = Grammar("regex", "(the|two) [a-z]+", BPE)
    rng, seen = random.Random(1), [(grammar.initial_state(), possible(grammar, grammar.initial_state(), len(BPE)))]
    for _ in range(60):
        state, choices = rng.choice(seen)
        after = grammar.next_state(state, rng.choice(choices))
        seen.append((after, possible(grammar, after, len(BPE))))
        assert all(
            possible(grammar, state, len(BPE)) == choices for state, choices in rng.sample(seen, min(5, len(seen)))
        )
        seen = [(state, choices) for state, choices in seen if grammar.applies(state, ())]


def test_special_tokens_have_no_text_and_the_end_token_ends():
    grammar = Grammar("regex", "the", WORDS)
    start = grammar.next_state(grammar.initial_state(), 3)
    assert possible(grammar, start, len(WORDS)) == possible(grammar, grammar.initial_state(), len(WORDS))
    assert not grammar.applies(grammar.next_state(grammar.initial_state(), EOS), ())


def test_each_end_token_may_end_a_complete_match():
    more = next(token for token, piece in enumerate(BPE.pieces) if not piece and token not in BPE.eos_ids)
    grammar = Grammar("regex", "a", Vocabulary(BPE.pieces, eos_ids=(EOS, more), strips_leading_space=False))
    state = grammar.next_state(grammar.initial_state(), BPE.pieces.index(b"a"))
    assert possible(grammar, grammar.initial_state(), len(BPE)) == [BPE.pieces.index(b"a")]
    assert possible(grammar, state, len(BPE)) == sorted([EOS, more])
    assert not grammar.applies(grammar.next_state(state, more), ())


def test_a_token_that_does_not_fit_cannot_be_followed():
    grammar = Grammar("regex", "the", BPE)
    with pytest.raises(Unsatisfiable, match="the answer cannot continue to match its grammar"):
        grammar.next_state(grammar.initial_state(), BPE.pieces.index(b"z"))


# ---- what is refused


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("regex", "a(b", "unclosed group"),
        ("regex", "(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        ("regex", "a\\", "ends with a backslash that escapes nothing"),
        ("regex", r"[^\s\S]", "no token of the model can begin such a text"),
        ("regex", ".?" * 1000, "must have at most 128 of the characters ? * + {, got 1000"),
        ("lark", "start: /" + "a{2}" * 129 + "/", "must have at most 128 of the characters ? * + {, got 129"),
        ("json_schema", json.dumps({"pattern": "a*" * 129}), "must have at most 128 of the characters"),
        (
            "lark",
            "\n".join(["start: A0", *(f"A{n}: A{n + 1} A{n + 1}" for n in range(40)), 'A40: "a"']),
            "initial lexer configuration (grammar) too big",
        ),
        ("json_schema", "{", "is not JSON: Expecting property name"),
        ("json_schema", '{"minimum": NaN}', "is not JSON: NaN is not a JSON number"),
        ("json_schema", "[" * 9999, "is not JSON: "),
        ("json_schema", "true", "must be a JSON object, got bool"),
        ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
        ("json_schema", '{"if": {}}', 'Unimplemented keys: ["if"]'),
        ("json_schema", '{"$ref": "https://example.org/x"}', "is not present in a registry"),
        ("json_schema", '{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "are not supported. Use anyOf"),
        ("json_schema", '{"minimum": 3, "maximum": 1, "type": "integer"}', "minimum (3) is greater than maximum (1)"),
        ("json_schema", '{"multipleOf": 1001}', "multipleOf must have digits of at most 1000, got 1001"),
        ("json_schema", '{"multipleOf": true}', "Expected f64 for 'multipleOf', got true"),
        ("json_schema", r'{"pattern": "a\ud800"}', r"must be valid Unicode, got a lone surrogate: \ud800"),
        ("json_schema", r'{"\udfff": 1}', r"must be valid Unicode, got a lone surrogate: \udfff"),
        ("json_schema", '{"allOf": [{"pattern": "a"}, {"pattern": "b"}]}', "must not combine pattern"),
        ("json_schema", '{"pattern": "a", "anyOf": [{"minLength": 2}]}', "must not combine pattern"),
        ("lark", "start: foo", 'at 1(8): unknown name: "foo"'),
        ("lark", 'begin: "a"', "no start rule found"),
        ("lark", 'start: "a" <[2]>', "must not contain <[, got it at character 11"),
        ("lark", 'start: "R&D"', r"must not contain &, got it at character 9; in quotes, write it as \u0026"),
        ("lark", 'start: %json {"type": "integer"}', "must not contain %json"),
        ("lark", 'start: %llguidance {"allow_invalid_utf8": true}', "must not contain %llguidance"),
        ("lark", "start: start", "no token of the model can begin such a text"),
    ],
)
def test_an_invalid_grammar_is_rejected_with_its_field(kind, text, problem):
    with pytest.raises(InvalidRequest) as refused:
        Grammar(kind, text, BPE)
    assert refused.value.field == f"options.{kind}"
    assert problem in refused.value.problem
    assert len(refused.value.problem) < 300
    assert "\n" not in refused.value.problem


def test_a_panic_of_the_library_is_told_without_its_trace():
    """llguidance 1.9.1 catches its own panics, at some malformed Lark grammars, and reports them with a stack trace."""
    assert _shortened("panic: no such place\n<backtrace>\n   0: some function") == "it cannot be parsed"


def test_a_grammar_beyond_the_limits_at_its_first_token_is_rejected():
    pieces = (b"", b"", b"", b"", *(b"a" * length for length in range(1, 40)))
    with pytest.raises(InvalidRequest, match="the grammar exceeds a limit: parser error: Too many items"):
        Grammar("lark", 'start: x{0,900}\nx: "a"?', Vocabulary(pieces, eos_ids=(EOS,), strips_leading_space=False))


def test_patterns_without_intersections_are_accepted():
    schema = {
        "anyOf": [{"$ref": "#/$defs/code"}, {"type": "null"}],
        "title": "a code or none",
        "$defs": {"code": {"type": "string", "pattern": "^[a-c]{2}$"}},
    }
    texts = set(answers(Grammar("json_schema", json.dumps(schema), BPE), "bpe"))
    assert "null" in texts
    assert all(text == "null" or re.fullmatch('"[a-c]{2}"', text) for text in texts)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"prefixItems": [{"pattern": "a"}] * (MAX_PATTERNS + 1)}, "at most 32 pattern, format and patternProperties"),
        (
            {"patternProperties": {f"^{n}$": {} for n in range(MAX_PATTERN_PROPERTIES + 1)}},
            "16 patternProperties, got 17",
        ),
        ({"prefixItems": [{"pattern": "a" * 200}] * 11}, "at most 2048 bytes in patterns, got 2200"),
        ({"required": [f"n{place}" for place in range(513)]}, "at most 512 names in required, got 513"),
        ({"prefixItems": [{"multipleOf": 2}] * 9}, "at most 8 multipleOf, got 9"),
        ({"prefixItems": [{}] * MAX_NODES}, "at most 512 objects and lists, got 514"),
    ],
)
def test_schemas_that_could_take_minutes_to_compile_are_rejected(schema, problem):
    with pytest.raises(InvalidRequest, match=problem):
        Grammar("json_schema", json.dumps(schema), BPE)


def test_a_limit_reached_during_decoding_is_reported():
    grammar = Grammar("regex", "(.*[a-m].{90}|.*[b-z].{91})*x", BPE)  # needs 2**90 states
    with pytest.raises(Unsatisfiable, match="the grammar exceeds a limit: lexer error: too many expressions"):
        walk(grammar, BPE, random.Random(0), most=1000)


NAMES = ["".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=3)]


def filled(kind, part, most=10**9):
    """`part(0) part(1) …`, as many as fit in a grammar's text."""
    text, count = "", 0
    while len(text) + len(part(count)) < MAX_GRAMMAR_BYTES[kind] - 200 and count < most:
        text, count = text + part(count), count + 1
    return text, count


def chained(form, *, upper=False, last='"a"'):
    """Lark rules or terminals, each of which holds the next one."""
    names = [name.upper() for name in NAMES] if upper else NAMES
    text, count = filled("lark", lambda n: form.format(names[n], names[n + 1]) + "\n")
    return f"start: {names[0]}\n{text}{names[count]}: {last}"


def referring(form):
    """A schema of definitions, each of which holds the next one, as many as there may be."""
    one = (form.format("x").count("{") + form.format("x").count("[")) or 1
    count = (MAX_NODES - 4) // one
    links = ",".join(f'"{NAMES[n]}": {form.format(NAMES[n + 1])}' for n in range(count))
    return f'{{"$ref": "#/{NAMES[0]}", {links}, "{NAMES[count]}": {{"type": "integer"}}}}'


AMBIGUOUS = {  # a step costs more than the one before: 0.3 to 16 ms in the end
    "doubling": "start: s\ns: s s | s s s | W\nW: /[a-zA-Z .,]/",
    "mirrored": "start: p\np: W p W | W\nW: /[a-zA-Z ]/",
    "both sides": "start: a b\na: a W | W |\nb: W b | W |\nW: /[a-zA-Z .,]/",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_hypotheses_share_the_cost_limit_of_a_step(name):
    """Each of 32 may need a fifth of what a single one may: the beam costs its neighbours as much as few do."""

    def steps(width):
        with contextlib.suppress(Unsatisfiable, InvalidRequest):
            grammar, count = Grammar("lark", AMBIGUOUS[name], BPE, width=width), 0
            state = grammar.initial_state()
            while count < 200:
                grammar.apply(np.zeros(len(BPE), np.float32), state, ())
                state, count = grammar.next_state(state, BPE.pieces.index(b"a")), count + 1
        return count

    assert steps(32) < 0.7 * steps(1)
    assert steps(32) == steps(32)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "[A-Za-zäöüß ]+[0-9]{4}[A-Za-z ]*\\."),
        ("lark", 'start: sum\nsum: sum "+" product | product\nproduct: product "*" N | N\nN: /[1-9][0-9]{0,2}/'),
        ("lark", 'start: (WORD " ")* WORD "."\nWORD: /[a-zA-Zäöü]+/'),
        ("json_schema", '{"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}'),
        ("json_schema", json.dumps({"anyOf": [{"properties": {f"k{n}": {"const": n}}} for n in range(40)]})),
    ],
)
def test_ordinary_grammars_need_far_less_than_the_widest_beam_may(kind, text):
    for seed in range(5):
        walk(Grammar(kind, text, BPE, width=MAX_WIDTH), BPE, random.Random(seed))


HOSTILE: dict[str, tuple[GrammarKind, str]] = {
    "nested groups": ("regex", "(" * 900 + "a" + ")" * 900),
    "nested stars": ("regex", "(" * 240 + "a" + ")*" * 240),
    "huge repetition": ("regex", "a{1000000000}"),
    "repetition of repetition": ("regex", "((a{1000}){1000}){1000}"),
    "exponential automaton": ("regex", "(.*a.{30}|.*b.{31}|.*c.{29})*"),
    "optional characters": ("regex", ".?" * 1000),
    "words and others": ("regex", r"\w*\W*" * 330),
    "backtracking": ("regex", "(a+)+b"),
    "large classes": ("regex", r"(\w|\p{L}|\pN){1,2000}x(\w{1,2000})"),
    "optional rules": ("lark", chained("{}: {}?")),
    "rules that double": (
        "lark",
        "\n".join(["start: a0", *(f"a{n}: a{n + 1} a{n + 1} |" for n in range(40)), 'a40: "a"']),
    ),
    "terminals that double": (
        "lark",
        "\n".join(["start: A0", *(f"A{n}: A{n + 1} A{n + 1}" for n in range(40)), 'A40: "a"']),
    ),
    "repeated terminals": ("lark", chained('{}: ({} "b"?)+', upper=True)),
    "ambiguity": ("lark", 'start: s\ns: s s | s s s | "a" | "b" |'),
    "ambiguous nothing": ("lark", "start: s\ns: s s s s s s |"),
    "right recursion": ("lark", 'start: s\ns: "a" s | "a"'),
    "repeated rules": ("lark", 'start: x{0,100000}\nx: y{0,100000}\ny: z{0,100000}\nz: "a" | "b"'),
    "many terminals": ("lark", "start: (" + filled("lark", lambda n: f"/a*.{{{n % 60}}}b/|")[0] + '"c")*'),
    "many names": ("json_schema", json.dumps({"required": NAMES[:4000]})),
    "many properties": ("json_schema", json.dumps({"properties": {name: {} for name in NAMES[:400]}})),
    "large multiples": ("json_schema", json.dumps({"prefixItems": [{"type": "integer", "multipleOf": 997}] * 8})),
    "pairs of patterns": (
        "json_schema",
        json.dumps({"patternProperties": {f"^{letter}.*a.{{60}}b": {} for letter in "abcdefghijklmnop"}}),
    ),
    "patterns and lengths": (
        "json_schema",
        json.dumps({"prefixItems": [{"pattern": f"{c}?b?c?d?" * 5, "maxLength": 999} for c in string.ascii_lowercase]}),
    ),
    "products of choices": (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"properties": {f"p{a}{b}": {}}} for b in range(9)]} for a in range(12)]}),
    ),
    "endless lists": ("json_schema", '{"minItems": 100000000, "items": {"minItems": 100000000, "type": "array"}}'),
    "itself": ("json_schema", '{"$ref": "#"}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_cost_little(name):
    """Time is the process's own: 1 s is asked for, 0.01 to 0.7 were measured; 4 is for slow machines."""
    began = time.process_time()
    with contextlib.suppress(InvalidRequest, Unsatisfiable):
        walk(Grammar(*HOSTILE[name], BPE), BPE, random.Random(0), most=100)
    assert time.process_time() - began < 4


@pytest.mark.parametrize("kind", get_args(GrammarKind))
def test_a_mutated_grammar_is_accepted_or_rejected(kind):
    rng = random.Random(7)
    for _ in range(400):
        text = near_valid(rng, kind)
        with contextlib.suppress(InvalidRequest, Unsatisfiable):
            walk(Grammar(kind, text, BPE), BPE, rng, most=4)


DEEP = {
    "rules": ("lark", chained("{}: {}")),
    "repeated rules": ("lark", chained("{}: {}+")),
    "terminals": ("lark", chained("{}: {}", upper=True)),
    "repeated terminals": ("lark", chained('{}: ("a" {})*', upper=True)),
    "groups": ("lark", "start: " + "(" * 2000 + '"a"' + ")" * 2000),
    "lists": ("json_schema", referring('{{"items": {{"$ref": "#/{}"}}}}')),
    "objects": ("json_schema", referring('{{"additionalProperties": {{"$ref": "#/{}"}}}}')),
    "choices": ("json_schema", referring('{{"anyOf": [{{"items": {{"$ref": "#/{}"}}}}, {{"type": "null"}}]}}')),
    "references": ("json_schema", referring('{{"$ref": "#/{}"}}')),
}


def test_deep_grammars_leave_most_of_the_stack_alone():
    """An overflow would end the process, so this is another one, and its thread has half of the usual 8 MiB."""
    program = f"""
import sys, threading
from service.decoding.grammar import Grammar
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest, Unsatisfiable
pieces = (b"", b"", b"", b"", *(bytes([byte]) for byte in range(256)))
vocabulary = Vocabulary(pieces, eos_ids=(2,), strips_leading_space=False)
def run():
    for name, (kind, text) in {DEEP!r}.items():
        try:
            grammar = Grammar(kind, text, vocabulary)
            for token in (101, 95):
                grammar.next_state(grammar.initial_state(), token)
        except (InvalidRequest, Unsatisfiable) as error:
            pass
        print(name)
threading.stack_size(4 << 20)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == list(DEEP), (done.returncode, done.stderr)
