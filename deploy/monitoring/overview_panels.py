"""The panels to look at first: each model as a whole, and its versions beside each other."""

from __future__ import annotations

from deploy.monitoring.panel import FULL, MODEL, SERVER, Query, Section, errors, p95, panel, rate
from deploy.monitoring.slo import AVAILABILITY, FIRST_TOKEN

_BUDGET = ((AVAILABILITY.budget, "orange"), (14.4 * AVAILABILITY.budget, "red"))
_FIRST_TOKEN = ((FIRST_TOKEN.limit_s, "red"),)
_VERSION = "{{model}} {{version}}"

OVERVIEW = Section(
    "Overview",
    (
        panel(
            "Requests",
            "Accepted requests that ended, per second.",
            Query(rate("glossa_requests_finished_total", MODEL, "model"), "{{model}}"),
            unit="reqps",
        ),
        panel(
            "Error share",
            "Requests that failed, came too late or found no room, of all of a model. Lines: the objective of"
            " availability, and the pace that pages.",
            Query(errors("model"), "{{model}}"),
            unit="percentunit",
            limits=_BUDGET,
        ),
        panel(
            "First token: p95",
            "95 % of requests have their first token by then. Line: the objective, for 99 %.",
            Query(p95("glossa_time_to_first_token_seconds", "model"), "{{model}}"),
            unit="s",
            limits=_FIRST_TOKEN,
        ),
        panel(
            "Tokens generated",
            "Tokens of all requests, those of failed ones included.",
            Query(rate("glossa_generated_tokens_total", MODEL, "model"), "{{model}}"),
            unit="suffix: tokens/s",
        ),
        panel(
            "Fullness",
            "Waiting and running requests over all that there is room for. At 1 requests are refused.",
            Query(f"instance_model:glossa_load:ratio{{{MODEL}}}", "{{instance}} {{model}}"),
            unit="percentunit",
            limits=FULL,
        ),
    ),
    columns=5,
)

VERSIONS = Section(
    "Versions",
    (
        panel(
            "Versions that are open",
            "1: answers requests that name no version. 0: another one, or one that drains.",
            Query(f"glossa_version_default{{{MODEL}}}", _VERSION),
        ),
        panel(
            "Requests by version",
            "Accepted requests that ended, per second.",
            Query(rate("glossa_requests_finished_total", MODEL, "model", "version"), _VERSION),
            unit="reqps",
        ),
        panel(
            "Error share by version",
            "As above. One version above the others of its model has a fault of its own.",
            Query(errors("model", "version"), _VERSION),
            unit="percentunit",
            limits=_BUDGET,
        ),
        panel(
            "End-to-end time by version: p95",
            "From an RPC's start to its end, of answers.",
            Query(p95("glossa_request_seconds", "model", "version"), _VERSION),
            unit="s",
        ),
        panel(
            "Tokens by version",
            "Tokens generated.",
            Query(rate("glossa_generated_tokens_total", MODEL, "model", "version"), _VERSION),
            unit="suffix: tokens/s",
        ),
        panel(
            "Versions loaded",
            "Versions that were to be loaded within the last hour, by outcome.",
            Query(
                f'sum by (model, outcome) (increase(glossa_model_loads_total{{{SERVER},model=~"$model"}}[1h]))',
                "{{model}} {{outcome}}",
            ),
        ),
    ),
)
