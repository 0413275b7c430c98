"""The client gives keys by their parts, and asks questions that select and group them."""

import numpy as np
import pandas as pd
import pytest

from sash_client import ALL_KEYS, Client, InvalidArgument
from sash_client.aio import AsyncClient
from tests.support.servers import running_service

SPEC = {
    "name": "flights",
    "time_unit": "s",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}
TIMES = [10, 11, 12, 13]
PARTS = {"airport": ["JFK", "JFK", "LGA", "JFK"], "carrier": ["AA", "B6", "AA", "a|b"]}
DELAYS = [1.0, 2.0, 4.0, 8.0]


@pytest.fixture(scope="module")
def service():
    with running_service() as service:
        yield service


@pytest.fixture
def window(service):
    with Client(service.grpc_target) as sash:
        window = sash.create_window(SPEC)
        window.bulk_insert(TIMES, {"delay": DELAYS}, keys=PARTS)
        yield window
        sash.delete_window("flights")


def sums(answers):
    return [(answer.parts, answer.aggregates["sum"]) for answer in answers]


EVERY = [
    ({"airport": airport, "carrier": carrier}, delay)
    for airport, carrier, delay in zip(PARTS["airport"], PARTS["carrier"], DELAYS, strict=True)
]


@pytest.mark.parametrize("edge", ["gRPC", "Connect"])
def test_having_compares_large_integers_exactly(service, edge):
    """A double, which the message had first, takes two neighbours for one."""
    values = [2**53, 2**53 + 1, 2**53 + 2, 2**53 + 3]
    with Client(service.grpc_target if edge == "gRPC" else service.rest_url) as sash:
        window = sash.create_window({**SPEC, "name": "large", "fields": {"delay": "int64"}})
        window.bulk_insert(TIMES, {"delay": values}, keys={"airport": "x", "carrier": list("abcd")})
        for having, left in (
            (f"sum>{2**53 + 1}", "cd"),
            (f"sum={2**53 + 1}", "b"),
            (f"sum<={2**53 + 1}", "ab"),
            (f"sum<{10**39}", "abcd"),
            (f"sum<{2**63}", "abcd"),
            (f"sum>{-(2**63) - 1}", "abcd"),
            ("sum>1e300", ""),
            ("n=1", "abcd"),
        ):
            found = window.query(by="carrier", having=having)
            assert [each.parts["carrier"] for each in found] == list(left), having
        sash.delete_window("large")


def test_the_spec_names_the_parts(window):
    assert window.describe().spec["keys"] == ["airport", "carrier"]


def test_rollups_on_every_edge(service):
    """Created through gRPC or through REST, it is one spec. Its groups answer as the keys do."""
    spec = {**SPEC, "name": "kept", "rollups": [["carrier"], []]}
    http = service.http()
    with Client(service.grpc_target) as sash:
        window = sash.create_window(spec)
        window.bulk_insert(TIMES, {"delay": DELAYS}, keys=PARTS)
        assert sums(window.query(by="carrier")) == [
            ({"carrier": "AA"}, 5.0),
            ({"carrier": "B6"}, 2.0),
            ({"carrier": "a|b"}, 8.0),
        ]
        assert window.query(keys=ALL_KEYS, combine=True)[0].aggregates["sum"] == 15.0
        assert window.describe().spec["rollups"] == [["carrier"], []]
        assert http.get("/v1/windows/kept").json()["spec"]["rollups"] == [["carrier"], []]
        assert http.post("/v1/windows", json=spec).status_code == 200
        refused = http.post("/v1/windows", json={**spec, "name": "other", "rollups": [["gate"]]})
        assert (refused.status_code, refused.json()["field"]) == (400, "rollups.0.0")
        with pytest.raises(InvalidArgument) as caught:
            sash.create_window({**spec, "name": "other", "slide": {"max_count": 3}})
        assert caught.value.field == "slide.max_count"
        sash.delete_window("kept")


def frame(times=TIMES):
    return pd.DataFrame({"time": times, "delay": DELAYS, **PARTS})


@pytest.mark.parametrize("way", ["frame", "columns", "texts", "entries", "producer", "evicted and again"])
def test_each_way_to_give_parts(window, way):
    window.bulk_evict(99)
    later = [time + 100 for time in TIMES]
    if way == "frame":
        window.bulk_insert(frame(later))
    elif way == "columns":
        window.bulk_insert(later, {"delay": DELAYS, **PARTS})
    elif way == "texts":
        window.bulk_insert(later, DELAYS, keys=["JFK|AA", "JFK|B6", "LGA|AA", "JFK|a\\|b"])
    elif way == "producer":
        with window.producer("p") as producer:
            for time, (parts, delay) in zip(later, EVERY, strict=True):
                producer.insert(time, delay, key=parts)
    else:
        for time, (parts, delay) in zip(later, EVERY, strict=True):
            (answer,) = window.insert(time, delay, key=parts, answer=True).answers
            assert answer.parts == parts
    if way == "evicted and again":
        assert window.bulk_evict(999, key=EVERY[3][0]).evicted == 1
        window.insert(later[3], DELAYS[3], key="JFK|a\\|b")
    assert sums(window.query(keys=ALL_KEYS)) == EVERY
    assert sums(window.query(keys=[EVERY[1][0], "LGA|AA"])) == EVERY[1:3]
    assert sums(window.query(key=EVERY[3][0])) == EVERY[3:]


