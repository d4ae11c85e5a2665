"""Panels of calls and requests: traffic, errors, latency."""

from __future__ import annotations

from deploy.monitoring import slo
from deploy.monitoring.panel import ANSWERS, MODEL, SERVER, Query, Section, distribution, panel, quantiles, rate

TRAFFIC = Section(
    "Traffic",
    (
        panel(
            "RPCs",
            "RPCs that ended, per second, by method; health and reflection are not counted.",
            Query(rate("grpc_server_handled_total", SERVER, "grpc_method"), "{{grpc_method}}"),
            unit="reqps",
        ),
        panel(
            "RPCs in progress",
            "RPCs in progress, by server.",
            Query(f"glossa_requests_in_flight{{{SERVER}}}", "{{instance}}"),
        ),
        panel(
            "Answers",
            "Requests answered, per second, by the reason of the end.",
            Query(
                rate("glossa_requests_finished_total", f'{MODEL},reason=~"{ANSWERS}"', "model", "reason"),
                "{{model}} {{reason}}",
            ),
            unit="reqps",
        ),
        panel(
            "Items",
            "Items of batches, and texts of documents, that ended in a second, by status.",
            Query(rate("glossa_batch_items_total", SERVER, "method", "code"), "{{method}} {{code}}"),
            unit="reqps",
        ),
        panel(
            "Glossary terms",
            "Terms of glossaries in translated texts, in a second, and those of which the answer has a form.",
            Query(rate("glossa_glossary_terms_total", MODEL, "model"), "{{model}} in texts"),
            Query(rate("glossa_glossary_terms_met_total", MODEL, "model"), "{{model}} met"),
            unit="cps",
        ),
        panel(
            "Tokens",
            "Tokens per second: of admitted sources and prompts, and generated.",
            Query(rate("glossa_prompt_tokens_total", MODEL, "model"), "{{model}} prompt"),
            Query(rate("glossa_generated_tokens_total", MODEL, "model"), "{{model}} generated"),
            unit="suffix: tokens/s",
        ),
        panel(
            "Tokens by tenant",
            "Tokens of answered requests, per second. Tenants without a place in the settings are `other`.",
            Query(rate("glossa_tenant_tokens_total", SERVER, "tenant", "kind"), "{{tenant}} {{kind}}"),
            unit="suffix: tokens/s",
        ),
        panel(
            "Answer cache",
            "Requests answered from the answer cache, per second, and those whose answers it did not have.",
            Query(rate("glossa_answer_cache_hits_total", MODEL, "model"), "{{model}} kept"),
            Query(rate("glossa_answer_cache_misses_total", MODEL, "model"), "{{model}} computed"),
            unit="reqps",
        ),
        panel(
            "Bytes of the answer cache",
            "Bytes of answers that are kept, and their limit.",
            Query(f"glossa_answer_cache_bytes{{{SERVER}}}", "{{instance}} kept"),
            Query(f"glossa_answer_cache_limit_bytes{{{SERVER}}}", "{{instance}} limit"),
            unit="bytes",
        ),
        panel(
            "Answers that gave way",
            "Answers, per second, that left the answer cache to make room for others.",
            Query(rate("glossa_answer_cache_evicted_total", SERVER, "instance"), "{{instance}}"),
            unit="cps",
        ),
        panel(
            "Prompt length",
            "Tokens of the sources and prompts of answers.",
            *quantiles("glossa_request_prompt_tokens"),
        ),
        panel(
            "Answer length",
            "Tokens generated for an answered request.",
            *quantiles("glossa_request_generated_tokens"),
        ),
    ),
)

TENANTS = Section(
    "Tenants",
    (
        panel(
            "Requests by tenant",
            "Calls that ended, and items of calls with many, per second. Tenants without a place in the settings are "
            "`other`.",
            Query(rate("glossa_tenant_requests_total", SERVER, "tenant"), "{{tenant}}"),
            unit="reqps",
        ),
        panel(
            "Failures by tenant",
            "Those of them whose status is not OK, per second, by status; ResourceExhausted: refused.",
            Query(
                rate("glossa_tenant_requests_total", f'{SERVER},code!="OK"', "tenant", "code"), "{{tenant}} {{code}}"
            ),
            unit="reqps",
        ),
        panel(
            "Time to first token by tenant",
            "Of answered requests.",
            *quantiles("glossa_tenant_time_to_first_token_seconds", SERVER, "tenant"),
            unit="s",
        ),
        panel(
            "End-to-end time by tenant",
            "Of answered requests.",
            *quantiles("glossa_tenant_request_seconds", SERVER, "tenant"),
            unit="s",
        ),
    ),
)

ERRORS = Section(
    "Errors",
    (
        panel(
            "RPCs that failed",
            "RPCs whose status is not OK, per second, by status.",
            Query(rate("grpc_server_handled_total", f'{SERVER},grpc_code!="OK"', "grpc_code"), "{{grpc_code}}"),
            unit="reqps",
        ),
        panel(
            "Rejections",
            "Requests rejected before any work, per second, by reason. Requests refused unread have no model.",
            Query(
                rate("glossa_requests_rejected_total", f'{SERVER},model=~"$model|"', "model", "reason"),
                "{{model}} {{reason}}",
            ),
            unit="reqps",
        ),
        panel(
            "Failures",
            "Accepted requests that ended without an answer, per second, by reason.",
            Query(
                rate("glossa_requests_finished_total", f'{MODEL},reason!~"{ANSWERS}"', "model", "reason"),
                "{{model}} {{reason}}",
            ),
            unit="reqps",
        ),
        panel(
            "Failed turns",
            "Engine turns that failed, per second. Each ends all of its requests.",
            Query(rate("glossa_engine_turns_failed_total", MODEL, "model"), "{{model}}"),
            unit="cps",
        ),
        panel(
            "Connections closed",
            "Connections closed, per second, because most of their calls were reset or had no message.",
            Query(rate("glossa_connections_closed_total", SERVER, "instance"), "{{instance}}"),
            unit="cps",
        ),
    ),
)

LATENCY = Section(
    "Latency",
    (
        *distribution(
            "Time to first token",
            "glossa_time_to_first_token_seconds",
            "From a request's start to its first token.",
            limits=((slo.FIRST_TOKEN.limit_s, "red"),),
        ),
        *distribution(
            "Inter-token latency",
            "glossa_inter_token_latency_seconds",
            "Between two tokens of a request, each gap.",
            limits=((slo.INTER_TOKEN.limit_s, "red"),),
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
            "Time of one decode step of an engine, which extends every row by a token.",
            *quantiles("glossa_decode_step_seconds"),
            unit="s",
        ),
    ),
)
