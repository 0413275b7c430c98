"""Reads entries from JSON: one entry, or columns of entries, typed by the window's spec."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sash.calls import origin_of, refusing
from sash.rest.large_json import LongList
from sash.rest.lists import Values, coded_steps, nullable_steps, number_steps, pieces_of, strings, tick_steps
from sash.rest.scalars import NowNs, flag, integer, kind_of, number, of_kind, text, tick
from sash_engine.errors import InvalidArgument, TooLarge
from sash_engine.monoids.base import FieldType, Monoid, Partials, object_array
from sash_engine.monoids.pane import part_names
from sash_engine.steps import Steps, finished
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded, Origin, PartialBatch
from sash_engine.windows.batches.values import no_field
from sash_engine.windows.questions import Comparison, Limit
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.writing.changes import times_of
from sash_wire.key_parts import check_named, joined, key_of_parts
from sash_wire.meant import instead, misspelt

BLOB = "blob"
"""The name of the part of a partial that is not numbers."""

ORIGIN = ("producer", "sequence", "epoch", "after")
"""The members that say who sends a write."""

_QUESTION = ("answer", "lookbacks")
"""The members that ask for an answer to a write."""

_DECODED_BYTES = 1 << 20
"""Of base64, in a step: 1 ms."""

_INT64 = np.dtype(np.int64)
Array = npt.NDArray[Any]


# ---------------------------------------------------------------- one entry


def entry_of(document: Mapping[str, Any], spec: WindowSpec, now_ns: NowNs) -> tuple[int, dict[str, Any], str | None]:
    """Return time, fields and key of one entry.

    Args:
        now_ns: tells wall time.

    Raises:
        InvalidArgument: a member is missing, unknown or of the wrong type.
    """
    if "time" not in document:
        raise InvalidArgument(f"time is missing{misspelt('time', _others(document, spec))}", field="time")
    time = tick(document["time"], "time", spec.time_unit, now_ns)
    key = key_of(document, spec) if "key" in document or spec.keys else None
    kinds, nullable, fields = spec.fields, spec.nullable or (), dict[str, Any]()
    for name, value in _named(document, spec).items():
        if value is not None or name not in nullable:
            fields[name] = _SCALARS[kinds[name]](value, name) if name in kinds else value
    return time, fields, key


@refusing
def key_of(document: Mapping[str, Any], spec: WindowSpec) -> str | None:
    """Return the key of one entry: a text, or its parts, which are an object or beside the time."""
    if (parts := _parts_of_key(document, spec)) is not None:
        return key_of_parts(parts, spec.parts, f"window {spec.name!r}", _others(document, spec))
    return text(document["key"], "key") if "key" in document else None


def _keys(document: Mapping[str, Any], spec: WindowSpec) -> Steps[Coded | None]:
    """Return the keys of a bulk: a list of texts, or a list for each part."""
    if (parts := _parts_of_key(document, spec)) is None:
        return (yield from coded_steps(_list(document["key"], "key"), "key")) if "key" in document else None
    refusing(check_named)(parts, spec.parts, f"window {spec.name!r}", _others(document, spec))
    columns = {}
    for name in spec.parts:
        columns[name] = yield from coded_steps(_list(parts[name], name), name)
    return joined(columns)


def _parts_of_key(document: Mapping[str, Any], spec: WindowSpec) -> Mapping[str, Any] | None:
    """Return what is given for the parts of keys; None where no part is given."""
    parts = spec.parts
    if not parts:
        return None
    if "key" in document:
        given = document["key"]
        return given if type(given) is dict else None
    return {name: document[name] for name in parts if name in document} or None


def _others(document: Mapping[str, Any], spec: WindowSpec) -> Iterator[str]:
    """The names that stand for nothing."""
    return (name for name in document if name not in ("time", "key", *spec.parts, *spec.fields))


def taken_question(document: dict[str, Any], spec: WindowSpec) -> tuple[bool, list[str | int]]:
    """Take ``"answer"`` and ``"lookbacks"`` out of an entry's document.

    Raises:
        InvalidArgument: one of them is of the wrong type.
    """
    if document.keys().isdisjoint(_QUESTION) or not (taken := _taken(document, spec, _QUESTION)):
        return False, []
    answer = flag(taken.get("answer", False), "answer")
    lookbacks = _plain_list(taken.get("lookbacks", []), "lookbacks")
    for i, lookback in enumerate(lookbacks):
        if type(lookback) is not str and type(lookback) is not int:
            raise InvalidArgument(
                f"lookbacks[{i}] must be a duration or ticks, not {kind_of(lookback)}", field=f"lookbacks[{i}]"
            )
    return answer, lookbacks


def taken_origin(document: dict[str, Any], spec: WindowSpec) -> Origin | None:
    """Take the members of `ORIGIN` out of a document; return None if it has none of them.

    Args:
        spec: of the window; its fields may have these names.

    Raises:
        InvalidArgument: one of them is of the wrong type, or only some that belong together are there.
    """
    if document.keys().isdisjoint(ORIGIN) or not (taken := _taken(document, spec, ORIGIN)):
        return None
    producer = text(taken["producer"], "producer") if "producer" in taken else None
    numbers = (integer(taken[name], name) if name in taken else None for name in ORIGIN[1:])
    return origin_of(producer, *numbers)


def taken_limits(document: dict[str, Any], spec: WindowSpec) -> Sequence[Limit]:
    """Take ``"limits"`` out of the document of a write that decides; raises InvalidArgument as `member`."""
    given = _plain_list(member(_taken(document, spec, ("limits",)), "limits"), "limits")
    return tuple([_limit(_object(each, f"limits[{i}]"), f"limits[{i}]") for i, each in enumerate(given)])


def _limit(given: Mapping[str, Any], path: str) -> Limit:
    for name in given:
        if name not in ("aggregate", "lookback", "op", "value", "by"):
            raise InvalidArgument(f"{path}.{name[:80]} is unknown", field=f"{path}.{name}")
    for name in ("aggregate", "lookback", "value"):
        if name not in given:
            raise InvalidArgument(f"{path}.{name} is missing", field=f"{path}.{name}")
    lookback, value = given["lookback"], given["value"]
    if type(lookback) is not int:
        lookback = text(lookback, f"{path}.lookback")
    if type(value) is not int:
        value = number(value, f"{path}.value")
    by = tuple(texts(given["by"], f"{path}.by")) if "by" in given else None
    op = text(given.get("op", "<="), f"{path}.op")
    return Limit(text(given["aggregate"], f"{path}.aggregate"), lookback, cast(Comparison, op), value, by)


def _taken(document: dict[str, Any], spec: WindowSpec, names: Sequence[str]) -> dict[str, Any]:
    """Take some members out of a document.

    If a field or a part of keys has the name of such a member, the member beside the time is that one. With
    ``"fields"``, the field is in there, and both can be given; a part is in ``"key"`` then.
    """
    nested = "fields" in document and "fields" not in spec.fields
    own = () if nested else (*spec.fields, *spec.parts)
    return {name: document.pop(name) for name in names if name in document and name not in own}


def texts(value: Any, path: str) -> list[str]:
    """Return a value that is a list of strings.

    Raises:
        InvalidArgument: it is not a list, or one of its values is not a string.
    """
    return strings(_plain_list(value, path), path, 0)


_SCALARS: Mapping[FieldType, Callable[[Any, str], Any]] = {
    "float64": number,
    "int64": integer,
    "string": text,
    "bool": flag,
}


# ---------------------------------------------------------------- columns


def batch_of(document: Mapping[str, Any], spec: WindowSpec, entries_max: int, now_ns: NowNs = int) -> AnyBatch:
    """Return the columns of a bulk; raises as `batch_steps`."""
    return finished(batch_steps(document, spec, entries_max, now_ns))


def batch_steps(
    document: Mapping[str, Any], spec: WindowSpec, entries_max: int, now_ns: NowNs, names: bool = False
) -> Steps[AnyBatch]:
    """Return the columns of a bulk, which are values or, with ``"partials"``, partials.

    Args:
        now_ns: tells wall time.
        names: whether its rows name entries: ``"time"`` may be missing then.

    Raises:
        InvalidArgument: a column or a value in it is wrong; `field` names it: ``delay[17]``.
        TooLarge: more than `entries_max` entries.
    """
    counted = str(spec.identity) if names and "time" not in document else "time"
    there = document if counted == "time" else _named(document, spec)
    if counted not in there:
        raise InvalidArgument(f"{counted} is missing{misspelt(counted, _others(document, spec))}", field=counted)
    times = _list(there[counted], counted)
    if len(times) > entries_max:
        raise TooLarge(f"a write of {len(times)} entries is too large", field=counted, limit=f"{entries_max} entries")
    keys = yield from _keys(document, spec)
    # A field may be called "partials": its values are a list, and partials are an object.
    partials = document.get("partials")
    if "partials" in document and ("partials" not in spec.fields or (spec.granularity and type(partials) is dict)):
        return (yield from _partial_batch(document, spec, times, keys, now_ns))
    named = _named(document, spec)
    columns: dict[str, Array | Coded] = {}
    for name, values in named.items():
        if name not in spec.fields:
            raise no_field(spec.name, name, spec.fields)
        columns |= yield from nullable_steps(_list(values, name), spec, name)
    given = (yield from tick_steps(times, "time", spec.time_unit, now_ns)) if counted == "time" else None
    return Batch(times_of(given, len(times)), columns, keys)


def pairs_steps(
    document: Mapping[str, Any], spec: WindowSpec, now_ns: NowNs
) -> Steps[tuple[Array, Coded | None, Array | None]]:
    """Return the times and keys of pairs, which are columns as of a bulk, and what each is known at.

    Raises as `batch_steps`.
    """
    for name in document:
        if name not in ("time", "key", "known_at", *spec.parts):
            raise InvalidArgument(f"{name[:80]!r} is unknown here; pairs have time and key", field=name)
    keys = yield from _keys(document, spec)
    times, known_at = _list(member(document, "time"), "time"), None
    if "known_at" in document and "known_at" not in spec.parts:
        known_at = yield from number_steps(_list(document["known_at"], "known_at"), _INT64, "known_at")
    return (yield from tick_steps(times, "time", spec.time_unit, now_ns)), keys, known_at


def _partial_batch(
    document: Mapping[str, Any], spec: WindowSpec, times: Values, keys: Coded | None, now_ns: NowNs
) -> Steps[PartialBatch]:
    """Return rows that have partials of every aggregate instead of values of every field."""
    for name in document:
        if name not in ("time", "key", "partials", "entries", *spec.parts):
            raise InvalidArgument(
                f"{name!r} is unknown beside partials; only time, key and entries are taken there", field=name
            )
    ticks = yield from tick_steps(times, "time", spec.time_unit, now_ns)
    entries = yield from number_steps(_list(member(document, "entries"), "entries"), _INT64, "entries")
    monoids = spec.monoids()
    partials = {}
    for name, parts in _object(document["partials"], "partials").items():
        if name not in monoids:
            raise InvalidArgument(
                f"window {spec.name!r} has no aggregate {name[:80]!r}{instead(name, monoids, 'it has')}",
                field=f"partials.{name}",
            )
        path = f"partials.{name}"
        partials[name] = yield from _partials(_object(parts, path), monoids[name][0], path)
    return PartialBatch(ticks, partials, entries, keys)


def _partials(document: Mapping[str, Any], monoid: Monoid, path: str) -> Steps[Partials]:
    """Return the columns of one aggregate's partials: a list for each part, or one list of blobs in base64."""
    # Sums over int64 are blobs, as they may have any size. Those that fit into an int64 may come as numbers, too.
    numbers = monoid.fixed or getattr(monoid, "integers", False)
    if list(document) == [BLOB] or not numbers:
        (values,) = _parts(document, [BLOB], path)
        path, blobs = f"{path}.{BLOB}", list[bytes]()
        decoded = 0
        for at, some in pieces_of(_list(values, path)):
            for i, each in enumerate(strings(some, path, at)):
                blobs.append(_blob(each, f"{path}[{at + i}]"))
                decoded += len(each)
                if decoded > _DECODED_BYTES:
                    decoded = 0
                    yield
            yield
        return (object_array(blobs),)
    names, columns = part_names(monoid), list[Array]()
    for name, values, dtype in zip(names, _parts(document, names, path), monoid.dtypes, strict=True):
        columns.append((yield from number_steps(_list(values, f"{path}.{name}"), dtype, f"{path}.{name}")))
    return tuple(columns)


