"""What a translated file of subtitles or catalog of gettext must share with its source, read line by line, by other
rules than the product's.

Subtitles: times, numbers, identifiers, notes and tags; no cue gets more lines. Catalogs: everything beside `msgstr` and
the flag fuzzy, and the translations that were there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple

_MSGSTR = re.compile(r'^msgstr(?:\[\d+\])?[ \t]*"[^\n]*(?:\n[ \t]*"[^\n]*)*\n?', re.MULTILINE)
_FUZZY = re.compile(r"^#, fuzzy[ \t]*\r?\n|(?<=^#,) fuzzy,(?= )", re.MULTILINE)
_OF_TRANSLATIONS = re.compile(r"charset=[\w.:-]+|^(?:Plural-Forms|Language):[^\n]*\n?", re.MULTILINE)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_KEYWORD = re.compile(r"(msgctxt|msgid_plural|msgid|msgstr)[ \t]*(?:\[\d+\])?[ \t]*(?=\")")


def collapsed(text: str) -> str:
    """A text with single spaces."""
    return " ".join(text.split())


def subtitle_problems(source: str, translation: str, *, is_webvtt: bool, is_identity: bool) -> Iterator[str]:
    """What a translation of subtitles has lost or changed. is_identity: each text was translated into itself."""
    before, after = (list(_cues(text, is_webvtt=is_webvtt)) for text in (source, translation))
    if len(before) != len(after):
        yield f"{len(before)} cues became {len(after)}"
    for (head, lines), (new_head, new_lines) in zip(before, after, strict=False):
        if head != new_head:
            yield f"{head!r:.120} became {new_head!r:.120}"
        if len(new_lines) > len(lines):
            yield f"{lines!r:.120} has more lines: {new_lines!r:.120}"
    tags = [sorted(re.findall(r"</?\w[^<>\n]*>", text)) for text in (source, translation)]
    if tags[0] != tags[1]:
        yield f"tags {set(tags[0]) ^ set(tags[1])}"
    shown = [collapsed(unescape(unescape(text)) if is_webvtt else text) for text in (source, translation)]
    if is_identity and shown[0] != shown[1]:
        yield "text was changed"


def _cues(text: str, *, is_webvtt: bool) -> Iterator[tuple[list[str], list[str]]]:
    """What stands before the text of each cue, up to its times, and the lines of its text that are not blank. The last
    has what follows the last cue."""
    head, lines, is_text = list[str](), list[str](), False
    for line in text.splitlines():
        if "-->" in line:
            while not is_webvtt and lines and (lines[-1].isdecimal() or not head):
                head.insert(0, lines.pop())
            yield head, lines
            head, lines, is_text = [line], [], True
        elif is_text and line.strip() and (lines or head):
            lines.append(line.strip())
        elif is_webvtt and not line.strip():
            is_text = False
        elif not is_text:
            head.append(line)
    yield head, lines


class Entry(NamedTuple):
    """An entry of a catalog: its texts as they are written, without what a line break between two strings adds."""

    message: tuple[str, ...]
    translations: tuple[str, ...]
    is_fuzzy: bool


def po_problems(source: str, translation: str, *, is_identity: bool) -> tuple[int, list[str]]:
    """The number of translated entries, and what a translation of a catalog has lost or changed."""
    before, after = list(_entries(source)), list(_entries(translation))
    if _bare(source) != _bare(translation):
        return 0, ["bytes beside translations"]
    if [entry.message for entry in before] != [entry.message for entry in after]:
        return 0, [f"{len(before)} entries became {len(after)}, or others"]
    problems, count = list[str](), 0
    for old, new in zip(before, after, strict=True):
        name = repr(old.message[-1])[:80]
        if not any(old.message):
            fields = [_OF_TRANSLATIONS.sub("", "".join(one.translations).replace("\\n", "\n")) for one in (old, new)]
            problems += ["the header was changed"] if fields[0] != fields[1] else []
        elif any(old.translations) and not old.is_fuzzy:
            problems += [f"{name}: its translation was changed"] if old != new else []
        elif old != new:
            count += 1
            texts = {collapsed(text) for text in old.message}
            if not new.is_fuzzy:
                problems.append(f"{name}: is not marked as fuzzy")
            if is_identity and not {collapsed(text) for text in new.translations} <= texts:
                problems.append(f"{name} became {new.translations!r:.120}")
            for end in (slice(2), slice(-2, None)):
                if len({text[end] == "\\n" for text in (old.message[0], *new.translations)}) > 1:
                    problems.append(f"{name}: begins or ends with a line break, and its translation does not")
    return count, problems


def _bare(text: str) -> str:
    return _FUZZY.sub("", _MSGSTR.sub("", text))


def _entries(text: str) -> Iterator[Entry]:
    texts: list[list[str]] = []
    is_fuzzy, keywords = False, list[str]()
    for line in [*map(str.strip, text.splitlines()), "msgid"]:
        found = _KEYWORD.match(line)
        begins = line.startswith(("#", "msgctxt")) or (line.startswith("msgid") and not line.startswith("msgid_"))
        if begins and "msgstr" in keywords:
            parts = [("".join(strings), keyword) for strings, keyword in zip(texts, keywords, strict=True)]
            others = tuple(text for text, keyword in parts if keyword != "msgstr")
            yield Entry(others, tuple(text for text, keyword in parts if keyword == "msgstr"), is_fuzzy)
            texts, keywords, is_fuzzy = [], [], False
        if found:
            keywords.append(found[1])
            texts.append(_STRING.findall(line[found.end() :]))
        elif line.startswith('"') and texts:
            texts[-1] += _STRING.findall(line)
        elif line.startswith("#~"):
            is_fuzzy = False
        elif line.startswith("#,"):
            is_fuzzy = is_fuzzy or "fuzzy" in line
