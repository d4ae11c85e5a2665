from service.runtime.busy_engines import BusyEngines


def test_the_only_one_is_told_so_until_another_comes():
    busy_engines = BusyEngines()
    assert busy_engines.mark_busy("a")
    assert busy_engines.mark_busy("a")
    assert not busy_engines.mark_busy("b")
    assert not busy_engines.mark_busy("a")
    busy_engines.mark_idle("b")
    assert busy_engines.mark_busy("a")


def test_leaving_twice_or_without_having_come_changes_nothing():
    busy_engines = BusyEngines()
    busy_engines.mark_busy("a")
    busy_engines.mark_idle("b")
    busy_engines.mark_idle("a")
    busy_engines.mark_idle("a")
    assert busy_engines.mark_busy("b")
