"""Attention weights as a page that needs no network."""

import json
import re

from cli.requests.attention_page import page, page_data
from tests.cli.requests.attended import ANIMAL, BANK, attended


def test_a_page_contains_all_weights_and_needs_no_network():
    reported = attended()
    html = page(reported, text=ANIMAL, model="demo")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    data_of_page = json.loads(data)
    assert data_of_page == json.loads(json.dumps(page_data(reported, text=ANIMAL, model="demo")))
    assert (data_of_page["text"], data_of_page["answer"], data_of_page["model"]) == (ANIMAL, BANK, "demo")
    assert data_of_page["kinds"] == [
        {"kind": "encoder", "layers": [1], "heads": [1, 2]},
        {"kind": "cross", "layers": [2], "heads": [0]},
    ]
    assert [len(matrix["weights"]) for matrix in data_of_page["matrices"]] == [144, 144, 108]
    assert data_of_page["matrices"][0]["weights"][:12] == [round(1 / 12, 4)] * 12
    assert [token["text"] for token in data_of_page["predicted"]][-2:] == [" river", "<eos>"]
    assert not re.search(r"https?://|//cdn|@import|url\(", html)
    assert "@DATA@" not in html


def test_text_in_the_page_is_escaped():
    text = "</script><script>alert(1)</script> <!-- & @DATA@"
    html = page(attended(), text=text)
    assert html.count("<script") == 2
    (data,) = re.findall(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(data)["text"] == text
