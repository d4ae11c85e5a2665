"""Check constraints: 2,000 requests of every kind, single and combined, together with unconstrained requests.

Uses a real server. Every answer is checked against its constraint with `re`, `json` and plain comparisons. One request
in four has no constraint; its tokens and log-probabilities must be, bit for bit, those of the same request on an idle
server. Without data, sentences of the embedded corpus that are not in the training data.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.case import case
from bench.sentences import sentence_pairs
from cli.local_server import serving
from export.bundle.directory import load_manifest
from export.bundle.manifest import TOKENIZER
from glossa.client import Client, ClientError
from glossa.client.types import Answer
from model.tokenizer import Tokenizer

Check = Callable[[str], bool]
Case = tuple[dict[str, Any], Check]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "size", "count"],
    "additionalProperties": False,
}
REGEXES = [
    r"[A-ZÄÖÜ][a-zäöüß]{1,8}( [A-Za-zäöüß]{1,10}){1,6}[.!?]",
    r"(Ja|Nein|Vielleicht)\.",
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
]
LARK = 'start: subject " " verb "."\nsubject: "Er" | "Sie" | "Das Kind"\nverb: "schläft" | "liest" | "singt laut"\n'
LARK_REGEX = r"(Er|Sie|Das Kind) (schläft|liest|singt laut)\."


def is_valid(text: str) -> bool:
    """`SCHEMA`, checked by hand."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and {"name", "size", "count"} <= value.keys() <= SCHEMA["properties"].keys()  # type: ignore[attr-defined]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and value["size"] in ("small", "large")
        and type(value["count"]) is int
        and 0 <= value["count"] <= 99
        and isinstance(value.get("tags", []), list)
        and len(value.get("tags", [])) <= 3
        and all(type(tag) is bool for tag in value.get("tags", []))
    )


def draw(rng: random.Random, reference: str, tokenizer: Tokenizer) -> dict[str, Case]:
    """One case of every kind for a sentence whose translation is known. The words come from that translation, and from
    others, so that some of them fit and some do not."""
    words = reference.split()
    word = rng.choice(words).strip(".,!?\"'„“») ") or "und"
    other = rng.choice(["Hund", "Wasser", "niemals", "Straße", "über", "1999"])
    start = " ".join(words[: rng.randrange(1, 3)])
    banned = [rng.choice(words), rng.choice(["e", "ch", "der", "."])]
    allowed = sorted(
        {token for text in (reference, "Der die das und ist nicht . ,") for token in tokenizer.encode(text)}
    )
    regex = rng.choice(REGEXES)
    beam = rng.choice([2, 4, 5])
    return {
        "prefix": ({"prefix": start}, lambda text: text.startswith(start)),
        "prefix, beam": ({"prefix": start, "beam_size": beam}, lambda text: text.startswith(start)),
        "phrase": ({"phrases": [other], "beam_size": beam}, lambda text: other in text),
        "phrases": (
            {"phrases": [other, word], "beam_size": 4, "num_hypotheses": 2},
            lambda text: other in text and word in text,
        ),
        "ordered phrases": (
            {"phrases": [word, other], "ordered_phrases": True, "beam_size": 4},
            lambda text: other in text[text.find(word) + len(word) :],
        ),
        "bad_words": ({"bad_words": banned}, lambda text: not any(ban in text for ban in banned)),
        "banned, sampled": (
            {"bad_words": banned, "temperature": 1.0, "seed": rng.randrange(99)},
            lambda text: not any(ban in text for ban in banned),
        ),
        "allowed": (
            {"allowed_tokens": allowed, "include_tokens": True},
            lambda text: True,  # its tokens are checked
        ),
        "regex": ({"regex": regex}, lambda text: re.fullmatch(regex, text) is not None),
        "regex, sampled": (
            {"regex": regex, "temperature": 1.2, "num_sequences": 2},
            lambda text: re.fullmatch(regex, text) is not None,
        ),
        "regex, beam": ({"regex": regex, "beam_size": beam}, lambda text: re.fullmatch(regex, text) is not None),
        "json": ({"json_schema": json.dumps(SCHEMA)}, is_valid),
        "json, sampled": ({"json_schema": json.dumps(SCHEMA), "temperature": 1.0}, is_valid),
        "json, beam": ({"json_schema": json.dumps(SCHEMA), "beam_size": 3}, is_valid),
        "lark": ({"lark": LARK}, lambda text: re.fullmatch(LARK_REGEX, text) is not None),
        "prefix and phrase": (
            {"prefix": start, "phrases": [other], "beam_size": 4},
            lambda text: text.startswith(start) and other in text,
        ),
        "prefix, phrase, banned": (
            {"prefix": start, "phrases": [other], "bad_words": ["xyz", "qu"], "beam_size": 4},
            lambda text: text.startswith(start) and other in text and "xyz" not in text and "qu" not in text,
        ),
        "phrase and regex": (
            {"phrases": [other], "regex": r"[A-Za-zäöüÄÖÜß0-9 ]{1,60}[.]", "beam_size": 4},
            lambda text: other in text and re.fullmatch(r"[A-Za-zäöüÄÖÜß0-9 ]{1,60}[.]", text) is not None,
        ),
        "prefix and regex": (
            {"prefix": "Das", "regex": r"Das [a-zäöüß ]{2,30}\."},
            lambda text: re.fullmatch(r"Das [a-zäöüß ]{2,30}\.", text) is not None,
        ),
        "allowed, beam": ({"allowed_tokens": allowed, "beam_size": 3, "include_tokens": True}, lambda text: True),
    }


