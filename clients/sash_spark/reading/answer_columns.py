"""The columns that Spark sees: their types, and a window's times, fields and answers as Arrow columns.

    time      us, ms, s      timestamp
              ns, none       long: Spark's timestamps have no nanoseconds, and logical time is not an instant
    fields    float64 double   int64 long   string string   bool boolean
    answers   as the aggregate's `schema` says: numbers, strings, arrays, structs; binary for Bloom filters

Times inside answers (of `m4`, or `arg_max` without `returns`) are ticks. The answers of other packages' aggregates are
JSON text, because the driver need not have those packages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from sash_engine.monoids import Schema

FIELD_TYPES: Mapping[str, Any] = {
    "float64": pa.float64(),
    "int64": pa.int64(),
    "string": pa.string(),
    "bool": pa.bool_(),
}
_SCALARS = {**FIELD_TYPES, "bytes": pa.binary()}
_TICKS = pa.int64()


def time_type(unit: str) -> Any:
    """Return the Arrow type of times in ticks of a unit."""
    return _TICKS if unit in ("ns", "none") else pa.timestamp("us", "UTC")


def instants(ticks: Any, unit: str) -> Any:
    """Convert ticks (n,), some of them None, to an Arrow column of `time_type`.

    Raises:
        InvalidArgument: a time is out of the range of timestamps.
    """
    column = pa.array(ticks, _TICKS)
    if time_type(unit) == _TICKS:
        return column
    try:
        return column.cast(pa.timestamp(unit, "UTC")).cast(time_type(unit))
    except pa.ArrowInvalid as error:
        from sash_client import InvalidArgument  # few Python workers need gRPC

        raise InvalidArgument(f"a time in {unit} is out of the range of timestamps: {error}", field="time") from None


@dataclass(frozen=True)
class AnswerColumn:
    """The column of one aggregate's answers; made by `AnswerColumn.of`.

    Args:
        name: the aggregate's name, and the column's.
        type: the Arrow type of its answers.
        is_json: whether the aggregate comes from another package, so that its answers are written as JSON.
    """

    name: str
    type: Any
    is_json: bool = False

    @classmethod
    def of(cls, name: str, aggregate: Mapping[str, Any], fields: Mapping[str, str]) -> AnswerColumn:
        """Find the type of an aggregate's answers.

        Args:
            name: the aggregate's name in the spec.
            aggregate: its part of the spec.
            fields: the window's fields and their types.
        """
        schema = _schema(aggregate, fields)
        return cls(name, pa.string(), is_json=True) if schema is None else cls(name, arrow_type(schema))

    def array(self, values: Any) -> Any:
        """Convert answers (n,) to an Arrow column.

        Args:
            values: a sequence with None, or a masked array, for missing answers.

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
            from sash_client import InvalidArgument  # few Python workers need gRPC

            raise InvalidArgument(f"{self.name}: an answer is no {self.type}: {error}", field=self.name) from None


def _schema(aggregate: Mapping[str, Any], fields: Mapping[str, str]) -> Schema | None:
    """Return the form of an aggregate's answers, or None for an aggregate of another package."""
    # Imported here: it takes a third of a second, and only the driver needs it.
    from sash_engine.monoids import BUILT_IN
    from sash_engine.windows.spec.aggregates import monoid_of

    if aggregate["function"] not in {each.function for each in BUILT_IN}:
        return None
    kinds: Any = fields
    # The length of a tick does not matter here. Every duration is a whole number of nanoseconds.
    return monoid_of("aggregates", aggregate, kinds, "ns")[0].schema


def arrow_type(schema: Schema) -> Any:
    """Return the Arrow type of answers of this form."""
    if isinstance(schema, list):
        return pa.list_(arrow_type(schema[0]))
    if isinstance(schema, dict):
        return pa.struct([(name, arrow_type(of)) for name, of in schema.items()])
    return _SCALARS[schema]
