"""Panels of capacity: what is in use, of which limit, and how well it is used."""

from __future__ import annotations

from deploy.monitoring.panel import FULL, MODEL, SERVER, Query, Section, panel, rate, ratio

SATURATION = Section(
    "Saturation",
    (
        panel(
            "Queue, rows and KV cache, of their limits",
            "Full rows alone are high throughput, even for hours; full rows with a queue are too little capacity.",
            Query(f"instance_model:glossa_queue:ratio{{{MODEL}}}", "{{instance}} {{model}} queue"),
            Query(f"instance_model:glossa_rows:ratio{{{MODEL}}}", "{{instance}} {{model}} rows"),
            Query(f"glossa_kv_cache_usage_ratio{{{MODEL}}}", "{{instance}} {{model}} {{version}} KV cache"),
            unit="percentunit",
            limits=FULL,
        ),
        panel(
            "Queue",
            "Requests that wait for free rows, and how many may.",
            Query(f"sum by (model) (glossa_requests_queued{{{MODEL}}})", "{{model}} queued"),
            Query(f"sum by (model) (glossa_requests_queue_limit{{{MODEL}}})", "{{model}} limit"),
        ),
        panel(
            "Rows",
            "Rows in use, which are hypotheses being decoded, the requests that they belong to, and the limit.",
            Query(f"sum by (model) (glossa_rows_used{{{MODEL}}})", "{{model}} used"),
            Query(f"sum by (model) (glossa_requests_running{{{MODEL}}})", "{{model}} requests"),
            Query(f"sum by (model) (glossa_rows_limit{{{MODEL}}})", "{{model}} limit"),
        ),
        panel(
            "KV cache",
            "Bytes that rows fill, those that running requests may come to need, and the limit of the reservations.",
            Query(f"sum by (model) (glossa_kv_cache_used_bytes{{{MODEL}}})", "{{model}} used"),
            Query(f"sum by (model) (glossa_kv_cache_reserved_bytes{{{MODEL}}})", "{{model}} reserved"),
            Query(f"sum by (model) (glossa_kv_cache_limit_bytes{{{MODEL}}})", "{{model}} limit"),
            unit="bytes",
        ),
        panel(
            "Age of the backlog",
            "How long calls wait until the server sees them. Above 1 s the server reports that it is not ready.",
            Query(f"glossa_backlog_age_seconds{{{SERVER}}}", "{{instance}}"),
            unit="s",
            limits=((0.25, "orange"), (1.0, "red")),
        ),
    ),
)

EFFICIENCY = Section(
    "Efficiency",
    (
        panel(
            "Rows in a decode step: mean",
            "What continuous batching gathers. A step of many rows costs little more than one of a single row.",
            Query(ratio("glossa_decode_step_rows_sum", "glossa_decode_step_rows_count"), "{{model}}"),
        ),
        panel(
            "Wasted tokens",
            "Tokens of cancelled, late and failed requests, of all that were generated.",
            Query(ratio("glossa_wasted_tokens_total", "glossa_generated_tokens_total"), "{{model}}"),
            unit="percentunit",
        ),
        panel(
            "Padding",
            "Tokens that only fill a batch, of all that encoder and prefill computed. Short texts have most.",
            Query(ratio("glossa_padding_tokens_total", "glossa_prefill_tokens_total"), "{{model}}"),
            unit="percentunit",
        ),
        panel(
            "Prefix cache: tokens that hit",
            "Prompt tokens copied from the cache, of those looked up.",
            Query(
                ratio("glossa_prefix_cache_hit_tokens_total", "glossa_prefix_cache_queried_tokens_total"), "{{model}}"
            ),
            unit="percentunit",
        ),
        panel(
            "Prompt lookup: drafts accepted",
            "Draft tokens that the model confirmed, of those that it read; needs `--draft-tokens`.",
            Query(
                ratio("glossa_speculation_accepted_tokens_total", "glossa_speculation_draft_tokens_total"), "{{model}}"
            ),
            unit="percentunit",
        ),
        panel(
            "Parked requests",
            "Times in a second that a request left its rows to others.",
            Query(rate("glossa_preemptions_total", MODEL, "model"), "{{model}}"),
            unit="cps",
        ),
    ),
)
