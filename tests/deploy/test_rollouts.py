"""The queries of Argo Rollouts and Flagger: their names are exported, and a live server answers all of them."""

import asyncio
import math
import re

import grpc
import pytest
import yaml

from deploy.monitoring.__main__ import DEPLOY
from deploy.monitoring.expressions import problems
from glossa.client.admin import AdminClient
from tests.deploy.monitoring.prometheus import scraping
from tests.deploy.monitoring.series import exported as exported_series
from tests.e2e.load import WITHIN_S, until
from tests.e2e.process import serving
from tests.edge import method
from tests.tiny import TEXTS, tiny_config, tiny_model

FOLDER = DEPLOY / "rollouts"
VALUES = {"model": "en-de", "version": "new", "stable": "old", "interval": "1m"}


def queries():
    """Every query by its name, with what both programs put into them."""
    (template,) = yaml.safe_load_all((FOLDER / "argo-rollouts.yaml").read_text())
    found = {f"argo {one['name']}": one["provider"]["prometheus"]["query"] for one in template["spec"]["metrics"]}
    for one in yaml.safe_load_all((FOLDER / "flagger.yaml").read_text()):
        found[f"flagger {one['metadata']['name']}"] = one["spec"]["query"]
    return {name: re.sub(r"\{\{\s*([\w.-]+)\s*\}\}", filled, query) for name, query in found.items()}


def filled(match):
    name = match[1].rpartition(".")[2]
    return VALUES["stable" if name.startswith("stable") else name]


def test_the_queries_read_what_a_server_exports():
    assert len(queries()) == 6
    assert {
        name: found for name, query in queries().items() if (found := list(problems(query, exported_series())))
    } == {}


@pytest.mark.slow
async def test_every_query_returns_a_figure_of_a_live_server(exported, tmp_path):
    bundles = [exported(tiny_model(tiny_config("encoder_decoder"), seed)) for seed in (6, 3)]
    settings = {"admin_socket": str(tmp_path / "admin"), "engines": 1, "device": "cpu"}
    with (
        serving(models={"en-de": str(bundles[0])}, **settings) as server,
        AdminClient(f"unix:{tmp_path / 'admin'}") as admin,
        scraping(server.wait_for("serving")["http"], tmp_path) as prometheus,
    ):
        admin.load("en-de", bundles[0], version="old")
        admin.load("en-de", bundles[1], version="new", keep_default=True)
        admin.set_traffic("en-de", {"old": 50, "new": 50}, shadow=("new", 100))
        stop = asyncio.Event()

        async def ask():
            async with grpc.aio.insecure_channel(server.address) as channel:
                while not stop.is_set():
                    for text in TEXTS:
                        await method(channel, "Translate")(text=text, timeout=WITHIN_S)

        def answers():
            return {name: [one.values[0] for one in prometheus.query(query)] for name, query in queries().items()}

        asking = asyncio.create_task(ask())
        found = await asyncio.to_thread(
            until, lambda: (got := answers()) and all(v and math.isfinite(v[0]) for v in got.values()) and got
        )
        stop.set()
        await asking
    print(found)
    assert found["argo failed"] == found["flagger glossa-failed"] == [0.0]
    assert found["argo p99"][0] > 0
    assert found["argo disagreement"][0] > 0, "the bundles answer differently"
