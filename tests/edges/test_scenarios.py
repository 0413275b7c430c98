"""The scenarios of the files beside this one, over every edge; and those that no file can say."""

import math
import time

import numpy as np
import pytest

from tests.support.edges import ONE_STORE, Refused, over, play
from tests.support.mutations import with_counts
from tests.support.scenarios import run, scenarios

COUNT = {"n": {"function": "count"}}
PLAIN = COUNT | {"total": {"function": "sum"}, "all": {"function": "collect"}}
TOMORROW = time.time_ns() // 10**9 + 86_400


@scenarios()
def test_a_scenario(edge, scenario):
    run(edge, scenario)


@pytest.mark.parametrize("too_far", ["drop", "reject"])
def test_entries_too_far_ahead(edge, too_far):
    """They slide nothing."""
    refused, entry = Refused("FAILED_PRECONDITION", "time"), {"time": TOMORROW, "value": 0}
    bulk = {"time": [1, TOMORROW, 2], "value": [0] * 3}
    ahead = 2 if too_far == "drop" else 0
    steps = [
        ("insert", entry, {"inserted": 0, "ahead": 1} if ahead else refused),
        ("bulk-insert", bulk, {"inserted": 2, "ahead": 1} if ahead else refused),
        ("describe", {}, {"entries": ahead, "counts": {"ahead": ahead}, "spec": {"order": {"too_far_ahead": too_far}}}),
    ]
    play(edge, steps, aggregates=COUNT, slide={"max_age": "1h"}, order={"ahead": "5m", "too_far_ahead": too_far})


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 20_000])
def test_bulks_of_many_sizes(edge, n):
    """The last one has as many entries as a write may have."""
    bulk = {"time": list(range(n)), "value": list(range(n))}
    part = bulk | {"query": "q", "batch": 0}
    play(edge, [("stage", part, {"entries": n}), ("bulk-insert", bulk, {"inserted": n})], aggregates=PLAIN)
    assert edge.do("query", "w")["answers"][0]["aggregates"]["all"] == list(range(n))
    more = {"time": [1] * 20_001, "value": [1] * 20_001}
    if n == 20_000 and not hasattr(edge, "client"):  # which cuts it
        too_large = Refused("TOO_LARGE", "time", "20000 entries")
        play(edge, [("bulk-insert", more, too_large), ("stage", more | {"query": "q", "batch": 0}, too_large)])


def test_a_negative_zero_stays_one(edge):
    play(edge, [("insert", {"time": 1, "value": -0.0}, {"inserted": 1})], aggregates=PLAIN)
    assert math.copysign(1, edge.do("query", "w")["answers"][0]["aggregates"]["all"][0]) == -1


def test_a_window_goes_out_and_comes_back(edge):
    """With what it knows of its producers. What happens to one of the two does not happen to the other."""
    n, sent = 5000, {"producer": "p", "sequence": 1}
    bulk = {"time": list(range(n)), "value": list(range(n)), "key": ["ab"[i % 2] for i in range(n)]} | sent
    play(edge, [("bulk-insert", bulk, {"inserted": n})], keyed=True, aggregates=PLAIN)
    found = edge.copied("w", "copy")
    assert (found["spec"]["name"], found["entries"], found["keys"]) == ("copy", n, 2)
    assert edge.do("query", "copy", key="a") == edge.do("query", "w", key="a")
    edge.specs["copy"] = edge.specs["w"]
    reused = Refused("SEQUENCE_REUSED", "sequence", "2")
    steps = [
        ("copy/bulk-insert", bulk, {"already_applied": True}),
        ("copy/insert", {"time": 1, "value": 1.0, "key": "a"} | sent, reused),
        ("insert", {"time": n, "value": 1.0, "key": "a"}, {"inserted": 1}),
        ("copy/describe", {}, {"entries": n}),
    ]
    play(edge, steps)
    assert edge.copied("w", "copy").reason == "ALREADY_EXISTS"


ANSWERED = {"total": {"function": "sum"}, "low": {"function": "min"}, "p99": {"function": "quantile", "q": 0.99}}
SPAN, STEP = {"start": 0, "end": 30}, {"step": "10s"}
NAMED = [
    ("query", {"key": "a"}),
    ("query", {"key": "a", "lookback": "9s"}),
    ("query", {"all_keys": True, "combine": True}),
    ("query", {"by": "host", "top": "total", "having": "n>3"}),
    ("watch", {"key": "a"}),
    *(
        (call, SPAN | more | which)
        for call, more in (("range", {}), ("series", STEP))
        for which in ({"key": "a"}, {"by": "host"})
    ),
    ("series", SPAN | STEP | {"all_keys": True}),
]


