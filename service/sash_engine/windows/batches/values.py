"""The values of one entry, checked against the fields of a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import FieldType
from sash_engine.windows.spec.window import WindowSpec
from sash_wire import meant
from sash_wire.nulls import PLACEHOLDERS

_PLAIN: dict[FieldType, type] = {"float64": float, "string": str, "bool": bool}
"""A value of just this type needs no further check."""


class Fields:
    """The fields of a window, for checking entries one by one."""

    def __init__(self, spec: WindowSpec) -> None:
        self._window = spec.name
        self._fields = [(name, kind, _PLAIN.get(kind)) for name, kind in spec.fields.items()]
        self._nullable = spec.nullable or ()

    def checked(self, fields: Mapping[str, Any]) -> list[Any]:
        """The values in the order of the fields, then a mark for each field that may be null.

        Raises:
            InvalidArgument: names the field that is unknown, of another type, or missing where it may not be null.
        """
        values, left_out = [], 0
        for name, kind, plain in self._fields:
            if name in self._nullable and fields.get(name) is None:
                values.append(PLACEHOLDERS[kind])
                left_out += name not in fields
                continue
            if name not in fields:
                others = meant.near(name, fields.keys() - {known for known, _, _ in self._fields})
                misspelt = "" if others is None else f"; {others!r} is no field: is it misspelt?"
                raise InvalidArgument(f"field {name!r} is missing{misspelt}", field=name)
            value = fields[name]
            values.append(value if type(value) is plain else _checked_value(value, kind, name))
        if len(fields) > len(values) - left_out:
            names = [name for name, _, _ in self._fields]
            extra = next(name for name in fields if name not in names)
            raise no_field(self._window, extra, names)
        if self._nullable:
            values += [fields.get(name) is not None for name in self._nullable]
        return values


def no_field(window: str, name: str, fields: Iterable[str]) -> InvalidArgument:
    """The error for a name that is no field of a window, which has these."""
    return InvalidArgument(meant.no_field(window, name, fields), field=name)


def _checked_value(value: Any, kind: FieldType, name: str) -> Any:
    if kind == "float64" and type(value) in (float, int):
        try:
            return float(value)
        except OverflowError:
            raise InvalidArgument(f"field {name!r} is too large for a float64", field=name, limit="1.8e308") from None
    if kind == "int64" and type(value) is int:
        if not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"field {name!r} is out of range", field=name, limit="-2^63 <= value < 2^63")
        return value
    if (kind == "string" and type(value) is str) or (kind == "bool" and type(value) is bool):
        return value
    raise InvalidArgument(f"field {name!r} is {kind}, not {type(value).__name__} {str(value)[:40]!r}", field=name)
