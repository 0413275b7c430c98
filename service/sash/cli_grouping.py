"""Options of the command line that select keys by their parts and group them."""

from __future__ import annotations

from typing import Annotated

import typer

from sash_client.grouping import Grouping

__all__ = ["Ascending", "Bys", "Havings", "N", "TopBy", "Wheres", "grouping_of"]

Wheres = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="Only keys for which it holds: carrier=AA, carrier!=AA, 'carrier in (AA, B6)', airport=~J.*; repeatable.",
    ),
]
Bys = Annotated[
    list[str] | None,
    typer.Option("--by", "-b", metavar="PART", help="An answer for each group of keys that agree in it; repeatable."),
]
TopBy = Annotated[
    str | None, typer.Option("--top", metavar="AGGREGATE", help="Only the first answers by it, or by entries.")
]
N = Annotated[int, typer.Option("-n", min=1, help="With --top: how many.")]
Ascending = Annotated[bool, typer.Option("--ascending", help="With --top: the smallest first.")]
Havings = Annotated[
    list[str] | None,
    typer.Option("--having", metavar="COMPARISON", help="Only answers for which it holds: 'mean>10'; repeatable."),
]


def grouping_of(
    where: list[str] | None,
    by: list[str] | None,
    top: str | None,
    n: int,
    ascending: bool,
    having: list[str] | None,
) -> Grouping:
    """How a question selects and groups keys."""
    found: Grouping = {}
    if where:
        found["where"] = where
    if by:
        found["by"] = by
    if top is not None:
        found |= {"top": top, "n": n, "order": "asc" if ascending else "desc"}
    if having:
        found["having"] = having
    return found
