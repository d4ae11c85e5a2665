from service.runtime.busy_engines import BusyEngines


def test_single_busy_engine_is_reported_until_another_is_busy():
    busy_engines = BusyEngines()
    assert busy_engines.mark_busy("a")
    assert busy_engines.mark_busy("a")
    assert not busy_engines.mark_busy("b")
    assert not busy_engines.mark_busy("a")
    busy_engines.mark_idle("b")
    assert busy_engines.mark_busy("a")


def test_marking_idle_is_idempotent():
    busy_engines = BusyEngines()
    busy_engines.mark_busy("a")
    busy_engines.mark_idle("b")
    busy_engines.mark_idle("a")
    busy_engines.mark_idle("a")
    assert busy_engines.mark_busy("b")
