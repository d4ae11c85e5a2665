"""Messages of glossa.v1.AdminService about traffic and canaries ↔ the plain data of `canaries`."""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from glossa.v1 import admin_pb2 as pb
from service.edge.requests.traffic import Traffic
from service.edge.versions.canaries import Canary, CanaryOrder
from service.edge.versions.canary_judge import Bounds
from service.edge.versions.evaluation import MAX_LOSS, EvaluationSet


def traffic_of(message: pb.SetTrafficRequest) -> Traffic:
    """Not checked."""
    return Traffic(
        weights=tuple((one.version, one.percent) for one in message.weights),
        by_request_id=message.by_request_id,
        shadow=message.shadow.version,
        shadow_share=message.shadow.percent,
    )


def canary_order(message: pb.StartCanaryRequest, test_set: EvaluationSet | None) -> CanaryOrder:
    """Not checked."""
    duration_s = _seconds(message.duration)
    given = {field.name: value for field, value in message.bounds.ListFields()}
    if test_set is not None:
        given.setdefault("chrf", MAX_LOSS)
    return CanaryOrder(
        model=message.model,
        version=message.version,
        share=message.share,
        duration_s=duration_s,
        patience_s=_seconds(message.patience) if message.HasField("patience") else duration_s / 10,
        bounds=Bounds(**given),
        shadow_share=message.shadow_share,
        test_set=test_set,
        unload_loser=message.unload_loser,
    )


def _seconds(duration: Duration) -> float:
    """Also of a value that no `timedelta` has."""
    return float(duration.seconds + 1e-9 * duration.nanos)


def canary_message(canary: Canary) -> pb.Canary:
    """What has become of a canary."""
    message = pb.Canary(
        model=canary.order.model,
        version=canary.order.version,
        state=f"CANARY_STATE_{canary.state.upper()}",
        bound=canary.bound,
        reason=canary.reason,
        calls=canary.calls,
        failed=canary.failed,
    )
    message.judged.FromTimedelta(timedelta(seconds=canary.judged_s))
    return message
