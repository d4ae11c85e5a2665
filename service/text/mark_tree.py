"""The marks of a text as a tree (`Node`): elements around some of its words, and points between them. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Point:
    """A mark without translated text. raw: as the client wrote it. place: in the plain text.

    is_glued_left, is_glued_right: no blank stood between it and the word there. is_joined: nor between it and the point
    before.
    """

    raw: str
    place: int
    is_glued_left: bool = False
    is_glued_right: bool = False
    is_joined: bool = False


@dataclass(frozen=True)
class Element:
    """A pair of tags around plain[start:end]; an empty tag stands in another fragment of the same text."""

    opening: str
    closing: str
    start: int
    end: int
    nodes: tuple[Node, ...] = ()


Node: TypeAlias = Point | Element


@dataclass(frozen=True)
class Placed:
    """A node between the words of a translation: `start` words stand before it, `end` before its end. nodes: of an
    element, in the order of the translation."""

    node: Node
    start: int
    end: int
    nodes: tuple[Placed, ...] = ()
