"""Answers that lack the part of shards that are away, where the caller allows it."""

from __future__ import annotations

from contextvars import ContextVar

from sash_engine.errors import InvalidArgument

__all__ = ["MISSING", "allowing"]

MISSING: ContextVar[set[int] | None] = ContextVar("missing shards", default=None)
"""Where a question notes the shards that its answer lacks; None: it must lack none."""


class allowing:
    """Asks a question as the caller wants it, in a `with` block; its value is the shards that the answer lacks.

    Args:
        partial: `allow`, or empty.

    Raises:
        InvalidArgument: it is something else.
    """

    __slots__ = ("_partial", "_token")

    def __init__(self, partial: str) -> None:
        if partial not in ("", "allow"):
            raise InvalidArgument(f"partial is allow, or is not there, not {partial[:40]!r}", field="partial")
        self._partial = partial

    def __enter__(self) -> set[int]:
        missing = set[int]()
        self._token = MISSING.set(missing if self._partial else None)
        return missing

    def __exit__(self, *_: object) -> None:
        MISSING.reset(self._token)
