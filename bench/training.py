"""A training set: the answers about many (key, time) pairs, beside what a data scientist would use.

    Sash      a window in process, `AnswersAt` in bulks of 300,000 answers
    Polars    `rolling` over entries and pairs together, for each lookback; a join puts the rows in order
    DuckDB    a range join of pairs and entries, for each lookback, where duckdb is installed

1 M pairs x 3 lookbacks (1 h, 7 d, 90 d) x (count, sum, max, distinct) over 100,000 keys and 20 M entries of a year,
one after the other in one process; seconds of the clock and of the processor, without what it takes to load the
entries. Sash's distinct count is an HLL sketch, which is nearly exact up to some hundred values; the others count
exactly. Counts and maxima must be equal, sums up to rounding, distinct counts for 99 of 100.

Run ``python -m bench.training``, with ``--share 0.1`` of it, or with ``--smoke`` (figures meaningless).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sash_engine.steps import finished
from sash_engine.version import compiled
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import AnswersAt
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.coded import Coded

PAIRS, KEYS, ENTRIES = 1_000_000, 100_000, 20_000_000
SMOKE = 0.0005
YEAR_S, LOOKBACKS_S = 365 * 86_400, (3_600, 7 * 86_400, 90 * 86_400)
BULK = 1 << 20
ANSWERS = 300_000
SPEC = {
    "name": "payments",
    "time_unit": "s",
    "keyed": True,
    "fields": {"amount": "float64", "shop": "int64"},
    "aggregates": {
        "count": {"function": "count"},
        "sum": {"function": "sum", "field": "amount"},
        "max": {"function": "max", "field": "amount"},
        "distinct": {"function": "distinct_count", "field": "shop"},
    },
}

Array = Any
Table = list[dict[str, Array]]
"""For each lookback the columns by name, in the order of the pairs; null is NaN."""


class Data:
    """Entries and pairs, the same in every run.

    Args:
        share: of the real sizes.
    """

    def __init__(self, share: float) -> None:
        random = np.random.default_rng(7)
        n, k = max(int(ENTRIES * share), 1_000), max(int(PAIRS * share), 100)
        self.keys = max(int(KEYS * share), 10)
        self.times = np.sort(random.integers(0, YEAR_S, n))
        self.codes = random.integers(0, self.keys, n)
        self.amounts, self.shops = random.random(n) * 100, random.integers(0, 5_000, n)
        self.asked, self.of = random.integers(0, YEAR_S, k), random.integers(0, self.keys, k)


def sash(data: Data) -> Callable[[], Table]:
    """Load a window; return what answers."""
    window, names = Window(WindowSpec.parse(SPEC)), [f"card {i}" for i in range(data.keys)]
    for a in range(0, len(data.times), BULK):
        some = slice(a, a + BULK)
        columns = {"amount": data.amounts[some], "shop": data.shops[some]}
        window.bulk_insert(Batch(data.times[some], columns, Coded(names, data.codes[some])))

    def answers() -> Table:
        parts, size = [], ANSWERS // len(LOOKBACKS_S)
        for a in range(0, len(data.asked), size):
            keys = Coded(names, data.of[a : a + size]).rows(slice(None))
            question = AnswersAt(data.asked[a : a + size], keys, LOOKBACKS_S)
            parts.append(finished(window.reader.answers_at_steps(question)))
        return [
            {
                name: np.concatenate([np.asarray(each.aggregates[name], np.float64) for each in of_lookback])
                for name in SPEC["aggregates"]  # type: ignore[attr-defined]
            }
            for of_lookback in zip(*parts, strict=True)
        ]

    return answers


def polars(data: Data) -> Callable[[], Table]:
    import polars as pl

    entries = pl.DataFrame({"k": data.codes, "t": data.times, "a": data.amounts, "s": data.shops})
    pairs = pl.DataFrame({"k": data.of, "t": data.asked, "id": np.arange(len(data.asked))})

    def answers() -> Table:
        found = []
        for lookback in LOOKBACKS_S:
            both = pl.concat([entries, pairs.select("k", "t").unique()], how="diagonal").sort("k", "t")
            rolled = both.rolling("t", period=f"{lookback}i", group_by="k", closed="right").agg(
                count=pl.col("a").count(),
                sum=pl.col("a").sum(),
                max=pl.col("a").max(),
                distinct=pl.col("s").drop_nulls().n_unique(),
            )
            rows = pairs.join(rolled.unique(["k", "t"]), on=["k", "t"], how="left").sort("id")
            found.append({name: rows[name].cast(pl.Float64).to_numpy() for name in ("count", "sum", "max", "distinct")})
        return found

    return answers


def duckdb(data: Data) -> Callable[[], Table]:
    import duckdb as library  # type: ignore[import-not-found,unused-ignore]

    base = library.connect()
    base.execute("set threads = 2")
    columns = {"k": data.codes, "t": data.times, "a": data.amounts, "s": data.shops}
    base.register("given", columns)
    base.execute("create table entries as select * from given order by k, t")
    base.register("asked", {"k": data.of, "t": data.asked, "id": np.arange(len(data.asked))})
    base.execute("create table pairs as select * from asked")

    def answers() -> Table:
        found = []
        for lookback in LOOKBACKS_S:
            rows = base.execute(
                "select count(a) as c, coalesce(sum(a), 0) as s, max(a) as m, count(distinct e.s) as d from pairs p "
                f"left join entries e on e.k = p.k and e.t > p.t - {lookback} and e.t <= p.t group by id order by id"
            ).fetchnumpy()
            found.append(
                {
                    name: np.ma.filled(np.ma.asarray(rows[column]).astype(np.float64), np.nan)
                    for name, column in (("count", "c"), ("sum", "s"), ("max", "m"), ("distinct", "d"))
                }
            )
        return found

    return answers


def check(ours: Table, theirs: Table, name: str) -> None:
    """Compare answers; raises AssertionError."""
    for a, b in zip(ours, theirs, strict=True):
        for column in ("count", "max"):
            np.testing.assert_array_equal(a[column], b[column], err_msg=f"{name}: {column}")
        np.testing.assert_allclose(a["sum"], b["sum"], rtol=1e-9, atol=1e-9, err_msg=f"{name}: sum")
        assert np.mean(a["distinct"] == b["distinct"]) >= 0.99, f"{name}: distinct"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the real sizes")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args()
    data = Data(SMOKE if given.smoke else given.share)
    systems = {"Sash": sash, "Polars": polars, "DuckDB": duckdb}
    found: dict[str, Table] = {}
    seconds: dict[str, float] = {}
    print(f"{len(data.asked):,} pairs, {data.keys:,} keys, {len(data.times):,} entries; compiled: {compiled()}\n")
    print("| system | s | s of the processor | µs a pair | times as long as Sash |\n| --- | --- | --- | --- | --- |")
    for name, load in systems.items():
        if importlib.util.find_spec(name.lower()) is None and name != "Sash":
            print(f"| {name} | is not installed | | | |")
            continue
        answers = load(data)
        begun, processor = time.perf_counter(), time.process_time()
        found[name] = answers()
        seconds[name] = time.perf_counter() - begun
        used = time.process_time() - processor
        each, ratio = used / len(data.asked) * 1e6, seconds[name] / seconds["Sash"]
        print(f"| {name} | {seconds[name]:.2f} | {used:.2f} | {each:.1f} | {ratio:.1f} |", flush=True)
        check(found["Sash"], found[name], name)
    digest = hashlib.sha256(b"".join(column.tobytes() for table in found["Sash"] for column in table.values()))
    print(f"\ndigest {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
