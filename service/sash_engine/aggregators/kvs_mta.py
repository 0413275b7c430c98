"""KVS-LMTA and KVS-AMTA: monoid tree aggregators with O(log n) partials in memory and the rest in a key-value store.

    level 3              [ head ..... tail ]          local: for every level the chunk that its head is in and
    level 2         [ head ][··][ tail ]              the one that its tail is in, and AMTA's stack
    level 1      [ head ][··][··][··][ tail ]
    level 0   [ head ][··][··][··][··][··][ tail ]    [··] full chunks in between: in the store

They are `log_mta.py` and `amta.py` with other level queues. Inserts write at the tails; evictions and queries read at
the heads and tails. A chunk is written once when it is full, read once when the head reaches it, and deleted. A bulk
eviction fetches all the heads that it needs in one round trip. Only a descent into the middle (to evict by time or by
policy, or for a range) reads chunks there: O(log n) round trips.

>>> from sash_engine.aggregators.level_queues import DictStore
>>> from sash_engine.monoids import Sum
>>> store = DictStore()
>>> window = KvsAMTA(Sum("int64"), store=store, chunk=4)
>>> for time in range(1000):
...     window.insert(time, time)
>>> window.local, len(store)
(56, 492)
>>> window.bulk_evict(499), window.query(), len(store)
(500, 374750, 244)

Time: as LMTA and AMTA, and 2 / chunk writes and reads per entry.  Space: O(chunk · log n) partials local, at most 2n
stored.
Requires: associativity.  Order: in order only; equal times combine (old ∘ new).
Source: Villalba, Berral, Carrera, TPDS 2019, the variants of MTA over a key-value store.  Differs: the store's values
are chunks of nodes, see `level_queues.py`.
"""

from __future__ import annotations

from sash_engine.aggregators.amta import AMTA
from sash_engine.aggregators.level_queues import DictStore, KeyValueStore, StoredLevels
from sash_engine.aggregators.log_mta import LogMTA
from sash_engine.monoids.base import Monoid


class KvsLogMTA(LogMTA):
    """A `LogMTA` with the middle of its levels in a store.

    Args:
        monoid: the aggregate.
        store: for full chunks, of this window alone; a dict by default.
        chunk: nodes per chunk, even.

    Raises:
        InvalidArgument: `chunk` is not an even integer from 2 on.
    """

    algorithm = "kvs_log_mta"

    def __init__(self, monoid: Monoid, *, store: KeyValueStore | None = None, chunk: int = 16) -> None:
        super().__init__(monoid, levels=StoredLevels(DictStore() if store is None else store, chunk))


class KvsAMTA(AMTA):
    """An `AMTA` with the middle of its levels in a store.

    Args:
        monoid: the aggregate.
        store: for full chunks, of this window alone; a dict by default.
        chunk: nodes per chunk, even.

    Raises:
        InvalidArgument: `chunk` is not an even integer from 2 on.
    """

    algorithm = "kvs_amta"

    def __init__(self, monoid: Monoid, *, store: KeyValueStore | None = None, chunk: int = 16) -> None:
        super().__init__(monoid, levels=StoredLevels(DictStore() if store is None else store, chunk))
