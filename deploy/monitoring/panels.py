"""The one table of panels. Grafana's dashboard and the console of Prometheus are both written from it."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.monitoring import slo
from deploy.monitoring.panel import (
    ANSWERS,
    MODEL,
    SERVER,
    WINDOW,
    Panel,
    Query,
    Section,
    Variable,
    distribution,
    panel,
    quantiles,
    rate,
    ratio,
)

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

_TRAFFIC = Section(
    "Traffic",
    (
        panel(
            "RPCs",
            "RPCs that ended in a second, by method; health and reflection are not counted.",
            Query(rate("grpc_server_handled_total", SERVER, "grpc_method"), "{{grpc_method}}"),
            unit="reqps",
        ),
        panel(
            "RPCs started",
            "RPCs that began in a second, by kind. Far more than end: calls wait.",
            Query(rate("grpc_server_started_total", SERVER, "grpc_type"), "{{grpc_type}}"),
            unit="reqps",
        ),
        panel(
            "RPCs in progress",
            "RPCs in progress, by server.",
            Query(f"glossa_requests_in_flight{{{SERVER}}}", "{{instance}}"),
        ),
        panel(
            "Messages",
            "Messages in a second. A stream sends several.",
            Query(rate("grpc_server_msg_received_total", SERVER, "instance"), "{{instance}} received"),
            Query(rate("grpc_server_msg_sent_total", SERVER, "instance"), "{{instance}} sent"),
            unit="cps",
        ),
        panel(
            "Answers",
            "Requests answered in a second, by what ended them.",
            Query(
                rate("glossa_requests_finished_total", f'{MODEL},reason=~"{ANSWERS}"', "model", "reason"),
                "{{model}} {{reason}}",
            ),
            unit="reqps",
        ),
        panel(
            "Tokens",
            "Tokens in a second: of admitted sources and prompts, and generated.",
            Query(rate("glossa_prompt_tokens_total", MODEL, "model"), "{{model}} prompt"),
            Query(rate("glossa_generated_tokens_total", MODEL, "model"), "{{model}} generated"),
            unit="cps",
        ),
        panel(
            "Tokens by tenant",
            "Tokens of answered requests in a second. Tenants without a place in the settings are `other`.",
            Query(rate("glossa_tenant_tokens_total", SERVER, "tenant", "kind"), "{{tenant}} {{kind}}"),
            unit="cps",
        ),
        *distribution(
            "Prompt length", "glossa_request_prompt_tokens", "Tokens of the sources and prompts of answers.", "short"
        ),
        *distribution(
            "Answer length", "glossa_request_generated_tokens", "Tokens generated for an answered request.", "short"
        ),
    ),
)

_ERRORS = Section(
    "Errors",
    (
        panel(
            "RPCs that failed",
            "RPCs in a second whose status is not OK, by status.",
            Query(rate("grpc_server_handled_total", f'{SERVER},grpc_code!="OK"', "grpc_code"), "{{grpc_code}}"),
            unit="reqps",
        ),
        panel(
            "Rejections",
            "Requests rejected before any work, by reason. Those refused unread, as under overload, name no model.",
            Query(
                rate("glossa_requests_rejected_total", f'{SERVER},model=~"$model|"', "model", "reason"),
                "{{model}} {{reason}}",
            ),
            unit="reqps",
        ),
        panel(
            "Failures",
            "Accepted requests that ended without an answer, by reason.",
            Query(
                rate("glossa_requests_finished_total", f'{MODEL},reason!~"{ANSWERS}"', "model", "reason"),
                "{{model}} {{reason}}",
            ),
            unit="reqps",
        ),
        panel(
            "Connections closed",
            "Connections closed in a second because most of their calls were reset or had no message.",
            Query(rate("glossa_connections_closed_total", SERVER, "instance"), "{{instance}}"),
            unit="cps",
        ),
    ),
)

_LATENCY = Section(
    "Latency",
    (
        *distribution(
            "Time to first token", "glossa_time_to_first_token_seconds", "From a request's start to its first token."
        ),
        *distribution(
            "Inter-token latency", "glossa_inter_token_latency_seconds", "Between two tokens of a request, each gap."
        ),
        *distribution("End-to-end time", "glossa_request_seconds", "From an RPC's start to its end, of answers."),
        *distribution("Queue time", "glossa_queue_seconds", "How long requests waited for free rows."),
        panel(
            "RPC time",
            "From an RPC's start to its end on the server, refusals included.",
            *quantiles("grpc_server_handling_seconds", SERVER, "grpc_method"),
            unit="s",
        ),
        panel(
            "Prefill time",
            "Encoder and prefill time of an engine turn.",
            *quantiles("glossa_prefill_seconds"),
            unit="s",
        ),
        panel(
            "Decode step",
            "Time of one decode step of an engine. Every row gets a token in it.",
            *quantiles("glossa_decode_step_seconds"),
            unit="s",
        ),
    ),
)

_SATURATION = Section(
    "Saturation",
    (
        panel(
            "How full",
            "Waiting and running requests over all that there is room for. At 1 requests are refused.",
            Query(f"instance_model:glossa_load:ratio{{{MODEL}}}", "{{instance}} {{model}}"),
            unit="percentunit",
        ),
        panel(
            "Queue, rows and KV cache, of their limits",
            "Rows may be full for hours: that is throughput. With a queue behind them it is too little capacity.",
            Query(f"instance_model:glossa_queue:ratio{{{MODEL}}}", "{{instance}} {{model}} queue"),
            Query(f"instance_model:glossa_rows:ratio{{{MODEL}}}", "{{instance}} {{model}} rows"),
            Query(f"glossa_kv_cache_usage_ratio{{{MODEL}}}", "{{instance}} {{model}} KV cache"),
            unit="percentunit",
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
            "Bytes that running requests may come to need, and the limit of the reservations.",
            Query(f"sum by (model) (glossa_kv_cache_reserved_bytes{{{MODEL}}})", "{{model}} reserved"),
            Query(f"sum by (model) (glossa_kv_cache_limit_bytes{{{MODEL}}})", "{{model}} limit"),
            unit="bytes",
        ),
        panel(
            "Age of the backlog",
            "How long calls wait until the server sees them. Above 1 s the server reports that it is not ready.",
            Query(f"glossa_backlog_age_seconds{{{SERVER}}}", "{{instance}}"),
            unit="s",
        ),
    ),
)

_EFFICIENCY = Section(
    "Efficiency",
    (
        panel(
            "Rows in a decode step: mean",
            "What continuous batching gathers. A step of many rows costs little more than one of a single row.",
            Query(ratio("glossa_decode_step_rows_sum", "glossa_decode_step_rows_count"), "{{model}}"),
        ),
        panel(
            "Rows in a decode step: heat map",
            "Decode steps by the number of their rows.",
            Query(f"sum by (le) (increase(glossa_decode_step_rows_bucket{{{MODEL}}}{WINDOW}))", "{{le}}"),
            kind="heat_map",
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
            "Prefix cache: prompts that hit",
            "Prompts in a second that began with a cached prefix.",
            Query(rate("glossa_prefix_cache_hits_total", MODEL, "model"), "{{model}}"),
            unit="cps",
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

_PROCESSES = Section(
    "Processes and memory",
    (
        panel(
            "Engine processes",
            "1 while an engine process takes requests.",
            Query(f"glossa_engine_process_up{{{MODEL}}}", "{{instance}} {{process}}"),
        ),
        panel(
            "Age of the heartbeat",
            "Time since the last turn of an engine process. An idle one turns, too.",
            Query(f"glossa_engine_process_heartbeat_age_seconds{{{MODEL}}}", "{{instance}} {{process}}"),
            unit="s",
        ),
        panel(
            "Restarts of engine processes",
            "Engine processes that ended and were started again within the last hour, by reason.",
            Query(
                f"sum by (model, reason) (increase(glossa_engine_process_restarts_total{{{MODEL}}}[1h]))",
                "{{model}} {{reason}}",
            ),
        ),
        panel(
            "Processors",
            "Processors in use: by engine processes, by the edge, and by its event loop, which has one at most.",
            Query(
                rate("glossa_engine_process_cpu_seconds_total", MODEL, "instance", "process"),
                "{{instance}} {{process}}",
            ),
            Query(rate("process_cpu_seconds_total", SERVER, "instance"), "{{instance}} edge"),
            Query(rate("glossa_event_loop_cpu_seconds_total", SERVER, "instance"), "{{instance}} event loop"),
        ),
        panel(
            "Lag of the event loop",
            "How late the event loop was with its last beat. All calls wait so long.",
            Query(f"glossa_event_loop_lag_seconds{{{SERVER}}}", "{{instance}}"),
            unit="s",
        ),
        panel(
            "Resident memory",
            "Of all processes of a server, and the most that was predicted.",
            Query(f"instance:glossa_resident_memory:bytes{{{SERVER}}}", "{{instance}} resident"),
            Query(f"glossa_memory_predicted_peak_bytes{{{SERVER}}}", "{{instance}} predicted peak"),
            unit="bytes",
        ),
        panel(
            "Memory of processes",
            "Resident memory of the edge and of each engine process. Shared pages count in each.",
            Query(f"process_resident_memory_bytes{{{SERVER}}}", "{{instance}} edge"),
            Query(f"glossa_engine_process_resident_memory_bytes{{{MODEL}}}", "{{instance}} {{process}}"),
            unit="bytes",
        ),
        panel(
            "Memory of models",
            "Bytes allocated for a model: weights, KV cache, outputs.",
            Query(f"sum by (model, kind) (glossa_memory_bytes{{{MODEL}}})", "{{model}} {{kind}}"),
            unit="bytes",
        ),
        panel(
            "Open files",
            "Open files of the edge, connections included, of as many as it may have.",
            Query(f"process_open_fds{{{SERVER}}} / process_max_fds{{{SERVER}}}", "{{instance}}"),
            unit="percentunit",
        ),
        panel(
            "Files read anew",
            "Changes of certificates and tokens within the last hour, taken over or refused.",
            Query(
                f"sum by (kind, outcome) (increase(glossa_file_reloads_total{{{SERVER}}}[1h]))", "{{kind}} {{outcome}}"
            ),
        ),
        panel(
            "Lost lines of the log",
            "Lines in a second that nobody read in time, or that could not be written.",
            Query(rate("glossa_log_lines_dropped_total", SERVER, "instance"), "{{instance}}"),
            unit="cps",
        ),
    ),
)

SECTIONS = (_STATE, _OBJECTIVES, _TRAFFIC, _ERRORS, _LATENCY, _SATURATION, _EFFICIENCY, _PROCESSES)


def panels() -> Iterator[Panel]:
    """All panels, in their order."""
    for section in SECTIONS:
        yield from section.panels
