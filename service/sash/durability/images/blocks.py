"""The stored blocks of one window: sealed blocks of columns, and large partials.

forest ── PendingBlock ──▶ number ──▶ journal, in the background ──▶ tier: block(w, 1), block(w, 2), …
forest ◀── columns ◀── load ◀──────────────────────────────────────── tier
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sash.durability import formats as values
from sash.durability.images.manifest import Manifest
from sash.durability.journal.group_commit import BackgroundWrite
from sash.durability.journal.journal import CHUNK_BYTES
from sash.durability.journal.session import STORING, TierSession
from sash.durability.records.columns import sealed_from, sealed_to
from sash_engine.errors import DataLoss
from sash_engine.forest import Layout
from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.monoids.base import Array

_BLOCK_MORE = 1024  # bytes that a tier needs for a block beside its columns, about


class BlockStore:
    """Loads and saves the blocks of one window.

    Args:
        session: the tier.
        manifest: gives blocks their numbers.
        name: name of the window, for errors.
        layout: returns the window's layout; aggregates may be added to it.

    Attributes:
        cold: what the forests of the window know of stored blocks.
    """

    def __init__(self, session: TierSession, manifest: Manifest, name: str, layout: Callable[[], Layout]) -> None:
        self._session, self._manifest, self._name, self._layout = session, manifest, name, layout
        self.cold = Cold(self.load, session.cache, self.load_as)
        self._pending: list[PendingBlock] = []  # with a number, and not handed to the journal yet
        self._pending_bytes = 0
        self._closed = False

    def load(self, numbers: Sequence[int]) -> list[list[Array]]:
        """Return the columns of blocks, in one round trip; raises DataLoss, and Unavailable as the tier does."""
        return self.load_as(numbers, self._layout())

    def load_as(self, numbers: Sequence[int], layout: Layout) -> list[list[Array]]:
        """As `load`, of blocks with another layout."""
        window = self._manifest.window
        found = self._session.tier.get_many([values.block_key(window, number) for number in numbers])
        blocks = []
        for number, data in zip(numbers, found, strict=True):
            what = f"block {number} of window {self._name!r}"
            key = values.block_key(window, number)
            try:
                bound, owned = self._manifest.block_is_bound(number), self._manifest.owned
                payload = values.unseal("block", data, what, key, bound, self._session.store, owned)
                blocks.append(sealed_from(payload, layout))
            except DataLoss as error:
                self._session.report_damage(what, error)
                raise
        return blocks

    def save(self, blocks: Sequence[PendingBlock]) -> None:
        """Number blocks, and hand them to the journal in chunks of a few MiB. Call `flush` for the last chunk.

        Raises:
            OutOfRoom: the tier has no space for them. Nothing has changed.
        """
        if not blocks:
            return
        size = sum(block.nbytes + _BLOCK_MORE for block in blocks)
        self._session.check_room(self._pending_bytes + size, STORING)
        for block in blocks:
            block.stored = self._manifest.take_block_number()
            self._pending.append(block)
            self._pending_bytes += block.nbytes
            if self._pending_bytes >= CHUNK_BYTES:
                self.flush()

    def flush(self) -> None:
        """Hand the rest of the saved blocks to the journal."""
        blocks, size = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if blocks and not self._closed:
            self._write(blocks, size)

    def _write(self, blocks: Sequence[PendingBlock], size: int) -> None:
        numbered = [(block, block.stored or 0) for block in blocks]
        window, layout, store = self._manifest.window, self._layout(), self._session.id

        def puts() -> Mapping[bytes, bytes]:
            made = {}
            for block, number in numbered:
                key = values.block_key(window, number)
                made[key] = values.seal("block", sealed_to(block, block.layout or layout), key, store)
            return made

        def landed() -> None:
            self.cold.landed(numbered)
            self._session.cache.trim()

        self._session.journal.background(BackgroundWrite(puts, size=size, done=landed))

    def close(self) -> None:
        """Save nothing any more, and free the memory of cached blocks."""
        self._closed = True
        # Exports may still read blocks. They need the layout, and not the window, which refers to this.
        layout = self._layout()
        self._layout = lambda: layout
        self.cold.forget()
