"""The flags of `glossa bench`."""

import json

from tests.cli.command import ask


async def test_flags_become_settings(edge, tmp_path):
    (tmp_path / "texts").write_text("a cat\n")
    loads = ["--concurrency", "1,2", "--duration-s", 0.1, "--warm-up-s", 0, "--unary", "--slo-e2e-ms", 250]
    (tmp_path / "options.yaml").write_text("min_tokens: 2\nstop: [END]\n")
    more = ["--connections", 2, "--seed", 7, "--max-tokens", 9, "--options", tmp_path / "options.yaml"]
    printed = await ask(edge, "bench", "--input", tmp_path / "texts", *loads, *more, "--model", "en-de", "--json")
    report = json.loads(printed.splitlines()[-1])
    expected = {"duration_s": 0.1, "warm_up_s": 0, "streamed": False, "connections": 2, "seed": 7, "loop": "closed"}
    assert {name: report[name] for name in expected} == expected
    assert report["objectives"]["end_to_end_ms"] == 250
    assert report["options"] == {"max_tokens": 9, "min_tokens": 2, "stop": ["END"]}
    assert [load["concurrency"] for load in report["loads"]] == [1, 2]
    assert edge.pool.requests[-1].max_tokens == 9
