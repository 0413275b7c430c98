"""Prints answers and series of the command line: as JSON, or as tables with short forms and sparklines.

histogram       <0: 1, 0 to 10: 2, ≥10: 1
m4              first 5 at 2023-11-14T22:13:20Z, last 4 at …, min 2 at …, max 9 at …
items           UA: 12, AA: 7
list            1, 2, 3, 4, 5, 6, … (40)
another map     intercept 1.5, coefficients [2, 3], r_squared 0.9
bytes           1,144 bytes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from sash_cli.options import Shown
from sash_cli.output import cell, fail, instant, instants, json_line, table
from sash_wire.labels import split
from sash_wire.meant import instead

if TYPE_CHECKING:  # as in `options`
    from sash_client import Answer, Bulk, Series, Window

T = TypeVar("T")

_RETURNING = ("arg_min", "arg_max", "largest", "smallest")
"""Functions that return another column of an entry, by default its time."""


@dataclass(frozen=True)
class View:
    """How answers are shown.

    Args:
        as_json: one JSON document a line, in place of a table. JSON has ticks and whole answers.
        unit: of times in tables; "none" for ticks.
        only: these aggregates, in this order; none: all.
        returned: aggregates that return the times of entries.
    """

    as_json: bool = False
    unit: str = "none"
    only: Sequence[str] = ()
    returned: Set[str] = frozenset()

    @property
    def asked(self) -> Mapping[str, Any]:
        """The argument of a question that asks for what is shown."""
        return {"aggregates": self.only}

    def chosen(self, aggregates: Mapping[str, T]) -> dict[str, T]:
        return {name: aggregates[name] for name in self.only or aggregates}

    def form(self, name: str, value: Any) -> str:
        """Return an answer of an aggregate as a short text."""
        if name in self.returned and isinstance(value, int):
            value = instant(value, self.unit)
        elif name in self.returned and value:
            value = [{**item, "returned": instant(item["returned"], self.unit)} for item in value]
        return short_form(value, self.unit)


def view_of(window: Window, shown: Shown) -> View:
    """Return how to show answers of a window; exit with a message if it lacks one of the aggregates."""
    only = list(dict.fromkeys(shown.aggregate or ()))
    if shown.as_json and not only:
        return View(as_json=True)
    known = window.spec["aggregates"]
    for name in only:
        if name not in known:
            fail(f"--aggregate {cell(name)} is none of window {window.name}{instead(name, sorted(known), 'it has')}")
    returned = {
        name
        for name, aggregate in known.items()
        if aggregate["function"] in _RETURNING and aggregate.get("returns", "time") == "time"
    }
    unit = "none" if shown.ticks else window.spec["time_unit"]
    return View(shown.as_json, unit, only, returned)


def show(answers: Sequence[Answer], view: View, by_key: bool = False, ranges: bool = False) -> None:
    """Print answers; `by_key`: of several keys or groups; `ranges`: over ranges of time, and no lookbacks."""
    if view.as_json:
        for answer in answers:
            document = asdict(answer)
            document["aggregates"] = view.chosen(document["aggregates"])
            del document["partials"]  # the command line never asks for them
            for name in ("parts", "missing_shards", "known_at"):
                if document[name] in (None, (), []):
                    del document[name]
            typer.echo(json_line(document))
        return
    aggregates = list(view.chosen(answers[0].aggregates)) if answers else []
    parts = list(answers[0].parts or {}) if by_key and answers else []
    by_key = by_key and not parts
    spans = ("start", "end") if ranges else ("lookback",)
    header = (*parts, *(["key"] if by_key else []), *spans, "entries", *aggregates)
    rows = [
        (
            *((answer.parts or {})[name] for name in parts),
            *([answer.key] if by_key else []),
            *(
                (instant(each, view.unit) for each in (answer.start, answer.end))
                if ranges
                else [answer.lookback or "all"]
            ),
            answer.entries,
            *(view.form(name, answer.aggregates[name]) for name in aggregates),
        )
        for answer in answers
    ]
    typer.echo(table(header, rows))


def show_entries(bulk: Bulk, spec: Mapping[str, Any], unit: str, as_json: bool, header: bool) -> None:
    """Print the entries of a bulk: one JSON document a line, or as a table, whose header the first bulk has."""
    parts = list(spec.get("keys") or [])
    columns: dict[str, list[Any]] = {"time": bulk.times.tolist()}
    if parts:
        split_keys = zip(*(split(key, len(parts)) for key in bulk.keys), strict=True)
        columns |= {name: list(values) for name, values in zip(parts, split_keys, strict=False)}
    elif spec["keyed"]:
        columns["key"] = bulk.keys.tolist()
    if bulk.partials is None:
        names = [*spec["fields"], *sorted(bulk.columns.keys() - spec["fields"].keys())]  # with the numbers of `known`
        columns |= {name: bulk.columns[name].tolist() for name in names}
    else:
        columns["entries"] = bulk.entries.tolist()
        columns |= {name: list(zip(*found, strict=True)) for name, found in bulk.partials.items()}
    rows = zip(*columns.values(), strict=True)
    if as_json:
        for row in rows:
            typer.echo(json_line(dict(zip(columns, row, strict=True))))
        return
    times = instants(bulk.times, unit)
    shown = [(time, *(short_form(value, unit) for value in row)) for time, (_, *row) in zip(times, rows, strict=True)]
    typer.echo(table(tuple(columns), shown) if header else table((), shown))


def show_series(found: Series, view: View, sparklines: bool = False) -> None:
    columns = {name: values.tolist() for name, values in view.chosen(found.aggregates).items()}
    times = {"time": found.times, **({} if found.last is None else {"last": found.last})}
    if view.as_json:
        heads = {**times, "entries": found.entries}
        parts = {} if found.parts is None else {"parts": dict(found.parts)}
        for i, head in enumerate(zip(*(each.tolist() for each in heads.values()), strict=True)):
            aggregates = {name: values[i] for name, values in columns.items()}
            typer.echo(json_line({**parts, **dict(zip(heads, head, strict=True)), "aggregates": aggregates}))
        return
    shown = [instants(ticks, view.unit) for ticks in times.values()]
    cells = [[view.form(name, value) for value in values] for name, values in columns.items()]
    typer.echo(table((*times, "entries", *columns), zip(*shown, found.entries.tolist(), *cells, strict=True)))
    drawn = {name: sparkline(values) for name, values in columns.items()} if sparklines else {}
    if any(drawn.values()):
        width = max(len(cell(name)) for name, line in drawn.items() if line)
        typer.echo("\n" + "\n".join(f"{cell(name).ljust(width)}  {line}" for name, line in drawn.items() if line))


# ---------------------------------------------------------------- short forms of structured answers

_ITEMS = 6
"""So many items of an answer are shown."""

_PAIRS = (("item", "count"), ("label", "entries"), ("returned", "value"))
"""Of lists of maps: the two names whose values are shown."""

_M4 = ("first", "last", "min", "max")


def short_form(value: Any, unit: str) -> str:
    """Return an answer as a short text; `unit` is that of the times in it."""
    if isinstance(value, Mapping):
        return _of_map(value, unit)
    if isinstance(value, (list, tuple)):
        return _of_list(value, unit)
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return cell(value)


def _of_map(value: Mapping[str, Any], unit: str) -> str:
    if not value:
        return "{}"
    names = set(value)
    if names == {"bounds", "counts", "nan"}:
        return _of_histogram(value["bounds"], value["counts"], value["nan"])
    if names == set(_M4) and all(isinstance(point, Mapping) and "time" in point for point in value.values()):
        return ", ".join(f"{name} {cell(value[name]['value'])} at {instant(value[name]['time'], unit)}" for name in _M4)
    if names == {"length", "start", "end"}:
        return f"{cell(value['length'])} from {instant(value['start'], unit)} to {instant(value['end'], unit)}"
    return _joined(list(value.items()), lambda item: f"{cell(item[0])} {_inner(item[1], unit)}")


def _of_list(value: Sequence[Any], unit: str) -> str:
    if not value:
        return "[]"
    for name, number in _PAIRS:
        if all(isinstance(item, Mapping) and name in item and number in item for item in value):
            return _joined([(item[name], item[number]) for item in value], lambda pair: ": ".join(map(cell, pair)))
    return f"[{_joined(value, lambda item: _inner(item, unit))}]"


def _of_histogram(bounds: Sequence[float], counts: Sequence[int], nan: int) -> str:
    ends = [cell(bound) for bound in bounds]
    ranges = [f"<{ends[0]}", *(f"{low} to {high}" for low, high in pairwise(ends)), f"≥{ends[-1]}"]
    filled = [f"{name}: {count}" for name, count in zip([*ranges, "NaN"], [*counts, nan], strict=True) if count]
    return _joined(filled, str) if filled else "-"


def _inner(value: Any, unit: str) -> str:
    text = short_form(value, unit)
    return f"{{{text}}}" if isinstance(value, Mapping) and value else text


def _joined(items: Sequence[Any], form: Callable[[Any], str]) -> str:
    shown = [form(item) for item in items[:_ITEMS]]
    return ", ".join([*shown, *([f"… ({len(items)})"] if len(items) > _ITEMS else [])])


# ---------------------------------------------------------------- sparklines

_BLOCKS = "▁▂▃▄▅▆▇█"
_POINTS = 60
"""So many are drawn at most."""


def sparkline(values: Sequence[Any]) -> str:
    """Draw values from the lowest to the highest block; return "" if none of them is a finite number.

    A value that is no finite number leaves a space. More than `_POINTS` values are drawn by the means of groups of
    equal size. Where all are equal, the blocks are half high.
    """
    size = -(-len(values) // _POINTS) or 1
    points = [_mean(values[i : i + size]) for i in range(0, len(values), size)]
    numbers = [point for point in points if point is not None]
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return "".join(" " if point is None else _block(point, low, high) for point in points)


def _block(point: float, low: float, high: float) -> str:
    # Halves, because the difference of two finite numbers may be infinite.
    span = high / 2 - low / 2
    return _BLOCKS[round((point / 2 - low / 2) / span * (len(_BLOCKS) - 1))] if span else _BLOCKS[3]


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [n for n in map(_number, values) if n is not None]
    return sum(number / len(numbers) for number in numbers) if numbers else None


def _number(value: Any) -> float | None:
    """Return a value as a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of any size
        return None
    return number if isfinite(number) else None