def _parts(document: Mapping[str, Any], names: Sequence[str], path: str) -> list[Any]:
    for name in (*names, *document):
        if name not in document or name not in names:
            what = "is missing" if name not in document else "is unknown"
            raise InvalidArgument(
                f"{path}.{name[:80]} {what}: a partial has {', '.join(names)}", field=f"{path}.{name}"
            )
    return [document[name] for name in names]


def _blob(value: str, path: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError:
        raise InvalidArgument(f"{path} is not base64", field=path) from None


# ---------------------------------------------------------------- both


def member(document: Mapping[str, Any], name: str) -> Any:
    """Return a member of a document; raises InvalidArgument if it is missing."""
    if name not in document:
        raise InvalidArgument(f"{name} is missing", field=name)
    return document[name]


def _named(document: Mapping[str, Any], spec: WindowSpec) -> Mapping[str, Any]:
    """Return the members of a document that are fields of the window.

    They are in ``"fields"``, or beside time and key. If the window has one field, ``"value"`` is that field, whatever
    its name.
    """
    apart, known = ("time", "key") if "key" in document else ("time", *(spec.keys or ())), spec.fields
    found = {name: value for name, value in document.items() if name not in apart}
    if "fields" in found and "fields" not in known:
        fields = found.pop("fields")
        for name in found:
            raise InvalidArgument(f"{name!r} is unknown beside fields; only time and key are taken there", field=name)
        return _object(fields, "fields")
    if "value" in found and "value" not in known and len(known) == 1:
        found[next(iter(known))] = found.pop("value")
    return found


def _plain_list(value: Any, path: str) -> list[Any]:
    return of_kind(value, path, list, "a list")


def _list(value: Any, path: str) -> Values:
    return value if type(value) is LongList else _plain_list(value, path)


def _object(value: Any, path: str) -> dict[str, Any]:
    return of_kind(value, path, dict, "an object")
