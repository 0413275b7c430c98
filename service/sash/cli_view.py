"""Prints answers and series of the command line, as tables or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from sash.cli_output import instants, json_line, table
from sash_client import Answer, Series

__all__ = ["Ticks", "View", "show", "show_series"]

Ticks = Annotated[bool, typer.Option("--ticks", help="Times as ticks, not as ISO 8601.")]


@dataclass(frozen=True)
class View:
    """How answers are shown.

    Args:
        as_json: one JSON document a line, in place of a table.
        ticks: times as ticks. JSON has ticks always.
    """

    as_json: bool = False
    ticks: bool = False


def show(answers: Sequence[Answer], view: View, by_key: bool = False) -> None:
    if view.as_json:
        for answer in answers:
            document = asdict(answer)
            del document["partials"]  # the command line never asks for them
            if answer.parts is None:
                del document["parts"]
            typer.echo(json_line(document))
        return
    aggregates = list(answers[0].aggregates) if answers else []
    parts = list(answers[0].parts or {}) if by_key and answers else []
    by_key = by_key and not parts
    header = (*parts, *(["key"] if by_key else []), "lookback", "entries", *aggregates)
    rows = [
        (
            *((answer.parts or {})[name] for name in parts),
            *([answer.key] if by_key else []),
            *(answer.lookback or "all", answer.entries),
            *(answer.aggregates[name] for name in aggregates),
        )
        for answer in answers
    ]
    typer.echo(table(header, rows))


def show_series(found: Series, view: View) -> None:
    columns = [values.tolist() for values in found.aggregates.values()]
    times = {"time": found.times, **({} if found.last is None else {"last": found.last})}
    if view.as_json:
        heads = {**times, "entries": found.entries}
        parts = {} if found.parts is None else {"parts": dict(found.parts)}
        for *head, values in zip(*(each.tolist() for each in heads.values()), _rows(columns, len(found)), strict=True):
            aggregates = dict(zip(found.aggregates, values, strict=True))
            typer.echo(json_line({**parts, **dict(zip(heads, head, strict=True)), "aggregates": aggregates}))
        return
    unit = "none" if view.ticks else found.time_unit
    shown = [instants(ticks, unit) for ticks in times.values()]
    rows = zip(*shown, found.entries.tolist(), *columns, strict=True)
    typer.echo(table((*times, "entries", *found.aggregates), rows))


def _rows(columns: list[list[Any]], n: int) -> list[tuple[Any, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * n
