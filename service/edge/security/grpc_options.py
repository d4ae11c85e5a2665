"""gRPC's own options of a server."""

from __future__ import annotations

from service.settings.config import ServerSettings

MAX_PENDING = 1 << 16  # calls without a handler yet; beyond its default of 1,000 grpc silently ends some as CANCELLED
MAX_PENDING_S = 3600  # without a handler; after its default of 30 s grpc ends calls as CANCELLED, late or not


def server_options(settings: ServerSettings) -> list[tuple[str, int]]:
    """gRPC's own limits. Its default for each is none, or far too long for a server that strangers can reach."""

    def ms(seconds: float) -> int:
        return max(1, round(seconds * 1000))

    return [
        ("grpc.so_reuseport", 0),  # or a second server on the same port would start, and take half of the calls
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        # Calls that clients reset wait for Python, 12 KB each, and do not count as concurrent. This bounds both kinds
        # together; beyond it a call is refused in gRPC's own threads. Without as many of the second kind as of the
        # first, calls of honest clients at their limit are refused, too: they begin one as soon as one has ended.
        ("grpc.http.overload_protection", 1),
        ("grpc.http2.max_deallocating_streams", settings.max_concurrent_streams),
        ("grpc.server.max_pending_requests", MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
        ("grpc.server_max_unrequested_time_in_server", MAX_PENDING_S),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_metadata_size", settings.max_metadata_bytes),
        ("grpc.server_handshake_timeout_ms", ms(settings.handshake_timeout_s)),
        ("grpc.keepalive_time_ms", ms(settings.keepalive_time_s)),
        ("grpc.keepalive_timeout_ms", ms(settings.keepalive_timeout_s)),
        # Of every ping, by default a minute. The one above alone closes no peer whose kernel still acknowledges.
        ("grpc.http2.ping_timeout_ms", ms(settings.keepalive_timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", ms(settings.min_ping_interval_s)),
        ("grpc.max_connection_age_ms", ms(settings.max_connection_age_s)),
        ("grpc.max_connection_age_grace_ms", ms(settings.max_connection_age_grace_s)),
    ]
