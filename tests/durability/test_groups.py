"""Groups of keys of a stored window are the fold of their entries: every condition with every grouping,
with late entries, evictions, keys that are forgotten, restarts, crashes, and blocks that are only in the tier."""

import itertools

import numpy as np
import pytest

from sash.durability.records.commands import BulkEvict, BulkInsert
from sash_engine.clock import ManualClock
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import Query, RangeQuery, SeriesQuery, Top, Where
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.labels import join, split
from tests.support.asking import question_of
from tests.support.stored import running, write_both

PARTS = ("airport", "carrier", "gate")
VALUES = (("JFK", "LGA", "a|b"), ("AA", "", "B6", "\\"), tuple(f"g{i}" for i in range(9)))
SPEC = WindowSpec.parse(
    {
        "name": "w",
        "time_unit": "none",
        "keys": list(PARTS),
        "fields": {"v": "int64"},
        "aggregates": {
            "n": {"function": "count"},
            "sum": {"function": "sum", "field": "v"},
            "low": {"function": "min", "field": "v"},
            "spread": {"function": "variance", "field": "v"},
        },
        "slide": {"max_age": 60},
        "idle_expiry": "10s",
    }
)
WHERES = {
    "all": ((), lambda key: True),
    "equal": ((Where("carrier", "=", ["AA"]),), lambda key: key[1] == "AA"),
    "in": ((Where("airport", "in", ["JFK", "a|b"]),), lambda key: key[0] != "LGA"),
    "not": (
        (Where("carrier", "!=", [""]), Where("gate", "not in", ["g1"])),
        lambda key: key[1] != "" and key[2] != "g1",
    ),
    "regex": ((Where("gate", "=~", ["g[0-4]"]),), lambda key: key[2] < "g5"),
    "none": ((Where("gate", "=", ["nowhere"]),), lambda key: False),
}
BYS = [by for n in range(len(PARTS) + 1) for by in itertools.combinations(PARTS, n)]


def entries_of(model):
    """The entries of a window, as (key, time, value)."""
    for batch in model.entries(keys=model.key_names("", 10_000)[0] or ["x|x|x"]):
        names = [split(name, 3) for name in batch.keys.dictionary]
        for code, time, value in zip(batch.keys.codes, batch.times.tolist(), batch.columns["v"].tolist(), strict=True):
            yield names[code], time, value


def folded(values):
    low = min(values) if values else None
    return {
        "n": len(values),
        "sum": sum(values),
        "low": low,
        "spread": np.var(values, ddof=1) if len(values) > 1 else None,
    }


def alike(found, expected):
    assert {name: found[name] for name in ("n", "sum", "low")} == {name: expected[name] for name in ("n", "sum", "low")}
    if expected["spread"] is not None:
        assert found["spread"] == pytest.approx(expected["spread"])


def compare(window, model, asked):
    rows = list(entries_of(model))
    assert rows
    marks = {split(name, 3): model.keys.now_of[model.keys.find(name)] for name in model.keys.names()}
    for (where, holds), by in asked:
        places = [PARTS.index(name) for name in by]
        groups = {}
        for key, time, value in rows:
            if holds(key):
                groups.setdefault(tuple(key[i] for i in places), []).append((time, value))
        groups = dict(sorted(groups.items()))
        found = window.query(lookbacks=[20], where=where, by=by)
        assert [tuple(answer.parts.values()) for answer in found] == list(groups)
        for answer, (group, held) in zip(found, groups.items(), strict=True):
            now = max(mark for key, mark in marks.items() if holds(key) and tuple(key[i] for i in places) == group)
            alike(answer.aggregates, folded([value for time, value in held if time > now - 20]))
        whole = window.query(where=where, by=by)
        ranges = window.range_groups(100, 200, where=where, by=by)
        series = window.series_groups(0, 300, 50, where=where, by=by)
        for answers, test in ((whole, lambda t: True), (ranges, lambda t: 100 <= t <= 200)):
            for answer, held in zip(answers, groups.values(), strict=True):
                alike(answer.aggregates, folded([value for time, value in held if test(time)]))
        for found_series, held in zip(series, groups.values(), strict=True):
            for i, start in enumerate(range(0, 300, 50)):
                values = [value for time, value in held if start <= time < start + 50]
                alike({name: column[i] for name, column in found_series.aggregates.items()}, folded(values))
        top = window.query(where=where, by=by, top=Top("sum", 3))
        expected = sorted(groups, key=lambda group: -sum(value for _, value in groups[group]))[:3]
        assert [tuple(answer.parts.values()) for answer in top] == expected
    window.check_invariants()


class Asked:
    """The questions of a window, in one go."""

    def __init__(self, window):
        self.reader, self.check_invariants = window.reader, window.check_invariants

    def query(self, **asked):
        return self.reader.query(question_of(Query, **asked))

    def range_groups(self, start, end, **asked):
        return finished(self.reader.range_groups(question_of(RangeQuery, start, end, **asked)))

    def series_groups(self, start, end, step, **asked):
        return finished(self.reader.series_groups(question_of(SeriesQuery, start, end, step, **asked)))


async def test_every_condition_and_grouping():
    random = np.random.default_rng(5)
    server, storage = await running(SPEC, cache_bytes=0, checkpoint_bytes=3000, store_entries=4)
    clock = ManualClock()
    model = Window(SPEC, block=4, clock=clock)
    for step in range(10):
        n = 120
        names = [join([random.choice(values) for values in VALUES]) for _ in range(n)]
        if step % 3 == 1:
            names[: n // 2] = [names[0]] * (n // 2)  # one key has a forest
        times = 25 * step + random.integers(-70, 25, n)
        batch = Batch(times, {"v": random.integers(-50, 50, n)}, Coded.of(names))
        await write_both(storage, "w", [model], BulkInsert(batch))
        if step == 5:
            await write_both(storage, "w", [model], BulkEvict(90, None), BulkEvict(10**6, names[0]))
        for each in (server.clock, clock):
            each.advance(4 * 10**9)
        storage.tidy()
        model.tidy()
        await server.settled()  # nobody waits for what time alone brings
        if step % 3 == 2:
            storage = await (server.restart() if step % 2 else server.crash())
        if step in (5, 8):
            asked = itertools.product(WHERES.values(), BYS)
            compare(Asked(storage.find("w")), model, asked)
