"""The memory of one expression.

    a + (b + (c + d))      a and b wait: they are held
              └── in progress: promised, because what it makes is not there yet

What an expression makes is bounded as it grows: a vector by `values`, what waits and what is in progress here, and the
text of the answer by `documents`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sash.limits.memory import MemoryBudget
from sash.prometheus.errors import Refused
from sash.prometheus.values import Value, bytes_of

__all__ = ["HELD_BYTES_MAX", "Room"]

HELD_BYTES_MAX = 128 * 2**20
"""Bytes of the parts of an expression that wait for others: seven vectors of `CELLS_MAX` values."""

_SMALL_BYTES = 2**20
"""Less is not counted: it would cost as much as to make it."""


class Room:
    """What one expression takes.

    Args:
        memory: of the service.
    """

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._held_bytes = 0

    @contextmanager
    def held(self, value: Value) -> Iterator[None]:
        """Count a value that waits inside the `with` block.

        Raises:
            Refused: too much waits.
        """
        size = bytes_of(value)
        if self._held_bytes + size > HELD_BYTES_MAX:
            raise Refused(
                f"the parts of the expression that wait for others take more than {HELD_BYTES_MAX >> 20} MiB; narrow "
                "the selectors, make the step longer, or ask for the parts one by one",
                field="query",
                limit=f"{HELD_BYTES_MAX} bytes",
            )
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size

    @contextmanager
    def promised(self, needed: int) -> Iterator[None]:
        """Promise so many bytes inside the `with` block, in which they are made.

        Raises:
            ResourceExhausted: the service has no room for them now.
            TooLarge: it never has.
        """
        if needed < _SMALL_BYTES:
            yield
            return
        self._memory.check(needed, transient=True)
        with self._memory.promised(needed):
            yield
