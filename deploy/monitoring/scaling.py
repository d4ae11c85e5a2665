"""How many replicas a load needs, for KEDA and for HorizontalPodAutoscalers: the query has its one home here.

The value of the query is the load in replicas: how many replicas the requests of the busiest model would fill, each row
with one request. Divided by the threshold and rounded up it is the number of replicas: both autoscalers compute that
from a metric of the type AverageValue. A row for a request is exact for greedy decoding and sampling; with beams of k
every request needs k rows, and the threshold is SCALING_THRESHOLD / k.
"""

from __future__ import annotations

import math
from typing import Any

# The share of its rows that a replica should use. The rest takes the requests that come while a new one starts.
SCALING_THRESHOLD: float = 0.7
# An autoscaler leaves the replicas as they are while the wanted number differs by no more than this share.
TOLERANCE: float = 0.1


def scaling_query(matchers: str = "") -> str:
    """PromQL whose value, divided by the threshold and rounded up, is the number of replicas: one sample, no labels.

    matchers: of the series of one release, such as `namespace="a",service="b"`. Replicas are equal, so the rows of one
    are the most that any has: one that starts still has none and must not count as a small one.
    """
    queued, running, limit = (
        f"{name}{{{matchers}}}" if matchers else name
        for name in ("glossa_requests_queued", "glossa_requests_running", "glossa_rows_limit")
    )
    return f"max(sum by (model) ({queued} + {running}) / clamp_min(max by (model) ({limit}), 1))"


SCALING_QUERY: str = scaling_query()
EXTERNAL_METRIC = "glossa_load_replicas"


def adapter_rules() -> dict[str, Any]:
    """Values of the chart prometheus-adapter, which then serves the query to HorizontalPodAutoscalers as the external
    metric EXTERNAL_METRIC. Their selector, with the namespace, becomes the matchers."""
    rule = {
        "seriesQuery": 'glossa_rows_limit{namespace!="",service!=""}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}}},
        "name": {"as": EXTERNAL_METRIC},
        "metricsQuery": scaling_query("<<.LabelMatchers>>"),
    }
    return {"rules": {"external": [rule]}}


def replicas(load: float, present: int, threshold: float = SCALING_THRESHOLD) -> int:
    """The number of replicas that an autoscaler wants for a value of the query, before its own minimum and maximum.

    present: replicas that there are.
    """
    if present and abs(load / (threshold * present) - 1) <= TOLERANCE:
        return present
    return math.ceil(load / threshold)
