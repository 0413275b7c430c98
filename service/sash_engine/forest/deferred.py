"""A block of which a tier has most rows, while newcomers wait in memory; see tiered.py."""

from __future__ import annotations

from sash_engine.forest.block import Block

__all__ = ["DeferredBlock"]


class DeferredBlock(Block):
    """A stored block with pending rows: only the pending rows are in memory.

    Args:
        stored_id: the id of the other rows.
    """

    __slots__ = ("stored_id",)

    def __init__(self, stored_id: int) -> None:
        super().__init__([], 0)
        self.stored_id = stored_id

    def settle(self) -> None:
        """Make one note of all notes: the stored rows are not here to sort them into."""
        newcomers = self.take_pending()
        self.defer(newcomers, 0, len(newcomers[0]))

    def pending_rows(self) -> int:
        """How many rows are here."""
        return sum(stop - start for _, start, stop in self.pending or ())
