"""The one table of panels, from which Grafana's dashboard is written."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.monitoring import capacity_panels, drift_panels, process_panels, request_panels, slo
from deploy.monitoring.panel import MODEL, SERVER, Panel, Query, Section, Variable, panel

VARIABLES = (
    Variable("instance", "instance", "glossa_build_info"),
    Variable("model", "model", 'glossa_model_info{instance=~"$instance"}'),
)

_STATE = Section(
    "State",
    (
        panel(
            "Ready",
            "1 while the server takes requests and all of its models do.",
            Query(f"glossa_ready{{{SERVER}}}", "{{instance}}"),
            kind="numbers",
        ),
        panel(
            "Draining",
            "1 while the server refuses new requests to end.",
            Query(f"glossa_draining{{{SERVER}}}", "{{instance}}"),
            kind="numbers",
        ),
        panel(
            "Version",
            "The version that runs, by server.",
            Query(f"glossa_build_info{{{SERVER}}}", "{{instance}}: {{version}} {{commit}}"),
            kind="labels",
        ),
        panel(
            "Models",
            "The models that are served, and the precision of their graphs.",
            Query(f"glossa_model_info{{{MODEL}}}", "{{model}}: {{architecture}}, {{task}}, {{precision}}"),
            kind="labels",
        ),
        panel(
            "Execution provider",
            "The provider in use, and the device asked for. A fallback computes on the CPU because CUDA failed.",
            Query(
                f"glossa_execution_provider_info{{{MODEL}}}",
                "{{model}}: {{provider}}, asked for {{requested}}, fallback {{fallback}}",
            ),
            kind="labels",
        ),
        panel(
            "Certificate expires in",
            "Days until the server's certificate expires; infinite without one.",
            Query(f"(glossa_certificate_expiry_timestamp_seconds{{{SERVER}}} - time()) / 86400", "{{instance}}"),
            unit="d",
            kind="numbers",
        ),
    ),
)

_OBJECTIVES = Section(
    "Service level objectives",
    tuple(
        panel(
            f"{objective.title}: share that misses it",
            f"{objective.text} The objective allows {objective.budget:g}. Of all servers of a job.",
            *tuple(
                Query(objective.record(window) + objective.matchers, f"{objective.legend} {window}")
                for window in ("5m", "1h", "6h", "3d")
            ),
            unit="percentunit",
        )
        for objective in slo.OBJECTIVES
    ),
)

SECTIONS = (
    _STATE,
    _OBJECTIVES,
    *(request_panels.TRAFFIC, request_panels.TENANTS, request_panels.ERRORS, request_panels.LATENCY),
    drift_panels.DRIFT,
    *(capacity_panels.SATURATION, capacity_panels.EFFICIENCY),
    process_panels.PROCESSES,
)


def panels() -> Iterator[Panel]:
    """All panels, in their order."""
    for section in SECTIONS:
        yield from section.panels
