"""The demo: a year of real flights through Spark into windows, every answer checked against the plain fold.

    flights ──> feed ──> Spark ──> sash serve ──> gRPC ──┐
       │                                      └─> REST ──┤ compare ──> table, or exit 1
       └────────────> pandas (an independent fold) ──────┘

Keys have two parts, airport and carrier. Answers are compared for each airport, each carrier, both, and all flights
together, and for the carriers with the largest delays.

Run it with ``python -m sash_spark.demo``; ``--keep`` leaves the service running, with its page. It starts its own
service on free ports and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sash_client import ALL_KEYS, Client, WindowInfo
from sash_client.local import local_service
from sash_spark.config import PipelineConfig, load
from sash_spark.flights import load_flights, write_feed
from sash_spark.pipeline import Pipeline
from sash_spark.session import local_session
from sash_spark.writing.sink import BatchReport

CONFIG = Path(__file__).with_name("flights.yaml")
LOOKBACKS: Mapping[str, tuple[str, ...]] = {
    "departure_delay": ("1h", "6h"),
    "departure_delay_month": ("1d", "7d"),
}
DEPARTURES = 336_776, 327_346
"""Flights in the data set, and those of them that landed."""
GROUPINGS: tuple[tuple[str, ...], ...] = (("airport",), ("carrier",), ("airport", "carrier"), ())
"""By which parts of keys answers are grouped; by none: one answer over all flights."""
TOP = 3
"""So many carriers, those with the largest mean delay, are asked for, too."""
ACCOUNTS = 7
"""Equations that must hold for each window's counts."""
TOLERANCE = 1e-9
"""Relative. Sums in two orders differ by far less, and a lost entry makes a far larger difference."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a group's departures of a lookback. `deviation` is None for fewer than two.

    `group` has the values of the parts that the answers are grouped by; none for all flights.
    """

    group: tuple[str, ...]
    lookback: str
    flights: int
    mean: float
    deviation: float | None
    max: float

    @classmethod
    def of(cls, parts: Mapping[str, str] | None, lookback: str, aggregates: Mapping[str, Any]) -> Row:
        """Take a row from an answer."""
        numbers = (aggregates[name] for name in ("flights", "mean", "deviation", "max"))
        return cls(tuple((parts or {}).values()), lookback, *numbers)


def flights_config(service: str, scratch: Path) -> PipelineConfig:
    """The pipeline of `flights.yaml`, with its directories (feed, checkpoint, bad) in `scratch`."""
    config = load(CONFIG)
    assert config.bad_records is not None
    return config.model_copy(
        update={
            "service": service,
            "checkpoint": str(scratch / config.checkpoint),
            "source": config.source.model_copy(update={"path": str(scratch / "feed")}),
            "bad_records": config.bad_records.model_copy(update={"path": str(scratch / "bad")}),
        }
    )


# ---------------------------------------------------------------- the plain fold


def departures_of(flights: pd.DataFrame) -> pd.DataFrame:
    """Return airport, carrier, departure (UTC) and delay of every flight that landed, in the order of landing."""
    flown = flights[flights["air_time"].notna()].copy()
    scheduled = pd.to_datetime(flown["time_hour"], utc=True) + pd.to_timedelta(flown["minute"], unit="min")
    flown["departure"] = scheduled + pd.to_timedelta(flown["dep_delay"], unit="min")
    flown["landed"] = flown["departure"] + pd.to_timedelta(flown["air_time"], unit="min")
    flown = flown.rename(columns={"origin": "airport", "dep_delay": "delay"})
    return flown.sort_values(["landed", "departure", "carrier", "flight"], kind="stable")


def expected_rows(departures: pd.DataFrame, by: tuple[str, ...], lookbacks: tuple[str, ...]) -> list[Row]:
    """Fold the departures of each group's last `lookbacks`: what a window must answer, computed without one."""
    rows = []
    for group, flown in departures.groupby(list(by)) if by else [((), departures)]:
        newest = flown["departure"].max()
        for lookback in lookbacks:
            delay = flown.loc[flown["departure"] > newest - pd.Timedelta(lookback), "delay"]
            deviation = float(delay.std(ddof=1)) if len(delay) > 1 else None
            rows.append(Row(tuple(group), lookback, len(delay), float(delay.mean()), deviation, float(delay.max())))
    return rows


def expected_top(rows: list[Row], lookback: str) -> list[Row]:
    """Return those with the largest means over a lookback, the largest first."""
    return sorted((row for row in rows if row.lookback == lookback), key=lambda row: -row.mean)[:TOP]


def expected_present(departures: pd.DataFrame, max_age: str) -> int:
    """Count the departures that a window with this `max_age` still has, over all keys."""
    newest = departures.groupby(["airport", "carrier"])["departure"].transform("max")
    return int((departures["departure"] > newest - pd.Timedelta(max_age)).sum())


