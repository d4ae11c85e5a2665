import threading

from service.engine_process.measurements import Measurements
from service.measurements import Generated


def test_a_measurement_is_taken_once():
    measurements = Measurements()
    measurements.append(Generated(1))
    measurements.append(Generated(2))
    assert measurements.take() == [Generated(1), Generated(2)]
    assert measurements.take() == []
    measurements.append(Generated(3))
    assert measurements.take() == [Generated(3)]


def test_measurements_that_are_taken_meanwhile_are_neither_lost_nor_repeated():
    measurements, taken = Measurements(), []
    made = [Generated(number) for number in range(20_000)]
    engine = threading.Thread(target=lambda: list(map(measurements.append, made)))
    engine.start()
    while engine.is_alive():
        taken += measurements.take()
    taken += measurements.take()
    assert taken == made


class Shared(Measurements):
    """Another thread takes a measurement as soon as they have been counted."""

    def __len__(self):
        count = super().__len__()
        self.popleft()
        return count


def test_what_another_thread_takes_meanwhile_is_left_out():
    measurements = Shared(Generated(number) for number in range(3))
    assert measurements.take() == [Generated(1), Generated(2)]
