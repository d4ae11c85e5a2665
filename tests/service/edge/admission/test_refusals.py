from service.edge.admission.refusals import Refusals
from service.edge.observability.metrics import Method, Metrics
from service.edge.rpcs.servicer import RPCS
from service.errors import DeadlineTooSoon, Overloaded

FULL, LATE = Overloaded("full", retry_after_s=1.0, limit=1), DeadlineTooSoon("late", retry_after_s=1.0)


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


async def test_refusals_are_logged_and_counted_with_their_report(caplog):
    caplog.set_level("INFO", logger="glossa")
    metrics = Metrics(RPCS)
    metrics.tenants.know(["acme"])
    refusals, (one, other, *_) = Refusals(metrics), RPCS
    for error in (FULL, FULL, LATE):
        refusals.add(one, "acme", error, 0.002)
    refusals.add(other, "stranger", FULL, 0.004)
    refusals.log(one, FULL)

    def started(method: Method):
        return value(metrics, "grpc_server_started_total", **method.labels)

    assert (started(one), caplog.records) == (0, [])
    for _ in range(2):  # a second report adds nothing
        refusals.report()
    assert (started(one), started(other)) == (3, 1)
    assert value(metrics, "glossa_requests_rejected_total", model="", version="", reason="queue_full") == 3
    assert value(metrics, "glossa_requests_rejected_total", model="", version="", reason="deadline_too_soon") == 1
    assert value(metrics, "glossa_requests_in_flight") == 0
    assert value(metrics, "grpc_server_handled_total", grpc_code="ResourceExhausted", **one.labels) == 3
    assert value(metrics, "grpc_server_msg_received_total", **one.labels) == 0, "unread"
    for tenant, count in (("acme", 3), ("other", 1)):
        assert value(metrics, "glossa_tenant_requests_total", tenant=tenant, code="ResourceExhausted") == count
    counts = {(record.fields["method"], record.fields["reason"]): record.fields["count"] for record in caplog.records}
    assert counts[one.path, "QUEUE_FULL"] == 3
    assert counts[one.path, "DEADLINE_TOO_SOON"] == 1
    assert len(counts) == 3
