"""Structured output (`Grammar`): regular expressions, JSON schemas and Lark grammars, by means of llguidance.

The grammar constrains the text of the answer in any tokenization: llguidance runs its automata over a trie of the bytes
of all tokens. A regular expression must match the whole answer. JSON is compact, without whitespace between its parts,
so that a schema bounds the length.

Grammars are untrusted input. The library's limits (`_limits`) bound a step and most of a compilation. Grammars that
would evade them, and cost minutes of work or a stack overflow that ends the process, are rejected before
(`_checked_lark`, `_checked_schema`). Every limit was found by experiment: see the hostile grammars in the tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark

from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest, Unsatisfiable
from service.options import MAX_GRAMMAR_BYTES, GrammarKind

MAX_NODES = 512  # objects and lists of a schema: each may be a link in a chain of references, and takes 5 KiB of stack
MAX_PATTERNS = 32  # texts of pattern, format and patternProperties in a schema
MAX_PATTERN_PROPERTIES = 16  # every pair of them is checked for a common match
MAX_PATTERN_BYTES = 2048  # of all patterns together, as of a regular expression
MAX_MULTIPLE = 1000  # the digits of multipleOf as a number: its automaton has as many states
MAX_MULTIPLES = 8
MAX_REQUIRED = 512  # names in `required`: 4,000 of them took 0.18 s
MAX_QUANTIFIERS = 128  # of a regular expression, a pattern or a Lark grammar; 1,000 took 0.1 s
QUANTIFIER = re.compile(r"[?*+{]")


def _limits(width: int) -> LLParserLimits:
    """Limits for a request with `width` hypotheses, which share the cost of a step: 16 ms together, as the worst
    accepted grammars need. They count work, not time, so an answer does not depend on the load of the machine. Regular
    expressions, JSON schemas and unambiguous grammars need fewer than 200 items per step. Comments: library defaults.
    """
    return LLParserLimits(
        max_items_in_row=500,  # 2000; time grows with its square: an ambiguous grammar took 0.6 s per step
        initial_lexer_fuel=50_000,  # 1,000,000: 0.1 s, during which other threads wait for the interpreter
        step_lexer_fuel=max(10_000, 50_000 // width),  # 200,000: some ms
        step_max_items=max(1_000, 5_000 // width),  # 50,000: some ms if items are cheap, 80 ms if many are in a row
        max_lexer_states=20_000,  # 250,000, which is 100 MB; shared by all hypotheses of a request
        max_grammar_size=50_000,  # 500,000
        verbose_errors=False,  # otherwise messages contain the whole grammar
    )


# Otherwise text that the grammar determines would have to be tokenized as the tokenizer does.
_FREE = '%llguidance {"no_forcing": true}'
_SHOWN_CHARACTERS = 200  # of a message of the library


class _State(NamedTuple):
    """The state of one answer. matcher: has consumed its text and is not modified again; None after the end token."""

    matcher: LLMatcher | None
    is_first: bool


class Grammar:
    """The grammar of one request, as a mask.

    Construction may take a second, so it must not run on the event loop. It raises InvalidRequest with the field
    `options.<kind>` for an invalid grammar, one beyond the limits, and one that no token of the model can begin. A
    limit that is reached later, and a token that does not match, raise Unsatisfiable.

    width: concurrent hypotheses; they share the cost of a step.
    """

    is_mask = True

    def __init__(self, kind: GrammarKind, text: str, vocabulary: Vocabulary, *, width: int = 1) -> None:
        self._vocabulary = vocabulary
        self._tokens = vocabulary.derived(_Tokens)  # 25 ms for 8000 tokens, 100 ms for 32,000
        assert len(text.encode()) <= MAX_GRAMMAR_BYTES[kind], kind
        try:
            self._start = _State(
                self._tokens.matcher(_COMPILED[kind](text), _limits(width)), vocabulary.strips_leading_space
            )
            if not self._allowed(self._start).any():
                raise _Refused("no token of the model can begin such a text")
        except (_Refused, Unsatisfiable) as error:
            raise InvalidRequest(f"options.{kind}", str(error)) from error

    def initial_state(self) -> _State:
        """The state before the first token."""
        return self._start

    def next_state(self, state: _State, token: int) -> _State:
        """The state after `token`. Raises Unsatisfiable if the token does not match."""
        if token in self._vocabulary.eos_ids or state.matcher is None:
            return _State(None, False)
        found = self._tokens.index(token, is_first=state.is_first)
        if found is None:  # a special token or a leading space: no text
            return _State(state.matcher, state.is_first and not self._vocabulary.pieces[token])
        matcher = state.matcher.deep_copy()  # 1 to 7 µs: automata are shared, the consumed text is copied
        if not matcher.consume_token(found):
            raise Unsatisfiable(f"the answer cannot continue to match its grammar: {_shortened(matcher.get_error())}")
        return _State(matcher, False)

    def applies(self, state: _State, tokens: Sequence[int]) -> bool:
        """Whether the answer has not ended."""
        return state.matcher is not None

    def apply(self, scores_V: np.ndarray, state: _State, tokens: Sequence[int]) -> None:
        """Excludes tokens that do not match. Raises Unsatisfiable at a limit."""
        np.copyto(scores_V, -np.inf, where=~self._allowed(state))

    def excluded(self, state: _State, tokens: Sequence[int]) -> None:
        """Not known: most tokens."""

    def _allowed(self, state: _State) -> np.ndarray:
        """The matching tokens, bool (V,); none if no token has the text with which the grammar continues."""
        matcher = state.matcher
        assert matcher is not None
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            if matcher.get_error().startswith("NoExtension"):
                return np.zeros(len(self._vocabulary), np.bool_)
            raise Unsatisfiable(f"the grammar exceeds a limit: {_shortened(matcher.get_error())}")
        allowed_V = self._tokens.select(np.unpackbits(bits, bitorder="little").view(np.bool_), is_first=state.is_first)
        allowed_V[list(self._vocabulary.eos_ids)] = matcher.is_accepting()
        return allowed_V


class _Refused(Exception):
    """A text is not a usable grammar."""


class _Tokens:
    """The tokens of a vocabulary for llguidance, and again without their leading spaces, for the beginning of answers
    whose tokenizer strips that space."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = [piece if b"\xff" not in piece else b"" for piece in vocabulary.pieces]  # marks special tokens
        self._is_special = np.array([not piece for piece in pieces])
        self._blank = [token for token, piece in enumerate(pieces) if vocabulary.first(token) != piece]
        self._bare = {token: len(pieces) + index for index, token in enumerate(self._blank)}
        pieces += [vocabulary.first(token) for token in self._blank]
        self._pieces = pieces
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Pieces(pieces, vocabulary.eos_ids[0])))

    def matcher(self, grammar: Sequence[Mapping[str, object]], limits: LLParserLimits) -> LLMatcher:
        text = json.dumps({"grammars": grammar})
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise _Refused(_shortened(matcher.get_error()))
        return matcher

    def index(self, token: int, *, is_first: bool) -> int | None:
        """The library's id of a token; None: it has no text."""
        found = self._bare.get(token, token) if is_first else token
        return found if self._pieces[found] else None

    def select(self, allowed: np.ndarray, *, is_first: bool) -> np.ndarray:
        """From a mask over the library's ids, that of the vocabulary, bool (V,), without special tokens."""
        allowed_V: np.ndarray = allowed[: len(self._is_special)] & ~self._is_special
        if is_first and self._blank:
            allowed_V[self._blank] = allowed[len(self._is_special) : len(self._pieces)]
        return allowed_V


