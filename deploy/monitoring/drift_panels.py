"""Panels of drift: whether the traffic is still of the language and the domain that a model was made for."""

from __future__ import annotations

from deploy.monitoring.panel import MODEL, WINDOW, Query, Section, panel, ratio
from deploy.monitoring.rules import CONFIDENCE, UNKNOWN

DRIFT = Section(
    "Drift",
    (
        panel(
            "Confidence",
            "Mean calibrated confidence of translations, and that of the last day. It falls when texts of another "
            "language or domain come.",
            Query(ratio("glossa_answer_confidence_ratio_sum", "glossa_answer_confidence_ratio_count"), "{{model}}"),
            Query(f'{CONFIDENCE}{{model=~"$model"}}', "{{job}} {{model}} 1d"),
            unit="percentunit",
        ),
        panel(
            "Confidence: heat map",
            "Translations by their calibrated confidence.",
            Query(f"sum by (le) (increase(glossa_answer_confidence_ratio_bucket{{{MODEL}}}{WINDOW}))", "{{le}}"),
            unit="percentunit",
            kind="heat_map",
        ),
        panel(
            "Unknown tokens",
            "Share of input tokens that the vocabulary lacks, and that of the last day. Models of bytes have none.",
            Query(ratio("glossa_request_unknown_tokens_total", "glossa_request_prompt_tokens_sum"), "{{model}}"),
            Query(f'{UNKNOWN}{{model=~"$model"}}', "{{job}} {{model}} 1d"),
            unit="percentunit",
        ),
    ),
)
