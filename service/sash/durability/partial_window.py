"""A stored window that is read without its damaged values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sash.durability.stored_window import StoredWindow
from sash_engine.errors import DataLoss
from sash_engine.forest import Forest, Layout
from sash_engine.forest.cold import Cold
from sash_engine.forest.image import ForestImage
from sash_engine.windows.batch import AnyBatch
from sash_engine.windows.ledger import Part

__all__ = ["PartialWindow"]


class PartialWindow(StoredWindow):
    """A window that is read without its damaged values.

    Attributes:
        blocks_left_out: by block, the entries that the window lacks, in the order in which the blocks were found.
        parts_left_out: the same by staged part.
    """

    def reads_only(self, whole: set[int], unbound: set[int], unowned: set[int]) -> None:
        """Say which blocks and partials are whole, which of them are of format 1, and which name no store.

        Call it before `recover`.
        """
        self._whole, self._unbound, self._unowned = whole, unbound, unowned
        self.blocks_left_out: dict[int, int] = {}
        self.parts_left_out: dict[int, int] = {}

    @property
    def misplaced(self) -> set[int]:
        """Blocks of earlier formats in places where none can be."""
        return set(filter(self.manifest.block_is_bound, self._unbound)) | (
            self._unowned if self.manifest.owned else set()
        )

    def recover(self, older: bool = False, owned: bool = True) -> None:
        """Recover it as `StoredWindow.recover` does. Its counts are as if the damaged blocks were evicted."""
        super().recover(older, owned)
        for window in (self.window, *self.window.cascades):
            counts, keys = window.counts, window.keys
            counts.evicted += counts.present - int(keys.entries_each(keys.numbers()).sum())

    def _forest(self, layout: Layout, cold: Cold, made_of: ForestImage) -> Forest:
        entries = layout.entries_of(made_of.counts, made_of.partials)
        image, lacks, refolded = made_of.only(self._whole - self.misplaced)
        numbers = made_of.ids[lacks].tolist()
        self.blocks_left_out |= dict(zip(numbers, np.asarray(entries[lacks], np.int64).tolist(), strict=True))
        forest = super()._forest(layout, cold, image)
        forest.refold(refolded)
        return forest

    def _payloads(self, parts: Sequence[Part]) -> Iterator[Any]:
        """Yield what staged parts are read from, without those that are damaged or missing."""
        for part in parts:
            try:
                yield from super()._payloads([part])
            except DataLoss:
                self.parts_left_out[part.number] = part.entries

    def staged(self) -> Iterator[tuple[str, Part, AnyBatch]]:
        """Iterate over the staged parts that are not committed: token, part and entries."""
        for token, part in self.window.ledger.parts.items():
            for batch in self.read_parts([part]):
                yield token, part, batch
