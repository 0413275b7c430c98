"""Prints answers and series of the command line, as tables or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import typer

from sash.cli_forms import short_form
from sash.cli_output import cell, fail, instant, instants, json_line, table
from sash.cli_sparkline import sparkline
from sash_client import Answer, Series, Window

__all__ = ["Aggregates", "Sparklines", "Ticks", "View", "show", "show_series", "view_of"]

T = TypeVar("T")

_RETURNING = ("arg_min", "arg_max", "largest", "smallest")
"""Functions that return another column of an entry, by default its time."""

Ticks = Annotated[bool, typer.Option("--ticks", help="Times as ticks, not as ISO 8601.")]


Aggregates = Annotated[
    list[str] | None, typer.Option("--aggregate", "-a", metavar="NAME", help="Only this aggregate; repeatable.")
]

Sparklines = Annotated[
    bool | None,
    typer.Option(
        "--sparkline/--no-sparkline", help="Draw each aggregate below the table. [on a terminal]", show_default=False
    ),
]


@dataclass(frozen=True)
class View:
    """How answers are shown.

    Args:
        as_json: one JSON document a line, in place of a table. JSON has ticks and whole answers.
        unit: of times in tables; "none" for ticks.
        only: these aggregates, in this order; None for all.
        returned: aggregates that return the times of entries.
    """

    as_json: bool = False
    unit: str = "none"
    only: Sequence[str] | None = None
    returned: Set[str] = frozenset()

    @property
    def asked(self) -> Mapping[str, Any]:
        """The argument of a question that asks for what is shown."""
        return {} if self.only is None else {"aggregates": self.only}

    def chosen(self, aggregates: Mapping[str, T]) -> dict[str, T]:
        return dict(aggregates) if self.only is None else {name: aggregates[name] for name in self.only}

    def form(self, name: str, value: Any) -> str:
        """Return an answer of an aggregate as a short text."""
        if name in self.returned and isinstance(value, int):
            value = instant(value, self.unit)
        elif name in self.returned and value:
            value = [{**item, "returned": instant(item["returned"], self.unit)} for item in value]
        return short_form(value, self.unit)


def view_of(window: Window, as_json: bool, ticks: bool, only: list[str] | None) -> View:
    """Return how to show answers of a window; exit with a message if it lacks one of the aggregates."""
    if as_json and not only:
        return View(as_json)
    known = window.spec["aggregates"]
    for name in only or []:
        if name not in known:
            fail(f"--aggregate {cell(name)}: window {window.name} has {', '.join(sorted(known))}")
    returned = {
        name
        for name, aggregate in known.items()
        if aggregate["function"] in _RETURNING and aggregate.get("returns", "time") == "time"
    }
    unit = "none" if ticks else window.spec["time_unit"]
    return View(as_json, unit, list(dict.fromkeys(only)) if only else None, returned)


def show(answers: Sequence[Answer], view: View, by_key: bool = False) -> None:
    if view.as_json:
        for answer in answers:
            document = asdict(answer)
            document["aggregates"] = view.chosen(document["aggregates"])
            del document["partials"]  # the command line never asks for them
            for name in ("parts", "missing_shards"):
                if not document[name]:
                    del document[name]
            typer.echo(json_line(document))
        return
    aggregates = list(view.chosen(answers[0].aggregates)) if answers else []
    parts = list(answers[0].parts or {}) if by_key and answers else []
    by_key = by_key and not parts
    header = (*parts, *(["key"] if by_key else []), "lookback", "entries", *aggregates)
    rows = [
        (
            *((answer.parts or {})[name] for name in parts),
            *([answer.key] if by_key else []),
            *(answer.lookback or "all", answer.entries),
            *(view.form(name, answer.aggregates[name]) for name in aggregates),
        )
        for answer in answers
    ]
    typer.echo(table(header, rows))


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