class _Pieces:
    """The tokenizer interface of llguidance. It never tokenizes text: see `_FREE`."""

    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, pieces: list[bytes], eos_id: int) -> None:
        self.tokens, self.eos_token_id = pieces, eos_id

    def __call__(self, text: str | bytes) -> list[int]:
        raise NotImplementedError("text is not tokenized here")


def _regex(text: str) -> list[Mapping[str, object]]:
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise _Refused("ends with a backslash that escapes nothing")  # which the library would ignore
    _check_quantifiers(text)
    return [{"lark_grammar": f"{_FREE}\nstart: /{regex_to_lark(text, '')}/"}]


def _lark(text: str) -> list[Mapping[str, object]]:
    return [{"lark_grammar": f"{_checked_lark(text)}\n{_FREE}"}]  # after the text: line numbers in messages stay right


def _json_schema(text: str) -> list[Mapping[str, object]]:
    schema = dict(_checked_schema(text))
    schema["x-guidance"] = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return [{"lark_grammar": f"{_FREE}\nstart: @schema"}, {"name": "schema", "json_schema": schema}]


_COMPILED: Mapping[GrammarKind, Callable[[str], list[Mapping[str, object]]]] = {
    "regex": _regex,
    "json_schema": _json_schema,
    "lark": _lark,
}


def _checked_lark(text: str) -> str:
    """Rejects embedded grammars, which would evade the checks of their kinds; token ids, which are not text; `&` and
    `~`, because the emptiness check of an intersection or a complement can take minutes."""
    if found := re.search(r"%(json|regex|lark|llguidance|if)|<\[|[&~]", text):
        instead = f"; in quotes, write it as \\u{ord(found[0]):04x}" if len(found[0]) == 1 else ""
        raise _Refused(f"must not contain {found[0]}, got it at character {found.start()}{instead}")
    _check_quantifiers(text)
    return text


