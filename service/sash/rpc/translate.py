"""Protobuf messages to the plane's values and back.

Columns are not copied on the way in: `np.frombuffer` looks at the bytes that protobuf holds. Ways that lost:
repeated fields (turning 16,384 doubles into an array costs more than aggregating them), and building `Value`
messages to assign them (filling the one that the map makes is a third faster).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sash.errors import InvalidArgument, TooLarge
from sash.windows.answers import Answer, WindowInfo
from sash.windows.batch import Batch, Coded
from sash.windows.spec import WindowSpec
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["batch_of", "document_of", "entry_of", "fill_answer", "fill_window", "required"]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_INT64 = np.dtype("<i8")
_FLOAT64 = np.dtype("<f8")
_CODE = np.dtype("<u4")


# ---------------------------------------------------------------- requests


def required(request: Any, field: str) -> int:
    """The integer in a field that proto3 would read as 0 where it is missing."""
    if not request.HasField(field):
        raise InvalidArgument(f"{field} is missing", field=field)
    return getattr(request, field)  # type: ignore[no-any-return]


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
    return Batch(times, columns, keys)


def document_of(message: pb.WindowSpec) -> dict[str, Any]:
    """The spec as the document that `WindowSpec.parse` validates; what was not set is left out."""
    document: dict[str, Any] = {"name": message.name, "keyed": message.keyed}
    if message.time_unit:
        document["time_unit"] = message.time_unit
    if message.fields:
        document["fields"] = dict(message.fields)
    document["aggregates"] = {
        name: _aggregate(aggregate, f"aggregates.{name}") for name, aggregate in message.aggregates.items()
    }
    if message.HasField("slide"):
        slide = document["slide"] = {}
        if message.slide.HasField("max_count"):
            slide["max_count"] = message.slide.max_count
        if message.slide.max_age:
            slide["max_age"] = message.slide.max_age
    if message.order.late:
        document["order"] = {"late": message.order.late}
    return document


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
    dictionary, codes = list(strings.dictionary), _numbers(strings.codes, _CODE, name)
    if len(set(dictionary)) == len(dictionary):
        return Coded(dictionary, codes)
    # The same string under two codes: make it one, so that whoever groups by code groups by string.
    index: dict[str, int] = {}
    recoded = np.array([index.setdefault(text, len(index)) for text in dictionary], _CODE)
    if len(codes) and codes.max() >= len(recoded):
        return Coded(dictionary, codes)  # refused by the check that every batch goes through
    return Coded(list(index), recoded[codes])


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


def fill_window(message: pb.WindowInfo, window: WindowInfo) -> None:
    """Write what there is to know of a window into an empty message."""
    _fill_spec(message.spec, window.spec)
    message.entries, message.keys = window.entries, window.keys
    if window.oldest is not None:
        message.oldest = window.oldest
    if window.newest is not None:
        message.newest = window.newest
    counts = window.counts
    message.counts.inserted, message.counts.late, message.counts.evicted = counts.inserted, counts.late, counts.evicted


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
    if spec.slide.max_count is not None:
        message.slide.max_count = spec.slide.max_count
    if spec.slide.max_age is not None:
        message.slide.max_age = spec.slide.max_age
    message.order.late = spec.order.late


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
