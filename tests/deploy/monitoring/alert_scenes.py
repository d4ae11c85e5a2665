"""For every alert, series of a server that is well, then is not, then is well again."""

import math
from dataclasses import dataclass

WELL_MINUTES, BAD_MINUTES = 60, 90
MODEL = 'instance="a:9464",job="glossa",model="en-de",namespace="prod",pod="glossa-0",version="v1"'
OTHER_VERSION = MODEL.replace("v1", "v2")
SERVER = 'instance="a:9464",job="glossa",namespace="prod",pod="glossa-0"'  # as a ServiceMonitor names targets
PROCESS = MODEL + ',process="en-de-0"'


@dataclass
class Series:
    """A series with one value while all is well and one while it is not; a counter grows by them every minute. Not a
    number: there is no series."""

    name: str
    well: float
    bad: float
    is_counter: bool = False

    def values(self, again_minutes):
        """A value for each minute."""
        levels = [self.well] * WELL_MINUTES + [self.bad] * BAD_MINUTES + [self.well] * again_minutes
        if not self.is_counter:
            return levels
        total, found = 0.0, []
        for step in levels:
            total += step
            found.append(total)
        return found


def gauge(name, labels, well, bad):
    return Series(f"{name}{{{labels}}}", well, bad)


def counter(name, labels, well, bad):
    return Series(f"{name}{{{labels}}}", well, bad, is_counter=True)


def rpcs(bad_share):
    """RPCs of which 5 in 10,000 fail while all is well."""
    labels = f'{SERVER},grpc_service="inference.GRPCInferenceService",grpc_method="ModelInfer",grpc_type="unary"'
    return [
        counter("grpc_server_handled_total", f'{labels},grpc_code="OK"', 9995, 10000 * (1 - bad_share)),
        counter("grpc_server_handled_total", f'{labels},grpc_code="Internal"', 5, 10000 * bad_share),
        counter("grpc_server_handled_total", f'{labels},grpc_code="InvalidArgument"', 2000, 2000),
    ]


def latencies(metric, le, bad_share):
    """Latencies of which 5 in 1,000 are too long while all is well."""
    return [
        counter(f"{metric}_bucket", f'{MODEL},le="{le}"', 995, 1000 * (1 - bad_share)),
        counter(f"{metric}_count", MODEL, 1000, 1000),
    ]


def first_tokens(bad_share):
    return latencies("glossa_time_to_first_token_seconds", "0.5", bad_share)


def inter_tokens(bad_share):
    return latencies("glossa_inter_token_latency_seconds", "0.1", bad_share)


def full(metric, limit, *, queued):
    used, waiting = gauge(metric, MODEL, limit / 2, limit), gauge("glossa_requests_queued", MODEL, 0, queued)
    return [used, waiting, gauge("glossa_requests_queue_limit", MODEL, 256, 256)]


def ends(labels, bad_share, *, each_minute=1000):
    """Requests of a version, none of which fail while all is well."""
    return [
        counter("glossa_requests_finished_total", f'{labels},reason="length"', each_minute, each_minute),
        counter("glossa_requests_finished_total", f'{labels},reason="internal"', 0, each_minute * bad_share),
    ]


def times(labels, quick_share, *, each_minute=1000):
    """Answers of a version within 0.1 s, all while all is well, or within 0.5 s."""
    return [
        *ends(labels, 0, each_minute=each_minute),
        counter("glossa_request_seconds_bucket", f'{labels},le="0.1"', each_minute, each_minute * quick_share),
        counter("glossa_request_seconds_bucket", f'{labels},le="0.5"', each_minute, each_minute),
        counter("glossa_request_seconds_bucket", f'{labels},le="+Inf"', each_minute, each_minute),
    ]


def confidences(bad, *, answers):
    """So many answers an hour, whose confidence is 0.8 while all is well."""
    return [
        counter("glossa_answer_confidence_ratio_sum", MODEL, 0.8 * answers, bad * answers),
        counter("glossa_answer_confidence_ratio_count", MODEL, answers, answers),
    ]


def unknown_tokens(bad):
    """So many of 1,000 tokens an hour are unknown, 1 while all is well."""
    return [
        counter("glossa_request_unknown_tokens_total", MODEL, 1, bad),
        counter("glossa_request_prompt_tokens_sum", MODEL, 1000, 1000),
    ]