@case("bundle", "data?", requests=2000, concurrency=24)
def constraints(args: argparse.Namespace) -> None:
    rng = random.Random(1)
    examples = sentence_pairs(args.data, args.requests)
    tokenizer = Tokenizer.load(args.bundle / TOKENIZER)
    limit = min(100, load_manifest(args.bundle).limits.max_target_len)
    work: list[tuple[str, str, Case | None]] = []
    for number in range(args.requests):
        source, reference = examples[number % len(examples)]
        cases = draw(rng, reference, tokenizer)
        kind = list(cases)[number % len(cases)]
        work.append((source, kind, cases[kind]))
        if number % 3 == 0:
            work.append((source, "unconstrained", None))
    with serving(args.bundle) as (address, _), Client(address, timeout_s=600.0) as client:

        def plain(text: str) -> tuple[Any, ...]:
            answer = client.translate(text, include_tokens=True, token_logprobs=True)
            return answer.tokens, answer.hypotheses[0].token_logprobs

        def one(job: tuple[str, str, Case | None]) -> tuple[str, Answer | tuple[Any, ...] | ClientError]:
            text, kind, case = job
            if case is None:
                return kind, plain(text)
            try:
                return kind, client.translate(text, max_tokens=limit, **case[0])
            except ClientError as error:
                return kind, error

        alone = {text: plain(text) for text, _, case in work if case is None}
        with ThreadPoolExecutor(args.concurrency) as threads:
            found = list(threads.map(one, work))
    asked, failed, changed = Counter[str](), Counter[str](), 0
    for (text, kind, constraint), (_, answer) in zip(work, found, strict=True):
        asked[kind] += 1
        if constraint is None:
            changed += answer != alone[text]
            continue
        options, check = constraint
        if isinstance(answer, ClientError):
            failed[kind] += 1
            print(f"{kind}: {answer}", file=sys.stderr)
            continue
        assert isinstance(answer, Answer)
        texts = [hypothesis.text for hypothesis in answer.hypotheses] or [answer.text]
        good = all(map(check, texts))
        if "allowed_tokens" in options:
            good = bool(answer.tokens) and set(answer.tokens) <= {*options["allowed_tokens"], 2}
        if not good:
            failed[kind] += 1
            print(f"{kind}: {options} → {texts} ({answer.finish_reason})", file=sys.stderr)
    figures = {"asked": dict(asked), "not met": dict(failed), "neighbours changed": changed}
    print(json.dumps(figures) if args.json else "\n".join(f"{name:20}{value}" for name, value in figures.items()))
    sys.exit(bool(failed) or changed > 0)
