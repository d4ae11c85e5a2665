"""The tokens of a rendered chat (`ChatTokens`): special tokens come from the template alone, never from a client's
text.

A client's texts are marked before they are rendered (`marked`): what spells a special token in one is put between two
marks, what could become part of one beside the template's text is cut by a mark. Marks are random digits, which no
filter of a template changes and nobody can guess. In the rendered text, unmarked names of special tokens become aliases
that are random, too, and a tokenizer that knows these aliases instead of the names encodes it (`encode`): so everything
between them is segmented as one text, and without marked names the ids are those of `apply_chat_template`.

Special tokens here are those that the tokenizer calls so, and further added tokens whose names stand in the template,
such as `<think>`. Needs `tokenizers` alone: servers read it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from model.prompts.chat_template import ChatTemplate
from model.tokenizer import Tokenizer
from model.tokenizers.ordinary_pieces import vocabulary_of, with_ordinary_pieces
from model.tokenizers.sentencepiece import SETTINGS


class ChatTokens:
    """Encodes the chats of one model. Threads may share one.

    template: the one whose texts it encodes. names: of the special tokens, longest first.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.template = template
        values = json.loads(tokenizer.to_json())
        tokens = _special_tokens(values, template.literals)
        self.names = tuple(sorted(tokens, key=lambda name: (-len(name), name)))
        number = _random_digits()
        aliases = {name: f"<{number}.{place}>" for place, name in enumerate(self.names)}
        self._tokenizer = Tokenizer(_renamed(values, aliases, tokens), vocab_size=tokenizer.vocab_size)
        found = self._tokenizer.encode_batch([f"a{aliases[name]}a" for name in self.names])
        # A token that is normalized before it is compared may match nothing: its name is plain text then.
        is_found = {name: tokens[name]["id"] in ids for name, ids in zip(self.names, found, strict=True)}
        self._aliases = {name: alias if is_found[name] else name for name, alias in aliases.items()}
        self._mark = _random_digits()
        alone = "|".join(map(re.escape, self.names)) or "(?!)"
        self._names = re.compile(alone)
        in_text = "|".join(_pattern(tokens[name]) for name in self.names) or "(?!)"
        self._found = re.compile(f"{self._mark}(?P<text>{alone}){self._mark}|{self._mark}|(?P<name>{in_text})")
        self._starts = {name[:end] for name in self.names for end in range(1, len(name))}
        self._ends = {name[start:] for name in self.names for start in range(1, len(name))}
        self._longest = max(map(len, self.names), default=1)
        self.words = {word: name for name in self.names if (word := re.sub(r"^\W+|\W+$", "", name))}
        """The names without the signs around them: a template may put those around a role."""

    def spelled(self, text: str) -> list[str]:
        """The special tokens that a client's text spells, each once."""
        return list(dict.fromkeys(self._names.findall(text)))

    def marked(self, value: Any) -> Any:
        """A plain JSON value of a client, with what its texts have of special tokens marked."""
        if isinstance(value, str):
            return self._marked(value)
        if isinstance(value, Mapping):
            return {self._marked(key): self.marked(item) for key, item in value.items()}
        return [self.marked(item) for item in value] if isinstance(value, list) else value

    def encode(self, rendered: str) -> list[int]:
        """The ids of a rendered chat, marked values included."""
        return self._tokenizer.encode_batch([self._found.sub(self._replaced, rendered)])[0]

    def unmarked(self, rendered: str) -> str:
        """A rendered chat as a person reads it."""
        return rendered.replace(self._mark, "")

    def _marked(self, text: str) -> str:
        mark = self._mark
        text = self._names.sub(lambda found: f"{mark}{found[0]}{mark}", text)
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())  # a template may trim a text
        cut = _longest_part(text[start : start + self._longest], self._ends, is_first=True)
        if cut:
            text, end = f"{text[: start + cut - 1]}{mark}{text[start + cut - 1 :]}", end + len(mark)
        if cut := _longest_part(text[max(start, end - self._longest) : end], self._starts, is_first=False):
            text = f"{text[: end - cut + 1]}{mark}{text[end - cut + 1 :]}"
        return text

    def _replaced(self, found: re.Match[str]) -> str:
        return self._aliases[found["name"]] if found["name"] else found["text"] or ""


def _special_tokens(values: Mapping[str, Any], literals: str) -> dict[str, Mapping[str, Any]]:
    """The entries of a tokenizer.json's special tokens by name, and of further added ones that stand in `literals`: not
    blanks, nor pieces that ordinary text has."""
    added, by_byte = with_ordinary_pieces(values["model"], values.get("added_tokens") or [])
    known = vocabulary_of(values["model"])
    return {
        item["content"]: item
        for item in added
        if item["content"].strip()
        and item["content"] not in by_byte
        and (item["special"] or (item["content"] in literals and item["content"] not in known))
    }


def _renamed(
    values: dict[str, Any], aliases: Mapping[str, str], tokens: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A tokenizer.json that matches special tokens in texts, by their aliases."""
    model, own = dict(values["model"]), (values.get("normalizer") or {}).get(SETTINGS, {})
    if isinstance(model["vocab"], list):
        model["vocab"] = [(aliases.get(piece, piece), score) for piece, score in model["vocab"]]
    else:
        model["vocab"] = {aliases.get(piece, piece): token for piece, token in model["vocab"].items()}
    if model.get("unk_token") in aliases:
        model["unk_token"] = aliases[model["unk_token"]]
    added = [
        {**item, "content": aliases[item["content"]], "special": False} if item["content"] in aliases else item
        for item in values["added_tokens"]
    ]
    ids = {item["id"] for item in tokens.values()}
    own["unmatched"] = [token for token in own.get("unmatched", ()) if token not in ids]
    return {**values, "model": model, "added_tokens": added}


def _pattern(token: Mapping[str, Any]) -> str:
    name = re.escape(token["content"])
    return rf"(?<!\w){name}(?!\w)" if token["single_word"] else name


def _longest_part(text: str, parts: Iterable[str], *, is_first: bool) -> int:
    """The length of the longest beginning, or end, of a text that is one of `parts`."""
    sizes = range(len(text), 0, -1)
    return next((size for size in sizes if (text[:size] if is_first else text[-size:]) in parts), 0)


def _random_digits() -> str:
    return f"{secrets.randbits(80):025}"
