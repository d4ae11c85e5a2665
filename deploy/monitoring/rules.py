"""The recording rules and the alerts, as files of rules of Prometheus.

An alert is made of conditions, each an expression, a comparison and a threshold: so a test can show on a healthy server
that the expressions have series, which the whole alert, without series there, could not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from deploy.monitoring import slo
from deploy.monitoring.panel import FAULTS

RUNBOOKS = "deploy/runbooks"


class Recording(NamedTuple):
    """A series that Prometheus computes from others and stores. The first part of its name are its labels."""

    name: str
    expression: str


class Condition(NamedTuple):
    """A comparison that keeps those series of an expression for which it holds."""

    expression: str
    comparison: Literal["<", ">", "=="]
    threshold: str

    def __str__(self) -> str:
        return f"{self.expression} {self.comparison} {self.threshold}"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """What somebody has to look at.

    cases: each a series of conditions that hold together; one case suffices. hold: how long it must hold. page:
    somebody looks at once, else within days. summary: with `{{ $labels.x }}` and `{{ $value }}`. runbook: its file,
    without .md.
    """

    name: str
    cases: tuple[tuple[Condition, ...], ...]
    hold: str = ""
    page: bool = False
    summary: str
    runbook: str

    @property
    def expression(self) -> str:
        """The whole expression."""
        cases = [" and ".join(map(str, case)) for case in self.cases]
        return cases[0] if len(cases) == 1 else " or ".join(f"({case})" for case in cases)


def _of_model(series: str) -> str:
    """The sum over a model's versions on a server."""
    return f"sum by (job, instance, model) ({series})"


def _of_version(counter: str, reasons: str = ".*") -> str:
    """Events in a second of a version on all servers."""
    return f'sum by (job, model, version) (rate({counter}{{reason=~"{reasons}"}}[10m]))'


def _best(recorded: str) -> str:
    """The lowest value that a version has, beside each version of its model."""
    return f"on (job, model) group_left () min by (job, model) ({recorded})"


CONFIDENCE, UNKNOWN = "job_model:glossa_answer_confidence:mean1d", "job_model:glossa_unknown_tokens:ratio1d"
_ANSWERS_OF_A_DAY = "sum by (job, model) (increase(glossa_answer_confidence_ratio_count[1d]))"
_TOKENS_OF_A_DAY = "sum by (job, model) (increase(glossa_request_prompt_tokens_sum[1d]))"


def _week_before(record: str) -> str:
    """The mean of the week before the last day; of a series without one its value now. Days without traffic, whose
    value is not a number, do not count."""
    return f"(avg_over_time(({record} >= 0)[1w:1h] offset 1d) or {_now(record)})"


def _now(record: str) -> str:
    """The last value, also where the rule that records it is evaluated after the one that reads it."""
    return f"last_over_time({record}[2h])"


RECORDINGS = (
    Recording(
        "instance_model:glossa_load:ratio",
        f"{_of_model('glossa_requests_queued + glossa_requests_running')}"
        f" / {_of_model('glossa_requests_queue_limit + glossa_rows_limit')}",
    ),
    Recording(
        "instance_model:glossa_queue:ratio",
        f"{_of_model('glossa_requests_queued')} / {_of_model('glossa_requests_queue_limit')}",
    ),
    Recording(
        "instance_model:glossa_rows:ratio", f"{_of_model('glossa_rows_used')} / {_of_model('glossa_rows_limit')}"
    ),
    Recording(
        "job_model_version:glossa_errors:ratio_rate10m",
        f"{_of_version('glossa_requests_finished_total', FAULTS)} / {_of_version('glossa_requests_finished_total')}",
    ),
    Recording(
        "job_model_version:glossa_request_seconds:p95_rate10m",
        "histogram_quantile(0.95, sum by (job, model, version, le) (rate(glossa_request_seconds_bucket[10m])))",
    ),
    Recording(
        CONFIDENCE,
        "sum by (job, model) (increase(glossa_answer_confidence_ratio_sum[1d])) / " + _ANSWERS_OF_A_DAY,
    ),
    Recording(
        UNKNOWN,
        "sum by (job, model) (increase(glossa_request_unknown_tokens_total[1d])) / " + _TOKENS_OF_A_DAY,
    ),
    Recording(
        "instance:glossa_resident_memory:bytes",
        "sum by (job, instance) (glossa_engine_process_resident_memory_bytes)"
        " + on (job, instance) process_resident_memory_bytes",
    ),
)

OBJECTIVE_RECORDINGS = tuple(
    Recording(objective.record(window), objective.errors(window))
    for objective in slo.OBJECTIVES
    for window in slo.WINDOWS
)


def _one(expression: str, comparison: Literal["<", ">", "=="], threshold: str) -> tuple[tuple[Condition, ...], ...]:
    return ((Condition(expression, comparison, threshold),),)


