"""What `help()` shows of a call."""

import inspect
import pydoc
import re

from glossa.client import Client, Options, TranslateOptions, help_text
from glossa.client.types import Translation


def page(name):
    return pydoc.plain(pydoc.render_doc(getattr(Client, name)))


def test_help_shows_every_option_and_field_of_the_result():
    shown = page("translate")
    assert re.search(r"\) -> ('?)Translation\1\n", shown)  # Python 3.14 leaves the quotation marks out
    assert "beam_size: int. Hypotheses that beam search keeps. 1..32. Default: 1 (no beam)." in shown
    assert "finish_reason: str. end_of_sequence, length or stop_string" in shown
    for name in (*TranslateOptions.__annotations__, *Translation.__dataclass_fields__):
        assert f"  {name}: " in shown, name


def test_help_names_what_each_kind_of_call_returns():
    assert inspect.signature(Client.stream_generate).return_annotation == "Iterator[Piece]"
    assert "Fields of Piece:" in page("stream_generate")
    assert "Batch[Translation]" in page("translate_batch")
    assert "Iterator[DocumentPiece]" in page("stream_translate_document")
    assert "Fields of Document:" in page("translate_document")
    assert "Fields of" not in page("embed")
    for name in Options.__annotations__:
        assert f"  {name}: " in page("generate"), name


def test_without_sources_a_call_has_its_own_docstring(monkeypatch):
    def getsource(_):
        raise OSError("no source")

    def build(self, text: str) -> "Call[Translation]":  # type: ignore[name-defined]  # noqa: F821
        """Translate."""

    def method() -> None: ...

    monkeypatch.setattr(inspect, "getsource", getsource)
    help_text._classes.cache_clear()
    try:
        assert help_text.with_help(method, build).__doc__ == "Translate."
    finally:
        help_text._classes.cache_clear()
