import collections

import pytest

from service.edge.requests.catalog import Catalog
from service.edge.requests.traffic import Key, Traffic, checked
from service.errors import InvalidRequest
from tests.edge import FakePool, served

LOADED = ["old", "new", "other"]


def shares(traffic, keys):
    counts = collections.Counter(traffic.version("m", key) for key in keys)
    return {version: counts[version] / len(keys) for version, _ in traffic.weights}


def test_requests_are_spread_by_weights_and_stay_with_their_version_when_the_last_one_grows():
    ids = [Key(f"request-{number}") for number in range(4000)]
    few, many = (Traffic(weights=(("old", 100 - share), ("new", share))) for share in (10, 40))
    assert shares(few, ids)["new"] == pytest.approx(0.1, abs=0.02)
    assert shares(many, ids)["new"] == pytest.approx(0.4, abs=0.03)
    assert all(many.version("m", key) == "new" for key in ids if few.version("m", key) == "new")


def test_a_tenant_keeps_its_version_unless_ids_decide():
    traffic = Traffic(weights=(("old", 50), ("new", 50)))
    keys = [Key(f"request-{number}", "acme") for number in range(200)]
    assert len({traffic.version("m", key) for key in keys}) == 1
    assert {traffic.version("m", Key("r", f"tenant-{number}")) for number in range(50)} == {"old", "new"}
    by_id = Traffic(weights=traffic.weights, by_request_id=True)
    assert shares(by_id, keys)["new"] == pytest.approx(0.5, abs=0.1)


def test_a_share_of_calls_is_shadowed_and_not_those_that_a_split_takes():
    traffic = Traffic(weights=(("old", 90), ("new", 10)), shadow="new", shadow_share=20)
    ids = [f"request-{number}" for number in range(4000)]
    shadowed = [one for one in ids if traffic.is_shadowed("m", one)]
    assert len(shadowed) / len(ids) == pytest.approx(0.2, abs=0.03)
    assert shares(traffic, [Key(one) for one in shadowed])["new"] == pytest.approx(0.1, abs=0.04)
    assert not any(Traffic().is_shadowed("m", one) for one in ids)


@pytest.mark.parametrize(
    ("traffic", "problem"),
    [
        ({"weights": (("old", 90), ("new", 11))}, r"weights: must add up to 100, got 90 \+ 11 = 101"),
        ({"weights": (("old", 50), ("old", 50))}, r"weights.version: must be named once, got 'old' twice"),
        ({"weights": (("old", 90), ("gone", 10))}, "weights.version: .*that serves: new, old, other; got 'gone'"),
        ({"weights": (("old", 101), ("new", -1))}, r"weights.percent: must be 0..100, got 101 for old"),
        ({"shadow": "old", "shadow_share": 5}, "shadow.version: must not be the default, .*got 'old'"),
        ({"shadow": "gone", "shadow_share": 5}, "shadow.version: .*got 'gone'"),
        ({"shadow": "new", "shadow_share": 101}, r"shadow.percent: must be 0..100, got 101"),
    ],
)
def test_traffic_that_is_none_is_refused_with_the_value_and_the_rule(traffic, problem):
    with pytest.raises(InvalidRequest, match=problem):
        checked(Traffic(**traffic), "m", LOADED, "old")


def test_weights_of_0_are_left_out():
    assert checked(Traffic(weights=(("old", 0), ("new", 100))), "m", LOADED, "old").weights == (("new", 100),)
    assert checked(Traffic(shadow="new"), "m", LOADED, "old") == Traffic()


def test_the_catalog_spreads_a_default_and_leaves_out_a_version_without_an_engine():
    old, new = (served("m", FakePool(), version=version) for version in ("old", "new"))
    catalog, ended = Catalog([old]), list[str]()
    catalog.add(new, is_default=False)
    catalog.on_traffic_end = ended.append
    keys = [Key(f"request-{number}") for number in range(200)]
    assert {catalog.spread(old, key).version for key in keys} == {"old"}
    catalog.set_traffic("m", Traffic(weights=(("old", 50), ("new", 50))))
    assert {catalog.spread(old, key).version for key in keys} == {"old", "new"}
    new.pool.is_ready = False
    assert {catalog.spread(old, key).version for key in keys} == {"old"}
    new.pool.is_ready = True
    catalog.set_default(new)
    assert ended == ["m"]
    assert {catalog.spread(new, key).version for key in keys} == {"new"}
