"""The command ``sash top``: what a service does now, from the differences of two scrapes of its metrics."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Annotated

import typer

from sash_cli.options import LOCAL, LOGIN, Json, Target
from sash_cli.output import cell, interrupts, json_line, size_text, table

_CLEAR = "\x1b[H\x1b[J"

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels and value."""

_LINE = re.compile(r'(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Operation:
    """What happened to one operation, per second; and seconds in which half and 99 % of the calls ended."""

    calls: float
    errors: float
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True)
class WindowRates:
    """A window's size now, and what became of its entries, per second."""

    entries: int
    keys: int
    rates: dict[str, float]


@dataclass(frozen=True)
class Activity:
    """What a service did between two scrapes."""

    seconds: float
    ready: bool
    memory_bytes: int | None
    operations: dict[str, Operation] = field(default_factory=dict)
    windows: dict[str, WindowRates] = field(default_factory=dict)


def top(
    every: Annotated[float, typer.Option(min=0.05, metavar="SECONDS", help="Seconds from one look to the next.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, show what happened between, and end.")] = False,
    n: Annotated[
        int, typer.Option("-n", min=1, metavar="N", help="As many windows at most: those with the most inserts.")
    ] = 20,
    metrics: Annotated[
        str | None,
        typer.Option(
            envvar="SASH_METRICS",
            metavar="URL",
            help="Address of the metrics. [the target's host, port 7071, /metrics]",
        ),
    ] = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show rates and latencies of operations, and rates of windows, until you press Ctrl-C."""
    from sash_cli.scrape import fetch, metrics_url  # brings urllib and the client

    url = metrics or metrics_url(target, secure=bool(LOGIN.get("tls")))
    with interrupts() as interrupted:
        before, at_s = list(samples(fetch(url, LOGIN))), time.monotonic()
        while True:
            if interrupted.wait(every):
                raise KeyboardInterrupt
            after, now_s = list(samples(fetch(url, LOGIN))), time.monotonic()
            found = activity(before, after, now_s - at_s)
            if as_json:
                typer.echo(json_line(asdict(found)))
            else:
                live = sys.stdout.isatty() and not once
                typer.echo((_CLEAR if live else "") + _text(url, found, n) + ("" if once or live else "\n"))
            if once:
                return
            before, at_s = after, now_s


def _text(url: str, found: Activity, n: int) -> str:
    memory = "" if found.memory_bytes is None else f", {size_text(found.memory_bytes)} of memory"
    state = "ready" if found.ready else "not ready"
    operations = [
        (name, _rate(each.calls), _rate(each.errors), _ms(each.p50_s), _ms(each.p99_s))
        for name, each in sorted(found.operations.items(), key=lambda item: (-item[1].calls, item[0]))
    ]
    busiest = sorted(found.windows.items(), key=lambda item: (-item[1].rates.get("inserted", 0.0), item[0]))
    outcomes = ("inserted", "late", "evicted", "duplicates")
    windows = [
        (name, each.entries, each.keys, *(_rate(each.rates.get(outcome, 0.0)) for outcome in outcomes))
        for name, each in busiest[:n]
    ]
    more = f"\nand {len(busiest) - n} more" if len(busiest) > n else ""
    return (
        f"{cell(url)}: {state}, {len(busiest)} window{'s' * (len(busiest) != 1)}{memory}\n\n"
        + table(("operation", "calls/s", "errors/s", "p50 ms", "p99 ms"), operations)
        + "\n\n"
        + table(("window", "entries", "keys", *(f"{outcome}/s" for outcome in outcomes)), windows)
        + more
    )


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"


def _ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1e3:.3g}"


# ---------------------------------------------------------------- from scrapes to rates


def activity(before: Iterable[Sample], after: Iterable[Sample], seconds: float) -> Activity:
    """Return what a service did between two scrapes that are `seconds` apart."""
    was, now = _Scrape(before), _Scrape(after)

    def per_second(new: float, old: float) -> float:
        # A counter that has fallen began again at 0: the service was started anew.
        return (new if new < old else new - old) / seconds

    operations = {}
    for name, buckets in sorted(now.buckets.items()):
        old = was.buckets.get(name, {})
        if old.get(inf, 0.0) > buckets.get(inf, 0.0):
            old = {}
        counts = {bound: count - old.get(bound, 0.0) for bound, count in buckets.items()}
        operations[name] = Operation(
            counts.get(inf, 0.0) / seconds,
            per_second(now.errors.get(name, 0.0), was.errors.get(name, 0.0)),
            _quantile(counts, 0.5),
            _quantile(counts, 0.99),
        )
    windows = {
        name: WindowRates(
            int(entries),
            int(now.keys.get(name, 0.0)),
            {
                outcome: per_second(count, was.outcomes.get(name, {}).get(outcome, 0.0))
                for outcome, count in now.outcomes.get(name, {}).items()
            },
        )
        for name, entries in sorted(now.entries.items())
    }
    return Activity(seconds, now.ready, now.memory, operations, windows)


class _Scrape:
    """The samples that `activity` needs, by operation and by window."""

    def __init__(self, found: Iterable[Sample]) -> None:
        self.buckets: dict[str, dict[float, float]] = {}
        self.errors: dict[str, float] = {}
        self.entries: dict[str, float] = {}
        self.keys: dict[str, float] = {}
        self.outcomes: dict[str, dict[str, float]] = {}
        self.ready = False
        self.memory: int | None = None
        for name, labels, value in found:
            match name:
                case "sash_operation_seconds_bucket":
                    bounds = self.buckets.setdefault(labels["operation"], {})
                    bounds[float(labels["le"])] = bounds.get(float(labels["le"]), 0.0) + value
                case "sash_operation_errors_total":
                    self.errors[labels["operation"]] = self.errors.get(labels["operation"], 0.0) + value
                case "sash_window_entries":
                    self.entries[labels["window"]] = value
                case "sash_window_keys":
                    self.keys[labels["window"]] = value
                case "sash_entries_total":
                    self.outcomes.setdefault(labels["window"], {})[labels["outcome"]] = value
                case "sash_ready":
                    self.ready = value == 1
                case "process_resident_memory_bytes":
                    self.memory = int(value)


def _quantile(counts: Mapping[float, float], q: float) -> float | None:
    """Return a quantile from cumulative counts by bound, linear within a bucket; None of nothing."""
    total = counts.get(inf, 0.0)
    if total <= 0:
        return None
    lower, below = 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= q * total:
            if bound == inf:  # beyond the last bound: all that is known
                return lower
            return lower + (bound - lower) * (q * total - below) / (count - below)
        lower, below = bound, count
    return lower


# ---------------------------------------------------------------- scrapes


def samples(text: str) -> Iterator[Sample]:
    """Return the samples of a scrape in the format of Prometheus; lines in another form are left out."""
    for line in text.splitlines():
        if (found := _LINE.match(line)) is None:
            continue
        labels = {name: _ESCAPE.sub(_unescaped, value) for name, value in _LABEL.findall(found[2] or "")}
        try:
            yield found[1], labels, float(found[3])
        except ValueError:
            continue


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