def test_questions_by_parts(window):
    assert sums(window.query(by="airport")) == [({"airport": "JFK"}, 11.0), ({"airport": "LGA"}, 4.0)]
    assert sums(window.query(where={"carrier": ["AA", "B6"], "airport": {"matches": "J.*"}})) == EVERY[:2]
    assert sums(window.query(where="carrier = AA")) == [EVERY[0], EVERY[2]]
    assert sums(window.query(by=["carrier"], top="sum", n=1)) == [({"carrier": "a|b"}, 8.0)]
    assert sums(window.query(by="carrier", having=["n < 2", "sum > 2"])) == [({"carrier": "a|b"}, 8.0)]
    page = window.query(by="carrier", limit=2)
    assert [answer.parts for answer in page] == [{"carrier": "AA"}, {"carrier": "B6"}]
    rest = window.query(by="carrier", limit=2, position=page.next)
    assert ([answer.parts for answer in rest], rest.next) == ([{"carrier": "a|b"}], None)
    assert window.keys(where={"airport": "LGA"}) == ["LGA|AA"]
    first = next(window.watch(by="airport"))
    assert sums(first) == [({"airport": "JFK"}, 11.0), ({"airport": "LGA"}, 4.0)]


def test_ranges_and_series_by_parts(window):
    assert window.range_query(0, 99, where="airport=JFK").entries == 3
    groups = window.range_groups(11, 13, by="airport")
    assert sums(groups) == [({"airport": "JFK"}, 10.0), ({"airport": "LGA"}, 4.0)]
    assert window.series(10, 14, step=2, where="airport=JFK").entries.tolist() == [2, 1]
    jfk, lga = window.series_groups(10, 14, step=2, by="airport")
    assert (jfk.parts, jfk.entries.tolist()) == ({"airport": "JFK"}, [2, 1])
    assert (lga.times.tolist(), lga.width) == ([10, 12], 2)
    assert jfk.to_pandas()["airport"].tolist() == ["JFK", "JFK"]


def test_tables_have_a_column_for_each_part(window):
    found = window.entries(where="airport=JFK").to_pandas()
    assert list(found.columns) == ["time", "airport", "carrier", "delay"]
    assert found["carrier"].tolist() == ["AA", "B6", "a|b"]
    again = window.entries().to_pandas()
    again["time"] += np.timedelta64(100, "s")
    window.bulk_insert(again)
    table = window.query(by=["carrier"]).to_pandas()
    assert table[["carrier", "entries", "sum"]].values.tolist() == [["AA", 4, 10.0], ["B6", 2, 4.0], ["a|b", 2, 16.0]]
    every = window.query(keys=ALL_KEYS).to_pandas()
    assert list(every.columns[:2]) == ["airport", "carrier"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"key": {"airport": "a"}}, "parts.carrier"),
        ({"key": {"airport": "a", "carrier": 7}}, "parts.carrier"),
        ({"keys": [{"airport": "a", "carrier": "b", "x": "c"}]}, "parts.x"),
        ({"where": "carrier"}, "where"),
        ({"where": {"carrier": {"like": "x"}}}, "where"),
        ({"where": {"carrier": [7]}}, "where"),
        ({"by": [7]}, "by"),
        ({"having": "sum"}, "having"),
        ({"n": 3}, "top"),
        ({"top": 7}, "top"),
        ({"limit": "x"}, "limit"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(window, asked, field):
    with pytest.raises(InvalidArgument) as refused:
        window.query(**asked)
    assert refused.value.field == field


def test_an_unknown_argument_is_an_error(window):
    with pytest.raises(TypeError, match="wher"):
        window.query(wher="x")


def test_groups_have_to_be_named(window):
    with pytest.raises(InvalidArgument, match="by which parts"):
        window.range_groups(0, 1)


async def test_the_client_for_asyncio(service, window):
    async with AsyncClient(service.grpc_target) as sash:
        flights = sash.window("flights")
        page = await flights.query(by="carrier", limit=1)
        assert (sums(page), page.next) == ([({"carrier": "AA"}, 5.0)], "AA")
        assert len(await flights.series_groups(10, 14, step=2, by="airport")) == 2
        assert sums(await flights.range_groups(11, 13, by="airport"))[1] == ({"airport": "LGA"}, 4.0)