# ---------------------------------------------------------------- comparing


@dataclass(frozen=True, slots=True)
class Verdict:
    """The number of values that were compared, and a line for each wrong one."""

    compared: int = 0
    wrong: tuple[str, ...] = ()

    def plus(self, other: Verdict) -> Verdict:
        """Add two comparisons."""
        return Verdict(self.compared + other.compared, self.wrong + other.wrong)


def differences(expected: list[Row], found: list[Row], edge: str) -> Verdict:
    """Compare rows, value by value.

    Counts, maxima and names must be equal, means and deviations within `TOLERANCE`.
    """
    if len(expected) != len(found):
        return Verdict(0, (f"{edge}: {len(found)} rows where the fold has {len(expected)}",))
    pairs = [(theirs, ours, name) for theirs, ours in zip(expected, found, strict=True) for name in Row.__slots__]
    wrong = [
        f"{edge}: {_title(theirs)} {theirs.lookback} {name}: {getattr(ours, name)!r}, not {getattr(theirs, name)!r}"
        for theirs, ours, name in pairs
        if not _same(getattr(theirs, name), getattr(ours, name), exact=name not in ("mean", "deviation"))
    ]
    return Verdict(len(pairs), tuple(wrong))


def _same(expected: Any, found: Any, *, exact: bool) -> bool:
    if exact or expected is None or found is None:
        return bool(expected == found)
    return math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def accounting(arrived: int, present: int, report: BatchReport, info: WindowInfo) -> Verdict:
    """Check that counts add up: each departure must be inserted or late, and be present or evicted.

    Args:
        arrived: departures in the data.
        present: departures that must be in the window.
        report: what the sink says.
        info: what the service says.
    """
    counts = info.counts
    equations = {
        "rows pushed = departures": (report.arrived, arrived),
        "inserted + late = departures": (counts.inserted + counts.late, arrived),
        "inserted - evicted = present": (counts.inserted - counts.evicted, info.entries),
        "present = departures of its max_age": (info.entries, present),
        "inserted, as the sink counted": (report.inserted, counts.inserted),
        "late, as the sink counted": (report.late, counts.late),
        "evicted, as the sink counted": (report.evicted, counts.evicted),
    }
    wrong = [
        f"{info.name}: {name}: {left:,} and {right:,}" for name, (left, right) in equations.items() if left != right
    ]
    return Verdict(len(equations), tuple(wrong))


def comparisons(departures: pd.DataFrame) -> int:
    """The number of values to compare: the counts of each window, and all its rows over both edges."""
    groups = sum(len(departures[list(by)].drop_duplicates()) if by else 1 for by in GROUPINGS)
    top = len(LOOKBACKS) * min(TOP, int(departures["carrier"].nunique()))
    rows = groups * sum(map(len, LOOKBACKS.values())) + top
    return len(LOOKBACKS) * ACCOUNTS + rows * len(Row.__slots__) * 2


# ---------------------------------------------------------------- the other edge


# Never use a proxy to reach this machine, even if the environment names one.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def rest_answers(address: str, window: str, asked: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Query a window over REST; `asked` are the arguments of the client."""
    names = {"lookbacks": "lookback", "keys": "all_keys"}
    parameters = {
        names.get(name, name): "true" if value is True or value is ALL_KEYS else value for name, value in asked.items()
    }
    query = urllib.parse.urlencode(parameters, doseq=True)
    with _open(f"{address}/v1/windows/{window}/query?{query}", timeout=10) as response:
        answers = json.load(response)["answers"]
    return list(answers)


