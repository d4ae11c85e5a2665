"""The readers of bytes from outside, by name, with the module that has each: a module is imported when it is fuzzed."""

import importlib
from pathlib import Path

from tests.fuzz.reader import Reader

MODULES = {  # those that read what clients send come first
    "messages": ("messages",),
    "texts": (
        *("text", "html", "xliff", "srt", "vtt", "po", "markup", "sentences", "glossary"),
        *("regex", "json_schema", "lark"),
    ),
    "files": (
        *("tokens", "manifest", "shortlist", "onnx", "graph-rules", "tokenizer", "chat-template"),
        *("gguf", "marian", "sentencepiece", "rows"),
    ),
}
NAMES = {name: module for module, names in MODULES.items() for name in names}


def reader_of(name: str, folder: Path) -> Reader:
    """A reader. folder: for the files that it reads."""
    module = importlib.import_module(f"tests.fuzz.{NAMES[name]}")
    found: dict[str, Reader] = module.readers(folder) if NAMES[name] == "files" else module.readers()
    return found[name]
