"""A tier for the blocks of one window, in a dictionary: stores, loads and forgets them as a storage does."""

from sash.durability.formats import seal, unseal
from sash.durability.images import image, image_reader
from sash.durability.records.columns import sealed_from, sealed_to
from sash_engine.clock import ManualClock
from sash_engine.forest import Cache, Cold


class Shelf:
    """Stored blocks by id, sealed as in a tier.

    Args:
        budget: bytes of columns that stay in memory.
    """

    def __init__(self, budget=0):
        self.values = {}
        self.next = 1
        self.layout = None
        self.loads = []
        self.cold = Cold(self._load, Cache(budget))

    def _load(self, ids):
        self.loads.append(list(ids))
        return [sealed_from(unseal("block", self.values.get(i), f"block {i}"), self.layout) for i in ids]

    def store(self, window):
        """Store all sealed blocks and let go of their columns."""
        self.layout = window.layout
        blocks = window.pending_blocks()
        for block in blocks:
            block.stored = self.next
            self.values[self.next] = seal("block", sealed_to(block, self.layout))
            self.next += 1
        self.cold.landed([(block, block.stored) for block in blocks])
        self.cold.cache.trim()

    def parts(self, window):
        """An image of a window, as its parts."""
        self.store(window)
        return list(image.dump(window).encode())

    def reopened(self, parts, **options):
        """The window of an image, and a shelf of its own with what is stored here."""
        other = Shelf(self.cold.cache.budget_bytes)
        other.values, other.next = dict(self.values), self.next
        window = image_reader.restore(parts, cold=other.cold, **{"clock": ManualClock(), **options})
        other.layout = window.layout
        return window, other
