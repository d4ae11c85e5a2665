import pickle

import pytest

from service import errors
from service.edge.observability.version_metrics import END_REASONS, LOAD_OUTCOMES, REJECT_REASONS


def subclasses(kind):
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


ALL = sorted(subclasses(errors.RequestError), key=lambda kind: kind.__name__)


def test_reasons_are_unique():
    assert len({kind.reason for kind in ALL}) == len(ALL)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("text", "must not be empty"),
        errors.ModelNotFound("en-fr", ["en-de"]),
        errors.DeadlineExceeded("late"),
        errors.Overloaded("full", retry_after_s=1, limit=3),
        errors.InternalFailure("r"),
    ],
)
def test_errors_keep_their_fields_on_the_way_to_another_process(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_a_metric_reason(kind):
    assert kind.reason.lower() in END_REASONS + REJECT_REASONS + LOAD_OUTCOMES
