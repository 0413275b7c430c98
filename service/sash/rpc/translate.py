"""Protobuf messages to the plane's values and back.

Columns are not copied on the way in: `np.frombuffer` looks at the bytes that protobuf holds. Ways that lost:
repeated fields (turning 16,384 doubles into an array costs more than aggregating them), and building `Value`
messages to assign them (filling the one that the map makes is a third faster).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sash import calls
from sash_engine.errors import InvalidArgument, TooLarge
from sash_engine.monoids.base import Array, Partials
from sash_engine.windows.answers import Answer, Series, WindowInfo, WriteResult
from sash_engine.windows.batch import Batch, Coded, Origin
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, KeyList, Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec import WindowSpec
from sash_proto.v1 import windows_pb2 as pb

__all__ = [
    "aggregates_of",
    "batch_of",
    "bulk_of",
    "document_of",
    "entries_query_of",
    "entry_of",
    "fill_answer",
    "fill_series",
    "fill_window",
    "query_of",
    "range_query_of",
    "series_query_of",
    "origin_of",
    "required",
    "written",
]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_INT64 = np.dtype("<i8")
_FLOAT64 = np.dtype("<f8")
_CODE = np.dtype("<u4")
_DICTIONARY_MAX = 4_096
"""A dictionary with more strings than these and four for each entry is not read whole."""
# Texts of a spec that may be missing.
_ORDER = ("late", "out_of_order", "equal_times", "ahead", "too_far_ahead")
_OPTIONS = ("idle_expiry", "algorithm", "durability", "granularity")


# ---------------------------------------------------------------- requests


def required(request: Any, field: str) -> int:
    """The integer in a field that proto3 would read as 0 where it is missing."""
    if not request.HasField(field):
        raise InvalidArgument(f"{field} is missing", field=field)
    return getattr(request, field)  # type: ignore[no-any-return]


def query_of(request: pb.QueryRequest) -> Query:
    """The question of a query; raises as `_keys_of`."""
    key, keys = _keys_of(request)
    as_of = request.as_of if request.HasField("as_of") else None
    return Query(key, list(request.lookbacks), as_of, keys, request.combine, request.partials)


def range_query_of(request: pb.RangeQueryRequest) -> RangeQuery:
    """The question of a range query; raises as `_keys_of`, and where a bound is missing."""
    key, keys = _keys_of(request)
    start, end = required(request, "start"), required(request, "end")
    return RangeQuery(start, end, key, keys, request.partials, request.end_exclusive)


def series_query_of(request: pb.SeriesRequest) -> SeriesQuery:
    """The question of a series; raises as `_keys_of`, and where a bound or the step is missing."""
    key, keys = _keys_of(request)
    start, end = required(request, "start"), required(request, "end")
    if not request.step:
        raise InvalidArgument("step is missing", field="step")
    return SeriesQuery(start, end, request.step, request.width or None, key, keys)


def entries_query_of(request: pb.EntriesRequest) -> EntriesQuery:
    """Which entries a request asks for; raises as `_keys_of`."""
    key, keys = _keys_of(request)
    start = request.start if request.HasField("start") else None
    end = request.end if request.HasField("end") else None
    return EntriesQuery(start, end, key, keys, request.end_exclusive)


def _keys_of(request: Any) -> tuple[str | None, KeyList]:
    """The one key, and the several keys, that a request asks for: at most one of the two is there.

    Raises:
        InvalidArgument: more than one of `key`, `keys` and `all_keys` is set.
    """
    key = request.key if request.HasField("key") else None
    if not request.keys and not request.all_keys:
        return key, ()
    if key is not None or (request.keys and request.all_keys):
        field = "keys" if request.keys else "all_keys"
        raise InvalidArgument("give one of key, keys and all_keys", field=field)
    return None, list(request.keys) or ALL_KEYS


def origin_of(request: Any) -> Origin | None:
    """Who sends a write, where it says so; proto3 has no empty `producer`, and no `epoch` is epoch 0.

    Raises:
        InvalidArgument: as `calls.origin_of`.
    """
    sequence = request.sequence if request.HasField("sequence") else None
    return calls.origin_of(request.producer or None, sequence, request.epoch or None)


def entry_of(request: pb.InsertRequest, spec: WindowSpec) -> Mapping[str, Any]:
    """The fields of one entry as Python scalars.

    Raises:
        InvalidArgument: neither `value` nor `fields`, both of them, or a value of no scalar kind.
    """
    if request.HasField("value"):
        if request.fields:
            raise InvalidArgument("give either value or fields", field="value")
        if len(spec.fields) != 1:
            raise InvalidArgument(
                f"window {spec.name!r} has the fields {', '.join(spec.fields)}: give them in fields, not value",
                field="value",
            )
        return {next(iter(spec.fields)): request.value}
    if not request.fields:
        raise InvalidArgument("the entry has neither value nor fields", field="value")
    return {name: _scalar(value, f"fields.{name}") for name, value in request.fields.items()}


def batch_of(request: pb.BulkInsertRequest, entries_max: int) -> Batch:
    """The columns of a bulk, over the bytes that protobuf holds.

    Raises:
        InvalidArgument: a column's bytes are no whole number of values; it names the column.
        TooLarge: more than `entries_max` entries.
    """
    times = _numbers(request.time, _INT64, "time")
    if len(times) > entries_max:
        raise TooLarge(f"a write of {len(times)} entries is too large", field="time", limit=f"{entries_max} entries")
    columns = {name: _column(column, name) for name, column in request.fields.items()}
    keys = _coded(request.key, "key") if request.HasField("key") else None
    if not request.partials and not request.entries:
        return Batch(times, columns, keys)
    partials = {
        name: tuple(_part(column, f"partials.{name}") for column in found.columns)
        for name, found in request.partials.items()
    }
    return Batch(times, columns, keys, partials, _numbers(request.entries, _INT64, "entries"))


def document_of(message: pb.WindowSpec) -> dict[str, Any]:
    """The spec as the document that `WindowSpec.parse` validates; what was not set is left out."""
    document: dict[str, Any] = {"name": message.name, "keyed": message.keyed}
    if message.time_unit:
        document["time_unit"] = message.time_unit
    if message.fields:
        document["fields"] = dict(sorted(message.fields.items()))
    document["aggregates"] = aggregates_of(message.aggregates)
    if message.HasField("slide"):
        slide = document["slide"] = _texts(message.slide, ("max_age", "clock", "when"))
        if message.slide.HasField("max_count"):
            slide["max_count"] = message.slide.max_count
    if message.HasField("order"):
        document["order"] = _texts(message.order, _ORDER)
    return document | _texts(message, _OPTIONS)


def aggregates_of(messages: Mapping[str, pb.AggregateSpec]) -> dict[str, Any]:
    """Aggregates by name, as in the document that `WindowSpec.parse` validates; sorted, as a map has no order."""
    return {name: _aggregate(message, f"aggregates.{name}") for name, message in sorted(messages.items())}


def _texts(message: Any, names: Sequence[str]) -> dict[str, Any]:
    """Those of the string fields that are set."""
    return {name: text for name in names if (text := getattr(message, name))}


def _aggregate(message: pb.AggregateSpec, path: str) -> dict[str, Any]:
    document = {name: _plain(value) for name, value in message.parameters.items()}
    for option in ("function", "field", "returns"):
        if option in document:
            raise InvalidArgument(f"{path}: {option} is no parameter", field=f"{path}.parameters.{option}")
        if text := getattr(message, option):
            document[option] = text
    return document


def _scalar(value: pb.Value, path: str) -> Any:
    kind = value.WhichOneof("kind")
    if kind not in ("float64", "int64", "string", "bool"):
        raise InvalidArgument(f"{path} must be a float64, int64, string or bool", field=path)
    return getattr(value, kind)


def _plain(value: pb.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list":
        return [_plain(item) for item in value.list.items]
    if kind == "map":
        return {name: _plain(item) for name, item in value.map.entries.items()}
    if kind == "integer":
        return int.from_bytes(value.integer, "little", signed=True)
    return getattr(value, kind)


def _column(column: pb.Column, name: str) -> npt.NDArray[Any] | Coded:
    match column.WhichOneof("data"):
        case "float64":
            return _numbers(column.float64, _FLOAT64, name)
        case "int64":
            return _numbers(column.int64, _INT64, name)
        case "string":
            return _coded(column.string, name)
        case "bool":
            bits = np.frombuffer(column.bool, np.uint8)
            if len(bits) and bits.max() > 1:
                raise InvalidArgument(f"column {name!r} has a bool that is not 0 or 1", field=name, limit="0 to 1")
            return bits.view(np.bool_)
        case _:
            raise InvalidArgument(f"column {name!r} has no data", field=name)


def _part(column: pb.Column, name: str) -> Array:
    """One part of n partials; blobs as objects."""
    if column.WhichOneof("data") == "blob":
        return np.fromiter(column.blob.items, dtype=object, count=len(column.blob.items))
    found = _column(column, name)
    if isinstance(found, Coded):
        raise InvalidArgument(f"column {name!r} has strings; partials are numbers or blobs", field=name)
    return found


def _numbers(data: bytes, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    try:
        return np.frombuffer(data, dtype)
    except ValueError:
        raise InvalidArgument(
            f"column {name!r} has {len(data)} bytes, which is no whole number of values",
            field=name,
            limit=f"{dtype.itemsize} bytes a value",
        ) from None


def _coded(strings: pb.Strings, name: str) -> Coded:
    codes = _numbers(strings.codes, _CODE, name)
    if len(strings.dictionary) > _DICTIONARY_MAX + 4 * len(codes):
        return _used(strings, codes)
    dictionary = list(strings.dictionary)
    if len(set(dictionary)) == len(dictionary):
        return Coded(dictionary, codes)
    # The same string under two codes: make it one, so that whoever groups by code groups by string.
    index: dict[str, int] = {}
    recoded = np.array([index.setdefault(text, len(index)) for text in dictionary], _CODE)
    if len(codes) and codes.max() >= len(recoded):
        return Coded(dictionary, codes)  # refused by the check that every batch goes through
    return Coded(list(index), recoded[codes])


def _used(strings: pb.Strings, codes: npt.NDArray[Any]) -> Coded:
    """Those strings of a large dictionary that have codes: most of it is for other entries."""
    used, recoded = np.unique(codes, return_inverse=True)
    if len(used) and used[-1] >= len(strings.dictionary):
        return Coded([], codes)  # refused by the check that every batch goes through
    return Coded.of([strings.dictionary[code] for code in used.tolist()]).at(recoded)


# ---------------------------------------------------------------- responses


def fill_answer(message: pb.Answer, answer: Answer) -> None:
    """Write an answer into an empty message."""
    if answer.key is not None:
        message.key = answer.key
    if answer.start is not None:
        message.start = answer.start
    if answer.end is not None:
        message.end = answer.end
    message.entries = answer.entries
    if answer.lookback is not None:
        message.lookback = answer.lookback
    aggregates = message.aggregates
    for name, value in answer.aggregates.items():
        _fill(aggregates[name], value)
    for name, partial in (answer.partials or {}).items():
        _fill_partials(message.partials[name], partial)


def bulk_of(window: str, batch: Batch) -> pb.BulkInsertRequest:
    """Entries of a window as a bulk that could be inserted again."""
    message = pb.BulkInsertRequest(window=window, time=_bytes(batch.times, _INT64))
    for name, column in batch.columns.items():
        _fill_data(message.fields[name], column)
    if batch.keys is not None:
        _fill_strings(message.key, batch.keys)
    for name, partials in (batch.partials or {}).items():
        _fill_partials(message.partials[name], partials)
    if batch.entries is not None:
        message.entries = _bytes(batch.entries, _INT64)
    return message


def _fill_partials(message: pb.PartialColumns, partials: Partials) -> None:
    message.SetInParent()
    for part in partials:
        if part.dtype.hasobject:
            message.columns.add().blob.items.extend(part.tolist())
        else:
            _fill_data(message.columns.add(), part)


def _fill_data(message: pb.Column, column: Array | Coded) -> None:
    """Write a column into an empty message, whatever it holds."""
    if isinstance(column, Coded):
        _fill_strings(message.string, column)
    elif column.dtype.kind == "f":
        message.float64 = _bytes(column, _FLOAT64)
    elif column.dtype.kind == "i":
        message.int64 = _bytes(column, _INT64)
    elif column.dtype.kind == "b":
        message.bool = column.tobytes()
    else:
        _fill_strings(message.string, Coded.of(column.tolist()))


def _fill_strings(message: pb.Strings, column: Coded) -> None:
    message.SetInParent()
    message.dictionary.extend(column.dictionary)
    message.codes = _bytes(column.codes, _CODE)


def written(result: WriteResult) -> pb.InsertResponse:
    """What became of a write, as a message."""
    message = pb.InsertResponse(
        inserted=result.inserted,
        late=result.late,
        evicted=result.evicted,
        duplicates=result.duplicates,
        already_applied=result.already_applied,
        durability=result.durability,
        ahead=result.ahead,
    )
    for answer in result.answers:
        fill_answer(message.answers.add(), answer)
    return message


def fill_series(message: pb.SeriesResponse, series: Series) -> None:
    """Write a series into an empty message."""
    if series.key is not None:
        message.key = series.key
    message.time, message.entries = _bytes(series.times, _INT64), _bytes(series.entries, _INT64)
    message.width = series.width
    for name, answers in series.aggregates.items():
        _fill_column(message.aggregates[name], answers)


def _fill_column(message: pb.SeriesColumn, answers: Array) -> None:
    if answers.dtype.kind == "f":
        message.float64 = _bytes(answers, _FLOAT64)
        return
    if answers.dtype.kind == "i":
        message.int64 = _bytes(answers, _INT64)
        return
    values = answers.tolist()
    # Of objects, those that are numbers of one kind, or missing, still travel as bytes.
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {float} or (kinds == {int} and all(v is None or INT64_MIN <= v <= INT64_MAX for v in values)):
        numbers = [0 if value is None else value for value in values]
        if kinds == {float}:
            message.float64 = np.array(numbers, _FLOAT64).tobytes()
        else:
            message.int64 = np.array(numbers, _INT64).tobytes()
        if None in values:
            message.valid = bytes(value is not None for value in values)
        return
    message.values.SetInParent()
    items = message.values.items
    for value in values:
        _fill(items.add(), value)


def _bytes(array: Array, dtype: np.dtype[Any]) -> bytes:
    return array.astype(dtype, copy=False).tobytes()


def fill_window(message: pb.WindowInfo, window: WindowInfo) -> None:
    """Write what there is to know of a window into an empty message."""
    _fill_spec(message.spec, window.spec)
    message.entries, message.keys = window.entries, window.keys
    if window.oldest is not None:
        message.oldest = window.oldest
    if window.newest is not None:
        message.newest = window.newest
    if window.high_water_mark is not None:
        message.high_water_mark = window.high_water_mark
    counts = window.counts
    message.counts.inserted, message.counts.late, message.counts.evicted = counts.inserted, counts.late, counts.evicted
    message.counts.duplicates, message.counts.ahead = counts.duplicates, counts.ahead
    message.durability = window.durability
    if window.problem is not None:
        message.problem = window.problem


def _fill_spec(message: pb.WindowSpec, spec: WindowSpec) -> None:
    message.name, message.time_unit, message.keyed = spec.name, spec.time_unit, spec.keyed
    message.fields.update(spec.fields)
    for name, aggregate in spec.aggregates.items():
        target = message.aggregates[name]
        target.function = aggregate.function
        target.field = aggregate.field or ""
        target.returns = aggregate.returns or ""
        for parameter, value in aggregate.parameters.items():
            _fill(target.parameters[parameter], value)
    slide, order = spec.slide, spec.order
    if slide.max_count is not None:
        message.slide.max_count = slide.max_count
    message.slide.max_age, message.slide.when = slide.max_age or "", slide.when or ""
    message.slide.clock = slide.clock
    for policy in _ORDER:
        setattr(message.order, policy, getattr(order, policy) or "")
    for option in _OPTIONS:
        setattr(message, option, getattr(spec, option) or "")


def _fill(message: pb.Value, value: Any) -> None:
    """Write a Python value into an empty message; None stays an empty one."""
    if isinstance(value, float):
        message.float64 = value
    elif isinstance(value, bool):
        message.bool = value
    elif isinstance(value, int):
        if INT64_MIN <= value <= INT64_MAX:
            message.int64 = value
        else:
            message.integer = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    elif isinstance(value, str):
        message.string = value
    elif isinstance(value, bytes):
        message.blob = value
    elif isinstance(value, Mapping):
        message.map.SetInParent()
        entries = message.map.entries
        for name, item in value.items():
            _fill(entries[name], item)
    elif isinstance(value, (list, tuple)):
        message.list.SetInParent()
        items = message.list.items
        for item in value:
            _fill(items.add(), item)
    elif value is not None:
        _fill(message, value.item())  # a NumPy scalar
