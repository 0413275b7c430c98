"""What the service gives a new window that its spec does not say: a bound for times far ahead; and its undo."""

import contextlib

import httpx
import pytest

from sash_client import AlreadyExists, FailedPrecondition, InvalidArgument, Unsupported
from sash_engine.clock import ManualClock
from tests.support.servers import running_service

NOW_S = 1_700_000_000
DAY_S = 86_400
COUNT = {"n": {"function": "count"}}
GUARD = {"ahead": "1d", "too_far_ahead": "reject"}


def document(name="w", **more):
    return {"name": name, "time_unit": "s", "aggregates": COUNT, "slide": {"max_age": "1h"}, **more}


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"], scope="module")
def service(request, tmp_path_factory):
    data = str(tmp_path_factory.mktemp("data"))
    with running_service(ManualClock(NOW_S * 10**9), data=data, shards=request.param) as running:
        yield running


def order_of(window):
    return {name: value for name, value in window.describe().spec["order"].items() if name in GUARD}


def test_a_new_window_refuses_what_is_a_day_ahead(client):
    window = client.create_window(document(keyed=True))
    assert order_of(window) == GUARD
    window.insert(NOW_S + DAY_S, 1.0, key="a")
    keys = [f"k{i}" for i in range(50)]
    for write in (
        lambda: window.insert((NOW_S + 1) * 1000, 1.0, key="a"),
        lambda: window.bulk_insert([NOW_S] * 49 + [(NOW_S + 1) * 1000], [1.0] * 50, keys=keys),
        lambda: window.bulk_insert([(NOW_S + 1) * 1000], [1.0], keys=["a"], producer="p", sequence=1),
        lambda: window.insert((NOW_S + 1) * 1000, 1.0, key="a", producer="p", sequence=1),
        lambda: window.stage([NOW_S] * 49 + [(NOW_S + 1) * 1000], [1.0] * 50, query="q", batch=0, keys=keys),
    ):
        with pytest.raises(FailedPrecondition, match=r"1 of this write is; is 1700000001000 in ms\? Its .* in s") as no:
            write()
        assert (no.value.field, no.value.limit) == ("time", f"time <= {NOW_S + DAY_S}")
    assert window.describe().entries == 1
    assert window.bulk_insert([NOW_S] * 50, [1.0] * 50, keys=keys, producer="p", sequence=1).inserted == 50


@pytest.mark.parametrize(
    ("unit", "time", "hint"),
    [
        ("s", NOW_S * 10**6, r"; is 1700000000000000 in us\?"),
        ("s", NOW_S * 10**9, r"; is 1700000000000000000 in ns\?"),
        ("ms", NOW_S * 10**9, r"; is 1700000000000000000 in ns\?"),
        ("s", 1_362_000_000_123, r"; is 1362000000123 in ms\?"),
        ("ms", NOW_S * 10**3 + DAY_S * 1000 + 1, "is$"),
        ("ns", NOW_S * 10**9 + 2 * DAY_S * 10**9, "is$"),
        ("s", 2**62, "is$"),
    ],
)
def test_the_error_asks_about_the_unit(client, unit, time, hint):
    window = client.create_window(document(time_unit=unit))
    with pytest.raises(FailedPrecondition, match=hint):
        window.insert(time, 1.0)


@pytest.mark.parametrize(
    "more",
    [
        {"order": {"ahead": "none"}},
        {"time_unit": "none", "slide": {"max_age": 5}},
        {"slide": {"max_age": "1h", "clock": "wall"}},
    ],
    ids=str,
)
def test_windows_that_have_no_bound(client, more):
    window = client.create_window(document(**more))
    assert order_of(window) == {}
    assert window.insert(NOW_S * 1000, 1.0).inserted == 1
    client.create_window(document(**more))


def test_rest_takes_null_for_none(service, client):
    with httpx.Client(base_url=service.rest_url) as http:
        for ahead in (None, "none"):
            made = http.post("/v1/windows", json=document(order={"ahead": ahead})).raise_for_status().json()
            assert "ahead" not in made["spec"]["order"]
        client.delete_window("w")
        made = http.post("/v1/windows", json=document()).raise_for_status().json()
        assert {name: made["spec"]["order"][name] for name in GUARD} == GUARD
        no = http.post("/v1/windows/w/insert", json={"time": NOW_S * 1000, "value": 1})
        assert (no.status_code, no.json()["field"]) == (409, "time")
        assert "is 1700000000000 in ms?" in no.json()["detail"]


def test_a_bound_without_a_value_is_refused(client):
    with pytest.raises(InvalidArgument) as no:
        client.create_window(document(order={"ahead": "none", "too_far_ahead": "drop"}))
    assert no.value.field == "order.too_far_ahead"


def test_the_spec_that_made_a_window_before_there_was_a_bound_finds_it(client):
    client.create_window(document(order={"ahead": "none"}))
    assert order_of(client.create_window(document())) == {}
    for order in (GUARD, {"ahead": "1d"}, {"ahead": "2d"}):
        with pytest.raises(AlreadyExists, match=r"differs in order\.ahead, order\.too_far_ahead"):
            client.create_window(document(order=order))
    with pytest.raises(AlreadyExists, match=r"differs in slide\.max_age$"):
        client.create_window(document(slide={"max_age": "2h"}))


