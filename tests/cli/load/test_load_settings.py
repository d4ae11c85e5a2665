"""Load tests that cannot be described."""

import inspect
import math

import pytest

from cli.connection import Connection
from cli.load.bench import bench
from cli.load.load_settings import LIMITS, LoadTest
from cli.terminal import UsageError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": ()}, "give either --rate"),
        ({"concurrency": [1]}, "give either --rate"),
        ({"find_max": True, "rate": [1.0, 2.0]}, "--find-max begins at one --rate, got 2"),
        ({"find_max": True, "within_s": 30.0}, "--within-s: must be at least 65"),
        ({"find_max": True, "within_s": math.nan}, "--within-s: must be 0.001..inf, got nan"),
        ({"texts": []}, "--input: has no text"),
        ({"rate": [5.0, 0.0]}, "--rate: must be 0.01..100000, got 0"),
        ({"rate": [math.nan]}, "--rate: must be 0.01..100000, got nan"),
        ({"rate": (), "concurrency": [0]}, "--concurrency: must be 1..100000, got 0"),
        ({"warm_up_s": -1}, "--warm-up-s: must be 0..86400, got -1"),
        ({"duration_s": 0}, "--duration-s: must be"),
        ({"burstiness": 0.0}, "--burstiness: must be"),
        ({"connections": 0}, "--connections: must be 1..1000, got 0"),
        ({"percentile": 101}, "--percentile: must be 1..100, got 101"),
        ({"slo_ttft_ms": 0.0}, "--slo-ttft-ms: must be"),
        ({"slo_ttft_ms": 100, "stream": False}, "unary calls have no token latencies"),
        ({"slo_itl_ms": 100, "stream": False}, "use --stream"),
    ],
)
def test_invalid_load_tests_are_rejected(changes, message):
    with pytest.raises(UsageError) as caught:
        LoadTest(**{"connection": Connection(), "texts": ["a cat"], "rate": [50.0], **changes})
    assert message in str(caught.value)


def test_every_limited_setting_is_a_flag():
    flags = inspect.signature(bench).parameters
    assert [name for name in LIMITS if name not in flags] == []