def _burns(objective: slo.Objective) -> tuple[Alert, Alert]:
    whom = "{{ $labels.job }}" + (", model {{ $labels.model }}" if "model" in objective.by else "")
    name = "Glossa" + objective.key.title().replace("_", "")

    def alert(suffix: str, burns: tuple[slo.Burn, ...], *, page: bool) -> Alert:
        cases = tuple(
            tuple(
                Condition(objective.record(window), ">", f"{burn.rate:g} * {objective.budget:g}")
                for window in (burn.long, burn.short)
            )
            for burn in burns
        )
        return Alert(
            name=f"{name}{suffix}",
            cases=cases,
            hold="2m" if page else "15m",
            page=page,
            summary=f"{whom}: {{{{ $value | humanizePercentage }}}} miss the objective: {objective.text}",
            runbook=objective.key.replace("_", "-"),
        )

    return alert("BurnsFast", slo.FAST, page=True), alert("BurnsSlowly", slo.SLOW, page=False)


OBJECTIVE_ALERTS = tuple(alert for objective in slo.OBJECTIVES for alert in _burns(objective))

_MODEL, _PROCESS = "{{ $labels.model }} on {{ $labels.instance }}", "{{ $labels.process }} on {{ $labels.instance }}"
_VERSION = "Version {{ $labels.version }} of {{ $labels.model }}"
_ERRORS, _P95 = (
    "job_model_version:glossa_errors:ratio_rate10m",
    "job_model_version:glossa_request_seconds:p95_rate10m",
)
# A share of a few requests is chance.
_ENOUGH = Condition("600 * " + _of_version("glossa_requests_finished_total"), ">", "100")
_SHIFTED = "The traffic of {{ $labels.job }}, model {{ $labels.model }}, has changed"
_DAYS = "{{ $labels.instance }}: the certificate expires in {{ $value | humanizeDuration }}"
_EXPIRY = "glossa_certificate_expiry_timestamp_seconds - time()"

