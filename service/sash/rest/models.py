"""Typed models of parameters, bodies and answers, and what callers are told who send something else.

    query string ──▶ Parameters.read ──┐
    body ──────────▶ Document.read ────┴──▶ an instance, or InvalidArgument: the path of the first value that is wrong

FastAPI describes the models in the OpenAPI document. A limit that the operation checks is only described here
(`Field(json_schema_extra=…)`). Models of answers are only described: answers are written from columns, without them.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, ClassVar, Self, TypeVar
from urllib.parse import unquote_plus

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    Strict,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema

from sash.rest.scalars import INT64_RANGE, TICK_MAX, TICK_MIN, NowNs, integer, kind_of, tick
from sash_engine.errors import InvalidArgument
from sash_wire.meant import instead, near

P = TypeVar("P", bound="Parameters")

INT64 = {"type": "integer", "format": "int64"}

_INTEGER = re.compile(r"-?[0-9]{1,40}")
_WANTED = {
    "int_type": "an integer",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
}
"""What a value must be, by the type of pydantic's error."""


def _integer(value: str) -> int | str:
    return int(value) if _INTEGER.fullmatch(value) else value


def _flag(value: str) -> bool | str:
    return value == "true" if value in ("true", "false") else value


_READERS: Mapping[Any, Callable[[str], Any]] = {str: str, int: _integer, bool: _flag}
"""What a text in a query string is in JSON, by type; one that is none stays a text, and is refused."""


class _AsInt64:
    """Describes an integer as an int64, in place of the bounds that it has."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        made = handler(core)
        return {name: each for name, each in made.items() if each not in (TICK_MIN, TICK_MAX)} | INT64


ABSENT: Any = None
"""The default of a member that may be left out, but is never null."""

Int64 = Annotated[int, Field(strict=True, ge=TICK_MIN, le=TICK_MAX), _AsInt64()]
Texts = Annotated[tuple[str, ...], Strict(False)]
"""A parameter that may be repeated."""
Instant = Annotated[int | str, WithJsonSchema({"type": ["integer", "string"]})]
"""A time in an answer: ticks, or a text where that was asked for."""
NullableInstant = Annotated[int | str | None, WithJsonSchema({"type": ["integer", "string", "null"]})]
NullableText = Annotated[str | None, WithJsonSchema({"type": ["string", "null"]})]


class _IsTime:
    """Marks a member that is a time, and describes it."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core) | {"anyOf": [INT64, {"type": "string"}]}


def _time(value: Any, info: ValidationInfo) -> Any:
    # Texts are read when the window's unit is known.
    return integer(value, str(info.field_name)) if type(value) is int else value


Time = Annotated[Any, PlainValidator(_time), _IsTime()]
"""Ticks of the window; or a text that `sash_wire.times` reads, in whose place `with_times` has the ticks."""


class Described(BaseModel):
    """A model that is described in the OpenAPI document; docstrings below its members describe them.

    pydantic could read the docstrings where a class is made, but it parses the source, which is a tenth of a start.
    """

    time_members: ClassVar[tuple[str, ...]] = ()
    """The members that are times."""

    @classmethod
    def __pydantic_init_subclass__(cls, **given: Any) -> None:
        cls.time_members = tuple(
            [name for name, field in cls.model_fields.items() if any(type(each) is _IsTime for each in field.metadata)]
        )

    @cached_property
    def has_times_to_read(self) -> bool:
        """Whether a time is given as anything but ticks."""
        given = self.model_fields_set
        return any(type(getattr(self, name)) is not int for name in self.time_members if name in given)

    def with_times(self, unit: str, now_ns: NowNs) -> Self:
        """The same with ticks in the place of times.

        Args:
            unit: of the window's time.
            now_ns: tells wall time.

        Raises:
            InvalidArgument: one of them is no time.
        """
        given = [name for name in self.time_members if name in self.model_fields_set]
        return self.model_copy(update={name: tick(getattr(self, name), name, unit, now_ns) for name in given})

    @classmethod
    def describe(cls) -> None:
        """Read the docstrings below the members of the models that are derived from this one."""
        for model in cls.__subclasses__():
            for name, field in model.model_fields.items():
                owner = next(base for base in model.__mro__ if name in vars(base).get("__annotations__", ()))
                field.description = field.description or _docstrings(owner).get(name)
            model.describe()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        made = handler(core)
        for name, member in handler.resolve_ref_schema(made).get("properties", {}).items():
            if (text := cls.model_fields[name].description) is not None:
                member["description"] = text
        return made


class Answered(Described):
    """An answer. Its validator is built when it is used, which only tests do."""

    model_config = ConfigDict(defer_build=True)


