"""What the measurement of balancers concludes from reports, and how it sets policies up."""

import json
import math
from typing import Any

import pytest

from bench.load import envoy
from bench.promises.balance import GRPC_POLICIES, Watch, _config, balanced_after, envoy_settings, percentile


class Seen(Watch):
    def __init__(self, *counts):
        self.seen = [(100 + at / 2, count) for at, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("slow", "after_s"),
    [
        ([4.0] * 40, 0.0),
        ([7.0] * 40, 0.0),  # half as many again, and one
        ([9.0] * 40, math.inf),
        ([9.0] * 7 + [6.0] * 33, 3.0),
        ([9.0] * 7 + [6.0] * 3 + [9.0] + [6.0] * 29, 5.0),  # not kept
        ([9.0] * 7 + [6.0] * 8 + [9.0] * 25, 3.0),  # kept long enough
        ([6.0] * 33 + [9.0] * 7, 0.0),
    ],
)
def test_balance_must_be_kept(slow, after_s):
    assert balanced_after(100.0, 120.0, Seen(*[4.0] * 40), Seen(*slow)) == after_s


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentiles_are_of_the_nearest_rank(share, expected):
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_policies_are_those_of_grpcs_service_config():
    ((_, text),) = _config("gRPC, weighted by streams")
    ((name, fields),) = json.loads(text)["loadBalancingConfig"][0].items()
    assert (name, fields["enableOobLoadReport"], fields["oobReportingPeriod"]) == ("weighted_round_robin", True, "0.5s")
    assert all(_config(policy) for policy in GRPC_POLICIES)
    assert _config("Envoy, round robin") == ()


@pytest.mark.parametrize("way", ["streams", "trailers"])
def test_envoys_policy_takes_the_place_of_least_request(way):
    cluster: Any = envoy.cluster_of(envoy_settings(f"Envoy, weighted by {way}"))
    assert "lb_policy" not in cluster
    (policy,) = cluster["load_balancing_policy"]["policies"]
    fields = policy["typed_extension_config"]["typed_config"]
    assert fields["@type"].endswith("client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin")
    assert fields["enable_oob_load_report"] == (way == "streams")
