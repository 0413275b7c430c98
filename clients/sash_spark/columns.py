"""What Spark sees of a window's times, fields and aggregates: their types, and values of them as Arrow columns.

    time      us, ms, s      timestamp
              ns, none       long: a timestamp of Spark has no nanoseconds, and logical time is no instant
    fields    float64 double   int64 long   string string   bool boolean
    answers   as the spec's functions and fields make them: numbers, strings, arrays, structs; binary for Bloom filters

Times within answers (of `m4`, or `arg_max` without `returns`) are ticks. An aggregate that is not Sash's own is JSON
text, as a spec does not say what such a one answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sash_client import InvalidArgument

__all__ = ["FIELD_TYPES", "AnswerColumn", "instants", "time_type"]

FIELD_TYPES: Mapping[str, Any] = {
    "float64": pa.float64(),
    "int64": pa.int64(),
    "string": pa.string(),
    "bool": pa.bool_(),
}
_TICKS = pa.int64()

_LONGS = frozenset({"count", "min_count", "max_count", "distinct_count"})
_DOUBLES = frozenset(
    {
        *("mean", "geometric_mean", "relative_variation", "skewness", "kurtosis", "linear_slope"),
        *("variance", "variance_population", "stddev", "stddev_population"),
    }
)
_FIELDS = frozenset({"sum", "min", "max", "range", "first", "last"})
_ARGUMENTS = frozenset({"arg_min", "arg_max"})
_LISTS = frozenset({"collect", "collect_distinct"})


def time_type(unit: str) -> Any:
    """The Arrow type of times in ticks of a unit."""
    return _TICKS if unit in ("ns", "none") else pa.timestamp("us", "UTC")


def instants(ticks: Any, unit: str) -> Any:
    """Ticks (n,), with None where there are none, as an Arrow column of `time_type`.

    Raises:
        InvalidArgument: a time is out of what timestamps reach.
    """
    column = pa.array(ticks, _TICKS)
    if time_type(unit) == _TICKS:
        return column
    try:
        return column.cast(pa.timestamp(unit, "UTC")).cast(time_type(unit))
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"a time in {unit} is out of the range of timestamps: {error}", field="time") from None


@dataclass(frozen=True)
class AnswerColumn:
    """One aggregate's answers as a column; make it with `AnswerColumn.of`.

    Args:
        name: the aggregate's name, and the column's.
        type: the Arrow type of its answers.
        is_json: whether they are no aggregate of Sash's own, and written as JSON.
    """

    name: str
    type: Any
    is_json: bool = False

    @classmethod
    def of(cls, name: str, aggregate: Mapping[str, Any], fields: Mapping[str, str]) -> AnswerColumn:
        """See what an aggregate answers, which is what a spec has, on fields of these types."""
        types = {field: FIELD_TYPES[kind] for field, kind in fields.items()} | {"time": _TICKS}
        read = types[aggregate.get("field") or next(iter(fields))]
        function = aggregate["function"]
        if function in _LONGS:
            return cls(name, pa.int64())
        if function in _DOUBLES:
            return cls(name, pa.float64())
        if function in _FIELDS:
            return cls(name, read)
        if function in _ARGUMENTS:
            return cls(name, types[aggregate.get("returns") or "time"])
        if function in _LISTS:
            return cls(name, pa.list_(read))
        if function in _MADE:
            return cls(name, _MADE[function](aggregate, read))
        return cls(name, pa.string(), is_json=True)

    def array(self, values: Any) -> Any:
        """Answers (n,) as an Arrow column.

        Args:
            values: a sequence with None, or an array with a mask, where there is no answer.

        Raises:
            InvalidArgument: an answer does not fit, such as a sum of integers beyond 64 bits.
        """
        missing = None
        if isinstance(values, np.ndarray):
            if values.dtype.kind == "O" or self.is_json:
                values = values.tolist()  # None stands under a mask
            else:
                values, missing = np.ma.getdata(values), np.ma.getmaskarray(values)
        if self.is_json:
            values = [None if value is None else json.dumps(value, default=str) for value in values]
        try:
            return pa.array(values, self.type, mask=missing)
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidArgument(f"{self.name}: an answer is no {self.type}: {error}", field=self.name) from None


def _m4(_: Mapping[str, Any], read: Any) -> Any:
    point = pa.struct([("time", _TICKS), ("value", read)])
    return pa.struct([(name, point) for name in ("first", "last", "min", "max")])


_MADE: Mapping[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "m4": _m4,
    "longest_increasing_run": lambda *_: pa.struct([("length", pa.int64()), ("start", _TICKS), ("end", _TICKS)]),
    "histogram": lambda *_: pa.struct(
        [("bounds", pa.list_(pa.float64())), ("counts", pa.list_(pa.int64())), ("nan", pa.int64())]
    ),
    "quantile": lambda aggregate, _: pa.list_(pa.float64()) if isinstance(aggregate.get("q"), list) else pa.float64(),
    "frequent_items": lambda _, read: pa.list_(
        pa.struct([("item", read), ("count", pa.int64()), ("lower", pa.int64()), ("upper", pa.int64())])
    ),
    "bloom": lambda *_: pa.binary(),
}
"""What more there is, by function: from the aggregate and the type of its field."""
