"""What `glossa attend` requests and shows; with a model: `tests/e2e/test_attention.py`."""

import inspect
import json
from types import SimpleNamespace

import pytest

from cli.requests.attend import attend
from glossa.v1 import glossa_pb2 as pb
from tests.cli.requests.attended import ANIMAL, BANK, attended

KINDS = (pb.ATTENTION_KIND_ENCODER, pb.ATTENTION_KIND_DECODER, pb.ATTENTION_KIND_CROSS)
WHOLE = {"target": "", "text_only": False, "max_tokens": 0, "kinds": [], "layers": [], "heads": []}


class ScriptedClient:
    """A server's client that keeps what was asked."""

    def __init__(self):
        self.options = {}

    def get_model(self, name):
        return SimpleNamespace(attention=[SimpleNamespace(kind=kind) for kind in KINDS])

    def attend(self, text, **options):
        self.options = options
        return attended()


@pytest.fixture
def called(capsys):
    """Calls the verb with the scripted client: what it asked and printed."""

    def call(**arguments):
        client = ScriptedClient()
        inspect.unwrap(attend)(ANIMAL, client=client, options={}, **arguments)
        return client.options, capsys.readouterr().out

    return call


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, {"kinds": ["cross"], "mean_layers": True, "mean_heads": True}),
        ({"text_only": True}, {"text_only": True, "kinds": ["encoder"], "mean_layers": True, "mean_heads": True}),
        ({"layer": [2]}, {"kinds": ["cross"], "layers": [2], "mean_layers": False, "mean_heads": True}),
        ({"kind": ["decoder"], "head": [1, 3]}, {"kinds": ["decoder"], "heads": [1, 3], "mean_heads": False}),
        ({"as_json": True, "target": BANK, "max_tokens": 3}, {"target": BANK, "max_tokens": 3}),
    ],
)
def test_the_terminal_requests_means_and_files_request_everything(called, arguments, expected):
    options, _ = called(**arguments)
    shown = {"mean_layers": True, "mean_heads": True} if "as_json" not in arguments else {}
    assert options == {**WHOLE, **shown, **expected}


def test_every_map_is_shown_after_the_answer(called):
    _, printed = called()
    lines = printed.splitlines()
    assert lines[0] == BANK
    titles = [line for line in lines if line.startswith(("encoder, ", "cross, "))]
    assert titles == ["encoder, layer 1, head 1", "encoder, layer 1, head 2", "cross, layer 2, mean of heads"]


def test_files_and_json_hold_every_matrix(called, tmp_path):
    page, picture = tmp_path / "page.html", tmp_path / "maps.png"
    options, printed = called(html=page, png=picture, as_json=True)
    assert "mean_layers" not in options
    assert len(json.loads(printed)["matrices"]) == 3
    assert ANIMAL.split()[1] in page.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
