"""An aggregate of a spec, made into a monoid and the columns that it reads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import IgnoresNulls, catalogue
from sash_engine.monoids.base import FieldType, Monoid, Read
from sash_wire.durations import parse_duration
from sash_wire.errors import WireError
from sash_wire.meant import instead, meant, misspelt
from sash_wire.nulls import mark_of

_OWN = ("function", "field", "returns")
"""Keys that every aggregate may have; all others are the function's own."""


def monoid_of(
    path: str,
    aggregate: Mapping[str, Any],
    fields: Mapping[str, FieldType],
    time_unit: str,
    nullable: Sequence[str] = (),
) -> tuple[Monoid, tuple[str, ...]]:
    """Build an aggregate; return it with the columns that it reads: names of fields, of their marks, or "time".

    Args:
        path: where the aggregate is in the spec, for errors.
        aggregate: its part of the spec: `function`, what it reads, and its parameters.
        fields: the window's fields and their types.
        time_unit: of the window, for parameters that are durations.
        nullable: the fields that may have no value. An aggregate ignores entries without a value that it reads.

    Raises:
        InvalidArgument: an unknown function, field or parameter, or a field of the wrong type.
    """
    known = catalogue()
    function = aggregate["function"]
    if function not in known:
        raise InvalidArgument(
            f"{path}: unknown function {function!r}{instead(function, sorted(known), 'known are')}",
            field=f"{path}.function",
        )
    cls = known[function]
    options = {read.option for read in cls.reads}
    for option in ("field", "returns"):
        if aggregate.get(option) is not None and option not in options:
            raise InvalidArgument(f"{path}: {function} takes no {option!r}", field=f"{path}.{option}")
    columns = tuple(column for read in cls.reads for column in _columns(path, read, aggregate, fields))
    types: list[FieldType] = ["int64" if column == "time" else fields[column] for column in columns]
    parameters = _parameters(path, cls, aggregate, options)
    for name, default in cls.durations.items():
        given = parameters.get(name, "1" if default and time_unit == "none" else default)
        if given is not None:
            parameters[name] = _ticks(given, time_unit, f"{path}.{name}")
    marks = tuple([mark_of(column) for column in columns if column in nullable])
    try:
        monoid = cls(*types, **parameters)
        return (IgnoresNulls(monoid, len(marks)), columns + marks) if marks else (monoid, columns)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{path}: {error.message}", field=f"{path}.{error.field or 'function'}", limit=error.limit
        ) from None
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise InvalidArgument(f"{path}: {error}", field=path) from None


def _columns(path: str, read: Read, aggregate: Mapping[str, Any], fields: Mapping[str, FieldType]) -> list[str]:
    """Find the columns that one option names: one, or a list of them."""
    if read.option == "time":
        return ["time"]
    where, given = f"{path}.{read.option}", aggregate.get(read.option)
    if read.many:
        limit = f"1 to {read.many} different names of fields"
        names = given if isinstance(given, list | tuple) else []
        if not 1 <= len(names) <= read.many or not all(isinstance(name, str) for name in names):
            raise InvalidArgument(f"{path}: {read.option} must be a list of fields", field=where, limit=limit)
        if len(set(names)) < len(names):
            raise InvalidArgument(f"{path}: {read.option} has a field twice", field=where, limit=limit)
    else:
        name = given or read.default
        if name is None and len(fields) == 1:
            name = next(iter(fields))
        if name is None:
            unknown = misspelt(read.option, [each for each in aggregate if each not in _OWN])
            raise InvalidArgument(f"{path}: say which {read.option}{unknown}", field=where)
        names = [name]
    for name in names:
        if name != "time" and (not isinstance(name, str) or name not in fields):
            no = f"no field {name!r:.80}{instead(name, fields, 'the window has')}"
            raise InvalidArgument(f"{path}: {no}", field=where)
    return list(names)


def _parameters(path: str, cls: type[Monoid], aggregate: Mapping[str, Any], options: set[str]) -> dict[str, Any]:
    accepted = _accepted(cls)
    found = {name: value for name, value in aggregate.items() if name not in (*_OWN, *options)}
    for name in found:
        if name not in accepted:
            takes = f"takes {', '.join(accepted)}" if accepted else "takes no parameters"
            takes = f"{takes}, not {name!r}{meant(name, (*accepted, *_OWN, *options))}"
            raise InvalidArgument(f"{path}: {cls.function} {takes}", field=f"{path}.{name}")
    for name, needed in accepted.items():
        if needed and name not in found:
            raise InvalidArgument(f"{path}: {cls.function} needs {name!r}", field=f"{path}.{name}")
    return found


@functools.cache
def _accepted(cls: type[Monoid]) -> Mapping[str, bool]:
    """The parameters of a function, and whether it needs them."""
    return {
        name: parameter.default is parameter.empty
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def _ticks(given: Any, time_unit: str, field: str) -> int:
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise InvalidArgument(f"{field} must be a duration", field=field, limit="a duration such as 5m, or ticks")
    try:
        return parse_duration(given, time_unit, field)
    except WireError as error:
        raise InvalidArgument(error.message, field=error.field, limit=error.limit) from None
