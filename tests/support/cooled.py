"""A forest whose blocks are in a tier, and the number of loads."""

import numpy as np

from sash_engine.forest import Cache, Cold, Forest, Layout
from sash_engine.monoids import Max, Sum
from tests.support.cold_model import Tier
from tests.support.forest_model import same

FIELDS = {"value": "float64"}
AGGREGATES = {"sum": (Sum(), ["value"]), "max": (Max(), ["value"])}


class Cooled:
    """A forest of 0..n, one entry a tick, all blocks stored and none in memory; `loads` has the ids since then."""

    def __init__(self, n=1000, block=10, aggregates=AGGREGATES, budget=10**9):
        self.tier, self.cache = Tier(), Cache(budget)
        self.cold = Cold(self.tier.load, self.cache)
        self.forest = Forest(Layout(FIELDS, aggregates, block), self.cold)
        self.forest.bulk_insert(np.arange(n), [np.arange(n) * 1.0])
        self.cool()

    def cool(self):
        """Store all; the next loads count from here."""
        blocks = self.forest.pending_blocks()
        self.cold.landed([(block, self.tier.store(block)) for block in blocks])
        budget, self.cache.budget_bytes = self.cache.budget_bytes, 0
        self.cache.trim()
        self.cache.budget_bytes = budget
        self.tier.calls.clear()

    @property
    def loads(self):
        return [sorted(call) for call in self.tier.calls]

    def checked(self):
        self.forest.check_invariants(lambda monoid, a, b: same(a, b))


def forest_of(aggregates, cold, block=4, **fields):
    return Forest(Layout(fields or FIELDS, aggregates, block), cold)