@pytest.mark.parametrize("window", ["w", "view"])
def test_only_the_aggregates_that_are_named_are_answered(edge, window):
    spec = {"fields": {"v": "int64"}, "aggregates": COUNT | ANSWERED}
    rows = {"time": list(range(40)), "key": {"host": ["ab"[i % 2] for i in range(40)]}, "value": list(range(40))}
    view = {"name": "view", "of": "w", "aggregates": spec["aggregates"]}
    play(edge, [("bulk-insert", rows, {"inserted": 40}), ("create", view, {})], keys=["host"], keyed=True, **spec)
    for call, asked in NAMED:
        whole, some = (edge.made(call, window, **asked, **more) for more in ({}, {"aggregate": ["low", "p99"]}))
        for one, other in zip(
            *((each.get("answers") or each.get("groups") or [each]) for each in (whole, some)), strict=True
        ):
            assert other["aggregates"] == {name: one["aggregates"][name] for name in ("low", "p99")}, (call, asked)
            assert other["entries"] == one["entries"]
        unknown = edge.do(call, window, **asked, aggregate=["p50"])
        assert (unknown.reason, unknown.field) == ("INVALID_ARGUMENT", "aggregates")
        assert {*unknown.limit.split(", ")} == {*spec["aggregates"]}


@over(*ONE_STORE)
def test_a_file_that_somebody_made_up_is_refused_and_spoils_nothing(edge):
    play(edge, [("insert", {"time": 1, "value": 1}, {"inserted": 1})], aggregates=PLAIN)
    for late, field in (("many", "counts.late"), (2**63, "counts.late"), (2**62, "counts")):
        found = edge.copied("w", "other", lambda file, late=late: with_counts(file, {"late": late}))
        assert (found.reason, found.field) == ("INVALID_ARGUMENT", f"header.{field}")
        assert [each["spec"]["name"] for each in edge.do("list")["windows"]] == ["w"]
    sound = edge.copied("w", "other", lambda file: with_counts(file, {"late": 2**62 - 1}))
    assert sound["counts"]["late"] == 2**62 - 1


def test_too_many_windows(edge):
    for i in range(20):
        edge.made("create", name=f"w{i}", aggregates=COUNT)
    spec = {"name": "more", "aggregates": COUNT}
    play(edge, [("create", spec, Refused("RESOURCE_EXHAUSTED", "name", "20 windows"))])


def test_a_long_series_is_the_fold(edge):
    n, random = 10_000, np.random.default_rng(3)
    times, values = np.sort(random.integers(0, 5000, n)), random.integers(-99, 99, n).astype(float)
    rows = {"time": times.tolist(), "value": values.tolist()}
    play(edge, [("bulk-insert", rows, {"inserted": n})], aggregates={"total": {"function": "sum"}})
    found = edge.made("series", "w", start=-50, end=5100, step=1, width=60)
    starts, running = np.arange(-50, 5100), np.concatenate([[0], np.cumsum(values)])
    first, last = np.searchsorted(times, starts), np.searchsorted(times, starts + 60)
    assert found["entries"] == (last - first).tolist()
    assert found["aggregates"]["total"] == (running[last] - running[first]).tolist()


def test_many_groups_come_with_their_position(edge):
    names = [f"c{i:04}" for i in range(900)]
    rows = {"time": [20] * 900, "key": {"airport": ["X"] * 900, "carrier": names}, "value": [1.0] * 900}
    play(edge, [("bulk-insert", rows, {"inserted": 900})], keys=["airport", "carrier"], keyed=True, aggregates=COUNT)
    found = edge.made("query", "w", by=["carrier"], limit=899)
    assert [each["parts"]["carrier"] for each in found["answers"]] == names[:899]
    assert found["next"] == names[898]


def test_a_batch_in_parts(edge):
    edge.made("create", name="w", time_unit="s", aggregates=PLAIN)
    of = {"query": "q", "batch": 0}
    first, second, third = (edge.made("stage", "w", time=t, value=t, **of)["stage"] for t in ([1, 2], [3], [4]))
    commit, lost = of | {"stages": [second, first]}, Refused("FAILED_PRECONDITION", "stages")
    steps = [
        ("describe", {}, {"entries": 0}),
        ("commit", commit | {"stages": [third] * 2}, Refused("INVALID_ARGUMENT", "stages")),
        ("commit", commit | {"query": "other"}, lost),
        ("commit", commit, {"inserted": 3, "durability": "memory"}),
        ("commit", commit, {"inserted": 0, "already_applied": True}),
        ("query", {}, {"answers": [{"aggregates": {"all": [1, 2, 3]}}]}),
        ("stage", {"time": [9], "value": [9]} | of, Refused("FAILED_PRECONDITION", "batch")),
        ("commit", commit | {"batch": 1, "stages": [third]}, lost),
        ("commit", commit | {"batch": 1, "stages": []}, {"inserted": 0}),
    ]
    play(edge, steps)
