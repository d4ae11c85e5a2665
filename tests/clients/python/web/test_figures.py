"""Live figures of the server's ops port."""

import asyncio

import pytest

from glossa.web.figures import Figures, by_model
from glossa.web.refusals import Refused
from tests.clients.python.web.conftest import site_of
from tests.edge import running


def test_figures_are_read_by_model():
    text = """# HELP glossa_rows_used Rows
glossa_rows_used{model="en-de"} 3.0
glossa_rows_used{model="en"} 1.0
glossa_generated_tokens_total{model="en-de"} 1.5e+03
glossa_time_to_first_token_seconds_count{model="en-de"} 2.0
glossa_build_info{version="1"} 1.0
other{model="en-de"} 9.0
"""
    assert by_model(text) == {
        "en-de": {"rows_used": 3.0, "generated_tokens": 1500.0, "first_token_count": 2.0},
        "en": {"rows_used": 1.0},
    }


async def test_the_figures_of_a_server_are_read_once_for_all_who_ask():
    async with running() as edge:
        figures = Figures(f"127.0.0.1:{edge.server.http_port}")
        first, *others = await asyncio.gather(*(figures.now() for _ in range(9)))
    assert all(other is first for other in others)
    assert first["models"]["en-de"].keys() >= {"rows_used", "queue_limit", "cache_ratio", "first_token_s_sum"}


async def test_without_an_ops_port_the_reason_is_said(site):
    status, answer = await site.ask("/api/figures")
    assert (status, "name it with --ops" in answer["error"]) == (501, True)
    async with site_of({"ops": "127.0.0.1:1"}) as other:
        status, answer = await other.ask("/api/figures")
    assert (status, answer["error"].startswith("no ops port at 127.0.0.1:1 (--ops): ")) == (503, True)
    with pytest.raises(Refused):
        await Figures("").now()
