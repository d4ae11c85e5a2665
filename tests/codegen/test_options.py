import json

import pytest

from codegen import options as generator
from service.options import OPTIONS, Option, Range


def test_generated_files_are_up_to_date():
    for path, content in generator.generated().items():
        assert path.read_text(encoding="utf-8") == content, f"{path.name} is out of date; run: make options"


def test_a_stale_file_is_named(tmp_path, monkeypatch):
    for name in (generator.FIELDS, generator.CLIENT, generator.FLAGS, generator.DOCS):
        before, after = ("<!-- ", " -->") if name == generator.DOCS else ("    # ", "")
        marks = f"{before}{generator.BEGIN}{after}\nold\n{before}{generator.END}{after}\n"
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"old\n{marks}", encoding="utf-8")
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"options.py is out of date; run: make options"):
        generator.main(["--check"])
    generator.main([])
    generator.main(["--check"])
    docs = (tmp_path / generator.DOCS).read_text(encoding="utf-8")
    assert docs.startswith(f"old\n<!-- {generator.BEGIN} -->\n\n### ")


def test_the_command_line_knows_every_option():
    known = json.loads(generator.flags())
    assert list(known) == list(OPTIONS)
    assert known["bad_words"]["flag"] == "--bad-word"
    assert known["alignment"] == {
        "type": "choice",
        "choices": ["none", "soft", "hard", "both"],
        "help": known["alignment"]["help"],
        "panel": "Additional output",
        "scores": True,
        "task": "translation",
    }
    assert {item["type"] for item in known.values()} == {"int", "float", "bool", "str", "list", "choice", "path"}


def test_a_row_of_the_docs_has_meaning_range_default_and_peers():
    rows = [line for line in generator.tables().splitlines() if line.startswith("| `")]
    assert len(rows) == len(OPTIONS)
    assert rows[0] == (
        "| `max_tokens` | maximum number of new tokens, end token included | at least 0 | 0 (the model's limit) "
        "| `max_new_tokens` | `max_decoding_length` | `max_tokens` | `--max-len-b` |"
    )


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"default": 0, "range": Range(0, 9)}, ("0..9", "0")),
        ({"default": 0, "range": Range(0, 9), "unset": "off", "limits": "even"}, ("0..9; even", "0 (off)")),
        ({"default": 1.0}, ("", "1")),
        ({"default": False}, ("", "false")),
        ({"default": None, "unset": "random"}, ("", "random")),
        ({"default": (), "max_items": 4, "max_bytes": 8}, ("at most 4 of 8 bytes", "none")),
        ({"default": {}, "max_items": 4, "range": Range(0, 1)}, ("0..1; at most 4", "none")),
        ({"default": "", "max_bytes": 8}, ("at most 8 bytes", "none")),
    ],
)
def test_limits_and_defaults_are_put_into_words(details, words):
    known = Option(group="beam", type="int", help="an option", **details)
    assert (generator.accepts(known), generator.default(known)) == words