def _check_quantifiers(text: str) -> None:
    """Rejects too many characters that quantify, those that are escaped included."""
    if (count := len(QUANTIFIER.findall(text))) > MAX_QUANTIFIERS:
        raise _Refused(f"must have at most {MAX_QUANTIFIERS} of the characters ? * + {{, got {count}")


# Keywords that narrow other parts of a schema: the library intersects these, and the automata of their patterns.
_COMBINING = frozenset({"anyOf", "oneOf", "$ref"})
_NARROWING = frozenset(
    {"items", "additionalItems", "prefixItems", "minItems", "maxItems"}
    | {"properties", "additionalProperties", "patternProperties", "required", "minProperties", "maxProperties"}
    | {"minLength", "maxLength", "pattern", "format", "const", "enum"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)


def _checked_schema(text: str) -> Mapping[str, Any]:
    """Returns the schema if it is an object that compiles within a second.

    The emptiness check of an intersection of patterns can take minutes (llguidance 1.9.1), and anyOf within
    allOf multiplies: patterns together with intersections are rejected, and only one of both may be frequent. Names of
    properties that equal a keyword count as keywords.
    """
    try:
        schema = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise _Refused(f"must be a JSON object, got {type(schema).__name__}")
    nodes = list(_walk(schema))
    if len(nodes) > MAX_NODES:
        raise _Refused(f"must have at most {MAX_NODES} objects and lists, got {len(nodes)}")
    try:
        json.dumps(schema, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _Refused(
            f"must be valid Unicode, got a lone surrogate: \\u{ord(error.object[error.start]):04x}"
        ) from error
    objects = [node for node in nodes if isinstance(node, dict)]
    patterns = [node[name] for node in objects for name in ("pattern", "format") if isinstance(node.get(name), str)]
    mappings = [node.get("patternProperties") for node in objects]
    properties = [name for mapping in mappings if isinstance(mapping, dict) for name in mapping]
    required = [node["required"] for node in objects if isinstance(node.get("required"), list)]
    multiples = [node["multipleOf"] for node in objects if type(node.get("multipleOf")) in (int, float)]  # no bool
    for what, count, most in (
        ("pattern, format and patternProperties", len(patterns) + len(properties), MAX_PATTERNS),
        ("bytes in patterns", sum(len(pattern.encode()) for pattern in (*patterns, *properties)), MAX_PATTERN_BYTES),
        ("patternProperties", len(properties), MAX_PATTERN_PROPERTIES),
        ("names in required", sum(map(len, required)), MAX_REQUIRED),
        ("multipleOf", len(multiples), MAX_MULTIPLES),
    ):
        if count > most:
            raise _Refused(f"must have at most {most} {what}, got {count}")
    for pattern in (*patterns, *properties):
        _check_quantifiers(pattern)
    for multiple in multiples:
        if int("".join(map(str, Decimal(str(multiple)).normalize().as_tuple().digits))) > MAX_MULTIPLE:
            raise _Refused(f"multipleOf must have digits of at most {MAX_MULTIPLE}, got {multiple}")
    if (patterns or properties or multiples) and any(map(_intersects, objects)):
        raise _Refused(
            "must not combine pattern, format, patternProperties or multipleOf with allOf, nor with anyOf, oneOf or "
            "$ref next to other keywords: intersections of patterns can take minutes to compile"
        )
    return schema


def _walk(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any] | list[Any]]:
    """Every object and list of a schema, itself included."""
    todo: list[Any] = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, dict | list):
            yield node
            todo += node.values() if isinstance(node, dict) else node


def _intersects(node: Mapping[str, Any]) -> bool:
    """Whether an object combines two or more constraints."""
    several = node.get("allOf")
    sources = len(several) if isinstance(several, list) else 0
    return sources + len(_COMBINING & node.keys()) + bool(_NARROWING & node.keys()) > 1


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _shortened(message: str) -> str:
    """A message of the library in one line, without excerpts of the grammar and stack traces."""
    if message.startswith("panic"):
        return "it cannot be parsed"
    lines = [line.strip() for line in message.splitlines()]
    summary = next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0] if lines else ""
    )
    summary = summary.replace("Enable 'coerce_one_of' option to approximate oneOf with anyOf", "Use anyOf")
    summary = summary.split("; either increase limits")[0].split("; try avoiding")[0]
    return summary if len(summary) <= _SHOWN_CHARACTERS else summary[: _SHOWN_CHARACTERS - 1] + "…"
