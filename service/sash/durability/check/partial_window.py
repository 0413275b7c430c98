"""A stored window that is read without its damaged values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sash.durability.images.stored_window import StoredWindow
from sash_engine.errors import DataLoss
from sash_engine.forest import Forest
from sash_engine.forest.image import ForestImage
from sash_engine.windows.batches.batch import AnyBatch
from sash_engine.windows.batches.ledger import Part
from sash_engine.windows.window import Window


class PartialWindow(StoredWindow):
    """A window that is read without its damaged values.

    Attributes:
        blocks_left_out: by window, by block that is damaged or missing: the entries that the window lacks with it; none
            with a partial. A window is this one, one that it feeds, or a rollup of either.
        parts_left_out: by staged part, the entries that the window lacks.
        fed_less: by window that it feeds, the entries of staged parts that did not reach it.
    """

    def reads_only(self, whole: set[int], unbound: set[int], unowned: set[int]) -> None:
        """Say which blocks and partials are whole, which of them are of format 1, and which name no store.

        Call it before `recover`.
        """
        self._whole, self._unbound, self._unowned = whole, unbound, unowned
        self.blocks_left_out: dict[Window, dict[int, int]] = {}
        self.parts_left_out: dict[int, int] = {}
        self.fed_less: dict[Window, int] = {}

    @property
    def misplaced(self) -> set[int]:
        """Blocks of earlier formats in places where none can be."""
        return set(filter(self.manifest.block_is_bound, self._unbound)) | (
            self._unowned if self.manifest.owned else set()
        )

    def recover(self, older: bool = False, owned: bool = True) -> None:
        """Recover it as `StoredWindow.recover` does. Its counts are as if the damaged blocks were evicted."""
        super().recover(older, owned)
        for window in self.window.family:
            counts, keys = window.counts, window.keys
            counts.evicted += counts.present - int(keys.entries_each(keys.numbers()).sum())

    def _forest(self, window: Window, made_of: ForestImage) -> Forest:
        entries = window.layout.entries_of(made_of.counts, made_of.partials)
        there = self._whole - self.misplaced
        image, lacks, refolded = made_of.only(there)
        left_out = self.blocks_left_out.setdefault(window, {})
        left_out |= dict.fromkeys(set(made_of.numbers) - there, 0)
        left_out |= dict(zip(made_of.ids[lacks].tolist(), np.asarray(entries[lacks], np.int64).tolist(), strict=True))
        forest = super()._forest(window, image)
        forest.refold(refolded)
        return forest

    def read_together(self, parts: Sequence[Part]) -> list[AnyBatch]:
        """As of `StoredWindow`. Windows that it feeds get nothing of what is left out either."""
        before = sum(self.parts_left_out.values())
        batches = super().read_together(parts)
        less = sum(self.parts_left_out.values()) - before
        for window in self.window.derived.fed:
            self.fed_less[window] = self.fed_less.get(window, 0) + less
        return batches

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
