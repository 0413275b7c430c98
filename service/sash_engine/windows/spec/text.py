"""The text of a spec, and how long it may be."""

from __future__ import annotations

from typing import Any

from sash_engine.errors import InvalidArgument, TooLarge
from sash_engine.steps import Steps
from sash_wire import documents
from sash_wire.documents import MAX_DEPTH, MAX_SPEC_BYTES
from sash_wire.errors import TooLong, WireError

__all__ = ["MAX_DEPTH", "MAX_SPEC_BYTES", "check_spec_bytes", "read_yaml"]


def check_spec_bytes(size: int, field: str = "spec") -> None:
    """Raise `TooLarge` for a spec, or aggregates, of so many bytes, in whatever form."""
    if size > MAX_SPEC_BYTES:
        raise TooLarge(f"{field} of {size} bytes is too large", field=field, limit=f"{MAX_SPEC_BYTES} bytes")


def read_yaml(text: str) -> Steps[Any]:
    """Read YAML (or JSON), in steps.

    Raises:
        InvalidArgument: it is no YAML, refers to parts of itself, has a name twice, or is nested too deep.
        TooLarge: it is longer than a spec.
    """
    try:
        return (yield from documents.read_steps(text))
    except TooLong as error:
        raise TooLarge(error.message, field=error.field, limit=error.limit) from None
    except WireError as error:
        raise InvalidArgument(error.message, field=error.field, limit=error.limit) from None
