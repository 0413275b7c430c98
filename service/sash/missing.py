"""Answers that lack the part of shards that are away, where the caller allows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sash_engine.errors import InvalidArgument

__all__ = ["MISSING", "allowing"]

MISSING: ContextVar[set[int] | None] = ContextVar("missing shards", default=None)
"""Where a question notes the shards that its answer lacks; None: it must lack none."""


@contextmanager
def allowing(partial: str) -> Iterator[set[int]]:
    """Ask a question as the caller wants it; yield the shards that the answer lacks.

    Args:
        partial: `allow`, or empty.

    Raises:
        InvalidArgument: it is something else.
    """
    if partial not in ("", "allow"):
        raise InvalidArgument(f"partial is allow, or is not there, not {partial[:40]!r}", field="partial")
    missing: set[int] = set()
    token = MISSING.set(missing if partial else None)
    try:
        yield missing
    finally:
        MISSING.reset(token)