MINUTES = {"GlossaConfidenceDropped": 60, "GlossaUnknownTokensRose": 60}  # what a minute of these scenes stands for
ROWS = [gauge("glossa_rows_limit", MODEL, 64, 64)]
DAY_S = 86400
SCENES = {
    "GlossaAvailabilityBurnsFast": rpcs(0.2),
    "GlossaAvailabilityBurnsSlowly": rpcs(0.2),
    "GlossaFirstTokenBurnsFast": first_tokens(0.5),
    "GlossaFirstTokenBurnsSlowly": first_tokens(0.5),
    "GlossaInterTokenBurnsFast": inter_tokens(0.5),
    "GlossaInterTokenBurnsSlowly": inter_tokens(0.5),
    "GlossaDown": [gauge("up", SERVER, 1, 0)],
    "GlossaNotReady": [gauge("glossa_ready", SERVER, 1, 0), gauge("glossa_draining", SERVER, 0, 0)],
    "GlossaQueueFilling": [
        gauge("glossa_requests_queued", MODEL, 20, 250),
        gauge("glossa_requests_queue_limit", MODEL, 256, 256),
    ],
    "GlossaRowsFull": [*full("glossa_rows_used", 64, queued=3), *ROWS],
    "GlossaKVCacheFull": full("glossa_kv_cache_usage_ratio", 1.0, queued=3),
    "GlossaVersionFails": [*ends(MODEL, 0), *ends(OTHER_VERSION, 0.1)],
    "GlossaVersionSlow": [*times(MODEL, 1), *times(OTHER_VERSION, 0.5)],
    "GlossaBacklog": [gauge("glossa_backlog_age_seconds", SERVER, 0.002, 0.8)],
    "GlossaEventLoopLags": [gauge("glossa_event_loop_lag_seconds", SERVER, 0.002, 0.4)],
    "GlossaCPUFallback": [
        gauge("glossa_execution_provider_info", f'{MODEL},provider="cpu",requested="auto",fallback="1"', math.nan, 1),
    ],
    "GlossaEngineStalled": [gauge("glossa_engine_process_heartbeat_age_seconds", PROCESS, 0.05, 20)],
    "GlossaEngineProcessDown": [
        gauge("glossa_engine_process_up", PROCESS, 1, 0),
        gauge("glossa_draining", SERVER, 0, 0),
    ],
    "GlossaEngineProcessRestarted": [
        counter("glossa_engine_process_restarts_total", f'{MODEL},reason="killed"', 0, 1),
    ],
    "GlossaConfidenceDropped": confidences(0.5, answers=100),
    "GlossaUnknownTokensRose": unknown_tokens(35),
    "GlossaCertificateExpires": [
        gauge("glossa_certificate_expiry_timestamp_seconds", SERVER, 60 * DAY_S, 10 * DAY_S),
    ],
    "GlossaCertificateExpiresSoon": [
        gauge("glossa_certificate_expiry_timestamp_seconds", SERVER, 10 * DAY_S, DAY_S),
    ],
    "GlossaFileReloadRefused": [
        counter("glossa_file_reloads_total", f'{SERVER},kind="certificate",outcome="refused"', 0, 1),
    ],
    "GlossaMemoryAbovePrediction": [
        gauge("process_resident_memory_bytes", SERVER, 1e8, 1e8),
        gauge("glossa_engine_process_resident_memory_bytes", PROCESS, 2e8, 6e8),
        gauge("glossa_memory_predicted_peak_bytes", SERVER, 5e8, 5e8),
    ],
    "GlossaFilesNearLimit": [gauge("process_open_fds", SERVER, 90, 950), gauge("process_max_fds", SERVER, 1000, 1000)],
}
# Servers that are not well in another way, in which these alerts stay quiet.
OTHERS = {
    "GlossaAvailabilityBurnsFast": rpcs(0.004),  # slowly, which is a ticket
    "GlossaFirstTokenBurnsFast": first_tokens(0.04),
    "GlossaInterTokenBurnsFast": inter_tokens(0.04),
    "GlossaNotReady": [gauge("glossa_ready", SERVER, 1, 0), gauge("glossa_draining", SERVER, 0, 1)],
    "GlossaRowsFull": [*full("glossa_rows_used", 64, queued=0), *ROWS],
    "GlossaKVCacheFull": full("glossa_kv_cache_usage_ratio", 1.0, queued=0),
    "GlossaVersionFails": [*ends(MODEL, 0.1), *ends(OTHER_VERSION, 0.1)],  # whatever it is, it is not the version
    "GlossaVersionSlow": [*times(MODEL, 1), *times(OTHER_VERSION, 0.5, each_minute=5)],  # too few to tell
    "GlossaEngineProcessDown": [
        gauge("glossa_engine_process_up", PROCESS, 1, 0),
        gauge("glossa_draining", SERVER, 0, 1),
    ],
    "GlossaConfidenceDropped": confidences(0.5, answers=5),  # too few to tell
    "GlossaUnknownTokensRose": unknown_tokens(4),
    "GlossaCertificateExpires": [  # plaintext
        gauge("glossa_certificate_expiry_timestamp_seconds", SERVER, float("inf"), float("inf")),
    ],
}
