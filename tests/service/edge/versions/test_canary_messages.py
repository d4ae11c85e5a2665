import pytest

from glossa.v1 import admin_pb2 as pb
from service.edge.versions.canary_judge import check_times
from service.edge.versions.canary_messages import canary_order
from service.errors import InvalidRequest


@pytest.mark.parametrize("seconds", [2**62, -(2**62)])
@pytest.mark.parametrize("field", ["duration", "patience"])
def test_times_that_no_timedelta_has_are_refused_as_others_are(field, seconds):
    message = pb.StartCanaryRequest(duration={"seconds": 60}, patience={"seconds": 6})
    getattr(message, field).seconds = seconds
    order = canary_order(message, None)
    with pytest.raises(InvalidRequest, match=field):
        check_times(order.duration_s, order.patience_s)


def test_times_have_fractions_and_patience_a_default():
    order = canary_order(pb.StartCanaryRequest(duration={"seconds": 1, "nanos": 500_000_000}), None)
    assert (order.duration_s, order.patience_s) == (1.5, 0.15)
