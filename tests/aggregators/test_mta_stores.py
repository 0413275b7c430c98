"""Tree aggregators whose nodes are in a store."""

from __future__ import annotations

from math import log2

import pytest

from sash_engine.aggregators.kvs_mta import KvsAMTA, KvsLogMTA
from sash_engine.aggregators.level_queues import DictStore, StoredLevels
from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Sum

# -------------------------------------------------------------------- where the nodes are


class Watched(DictStore):
    """Counts the chunks that are read, and how often the same one is."""

    def __init__(self):
        super().__init__()
        self.read = []

    def get_many(self, keys):
        self.read += keys
        return super().get_many(keys)


@pytest.mark.parametrize("window", [KvsLogMTA, KvsAMTA])
def test_only_a_logarithm_of_the_partials_is_local(window):
    chunk, most = 8, []
    for size in (2**8, 2**11, 2**14):
        sliding = window(Sum("int64"), chunk=chunk)
        local = 0
        for time in range(2 * size):
            sliding.insert(time, 1)
            if time >= size:
                sliding.evict()
            if time % 8 == 0:
                assert sliding.query() == len(sliding)
                local = max(local, sliding.local)
        assert local <= 2 * chunk * (log2(size) + 1) + 2 * log2(size) + 2
        most.append(local)
    assert most[2] - most[1] <= (most[1] - most[0]) * 1.5 + chunk  # three levels more each time


@pytest.mark.parametrize("window", [KvsLogMTA, KvsAMTA])
def test_a_sliding_window_reads_each_chunk_once_at_most(window):
    store = Watched()
    sliding = window(Sum("int64"), store=store, chunk=8)
    for time in range(6000):
        sliding.insert(time, 1)
        if time >= 2000:
            sliding.evict()
            assert sliding.query() == 2000
    assert len(store.read) == len(set(store.read))
    assert len(store.read) < 4000 * 2 / 8 + 50
    assert len(store) < 2 * 2000 / 8


@pytest.mark.parametrize("window", [KvsLogMTA, KvsAMTA])
def test_heads_come_in_one_round_trip_after_a_bulk_eviction(window):
    store = DictStore()
    sliding = window(Sum("int64"), store=store, chunk=4)
    for time in range(5000):
        sliding.insert(time, 1)
    sliding._drop(1)
    assert sliding.query() == 4999
    before = store.round_trips
    sliding._drop(2222)
    assert sliding.query() == 4999 - 2222
    assert store.round_trips == before + 1


@pytest.mark.parametrize("window", [KvsLogMTA, KvsAMTA])
def test_the_store_is_left_empty(window):
    store = DictStore()
    sliding = window(Sum("int64"), store=store, chunk=4)
    for time in range(1000):
        sliding.insert(time, 1)
    assert sliding.bulk_evict(999) == 1000
    assert len(store) == 0
    for time in range(1000, 1100):
        sliding.insert(time, 1)
    while len(sliding):
        sliding.evict()
    assert len(store) == 0


@pytest.mark.parametrize("chunk", [0, 1, 3, -2, "16"])
def test_an_odd_chunk_is_refused(chunk):
    with pytest.raises(InvalidArgument, match="chunk") as error:
        StoredLevels(DictStore(), chunk)
    assert error.value.field == "chunk"
