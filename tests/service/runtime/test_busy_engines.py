from service.runtime.busy_engines import Crowd


def test_the_only_one_is_told_so_until_another_comes():
    crowd = Crowd()
    assert crowd.enter("a")
    assert crowd.enter("a")
    assert not crowd.enter("b")
    assert not crowd.enter("a")
    crowd.leave("b")
    assert crowd.enter("a")


def test_leaving_twice_or_without_having_come_changes_nothing():
    crowd = Crowd()
    crowd.enter("a")
    crowd.leave("b")
    crowd.leave("a")
    crowd.leave("a")
    assert crowd.enter("b")
