"""`glossa bench` on a server with real engines."""

import json

import pytest
from typer.testing import CliRunner

import cli.main
from tests.e2e.process import serving
from tests.tiny import TEXTS


@pytest.fixture(scope="module")
def server(tiny_translation_bundle, tiny_generation_bundle):
    models = {"en-de": str(tiny_translation_bundle), "en": str(tiny_generation_bundle)}
    with serving(models=models, max_queue=1000) as server:
        yield server


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("".join(f"{text}\tsomething else\n" for text in TEXTS))
    return path


def bench(server, texts, *arguments, fails=False):
    """What it prints: the report on standard output, or what went wrong."""
    command = ["bench", "--address", server.address, "--input", texts, *arguments]
    result = CliRunner().invoke(cli.main.app, [str(argument) for argument in command])
    assert result.exit_code == (1 if fails else 0), result.output
    return result.stderr if fails else result.stdout


SHORT = ["--warm-up-s", 0.1, "--duration-s", 0.5]


@pytest.mark.parametrize("model", ["en-de", pytest.param("en", marks=pytest.mark.slow)])
def test_both_kinds_of_models_are_measured_as_the_server_counts(server, texts, model, tmp_path):
    names = {"started": "glossa_requests_finished_total", "tokens": "glossa_generated_tokens_total"}
    before = {name: server.metric(metric, model=model) for name, metric in names.items()}
    plot = tmp_path / "load.svg"
    arguments = ["--model", model, "--rate", "20,40", "--max-tokens", 8, "--slo-e2e-ms", 60000, "--seed", 3, *SHORT]
    report = json.loads(bench(server, texts, *arguments, "--json", "--plot", plot))
    server.settle()
    after = {name: server.metric(metric, model=model) for name, metric in names.items()}
    slow, fast = report["loads"]
    assert (slow["rate"], fast["rate"], report["highest_sustained_rate"]) == (20, 40, 40)
    assert fast["requests"] > slow["requests"] > 0
    for load in (slow, fast):
        assert load["statuses"] == {"OK": load["requests"]}
        assert load["tokens"] <= 8 * load["requests"]
        assert 0 < load["first_token_ms"]["p50"] <= load["end_to_end_ms"]["p50"]
    measured = sum(load["requests"] for load in (slow, fast))
    # the server also answered those of the warm-up and the first one, which is sent alone
    assert measured < after["started"] - before["started"] < 2 * measured + 10
    assert sum(load["tokens"] for load in (slow, fast)) < after["tokens"] - before["tokens"]
    assert plot.read_bytes().startswith(b"<?xml")
    assert report["model"]["name"] == model


def test_a_closed_loop_of_unary_calls(server, texts):
    arguments = ["--model", "en-de", "--concurrency", "2,4", "--unary", "--beam-size", 2, *SHORT]
    report = bench(server, texts, *arguments)
    assert "CLOSED loop" in report
    assert "2 clients: " in report
    assert "first token" not in report
    assert report.splitlines()[-1].split()[:2] == ["4", "clients"]


def test_the_highest_rate_is_searched(server, texts):
    arguments = ["--model", "en", "--find-max", "--rate", 20, "--precision", 1, "--max-tokens", 4, "--wait-s", 0.5]
    report = json.loads(bench(server, texts, *arguments, *SHORT, "--slo-e2e-ms", 0.01, "--within-s", 5, "--json"))
    assert report["highest_sustained_rate"] is None
    assert report["loads"][0]["cut_short"]
    assert [load["rate"] for load in report["loads"]][:2] == [20, 10]
    assert "use a longer --duration-s" in report["search"]  # slower still, nothing was to be sent


def test_invalid_load_tests_fail_with_one_line(server, texts, tmp_path):
    assert bench(server, texts, fails=True) == "error: give either --rate R,…, --find-max or --concurrency K,…\n"
    assert "--rate: must be numbers separated by commas, such as 5,10,20; got '5;6'" in bench(
        server, texts, "--rate", "5;6", fails=True
    )
    assert "nobody" in bench(server, texts, "--rate", 5, "--model", "nobody", fails=True)
    refused = bench(server, texts, "--rate", 5, "--model", "en", "--max-tokens", 10_000, fails=True)
    assert "a first request failed: INVALID_ARGUMENT" in refused
    assert "none.txt" in bench(server, tmp_path / "none.txt", "--rate", 5, fails=True)
    assert "must end in .png or .svg" in bench(server, texts, "--rate", 5, "--plot", "x.jpg", fails=True)
