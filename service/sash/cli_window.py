"""The commands ``sash describe`` and ``sash insert``."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from sash.cli import LOCAL, Json, Key, Name, Target, connected
from sash.cli_output import cell, fail, instant, json_line, time_of
from sash.cli_view import Ticks
from sash_client import WindowInfo

__all__ = ["describe", "entry_of", "insert", "key_of"]


def describe(
    name: Name,
    only_spec: Annotated[bool, typer.Option("--spec", help="Only the spec, as create takes it.")] = False,
    ticks: Ticks = False,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show a window: how much is in it, what happened to its entries, and its spec."""
    with connected(target) as sash:
        info = sash.window(name).describe()
    if as_json:
        typer.echo(json_line(info.spec if only_spec else asdict(info)))
        return
    if not only_spec:
        unit = "none" if ticks else info.spec["time_unit"]
        lines = _state(info, unit)
        width = max(map(len, lines))
        for title, value in lines.items():
            typer.echo(f"{title.ljust(width)}  {cell(value)}")
        typer.echo("")
    typer.echo(_yaml(info.spec), nl=False)


def _state(info: WindowInfo, unit: str) -> dict[str, Any]:
    times = {
        "oldest": info.oldest,
        "newest": info.newest,
        "newest ever": info.high_water_mark,
        "final through": info.punctuated,
    }
    lines = {
        "entries": info.entries,
        "keys": info.keys,
        **{title: instant(tick, unit) for title, tick in times.items()},
        **asdict(info.counts),
        "durability": info.durability,
        "problem": info.problem,
    }
    return {title: value for title, value in lines.items() if value is not None}


def _yaml(spec: Mapping[str, Any]) -> str:
    import yaml  # only this command writes it

    return str(yaml.safe_dump(dict(spec), sort_keys=False, allow_unicode=True))


def insert(
    name: Name,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE…", help="The entry's fields, and the parts of its key. VALUE alone: of the only field."
        ),
    ],
    time: Annotated[str | None, typer.Option(metavar="TIME", help="Ticks, or ISO 8601. [now]")] = None,
    key: Key = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Insert one entry."""
    at = None if time is None else time_of(time)
    with connected(target) as sash:
        window = sash.window(name)
        spec = window.spec
        fields, parts = entry_of(values, spec)
        done = window.insert(_now(spec["time_unit"]) if at is None else at, fields=fields, key=key_of(key, parts))
    if as_json:
        counts = ("inserted", "late", "evicted", "duplicates", "ahead", "durability")
        typer.echo(json_line({each: getattr(done, each) for each in counts}))
        return
    late = "the entry is dropped: it is older than what has left the window" * done.late
    ahead = "the entry is dropped: it is too far ahead of now" * done.ahead
    duplicate = "the window had an entry of this time, and keeps one" * done.duplicates
    typer.echo(late or ahead or duplicate or "the entry is inserted")


def entry_of(values: Sequence[str], spec: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of an entry and the parts of its key, as `name=value`; exit with a message if one is wrong."""
    types = spec["fields"]
    parts = list(spec.get("keys") or [])
    fields: dict[str, Any] = {}
    key: dict[str, str] = {}
    for each in values:
        field, equals, value = each.partition("=")
        if not equals and len(types) == 1:
            field, value = next(iter(types)), each
        elif (field not in types and field not in parts) or not equals:
            fail(f"{cell(each)}: write FIELD=VALUE, with one of {', '.join([*parts, *sorted(types)])}")
        if field in fields or field in key:
            fail(f"{cell(field)} is given twice")
        if field in types:
            fields[field] = _value(field, value, types[field])
        else:
            key[field] = value
    for field in types:
        if field not in fields and field in (spec.get("nullable") or ()):
            fields[field] = None
        elif field not in fields:
            fail(f"{cell(field)} is missing: write {cell(field)}=VALUE")
    return fields, key


def _value(field: str, text: str, kind: str) -> Any:
    try:
        return _READERS[kind](text)
    except (ValueError, KeyError):
        fail(f"{cell(field)}: {cell(text)} is no {kind}")


def _int64(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(text)
    return number


_READERS: Mapping[str, Callable[[str], Any]] = {
    "float64": float,
    "int64": _int64,
    "bool": {"true": True, "false": False}.__getitem__,
    "string": str,
}


def key_of(key: str | None, parts: Mapping[str, str]) -> str | Mapping[str, str] | None:
    """Return the key of an entry, which is given as one text or by its parts; exit with a message if both are."""
    if parts and key is not None:
        fail("give either --key or the parts of the key")
    return parts or key


def _now(unit: str) -> np.datetime64:
    if unit == "none":
        fail("give --time: the window counts logical ticks")
    return np.datetime64(clock.time_ns(), "ns").astype(f"datetime64[{unit}]")  # type: ignore[no-any-return]