def test_the_spec_finds_the_window_that_it_made(client):
    for _ in range(2):
        assert order_of(client.create_window(document())) == GUARD
    assert order_of(client.create_window(document(order=GUARD))) == GUARD
    with pytest.raises(AlreadyExists, match=r"differs in order\.ahead, order\.too_far_ahead"):
        client.create_window(document(order={"ahead": "none"}))
    assert order_of(client.create_window(client.window("w").spec)) == GUARD


def test_views_and_cascades_have_the_bound_of_their_source(client):
    source = client.create_window(document())
    view = client.create_window({"name": "view", "of": "w", "slide": {"max_age": "10m"}, "aggregates": COUNT})
    with contextlib.suppress(Unsupported):  # over several shards
        feeding = {"window": "w", "granularity": "1m"}
        fed = client.create_window({"name": "fed", "time_unit": "s", "aggregates": COUNT, "from": feeding})
        assert order_of(fed) == {}
    with pytest.raises(FailedPrecondition, match="in ms"):
        source.insert(NOW_S * 1000, 1.0)
    source.insert(NOW_S, 1.0)
    assert view.query()[0].entries == 1


# ---------------------------------------------------------------- what undoes an entry that was too far ahead


@pytest.fixture
def spoilt(client):
    """A window of two keys, one of which a wrong time has emptied."""
    window = client.create_window(document(keyed=True, order={"ahead": "none"}))
    window.bulk_insert([NOW_S, NOW_S + 60, NOW_S], [1.0] * 3, keys=["a", "a", "b"])
    assert window.insert(NOW_S * 1000, 1.0, key="a").evicted == 2
    assert window.insert(NOW_S + 61, 1.0, key="a").late == 1
    return window


def test_an_eviction_leaves_the_mark(spoilt):
    assert spoilt.bulk_evict(start=NOW_S * 1000, end=NOW_S * 1000).evicted == 1
    assert spoilt.describe().high_water_mark == NOW_S * 1000
    assert spoilt.insert(NOW_S + 61, 1.0, key="a").late == 1


@pytest.mark.parametrize("key", ["a", None])
def test_an_eviction_takes_the_mark_back_where_it_is_asked_to(spoilt, key):
    assert spoilt.bulk_evict(start=NOW_S * 1000, end=NOW_S * 1000, key=key, reset_mark=True).evicted == 1
    info = spoilt.describe()
    assert (info.high_water_mark, info.newest, info.entries) == (NOW_S, NOW_S, 1)
    assert spoilt.bulk_insert([NOW_S, NOW_S + 60], [1.0] * 2, keys=["a", "a"]).inserted == 2
    assert spoilt.query(key="a", lookbacks=["1m"])[0].entries == 1
    assert spoilt.query(key="b", lookbacks=["1m"])[0].entries == 1


def test_a_range_without_the_mark_changes_no_mark(spoilt):
    assert spoilt.bulk_evict(start=NOW_S, end=NOW_S + 99, reset_mark=True).evicted == 1
    assert spoilt.describe().high_water_mark == NOW_S * 1000
    assert spoilt.insert(NOW_S + 61, 1.0, key="a").late == 1
    assert spoilt.insert(NOW_S - 3600, 1.0, key="b").inserted == 1, "b had nothing else, and goes on from nothing"


def test_it_is_numbered_by_a_producer(spoilt):
    asked = {"start": NOW_S * 1000, "end": NOW_S * 1000, "producer": "p", "sequence": 1}
    assert spoilt.bulk_evict(**asked, reset_mark=True).evicted == 1
    assert spoilt.bulk_evict(**asked, reset_mark=True).already_applied
    with pytest.raises(FailedPrecondition, match="other data"):
        spoilt.bulk_evict(**asked)


def test_rest_takes_it_with_a_range_only(service, spoilt):
    with httpx.Client(base_url=service.rest_url) as http:
        no = http.post("/v1/windows/w/bulk-evict", json={"time": 5, "reset_mark": True})
        assert (no.status_code, no.json()["field"]) == (400, "reset_mark")
        body = {"start": NOW_S * 1000, "end": NOW_S * 1000, "reset_mark": True}
        assert http.post("/v1/windows/w/bulk-evict", json=body).raise_for_status().json()["evicted"] == 1
    assert spoilt.describe().high_water_mark == NOW_S
    with pytest.raises(InvalidArgument, match="start and an end"):
        spoilt.bulk_evict(5, reset_mark=True)


def test_a_window_that_keeps_what_was_known_keeps_its_marks(client):
    window = client.create_window(document(known="arrival"))
    window.insert(NOW_S, 1.0)
    with pytest.raises(Unsupported) as no:
        window.bulk_evict(start=NOW_S, end=NOW_S, reset_mark=True)
    assert no.value.field == "reset_mark"
    assert window.describe().entries == 1