# ---------------------------------------------------------------- the demo


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if every number is right, else 1."""
    parser = argparse.ArgumentParser(prog="python -m sash_spark.demo", description="Flights through Spark into Sash.")
    parser.add_argument("--port", type=int, default=0, help="port of the page; a free one where omitted")
    parser.add_argument("--keep", action="store_true", help="leave the service running until Ctrl-C")
    parser.add_argument("--files", type=int, default=16, help="files in the feed, one micro-batch each (%(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sash-demo-") as scratch_name:
        scratch = Path(scratch_name)
        with local_service(rest_port=options.port, data=str(scratch / "data")) as service:
            say(f"sash serve: gRPC on {service.target}, REST and the page on {service.address}")
            wrong = _flights_through(service.target, service.address, scratch, options.files)
            for line in wrong:
                say(f"WRONG  {line}")
            if options.keep:
                say(f"\nThe page: {service.address}/   (Ctrl-C stops the service)")
                _until_interrupted()
            else:
                say("\nTo see the page with these windows: python -m sash_spark.demo --keep")
    return 1 if wrong else 0


def _flights_through(target: str, address: str, scratch: Path, files: int) -> list[str]:
    flights = load_flights()
    write_feed(flights, scratch / "feed", files=files)
    departures = departures_of(flights)
    if (len(flights), len(departures)) != DEPARTURES:
        return [f"{len(flights):,} flights, {len(departures):,} landed, where the data set has {DEPARTURES}"]
    say(f"{len(flights):,} flights in {files} files, in the order of landing; {len(departures):,} of them landed")

    started_s = time.monotonic()
    spark = local_session("sash demo", scratch)
    say(f"Spark {spark.version} is up after {time.monotonic() - started_s:.1f} s")
    started_s = time.monotonic()
    config = flights_config(target, scratch)
    try:
        done = Pipeline(config, spark, on_batch=lambda progress: say(f"  {progress.line()}")).run()
    finally:
        spark.stop()
    say(f"the pipeline of {CONFIG.name} took {time.monotonic() - started_s:.1f} s")
    say(done.summary())
    wrong = [] if (done.rows, sum(done.bad.values())) == (len(flights), 0) else ["records are missing, or bad"]
    verdict = Verdict()
    with Client(target) as client:
        for window in config.windows:
            verdict = verdict.plus(_checked(client, address, window.spec, departures, done.windows[window.name]))
    due = comparisons(departures)
    if verdict.compared != due:
        wrong.append(f"{verdict.compared} values were compared, of {due}")
    return [*wrong, *verdict.wrong]


def _checked(
    client: Client, address: str, spec: Mapping[str, Any], departures: pd.DataFrame, report: BatchReport
) -> Verdict:
    """Print one window's accounts and answers, and compare them."""
    name, lookbacks, max_age = spec["name"], LOOKBACKS[spec["name"]], spec["slide"]["max_age"]
    window = client.window(name)
    info = window.describe()
    verdict = accounting(len(departures), expected_present(departures, max_age), report, info)

    shown, rows = list[Row](), 0
    for expected, asked, is_shown in _questions(departures, lookbacks):
        found = [Row.of(one.parts, str(one.lookback), one.aggregates) for one in window.query(**asked)]
        answers = rest_answers(address, name, asked)
        over_rest = [Row.of(one.get("parts"), one["lookback"], one["aggregates"]) for one in answers]
        verdict = verdict.plus(differences(expected, found, "gRPC")).plus(differences(expected, over_rest, "REST"))
        shown, rows = shown + found * is_shown, rows + len(found)
    say(f"\n{name}: the last {max_age} of each airport and carrier; delays in minutes")
    say(table(shown))
    counts = info.counts
    say(
        f"{report.arrived:,} arrived = {counts.inserted:,} inserted + {counts.late:,} late;  "
        f"{counts.inserted:,} inserted = {counts.evicted:,} evicted + {info.entries:,} present"
    )
    if counts.late:
        say("(late: in the air for so long that the window had slid past their departure when they landed)")
    if not verdict.wrong:
        numbers = rows * (len(Row.__slots__) - 2)
        say(f"All {numbers:,} numbers of {rows} groups, over gRPC and over REST, equal the fold that pandas computed.")
    return verdict


def _questions(
    departures: pd.DataFrame, lookbacks: tuple[str, ...]
) -> Iterator[tuple[list[Row], dict[str, Any], bool]]:
    """Yield the questions of a window: the rows to expect, the arguments of the client, and whether to show them."""
    for by in GROUPINGS:
        groups: dict[str, Any] = {"by": by} if by else {"keys": ALL_KEYS, "combine": True}
        yield expected_rows(departures, by, lookbacks), groups | {"lookbacks": lookbacks}, by in (("airport",), ())
    carriers = expected_rows(departures, ("carrier",), lookbacks)
    first = {"by": "carrier", "top": "mean", "n": TOP, "lookbacks": lookbacks[:1]}
    yield expected_top(carriers, lookbacks[0]), first, True


def table(rows: list[Row]) -> str:
    """Lay rows out for a terminal."""
    lines = [f"  {'group':8}{'last':>5}{'flights':>9}{'mean':>9}{'std dev':>9}{'max':>7}"]
    for row in rows:
        deviation = "-" if row.deviation is None else f"{row.deviation:.2f}"
        numbers = f"{row.flights:>9,}{row.mean:>9.2f}{deviation:>9}{row.max:>7.0f}"
        lines.append(f"  {_title(row):8}{row.lookback:>5}{numbers}")
    return "\n".join(lines)


def _title(row: Row) -> str:
    return "|".join(row.group) or "all"


def say(text: str) -> None:
    """Print without buffering, because somebody watches."""
    print(text, flush=True)


def _until_interrupted() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        say("")


if __name__ == "__main__":
    sys.exit(main())