class Parameters(Described):
    """The parameters of a route, in its query string. Requests with the same query string share an instance."""

    model_config = ConfigDict(strict=True, frozen=True)

    not_with: ClassVar[str | None] = None
    """The media type of bodies that have these as members; the parameters are unknown beside them."""
    readers: ClassVar[Mapping[str, Callable[[str], Any] | None]] = {}
    """What a text is in JSON, by name. None: the parameter may be repeated."""

    @classmethod
    def __pydantic_init_subclass__(cls, **given: Any) -> None:
        super().__pydantic_init_subclass__(**given)
        cls.readers = {
            name: _integer if name in cls.time_members else _READERS.get(field.annotation)
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def read(cls, query_string: bytes, kind: str | None = None) -> Self:
        """Return the parameters that are given, and the defaults of the others.

        Args:
            kind: the media type of the request's body.

        Raises:
            InvalidArgument: a parameter is unknown, missing, given twice, or has a wrong value.
        """
        return _kept(cls, query_string, kind) if len(query_string) <= _KEPT_BYTES else cls._read(query_string, kind)

    @classmethod
    def _read(cls, query_string: bytes, kind: str | None) -> Self:
        given: dict[str, Any] = {}
        readers = cls.readers if kind is None or kind != cls.not_with else {}
        for part in query_string.decode("latin-1").split("&"):
            if not part:
                continue
            name, _, value = part.partition("=")
            if "%" in part or "+" in part:
                name, value = unquote_plus(name), unquote_plus(value)
            if name not in readers:
                raise _unknown(name, readers, "no parameters with this body")
            read = readers[name]
            if read is None:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise InvalidArgument(f"{name} is given twice", field=name)
            else:
                given[name] = read(value)
        try:
            return cls.__pydantic_validator__.validate_python(given)  # type: ignore[no-any-return]
        except ValidationError as error:
            raise _first_wrong(error, lambda value: repr(value[:40])) from None


_KEPT, _KEPT_BYTES = 1024, 256
"""So many query strings, of so many bytes at most, are not read again: clients ask the same many times. To read that of
a query, and to make its question, takes 7 µs, and to find both 0.6."""


@lru_cache(_KEPT)
def _kept(model: type[P], query_string: bytes, kind: str | None) -> P:
    return model._read(query_string, kind)


class Document(Described):
    """A body that is a JSON object with declared members, and no others. It does not depend on a window's spec."""

    model_config = ConfigDict(extra="forbid", strict=True)

    bytes_max: ClassVar[int | None] = None
    """A limit below `SASH_MAX_BODY_BYTES`."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the checked members of a document.

        Raises:
            InvalidArgument: a member is unknown, missing or of the wrong type.
        """
        for name in document:  # pydantic would list them all, and there may be millions
            if name not in cls.model_fields:
                raise _unknown(name, cls.model_fields)
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise _first_wrong(error, kind_of) from None


@cache
def _docstrings(model: type) -> dict[str, str]:
    """What stands below the members of a class, by name."""
    body = ast.parse(dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        member.target.id: inspect.cleandoc(below.value.value)
        for member, below in pairwise(body.body)
        if isinstance(member, ast.AnnAssign)
        and isinstance(member.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def shown(*examples: Any) -> ConfigDict:
    """Return the configuration of a model with examples."""
    return ConfigDict(json_schema_extra={"examples": list(examples)})


def _unknown(name: str, known: Collection[str], none: str = "nothing") -> InvalidArgument:
    way = "; a part of keys goes into where: where=NAME=VALUE" if "where" in known and near(name, known) is None else ""
    taken = instead(name, known or [none], "this path takes")
    return InvalidArgument(f"{name[:80]!r} is unknown{taken}{way}", field=name)


def _first_wrong(error: ValidationError, said: Any) -> InvalidArgument:
    """The first value that is wrong, with its path.

    Args:
        said: says what a value of another type is.
    """
    found = error.errors(include_url=False)[0]
    name, *inside = found["loc"]
    path, kind, value = str(name) + "".join(f"[{i}]" for i in inside), found["type"], found["input"]
    if kind == "missing":
        return InvalidArgument(f"{path} is missing", field=path)
    if kind not in _WANTED:  # the bounds of Int64
        return InvalidArgument(f"{path} {value} is out of range", field=path, limit=INT64_RANGE)
    if isinstance(value, float) and kind == "int_type" and abs(value) >= -TICK_MIN:
        # The parser makes a float of an integer of more than 64 bits.
        return InvalidArgument(f"{path} is out of range", field=path, limit=INT64_RANGE)
    return InvalidArgument(f"{path} must be {_WANTED[kind]}, not {said(value)}", field=path)
