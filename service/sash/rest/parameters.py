"""Parameters of a route: declared once, on the handler's signature, for parsing and for OpenAPI.

    async def keys(call: Call, name: Name, prefix: Annotated[str | None, Parameter("…")] = None) -> …

The argument's name is the parameter's name. Its type says how the text is read: `str`, `int` (an int64), `bool`
("true" or "false"), or `list[str]` for a parameter that may be repeated. An argument without a default is required.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote_plus

from sash.rest.scalars import integer
from sash_engine.errors import InvalidArgument

__all__ = ["Declared", "Parameter", "Parser", "declared_by"]

_INTEGER = re.compile(r"-?[0-9]{1,40}")


@dataclass(frozen=True)
class Parameter:
    """Describes a parameter, beyond its name, type and default.

    Attributes:
        description: its meaning.
        example: a value that the documentation shows.
        limits: the limits that the operation checks, in the words of JSON Schema: ``{"minimum": 0}``.
        only_with: the media types of the bodies that the parameter goes with; None: any request.
    """

    description: str | None = None
    example: Any = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    only_with: Sequence[str] | None = None


@dataclass(frozen=True)
class Declared:
    """A parameter of a route, made by `declared_by`."""

    name: str
    about: Parameter
    in_path: bool
    required: bool
    repeatable: bool
    read: Callable[[str, str], Any]
    schema: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """Return the parameter as OpenAPI describes it."""
        made: dict[str, Any] = {"name": self.name, "in": "path" if self.in_path else "query"}
        if self.required:
            made["required"] = True
        if self.about.description is not None:
            made["description"] = self.about.description
        made["schema"] = {**self.schema, **self.about.limits}
        if self.repeatable:
            made |= {"style": "form", "explode": True}
        if self.about.example is not None:
            made["example"] = self.about.example
        return made


class Parser:
    """Reads a query string by its declarations."""

    def __init__(self, parameters: Iterable[Declared]) -> None:
        self._declared = {each.name: each for each in parameters}
        self._required = tuple(name for name, each in self._declared.items() if each.required)
        self._taken = ", ".join(self._declared) or "no parameters with this body"

    def parse(self, query_string: bytes) -> dict[str, Any]:
        """Return the values of the parameters that are given.

        Raises:
            InvalidArgument: a parameter is unknown, missing, given twice, or has a wrong value.
        """
        given: dict[str, Any] = {}
        for part in query_string.decode("latin-1").split("&"):
            if not part:
                continue
            name, _, value = part.partition("=")
            if "%" in part or "+" in part:
                name, value = unquote_plus(name), unquote_plus(value)
            declared = self._declared.get(name)
            if declared is None:
                raise InvalidArgument(f"{name[:80]!r} is unknown; this path takes {self._taken}", field=name)
            if declared.repeatable:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise InvalidArgument(f"{name} is given twice", field=name)
            else:
                given[name] = declared.read(value, name)
        for name in self._required:
            if name not in given:
                raise InvalidArgument(f"{name} is missing", field=name)
        return given


def declared_by(handler: Callable[..., Any], path: str) -> Sequence[Declared]:
    """Read the declarations from a handler's signature: its arguments that are annotated with a `Parameter`.

    The arguments that the path names come first.
    """
    found = []
    arguments = signature(handler).parameters
    for name, hint in get_type_hints(handler, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        kind, about = get_args(hint)
        default, in_path = arguments[name].default, f"{{{name}}}" in path
        required = default is arguments[name].empty
        read, schema = _KINDS[_without_none(kind)]
        if not required and default not in (None, ()):
            schema = {**schema, "default": default}
        found.append(Declared(name, about, in_path, required, schema["type"] == "array", read, schema))
    return sorted(found, key=lambda each: not each.in_path)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, UnionType):
        return kind
    (inner,) = (each for each in get_args(kind) if each is not NoneType)
    return inner


def _text(value: str, name: str) -> str:
    return value


def _int64(value: str, name: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise InvalidArgument(f"{name} must be an integer, not {value[:40]!r}", field=name)
    return integer(int(value), name)


def _flag(value: str, name: str) -> bool:
    if value not in ("true", "false"):
        raise InvalidArgument(f"{name} must be true or false, not {value[:40]!r}", field=name)
    return value == "true"


_KINDS: Mapping[Any, tuple[Callable[[str, str], Any], Mapping[str, Any]]] = {
    str: (_text, {"type": "string"}),
    int: (_int64, {"type": "integer", "format": "int64"}),
    bool: (_flag, {"type": "boolean"}),
    Sequence[str]: (_text, {"type": "array", "items": {"type": "string"}}),
}
