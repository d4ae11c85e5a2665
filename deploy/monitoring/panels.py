"""The one table of panels, from which Grafana's dashboard is written."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.monitoring import capacity_panels, drift_panels, overview_panels, process_panels, request_panels, slo
from deploy.monitoring.panel import MODEL, SERVER, Annotation, Panel, Query, Section, Variable, panel

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
            limits=((0.0, "red"), (1.0, "green")),
        ),
        panel(
            "Draining",
            "1 while the server refuses new requests to end.",
            Query(f"glossa_draining{{{SERVER}}}", "{{instance}}"),
            kind="numbers",
            limits=((1.0, "orange"),),
        ),
        panel(
            "Version",
            "The version that runs, by server.",
            Query(f"glossa_build_info{{{SERVER}}}", "{{instance}}: {{version}} {{commit}}"),
            kind="labels",
        ),
        panel(
            "Models",
            "The versions of models that are open, and the precision of their graphs.",
            Query(f"glossa_model_info{{{MODEL}}}", "{{model}} {{version}}: {{architecture}}, {{task}}, {{precision}}"),
            kind="labels",
        ),
        panel(
            "Execution provider",
            "The provider in use, and the device asked for. A fallback computes on the CPU because CUDA failed.",
            Query(
                f"glossa_execution_provider_info{{{MODEL}}}",
                "{{model}} {{version}}: {{provider}}, asked for {{requested}}, fallback {{fallback}}",
            ),
            kind="labels",
        ),
        panel(
            "Certificate expires in",
            "Days until the server's certificate expires; infinite without one.",
            Query(f"(glossa_certificate_expiry_timestamp_seconds{{{SERVER}}} - time()) / 86400", "{{instance}}"),
            unit="d",
            kind="numbers",
            limits=((0.0, "red"), (2.0, "orange"), (14.0, "green")),
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
            limits=((objective.budget, "orange"), (slo.FAST[0].rate * objective.budget, "red")),
        )
        for objective in slo.OBJECTIVES
    ),
)

SECTIONS = (
    overview_panels.OVERVIEW,
    overview_panels.VERSIONS,
    _STATE,
    _OBJECTIVES,
    *(request_panels.TRAFFIC, request_panels.TENANTS, request_panels.ERRORS, request_panels.LATENCY),
    drift_panels.DRIFT,
    *(capacity_panels.SATURATION, capacity_panels.EFFICIENCY),
    process_panels.PROCESSES,
)

# What happened, as lines across all panels: where a query is 1.
ANNOTATIONS = (
    Annotation(
        "Versions loaded",
        "blue",
        Query(
            "clamp_max(ceil(sum by (instance, model, outcome)"
            f" (increase(glossa_model_loads_total{{{MODEL}}}[1m]))), 1)",
            "{{instance}}: a version of {{model}}, {{outcome}}",
        ),
    ),
    Annotation(
        "Restarts of engine processes",
        "red",
        Query(
            "clamp_max(ceil(sum by (instance, model, reason)"
            f" (increase(glossa_engine_process_restarts_total{{{MODEL}}}[1m]))), 1)",
            "{{instance}}: an engine process of {{model}}, {{reason}}",
        ),
    ),
    Annotation(
        "Restarts of servers",
        "purple",
        Query(f"clamp_max(changes(process_start_time_seconds{{{SERVER}}}[1m]), 1)", "{{instance}} started again"),
    ),
)


def panels() -> Iterator[Panel]:
    """All panels, in their order."""
    for section in SECTIONS:
        yield from section.panels
