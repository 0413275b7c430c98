"""Documents whose members are declared once, for parsing and for OpenAPI.

These are bodies that do not depend on a window's spec. `columns` reads those that do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sash.rest.columns import member, texts
from sash.rest.scalars import flag, integer, text
from sash_engine.errors import InvalidArgument

__all__ = ["BOOL", "INT64", "KEY", "ORIGIN_MEMBERS", "STRING", "STRINGS", "WRITER", "Document", "Kind", "Member"]


@dataclass(frozen=True)
class Kind:
    """A type of JSON values: how one is checked, and its schema."""

    read: Callable[[Any, str], Any]
    schema: Mapping[str, Any]


STRING = Kind(text, {"type": "string"})
INT64 = Kind(integer, {"type": "integer", "format": "int64"})
BOOL = Kind(flag, {"type": "boolean"})
KEY = Kind(
    lambda value, path: value if type(value) is dict else text(value, path),
    {
        "description": "The key; where keys have parts also an object of these, by name.",
        "anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}],
    },
)
STRINGS = Kind(texts, {"type": "array", "items": {"type": "string"}})
WRITER = Kind(text, {"type": "string", "minLength": 1, "maxLength": 200})


@dataclass(frozen=True)
class Member:
    """A member of a document.

    Attributes:
        kind: its type.
        required: whether a document without it is refused.
        about: its description and the limits that the operation checks, in the words of JSON Schema.
    """

    kind: Kind
    required: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its values."""
        return {**self.kind.schema, **self.about}


ORIGIN_MEMBERS: Mapping[str, Member] = {
    "producer": Member(WRITER, about={"description": "With `sequence`: the write is applied once. 1 to 200 bytes."}),
    "sequence": Member(INT64, about={"minimum": 1, "description": "1, 2, 3, … for each producer, epoch and window."}),
    "epoch": Member(
        INT64,
        about={
            "minimum": 0,
            "default": 0,
            "description": "A higher one takes the producer's name over; a lower one is refused.",
        },
    ),
}
"""The members of a write that say who sends it."""


class Document:
    """A JSON object with declared members, and no others."""

    def __init__(self, members: Mapping[str, Member], description: str | None = None) -> None:
        self._members = members
        self._description = description

    def read(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked members of a document.

        Raises:
            InvalidArgument: a member is unknown, missing or of the wrong type.
        """
        for name in document:
            if name not in self._members:
                takes = ", ".join(self._members)
                raise InvalidArgument(f"{name[:80]!r} is unknown; this path takes {takes}", field=name)
        return {
            name: each.kind.read(member(document, name), name)
            for name, each in self._members.items()
            if each.required or name in document
        }

    def schema(self) -> dict[str, Any]:
        """Return the document's JSON Schema."""
        made: dict[str, Any] = {} if self._description is None else {"description": self._description}
        return made | {
            "type": "object",
            "required": [name for name, each in self._members.items() if each.required],
            "properties": {name: each.schema for name, each in self._members.items()},
            "additionalProperties": False,
        }
