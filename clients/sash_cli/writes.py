"""The commands that write a few entries of a window, or remove some."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sash_cli.options import LOCAL, TIMES, Json, Key, Name, Target, connected
from sash_cli.output import cell, fail, json_line

if TYPE_CHECKING:
    from sash_client.answers import Limit

Time = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help=f"The time of the entry: {TIMES}. Without it, the newest entry of the key with the identity.",
    ),
]


Values = Annotated[
    list[str],
    typer.Argument(
        metavar="FIELD=VALUE…", help="The entry's fields, and the parts of its key. VALUE alone: of the only field."
    ),
]
InsertTime = Annotated[str | None, typer.Option("--time", metavar="TIME", help=f"{TIMES[0].upper()}{TIMES[1:]}. [now]")]


def insert(
    name: Name,
    values: Values,
    time: InsertTime = None,
    key: Key = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Insert one entry."""
    with connected(target) as sash:
        window = sash.window(name)
        fields, parts = _given(values, window.spec, time)
        done = window.insert(time or "now", fields=fields, key=key_of(key, parts))
    if as_json:
        counts = ["inserted", "late", "evicted", "duplicates", "ahead", "durability", *["history"] * bool(done.history)]
        typer.echo(json_line({each: getattr(done, each) for each in counts}))
        return
    late = "the entry is dropped: it is older than what has left the window" * done.late
    ahead = "the entry is dropped: it is too far ahead of now" * done.ahead
    duplicate = "the window had an entry of this time, and keeps one" * done.duplicates
    old = "the entry is inserted into the history: it is too old for the slide" * done.history
    left = f"; {done.evicted} {'entry' if done.evicted == 1 else 'entries'} left the window" * bool(done.evicted)
    typer.echo((late or ahead or duplicate or old or "the entry is inserted") + left)


_LIMIT = re.compile(r"\s*(\S+)\s+(\S+)\s*(<=|<|>=|>)\s*(\S+?)(?:\s+by\s+(\S+))?\s*")


def admit(
    name: Name,
    values: Values,
    limits: Annotated[
        list[str],
        typer.Option(
            "--limit",
            metavar="LIMIT",
            help="What must hold with the entry, as 'AGGREGATE LOOKBACK <= NUMBER': 'requests 1m <= 100'. "
            "'… by tenant': over all keys that agree in these parts; '… by *': over all keys. May be repeated.",
        ),
    ],
    time: InsertTime = None,
    key: Key = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Insert one entry if limits hold with it; the status is 1 if it is refused."""
    asked = [_limit(each) for each in limits]
    with connected(target) as sash:
        window = sash.window(name)
        fields, parts = _given(values, window.spec, time)
        done = window.admit(time or "now", fields=fields, key=key_of(key, parts), limits=asked)
    if as_json:
        told: dict[str, Any] = {"admitted": done.admitted[0], "retry_after": done.retry_after[0]}
        told["limits"] = [
            {"limit": text, "answer": each.answers[0], "remaining": each.remaining[0], "holds": each.holds[0]}
            for text, each in zip(limits, done.limits, strict=True)
        ]
        counts = ("refused", "late", "ahead", "evicted", "durability")
        typer.echo(json_line(told | {each: getattr(done, each) for each in counts}))
    else:
        dropped = (
            "the entry is dropped: it is late" * done.late or "the entry is dropped: it is too far ahead" * done.ahead
        )
        refused = "the entry is refused" * done.refused
        typer.echo(dropped or refused or "the entry is inserted")
        for text, each in zip(limits, done.limits, strict=True) if not dropped else ():
            typer.echo(f"  {cell(text)}: {each.answers[0]}, {each.remaining[0]} left{' (!)' * (not each.holds[0])}")
        if done.refused:
            again = done.retry_after[0]
            typer.echo("it would never go in" if again is None else f"it would go in {again} ticks later")
    if not done:
        raise typer.Exit(1)


def _limit(text: str) -> Limit:
    found = _LIMIT.fullmatch(text)
    if found is None:
        fail(f"{cell(text)} is no limit: write 'AGGREGATE LOOKBACK <= NUMBER', such as 'requests 1m <= 100'")
    aggregate, lookback, op, number, by = found.groups()
    value = _value("a limit", number, "int64" if number.lstrip("+-").isdecimal() else "float64")
    from sash_client.answers import Limit  # as in `options`

    return Limit(aggregate, lookback, value, op, None if by is None else [] if by == "*" else by.split(","))


def retract(
    name: Name,
    identity: Annotated[str, typer.Option("--id", metavar="ID", help="Its identity.")],
    time: Time = None,
    key: Key = None,
    target: Target = LOCAL,
) -> None:
    """Remove one entry of a window with an identity."""
    with connected(target) as sash:
        window = sash.window(name)
        spec = window.describe().spec
        integer = spec["fields"].get(spec.get("identity")) == "int64"
        named = int(identity) if integer and identity.removeprefix("-").isdecimal() else identity
        retracted = window.retract(_times(time), [named], keys=key).retracted
    typer.echo("the entry is retracted" if retracted else "there is no such entry")


def update(
    name: Name,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE…",
            help="Its fields, the identity among them, as they are to be, and the parts of its key.",
        ),
    ],
    time: Time = None,
    key: Key = None,
    target: Target = LOCAL,
) -> None:
    """Give one entry of a window with an identity other values."""
    with connected(target) as sash:
        window = sash.window(name)
        fields, parts = entry_of(values, window.describe().spec)
        columns = {field: [value] for field, value in fields.items()}
        named = key_of(key, parts)
        keys = {part: [value] for part, value in named.items()} if isinstance(named, Mapping) else named
        corrected = window.update(_times(time), columns, keys=keys).corrected
    typer.echo("the entry is corrected" if corrected else "there is no such entry")


def evict(
    name: Name,
    through: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Entries of this time and older leave: {TIMES}.")
    ] = None,
    start: Annotated[str | None, typer.Option(metavar="TIME", help="With --end: a range of time leaves.")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="The last time of the range.")] = None,
    reset_mark: Annotated[
        bool,
        typer.Option("--reset-mark", help="With a range of wrong times: keys go on from their newest entry left."),
    ] = False,
    key: Key = None,
    target: Target = LOCAL,
) -> None:
    """Remove the oldest entries, or those of a range of time."""
    with connected(target) as sash:
        evicted = sash.window(name).bulk_evict(through, start=start, end=end, reset_mark=reset_mark, key=key).evicted
    typer.echo(f"{evicted} entries are evicted")


def punctuate(
    name: Name,
    time: Annotated[str, typer.Argument(metavar="TIME", help="Entries with this time and older are final.")],
    target: Target = LOCAL,
) -> None:
    """Say what is final, in a window with slide.until."""
    with connected(target) as sash:
        typer.echo(f"{time} is final; {sash.window(name).punctuate(time).evicted} entries have left")


def _given(values: Sequence[str], spec: Mapping[str, Any], time: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """As `entry_of`; exit with a message where there is no time to be had."""
    if time is None and spec["time_unit"] == "none":
        fail("give --time: the window counts logical ticks")
    return entry_of(values, spec)


def _times(time: str | None) -> list[str] | None:
    return None if time is None else [time]


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
