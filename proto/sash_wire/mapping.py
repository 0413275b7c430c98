"""The one mapping of records to a window: where the time, the key or its parts, and the fields come from.

    time: departure                     a column of records: a name, or a path: user.country, `a name.with.dots`
    key: origin                         for windows with `keyed`; or
    parts: {airport: origin}            for windows with `keys`; other parts are columns of their own names
    fields: {delay: dep_delay}          other fields are columns of their own names

Spark's pipeline, `sash ingest` and `sash load` read it. A value is an expression of Spark SQL. `source_of` reads those
that need no Spark: columns, and the functions that make instants of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sash_wire.errors import WireError

_NAME = r"(?:[^\W\d]\w*|`(?:[^`]|``)+`)"
_PATH = re.compile(rf"{_NAME}(?:\.{_NAME})*")
_CALL = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_INSTANTS: Mapping[str, str | None] = {
    "timestamp_seconds": "s",
    "timestamp_millis": "ms",
    "timestamp_micros": "us",
    "to_timestamp": None,
    "try_to_timestamp": None,
}


@dataclass(frozen=True, slots=True)
class Source:
    """A value of a record.

    Args:
        path: the names that lead to it: of the column, of a member of its object, and so on.
        unit: what an integer there counts since 1970: s, ms or us; None: it is taken as it is.
    """

    path: tuple[str, ...]
    unit: str | None = None

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Sources:
    """The expressions for the columns of one window.

    Args:
        time: of the time.
        key: of the key; None for a window without keys, and where there are parts.
        parts: part -> expression, in the order of the spec; empty where there is a key, or no keys.
        fields: field -> expression.
    """

    time: str
    key: str | None
    parts: Mapping[str, str]
    fields: Mapping[str, str]


def quoted(name: str) -> str:
    """Return a name as it stands in an expression. A dot in it is a dot, not a path."""
    return "`" + name.replace("`", "``") + "`"


def sources(
    spec: Mapping[str, Any],
    time: str,
    key: str | None = None,
    parts: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
    *,
    shared: Mapping[str, str] | None = None,
) -> Sources:
    """Return the expressions for a window's columns.

    Args:
        spec: the window's: its `fields`, `keyed` and `keys`.
        time, key, parts, fields: as the mapping has them for this window.
        shared: parts for several windows, of which this one need not have all.

    Raises:
        WireError: the window has no such field or part, or it is keyed and there is no key. `field` is the place.
    """
    name, known = spec.get("name"), spec.get("keys") or ()
    for path, given, there in (("fields", fields, spec["fields"]), ("parts", parts, known)):
        for each in given or {}:
            if each not in there:
                what = f"the {path} {', '.join(there)}" if there else f"no {path}"
                raise WireError(f"{path}.{each}: window {name!r} has {what}", field=f"{path}.{each}")
    if parts is not None and key is not None:
        raise WireError("parts: give either key or parts", field="parts")
    if not known and spec.get("keyed") and key is None:
        raise WireError(f"key: window {name!r} is keyed; say by what", field="key")
    own = {} if key is not None else {part: quoted(part) for part in known}
    given_parts = {part: text for part, text in {**(shared or {}), **(parts or {})}.items() if part in own}
    named = {field: quoted(field) for field in spec["fields"]} | dict(fields or {})
    return Sources(time, key if spec.get("keyed") or known else None, own | given_parts, named)


def source_of(expression: str, place: str) -> Source:
    """Read an expression that needs no Spark.

    Args:
        expression: such as ``delay``, ``user.country`` or ``timestamp_millis(at)``.
        place: where it stands in the document, for the error.

    Raises:
        WireError: it is another one.
    """
    text = expression.strip()
    if _PATH.fullmatch(text):
        names = re.findall(_NAME, text)
        return Source(tuple(each[1:-1].replace("``", "`") if each[0] == "`" else each for each in names))
    call = _CALL.fullmatch(text)
    if call is not None and call[1].lower() in _INSTANTS:
        inner = source_of(call[2], place)
        if inner.unit is None:
            return Source(inner.path, _INSTANTS[call[1].lower()])
    raise WireError(
        f"{place}: {expression[:80]!r} needs Spark; here, write a column, a path such as user.country, or one of "
        f"{', '.join(_INSTANTS)} of it",
        field=place,
    )
