"""LMTA and AMTA, with their levels in memory and in a key-value store."""

from functools import partial
from itertools import product
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators.amta import AMTA
from sash_engine.aggregators.kvs_mta import KvsAMTA, KvsLogMTA
from sash_engine.aggregators.level_queues import DictStore, MemoryQueue, StoredLevels
from sash_engine.aggregators.log_mta import LogMTA, decompose
from sash_engine.errors import FailedPrecondition, InvalidArgument, Unsupported
from sash_engine.monoids import Collect, Max, Sum
from tests.support.aggregator_lockstep import WITNESSES, AggregatorLockstep, Counted

WINDOWS = [
    pytest.param(LogMTA, id="log_mta"),
    pytest.param(AMTA, id="amta"),
    pytest.param(partial(KvsLogMTA, chunk=2), id="kvs_log_mta-2"),
    pytest.param(partial(KvsAMTA, chunk=2), id="kvs_amta-2"),
    pytest.param(partial(KvsLogMTA, chunk=6), id="kvs_log_mta-6"),
    pytest.param(partial(KvsAMTA, chunk=16), id="kvs_amta-16"),
]
BOTH = pytest.mark.parametrize("window", [LogMTA, AMTA])


# -------------------------------------------------------------------- histories


def step(pair, action, number):
    """Do one action; `number` says how many, or where in percent of the entries."""
    times = pair.times
    newest = times[-1] if times else 0
    at = times[(len(times) - 1) * number // 100] if times else 0
    if action == "append":
        pair.insert(*range(newest + 1, newest + 1 + number // 4))
    elif action == "leap":
        pair.insert(newest + 1 + number)
    elif action == "again" and times:
        pair.insert(newest)
    elif action == "evict":
        for _ in range(number // 8):
            pair.evict()
    elif action == "bulk_evict":
        pair.bulk_evict(at)
    elif action == "bulk_evict between":
        pair.bulk_evict(at - 1)
    elif action == "range_query":
        pair.range_query(at - number % 3, at + number)


ACTIONS = ["append", "append", "leap", "again", "evict", "bulk_evict", "bulk_evict between", "range_query"]
HISTORIES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 100)), max_size=25)


@pytest.mark.parametrize("make", WINDOWS)
@given(history=HISTORIES, witness=st.sampled_from(sorted(WITNESSES)))
def test_random_histories(make, history, witness):
    pair = AggregatorLockstep(make, WITNESSES[witness]())
    for action, number in history:
        step(pair, action, number)


@pytest.mark.parametrize("make", WINDOWS)
def test_every_short_history(make):
    """Seven actions: a new time, the youngest time again, evict one, or evict all but one."""

    def play(pair, action):
        if action == "insert":
            pair.insert((pair.times[-1] if pair.times else 0) + 1)
        elif action == "again" and pair.times:
            pair.insert(pair.times[-1])
        elif action == "evict":
            pair.evict()
        elif len(pair.times) > 1:
            pair.bulk_evict(pair.times[-2])

    for actions in product(["insert", "again", "evict", "all but one"], repeat=6):
        pair = AggregatorLockstep(make)
        pair.checked = False
        for action in ("insert", "insert", "insert", *actions):
            play(pair, action)
        pair.check()


@pytest.mark.parametrize("make", WINDOWS)
def test_every_window_of_a_stream(make):
    """All pairs (entries that came, entries that left), one at a time and at once; every range in some of them."""
    for size in range(14):
        single, bulk = AggregatorLockstep(make), AggregatorLockstep(make)
        single.insert(*range(size))
        for gone in range(size):
            single.evict()
            bulk = AggregatorLockstep(make)
            bulk.begin(range(size))
            bulk.bulk_evict(gone)
            bulk.insert(size, size + 1, size + 2)
            if size % 5 == 2:
                for start, end in product(range(gone, size + 4), repeat=2):
                    bulk.range_query(start, end)


@pytest.mark.parametrize("make", WINDOWS)
def test_refusals_change_nothing(make):
    window = make(Collect("int64"))
    with pytest.raises(FailedPrecondition):
        window.evict()
    window.insert(5, 1)
    window.insert(7, 2)
    with pytest.raises(Unsupported, match="time 6") as error:
        window.insert(6, 3)
    assert (error.value.field, error.value.limit) == ("time", "7")
    with pytest.raises(Unsupported, match="oldest"):
        window.evict(7)
    with pytest.raises(Unsupported):
        window.bulk_insert([(8, 1)])
    window.check_invariants()
    assert window.query() == [1, 2]
    window.evict(5)
    assert window.query() == [2]


# -------------------------------------------------------------------- slide policies


def filled(make, monoid, values):
    window = make(monoid)
    for time, value in enumerate(values):
        window.insert(time, value)
    return window


@pytest.mark.parametrize("make", WINDOWS)
def test_the_newest_values_whose_sum_is_at_most_ten(make):
    """The running example of the paper, with the maximum beside it."""
    values = [3, 1, 4, 1, 5, 2, 6, 1, 9, 1, 0, 10, 11, 1, 2, 3, 4]
    window, greatest = make(Sum("int64")), make(Max("int64"))
    for time, value in enumerate(values):
        window.insert(time, value)
        greatest.insert(time, value)
        window.evict_until(lambda total, old: total - old <= 10)
        if window.oldest is None:
            greatest.bulk_evict(time)
        else:
            greatest.bulk_evict(window.oldest - 1)
        kept = []
        for earlier in reversed(values[: time + 1]):
            if sum(kept) + earlier > 10:
                break
            kept.append(earlier)
        assert (len(window), window.query(), greatest.query()) == (len(kept), sum(kept), max(kept, default=None))
        window.check_invariants()


@pytest.mark.parametrize("make", WINDOWS)
def test_what_precedes_the_maximum_leaves(make):
    values = [2, 7, 1, 8, 2, 8, 1, 8, 2]
    window = filled(make, Max("int64"), values)
    assert window.evict_while(lambda total, old: old < total) == 3
    assert (window.query(), window.oldest) == (8, 3)
    assert window.evict_while(lambda total, old: old < total) == 0


@pytest.mark.parametrize("make", WINDOWS)
@given(size=st.integers(0, 70), gone=st.integers(0, 40), threshold=st.integers(-1, 75))
def test_policies_find_the_boundary(make, size, gone, threshold):
    """The longest prefix of at most, and the shortest of at least, so many entries."""
    window = filled(make, Collect("int64"), range(size))
    gone = min(gone, size)
    for _ in range(gone):
        window.evict()
    left = list(range(gone, size))
    evicted = window.evict_while(lambda total, old: len(old) <= threshold)
    assert evicted == min(max(threshold, 0), len(left))
    left = left[evicted:]
    evicted = window.evict_until(lambda total, old: len(old) >= threshold // 2)
    assert evicted == min(max(threshold // 2, 0), len(left))
    left = left[evicted:]
    assert window.query() == left
    window.check_invariants()


@BOTH
def test_a_policy_is_evaluated_a_logarithm_of_times(window):
    for size in (100, 1000, 10_000):
        filled_window = filled(window, Sum("int64"), [1] * size)
        for target in (0, 1, size // 3, size // 2, size - 5):
            calls = 0

            def keeps(total, old, target=target):
                nonlocal calls
                calls += 1
                return old <= target

            assert filled_window._longest_prefix(keeps) == target
            assert calls <= 3 * log2(size) + 2


# -------------------------------------------------------------------- cost


def slide(window, size, rounds):
    """Fill to `size` entries, then insert, evict and query in turn; combines per operation, average and worst."""
    counted = Counted(window, range(size))
    costs = {"insert": [], "evict": [], "query": []}
    for time in range(size, size + rounds):
        costs["insert"].append(counted.combines("insert", time, 1))
        costs["evict"].append(counted.combines("evict"))
        costs["query"].append(counted.combines("query"))
    return {name: (sum(cost) / rounds, max(cost)) for name, cost in costs.items()}


@pytest.mark.parametrize("size", [2**6, 2**9, 2**12])
def test_lmta_costs(size):
    costs = slide(LogMTA, size, 2 * size)
    assert costs["insert"][0] <= 1
    assert costs["insert"][1] <= log2(size) + 1
    assert costs["evict"] == (0, 0)
    assert costs["query"][1] <= 2 * log2(size)
    assert costs["query"][0] > log2(size) / 2


@pytest.mark.parametrize("size", [2**6, 2**9, 2**12])
def test_amta_costs(size):
    costs = slide(AMTA, size, 2 * size)
    assert costs["insert"][0] <= 2
    assert costs["insert"][1] <= log2(size) + 2
    assert costs["evict"][0] <= 1
    assert costs["evict"][1] <= 2 * log2(size)
    assert costs["query"][1] <= 2


@BOTH
def test_a_bulk_eviction_costs_a_logarithm(window):
    size = 2**13
    for count in (1, 10, 100, 1000, size // 2, size - 2):
        counted = Counted(window, range(size))
        for _ in range(min(3, size // count)):
            assert counted.combines("bulk_evict", counted.window.oldest + count - 1) <= 2 * log2(size)


@BOTH
def test_a_range_costs_a_logarithm(window):
    size = 2**13
    counted = Counted(window, range(size))
    for start, end in ((0, size), (17, 4999), (8000, 8100), (size - 1, size - 1)):
        assert counted.combines("range_query", start, end) <= 2 * log2(size)


def test_decompose_covers_with_few_nodes():
    for first in range(40):
        for last in range(first, 40):
            places = decompose(first, last)
            covered = [entry for level, at in places for entry in range(at << level, (at + 1) << level)]
            assert covered == list(range(first, last))
            assert len(places) <= max(1, 2 * log2(last - first + 1))


@given(
    actions=st.lists(st.tuples(st.sampled_from(["append", "drop", "leap"]), st.integers(0, 12)), max_size=40),
    chunk=st.sampled_from([2, 4, 10]),
)
def test_stored_and_memory_queues_agree(actions, chunk):
    memory, stored = MemoryQueue(3), StoredLevels(DictStore(), chunk).add(3)
    reference = {}
    for action, number in actions:
        if action == "append":
            for _ in range(number):
                reference[memory.tail] = (memory.tail, object())
                for queue in (memory, stored):
                    queue.append(reference[queue.tail])
        else:
            head = memory.head + number
            head = min(head, memory.tail) if action == "drop" else head
            memory.drop(head)
            stored.drop(head)
        assert (memory.head, memory.tail) == (stored.head, stored.tail)
        for index in range(memory.head, memory.tail):
            assert memory[index] is reference[index]
            assert stored[index] is reference[index]


def test_a_memory_queue_shrinks_again():
    queue = MemoryQueue()
    for time in range(10_000):
        queue.append((time, time))
    queue.drop(9_990)
    for time in range(10_000, 10_030):
        queue.append((time, time))
    assert len(queue._slots) <= 256
    assert [queue[index][0] for index in range(queue.head, queue.tail)] == list(range(9_990, 10_030))


# -------------------------------------------------------------------- where the nodes are


STORED = pytest.mark.parametrize("window", [KvsLogMTA, KvsAMTA])


class Watched(DictStore):
    """Counts the chunks that are read, and how often the same one is."""

    def __init__(self):
        super().__init__()
        self.read = []

    def get_many(self, keys):
        self.read += keys
        return super().get_many(keys)


@STORED
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


@STORED
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


@STORED
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


@STORED
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
