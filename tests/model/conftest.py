import pytest

from tests.tiny_training import quick_trainings


@pytest.fixture(scope="session", autouse=True)
def _quick_trainings():
    quick_trainings()
