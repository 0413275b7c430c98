"""What a data scientist would use for a training set, over the same entries and pairs as `bench.training`.

Each function loads the data and returns what answers: for each lookback a count, a sum, a maximum and a number of
distinct values, in the order of the pairs.

    Polars    rolling      `rolling` over entries and pairs together, for each lookback
              join         pairs joined with the entries of their keys, filtered and grouped, 20,000 pairs at a time
    DuckDB    range join   a range join of pairs and entries over the longest lookback; shorter ones filter
              ASOF         ASOF joins find the ends of each range among the rows of a key; lists of them are sliced
              window       window functions over entries and pairs together, one frame for each lookback
    pandas    merge        pairs merged with the entries of their keys, and grouped, 20,000 pairs at a time
    Spark     range join   a join by key and range of time, grouped, with two threads; from Parquet, to Parquet
    Feast     a point-in-time join of answers that DuckDB made before: Feast computes no windows itself

A join by time alone (`join_asof` of Polars, `merge_asof` of pandas, ASOF of DuckDB) finds one entry, and no maximum.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bench.training import Data, Table

AGGREGATES = ("count", "sum", "max", "distinct")
CHUNK = 20_000
"""Pairs that are joined at once, where a join of all would not fit into memory."""


def _table(rows: Any, column: Callable[[Any, str], Any], lookbacks: tuple[int, ...]) -> Table:
    """The answers from columns that are named after aggregate and lookback."""
    found = []
    for lookback in lookbacks:
        columns = {name: np.ma.asarray(column(rows, f"{name}_{lookback}")) for name in AGGREGATES}
        found.append({name: np.ma.filled(each.astype(np.float64), np.nan) for name, each in columns.items()})
    return found


def _joined(parts: list[Table]) -> Table:
    return [{name: np.concatenate([each[name] for each in of]) for name in of[0]} for of in zip(*parts, strict=True)]


def polars_rolling(data: Data, lookbacks: tuple[int, ...]) -> Callable[[], Table]:
    import polars as pl

    entries = pl.DataFrame({"k": data.codes, "t": data.times, "a": data.amounts, "s": data.shops})
    pairs = pl.DataFrame({"k": data.of, "t": data.asked, "id": np.arange(len(data.asked))})

    def answers() -> Table:
        found = []
        both = pl.concat([entries, pairs.select("k", "t").unique()], how="diagonal").sort("k", "t")
        for lookback in lookbacks:
            rolled = both.rolling("t", period=f"{lookback}i", group_by="k", closed="right").agg(
                count=pl.col("a").count(),
                sum=pl.col("a").sum(),
                max=pl.col("a").max(),
                distinct=pl.col("s").drop_nulls().n_unique(),
            )
            rows = pairs.join(rolled.unique(["k", "t"]), on=["k", "t"], how="left").sort("id")
            found.append({name: rows[name].cast(pl.Float64).to_numpy() for name in AGGREGATES})
        return found

    return answers


def polars_join(data: Data, lookbacks: tuple[int, ...]) -> Callable[[], Table]:
    import polars as pl

    entries = pl.DataFrame({"k": data.codes, "e": data.times, "a": data.amounts, "s": data.shops}).sort("k", "e")
    pairs = pl.DataFrame({"k": data.of, "t": data.asked, "id": np.arange(len(data.asked))}).sort("k", "t")

    def answers() -> Table:
        parts = []
        e, t, a = pl.col("e"), pl.col("t"), pl.col("a")
        each = []
        for lookback in lookbacks:
            inside = e > t - lookback
            each += [
                a.filter(inside).count().alias(f"count_{lookback}"),
                a.filter(inside).sum().alias(f"sum_{lookback}"),
                a.filter(inside).max().alias(f"max_{lookback}"),
                pl.col("s").filter(inside).n_unique().alias(f"distinct_{lookback}"),
            ]
        for at in range(0, len(pairs), CHUNK):
            some = pairs[at : at + CHUNK]
            theirs = entries.lazy().filter(pl.col("k").is_between(some["k"][0], some["k"][-1]))
            joined = some.lazy().join(theirs, on="k").filter((e <= t) & (e > t - max(lookbacks)))
            grouped = joined.group_by("id").agg(each)
            parts.append(some.lazy().select("id").join(grouped, on="id", how="left").collect())
        rows = pl.concat(parts).sort("id").with_columns(pl.selectors.matches("count|sum|distinct").fill_null(0))
        return _table(rows, lambda rows, name: rows[name].cast(pl.Float64).to_numpy(), lookbacks)

    return answers


def _duckdb(data: Data) -> Any:
    import duckdb as library  # type: ignore[import-not-found,unused-ignore]

    base = library.connect()
    base.execute("set threads = 2")
    columns = {"k": data.codes, "t": data.times, "a": data.amounts, "s": data.shops}
    base.register("given", columns)
    base.execute("create table entries as select * from given order by k, t")
    base.register("asked", {"k": data.of, "t": data.asked, "id": np.arange(len(data.asked))})
    base.execute("create table pairs as select * from asked")
    return base


def _of_duckdb(rows: Any, lookbacks: tuple[int, ...]) -> Table:
    return _table(rows.fetchnumpy(), lambda rows, name: rows[name], lookbacks)


def duckdb_range_join(data: Data, lookbacks: tuple[int, ...]) -> Callable[[], Table]:
    base = _duckdb(data)
    each = ", ".join(
        f"count(a) filter (e.t > p.t - {n}) as count_{n}, coalesce(sum(a) filter (e.t > p.t - {n}), 0) as sum_{n}, "
        f"max(a) filter (e.t > p.t - {n}) as max_{n}, count(distinct s) filter (e.t > p.t - {n}) as distinct_{n}"
        for n in lookbacks
    )
    asked = (
        f"select {each} from pairs p left join entries e on e.k = p.k and e.t > p.t - {max(lookbacks)} and e.t <= p.t "
        "group by id order by id"
    )
    return lambda: _of_duckdb(base.execute(asked), lookbacks)


def duckdb_asof(data: Data, lookbacks: tuple[int, ...]) -> Callable[[], Table]:
    base = _duckdb(data)

    def answers() -> Table:
        base.execute(
            "create or replace temp table numbered as "
            "select k, t, row_number() over (partition by k order by t) n from entries"
        )
        base.execute(
            "create or replace temp table lists as "
            "select k, list(a order by t) amounts, list(s order by t) shops from entries group by k"
        )
        ends = "select p.*, coalesce(e.n, 0) n from pairs p asof left join numbered e on e.k = p.k and e.t <= p.t"
        for lookback in lookbacks:
            ends = (
                f"select p.*, coalesce(e.n, 0) n_{lookback} from ({ends}) p "
                f"asof left join numbered e on e.k = p.k and e.t <= p.t - {lookback}"
            )
        each = ", ".join(
            f"n - n_{x} as count_{x}, coalesce(list_sum(amounts[n_{x} + 1 : n]), 0) as sum_{x}, "
            f"list_max(amounts[n_{x} + 1 : n]) as max_{x}, "
            f"coalesce(list_unique(shops[n_{x} + 1 : n]), 0) as distinct_{x}"
            for x in lookbacks
        )
        asked = f"select {each} from ({ends}) p left join lists l on l.k = p.k order by id"
        return _of_duckdb(base.execute(asked), lookbacks)

    return answers


def duckdb_window(data: Data, lookbacks: tuple[int, ...]) -> Callable[[], Table]:
    base = _duckdb(data)
    each = ", ".join(
        f"count(a) over w{n} as count_{n}, coalesce(sum(a) over w{n}, 0) as sum_{n}, max(a) over w{n} as max_{n}, "
        f"count(distinct s) over w{n} as distinct_{n}"
        for n in lookbacks
    )
    windows = ", ".join(
        f"w{n} as (partition by k order by t range between {n - 1} preceding and current row)" for n in lookbacks
    )
    asked = (
        f"select * exclude (id) from (select id, {each} from (select k, t, a, s, null as id from entries "
        f"union all select k, t, null, null, id from pairs) window {windows}) where id is not null order by id"
    )
    return lambda: _of_duckdb(base.execute(asked), lookbacks)


def pandas_merge(data: Data, lookbacks: tuple[int, ...]) -> Callable[[], Table]:
    import pandas as pd

    entries = pd.DataFrame({"k": data.codes, "e": data.times, "a": data.amounts, "s": data.shops}).sort_values("k")
    pairs = pd.DataFrame({"k": data.of, "t": data.asked, "id": np.arange(len(data.asked))}).sort_values("k")
    keys = entries["k"].to_numpy()

    def answers() -> Table:
        parts, ids = [], []
        for at in range(0, len(pairs), CHUNK):
            some = pairs.iloc[at : at + CHUNK]
            first, last = keys.searchsorted(some["k"].iloc[0]), keys.searchsorted(some["k"].iloc[-1], "right")
            merged = some.merge(entries.iloc[first:last], on="k")
            merged = merged[merged["e"] <= merged["t"]]
            part = []
            for lookback in lookbacks:
                inside = merged[merged["e"] > merged["t"] - lookback]
                grouped = inside.groupby("id").agg(
                    count=("a", "count"), sum=("a", "sum"), max=("a", "max"), distinct=("s", "nunique")
                )
                grouped = grouped.reindex(some["id"]).fillna({"count": 0, "sum": 0, "distinct": 0})
                part.append({name: grouped[name].to_numpy(np.float64) for name in AGGREGATES})
            parts.append(part)
            ids.append(some["id"].to_numpy())
        back = np.argsort(np.concatenate(ids))
        return [{name: column[back] for name, column in of.items()} for of in _joined(parts)]

    return answers


def spark_range_join(data: Data, lookbacks: tuple[int, ...]) -> Callable[[], Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    folder = tempfile.TemporaryDirectory()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "64")
        .config("spark.driver.extraJavaOptions", "-XX:+UseParallelGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    entries = pa.table({"k": data.codes, "e": data.times, "a": data.amounts, "s": data.shops})
    pq.write_table(entries, f"{folder.name}/entries", row_group_size=1 << 20)
    pq.write_table(pa.table({"k": data.of, "t": data.asked, "id": np.arange(len(data.asked))}), f"{folder.name}/pairs")

    def answers() -> Table:
        entries, pairs = session.read.parquet(f"{folder.name}/entries"), session.read.parquet(f"{folder.name}/pairs")
        joined = pairs.join(entries, "k", "left").where((f.col("e") <= f.col("t")) | f.col("e").isNull())
        each = []
        for n in lookbacks:
            a, s = (f.when(f.col("e") > f.col("t") - n, f.col(name)) for name in ("a", "s"))
            each += [
                f.count(a).alias(f"count_{n}"),
                f.coalesce(f.sum(a), f.lit(0.0)).alias(f"sum_{n}"),
                f.max(a).alias(f"max_{n}"),
                f.size(f.collect_set(s)).alias(f"distinct_{n}"),
            ]
        inside = joined.where(f.col("e") > f.col("t") - max(lookbacks))
        rows = pairs.select("id").join(inside.groupBy("id").agg(*each), "id", "left")
        rows.write.mode("overwrite").parquet(f"{folder.name}/answers")
        found = pq.read_table(f"{folder.name}/answers").sort_by("id").to_pandas()
        found = found.fillna({name: 0 for name in found.columns if not name.startswith("max")})
        return _table(found, lambda rows, name: rows[name].to_numpy(), lookbacks)

    return answers


def feast_join(data: Data, lookbacks: tuple[int, ...]) -> Callable[[], Table]:
    import pandas as pd
    from feast import Entity, FeatureStore, FeatureView, FileSource, RepoConfig, ValueType  # type: ignore

    folder = tempfile.TemporaryDirectory()
    rows = duckdb_range_join(data, lookbacks)()
    columns = {f"{name}_{n}": table[name] for n, table in zip(lookbacks, rows, strict=True) for name in AGGREGATES}
    at = pd.to_datetime(data.asked, unit="s", utc=True)
    path = Path(folder.name, "features.parquet")
    pd.DataFrame({"k": data.of, "at": at, **columns}).drop_duplicates(["k", "at"]).to_parquet(path)
    store = FeatureStore(
        config=RepoConfig(
            project="bench",
            provider="local",
            registry=f"{folder.name}/registry.db",
            offline_store={"type": "duckdb"},
            online_store=None,
            entity_key_serialization_version=3,
        )
    )
    card = Entity(name="card", join_keys=["k"], value_type=ValueType.INT64)
    source = FileSource(path=str(path), timestamp_field="at")
    view = FeatureView(name="features", entities=[card], ttl=timedelta(days=400), source=source)
    store.apply([card, view])
    asked = pd.DataFrame({"k": data.of, "event_timestamp": at, "id": np.arange(len(data.asked))})
    wanted = [f"features:{name}" for name in columns]

    def answers(folder: Any = folder) -> Table:  # which lives as long as this function
        found = store.get_historical_features(entity_df=asked, features=wanted).to_df().sort_values("id")
        return _table(found, lambda rows, name: rows[name].to_numpy(), lookbacks)

    return answers


PEERS: dict[str, tuple[str, Callable[[Data, tuple[int, ...]], Callable[[], Table]]]] = {
    "DuckDB, range join": ("duckdb", duckdb_range_join),
    "DuckDB, ASOF joins and lists": ("duckdb", duckdb_asof),
    "DuckDB, window functions": ("duckdb", duckdb_window),
    "Polars, rolling": ("polars", polars_rolling),
    "Polars, join and filter": ("polars", polars_join),
    "pandas, merge": ("pandas", pandas_merge),
    "Spark, range join": ("pyspark", spark_range_join),
    "Feast, join of answers made before": ("feast", feast_join),
}
"""By name the package that it needs, and what loads the data."""