ALERTS = (
    Alert(
        name="GlossaDown",
        cases=_one('up{job=~".*glossa.*"}', "==", "0"),
        hold="1m",
        page=True,
        summary="{{ $labels.instance }} does not answer scrapes",
        runbook="down",
    ),
    Alert(
        name="GlossaNotReady",
        cases=_one("glossa_ready + glossa_draining", "==", "0"),
        hold="2m",
        page=True,
        summary="{{ $labels.instance }} runs, but is not ready",
        runbook="not-ready",
    ),
    Alert(
        name="GlossaQueueFilling",
        cases=_one("instance_model:glossa_queue:ratio", ">", "0.8"),
        hold="5m",
        page=True,
        summary="The queue of " + _MODEL + " is {{ $value | humanizePercentage }} full",
        runbook="queue-filling",
    ),
    Alert(
        name="GlossaRowsFull",
        cases=(
            (
                Condition("avg_over_time(instance_model:glossa_rows:ratio[15m])", ">", "0.95"),
                Condition("min_over_time(instance_model:glossa_queue:ratio[15m])", ">", "0"),
            ),
        ),
        hold="5m",
        summary="All rows of " + _MODEL + " are busy, and requests always wait for them",
        runbook="rows-full",
    ),
    Alert(
        name="GlossaKVCacheFull",
        cases=(
            (
                Condition("avg_over_time(glossa_kv_cache_usage_ratio[15m])", ">", "0.95"),
                Condition("min_over_time(glossa_requests_queued[15m])", ">", "0"),
            ),
        ),
        hold="5m",
        summary="The KV cache of " + _MODEL + " is full, and requests always wait for it",
        runbook="kv-cache-full",
    ),
    Alert(
        name="GlossaVersionFails",
        cases=((Condition(f"{_ERRORS} - {_best(_ERRORS)}", ">", "0.02"), _ENOUGH),),
        hold="2m",
        page=True,
        summary=_VERSION + " fails {{ $value | humanizePercentage }} more of its requests than another version",
        runbook="version-worse",
    ),
    Alert(
        name="GlossaVersionSlow",
        cases=((Condition(f"{_P95} / {_best(_P95)}", ">", "1.5"), _ENOUGH),),
        hold="5m",
        summary=_VERSION + " has {{ $value | humanize }} times the p95 of another version",
        runbook="version-worse",
    ),
    Alert(
        name="GlossaBacklog",
        cases=_one("glossa_backlog_age_seconds", ">", "0.25"),
        hold="1m",
        page=True,
        summary="{{ $labels.instance }}: calls wait {{ $value | humanizeDuration }} until the server sees them",
        runbook="backlog",
    ),
    Alert(
        name="GlossaEventLoopLags",
        cases=_one("avg_over_time(glossa_event_loop_lag_seconds[5m])", ">", "0.1"),
        hold="5m",
        summary="{{ $labels.instance }}: the event loop is {{ $value | humanizeDuration }} late on average",
        runbook="event-loop-lag",
    ),
    Alert(
        name="GlossaCPUFallback",
        cases=_one(
            'count by (job, instance, model) (glossa_execution_provider_info{fallback="1"})'
            " or 0 * count by (job, instance, model) (glossa_execution_provider_info)",
            ">",
            "0",
        ),
        hold="5m",
        summary=_MODEL + " computes on the CPU because CUDA does not work",
        runbook="cpu-fallback",
    ),
    Alert(
        name="GlossaEngineStalled",
        cases=_one("max_over_time(glossa_engine_process_heartbeat_age_seconds[1m])", ">", "10"),
        page=True,
        summary=_PROCESS + " was {{ $value | humanizeDuration }} without a turn",
        runbook="engine-stalled",
    ),
    Alert(
        name="GlossaEngineProcessDown",
        cases=_one("glossa_engine_process_up + on (job, instance) group_left () glossa_draining", "==", "0"),
        hold="2m",
        page=True,
        summary=_PROCESS + " takes no requests",
        runbook="engine-process-down",
    ),
    Alert(
        name="GlossaEngineProcessRestarted",
        cases=_one(
            "sum by (job, instance, model, reason) (increase(glossa_engine_process_restarts_total[15m]))", ">", "0"
        ),
        summary="An engine process of " + _MODEL + " ended and was started again: {{ $labels.reason }}",
        runbook="engine-process-restarted",
    ),
    Alert(
        name="GlossaConfidenceDropped",
        cases=(
            (
                Condition(f"{_week_before(CONFIDENCE)} - {_now(CONFIDENCE)}", ">", "0.05"),
                Condition(_ANSWERS_OF_A_DAY, ">", "200"),
            ),
        ),
        hold="30m",
        summary=_SHIFTED
        + ": the confidence of a day is {{ $value | humanizePercentage }} below that of the week before",
        runbook="drift",
    ),
    Alert(
        name="GlossaUnknownTokensRose",
        cases=(
            (
                Condition(f"{_now(UNKNOWN)} - {_week_before(UNKNOWN)}", ">", "0.005"),
                Condition(_TOKENS_OF_A_DAY, ">", "10000"),
            ),
        ),
        hold="30m",
        summary=_SHIFTED + ": the share of unknown tokens has risen by {{ $value | humanizePercentage }} in a day",
        runbook="drift",
    ),
    Alert(
        name="GlossaCertificateExpires",
        cases=_one(_EXPIRY, "<", "14 * 86400"),
        hold="10m",
        summary=_DAYS,
        runbook="certificate-expires",
    ),
    Alert(
        name="GlossaCertificateExpiresSoon",
        cases=_one(_EXPIRY, "<", "2 * 86400"),
        hold="10m",
        page=True,
        summary=_DAYS,
        runbook="certificate-expires",
    ),
    Alert(
        name="GlossaFileReloadRefused",
        cases=_one(
            'sum by (job, instance, kind) (increase(glossa_file_reloads_total{outcome="refused"}[1h]))', ">", "0"
        ),
        summary="{{ $labels.instance }} refused new files of kind {{ $labels.kind }} and goes on with the old ones",
        runbook="file-reload-refused",
    ),
    Alert(
        name="GlossaMemoryAbovePrediction",
        cases=_one(
            "instance:glossa_resident_memory:bytes"
            " / on (job, instance) group_right () glossa_memory_predicted_peak_bytes",
            ">",
            "1",
        ),
        hold="5m",
        summary="{{ $labels.instance }} has {{ $value | humanizePercentage }} of the memory predicted at most",
        runbook="memory-above-prediction",
    ),
    Alert(
        name="GlossaFilesNearLimit",
        cases=_one('process_open_fds{job=~".*glossa.*"} / process_max_fds', ">", "0.8"),
        hold="5m",
        page=True,
        summary="{{ $labels.instance }} has {{ $value | humanizePercentage }} of the open files that it may have",
        runbook="files-near-limit",
    ),
)


def rule_files(runbooks: str = RUNBOOKS) -> dict[str, dict[str, Any]]:
    """The files of rules by name. runbooks: address of the folder of runbooks, for `runbook_url`."""
    objectives = [_recording(rule) for rule in OBJECTIVE_RECORDINGS]
    return {
        "recordings.yaml": _file(glossa=[_recording(rule) for rule in RECORDINGS], glossa_objectives=objectives),
        "alerts.yaml": _file(glossa_alerts=[_alert(alert, runbooks) for alert in ALERTS]),
        "objectives.yaml": _file(glossa_objective_alerts=[_alert(alert, runbooks) for alert in OBJECTIVE_ALERTS]),
    }


def _file(**groups: list[dict[str, Any]]) -> dict[str, Any]:
    return {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}


def _recording(rule: Recording) -> dict[str, Any]:
    return {"record": rule.name, "expr": rule.expression}


def _alert(alert: Alert, runbooks: str) -> dict[str, Any]:
    annotations = {"summary": alert.summary, "runbook_url": f"{runbooks}/{alert.runbook}.md"}
    rule: dict[str, Any] = {"alert": alert.name, "expr": alert.expression}
    if alert.hold:
        rule["for"] = alert.hold
    return {**rule, "labels": {"severity": "page" if alert.page else "ticket"}, "annotations": annotations}
