"""The entries of a window as bulks: what a range has, as of the call, whatever is written meanwhile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import DataLoss
from sash_engine.windows.batches.batch import Coded
from sash_engine.windows.questions import EntriesQuery
from sash_engine.windows.reading import entries
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.refused import refused
from tests.support.shelf import Shelf
from tests.support.twins import FIELDS, KEYS, Twins, a_share_of_examples, bulk, row, spec, steps


def rows_of(bulks, keyed=True):
    """By key, in the order in which keys come: (time, field values in order)."""
    out = {}
    for batch in bulks:
        columns = [batch.columns[name] for name in FIELDS]
        lists = [c.decode().tolist() if isinstance(c, Coded) else c.tolist() for c in columns]
        keys = batch.keys.decode().tolist() if keyed else [None] * len(batch.times)
        for key, *values in zip(keys, batch.times.tolist(), *lists, strict=True):
            out.setdefault(key, []).append(tuple(values))
    return out


def expected(window, keys, start, end, keyed=True):
    """The same from the window's columns, key by key."""
    out = {}
    for key in keys:
        number = window.keys.find(key if keyed else "")
        if number is not None:
            rows = list(zip(*(column.tolist() for column in window.keys.columns(number)), strict=True))
            inside = [r for r in rows if (start is None or r[0] >= start) and (end is None or r[0] <= end)]
            if inside:
                out[key] = inside
    return out


bounds = st.none() | st.integers(-1, 41)


@given(
    st.lists(steps, max_size=14),
    st.sampled_from(["plain", "max_age", "max_count", "last", "idle"]),
    st.booleans(),
    st.sampled_from([(2, 4), (4, 64), None]),
    st.tuples(bounds, bounds),
    st.sampled_from([1, 3, 5, 1000]),
)
@a_share_of_examples(2)
def test_entries_are_those_of_the_range_whatever_happens_afterwards(history, name, keyed, pages, span, most):
    start, end = span
    if start is not None and end is not None:
        start, end = sorted(span)
    twins = Twins(spec(name, keyed), pages)
    for step in history:
        twins.step(*step)
    key, several = (None, ALL_KEYS) if keyed else (None, ())
    windows = twins.memory, twins.stored
    wanted = expected(twins.memory, KEYS if keyed else [None], start, end, keyed)
    readers = [window.entries(start, end, key, several, rows=most) for window in windows]
    early = [[next(reader)] if wanted else [] for reader in readers]
    twins.bulk([(key, time) for key in "abcdefgh" for time in (3, 17, 38, 39)])
    twins.store(None)
    twins.evict((None, 30))
    twins.evict(("a", 40))
    for reader, first in zip(readers, early, strict=True):
        bulks = [*first, *reader]
        assert all(1 <= len(batch.times) <= most for batch in bulks)
        assert rows_of(bulks, keyed) == wanted
        seen = [name for batch in bulks for name in (batch.keys.dictionary if keyed else [])]
        assert len(set(seen)) == sum(a != b for a, b in zip(seen, [None, *seen], strict=False)), "one key after another"


def filled(spec_name="plain", keyed=True, **options):
    twins = Twins(spec(spec_name, keyed), **options)
    twins.bulk([("b", time) for time in range(50)])
    twins.bulk([("a", 3), ("c", 7), ("a", 1)])
    twins.store(None)
    return twins


def test_some_keys_come_in_the_order_asked_for_small_ones_first():
    window = filled().stored
    assert list(rows_of(window.entries(None, None, None, ["c", "b", "a", "nobody"]))) == ["c", "a", "b"]
    assert list(rows_of(window.entries(None, None, "b"))) == ["b"]
    assert list(window.entries(None, None, "nobody")) == []
    assert list(window.entries(500, None, None, ALL_KEYS)) == []


def test_stored_blocks_come_in_one_round_trip_a_bulk_and_stay_out_of_the_cache():
    # 50 entries: 12 blocks of 4, and one of 2; 16 rows a bulk
    twins = filled()
    del twins.shelf.loads[:]
    bulks = list(twins.stored.entries(None, None, "b", rows=16))
    assert [len(batch.times) for batch in bulks] == [16, 16, 16, 2]
    assert [len(ids) for ids in twins.shelf.loads] == [4, 4, 4, 1]
    assert twins.shelf.cold.cache.used_bytes == 0


def test_a_block_that_is_lost_is_an_error_and_no_gap():
    twins = filled()
    del twins.shelf.values[7]
    reader = twins.stored.entries(None, None, "b", rows=16)
    assert next(reader).times.tolist() == list(range(16))
    with pytest.raises(DataLoss, match="block 7 is missing"):
        list(reader)


def test_a_block_that_is_on_its_way_to_the_tier_is_read_from_memory():
    shelf = Shelf()
    window = Window(spec("plain", keyed=False), block=4, cold=shelf.cold)
    window.bulk_insert(bulk([(None, time) for time in range(10)], 0, False))
    for number, block in enumerate(window.pending_blocks(), 1):
        block.stored = number  # given to a writer that has not written it yet
    reader = window.entries(None, None, None)
    window.bulk_evict(9, None)
    window.tidy()
    assert shelf.cold.released
    assert rows_of(reader, keyed=False) == {None: [(t, *row(t).values()) for t in range(10)]}


def test_a_block_with_room_is_copied_as_the_next_splice_writes_into_it():
    # A block of 16 entries gets one out of order, and room for two more; the next one goes there, in place.
    window = Window(spec("plain", keyed=False), block=16)
    window.bulk_insert(bulk([(None, 10 * i) for i in range(40)], 0, False))
    window.insert(15, row(100), None)
    wanted = expected(window, [None], None, None, keyed=False)
    reader = window.entries(None, None, None)
    window.insert(25, row(101), None)
    assert rows_of(reader, keyed=False) == wanted
    assert len(wanted[None]) == 41


def test_panes_come_as_partials_that_a_window_takes_again():
    twins = filled("panes")
    for window in (twins.memory, twins.stored):
        bulks = list(window.entries(None, None, None, ALL_KEYS, rows=5))
        assert sum(int(batch.entries.sum()) for batch in bulks) == window.info().entries
        other = Window(spec("panes"), block=4)
        for batch in bulks:
            other.bulk_insert(batch)
        for key in "abc":
            (found,), (original,) = other.query(key, [], None), window.query(key, [], None)
            assert (found.entries, found.aggregates) == (original.entries, original.aggregates)


def test_a_range_that_ends_before_it_starts_and_other_mistakes():
    window = filled().memory
    for arguments, field in (
        ((5, 4, "a"), "start"),
        ((None, 2**63 - 1, "a"), "end"),
        ((None, None, None), "key"),
        ((None, None, "a", ["b"]), "key"),
    ):
        assert refused(window.entries, *arguments).field == field


@pytest.mark.parametrize("start", [None, 1000])
def test_stores_are_captured_some_at_a_time(start, monkeypatch):
    """A capture of 100,000 keys with stores of their own was one step."""
    met = []
    monkeypatch.setattr(entries, "_STORES_A_STEP", 4)
    twins = Twins(spec("plain"), pages=None)
    twins.bulk([(f"k{i}", time) for i in range(40) for time in range(9)])
    stores = twins.memory.keys.with_own_stores

    def counted(numbers):
        for each in stores(numbers):
            met.append(each)
            yield each

    monkeypatch.setattr(twins.memory.keys, "with_own_stores", counted)
    most, found = 0, None
    taken = twins.memory.reader.entries_steps(EntriesQuery(start, keys=ALL_KEYS))
    while found is None:
        met.clear()
        try:
            next(taken)
        except StopIteration as end:
            found = end.value
        most = max(most, len(met))
    assert most == 4
    assert found.rows == (360 if start is None else 0)
    assert sum(len(bulk.times) for bulk in found) == found.rows


@given(
    st.lists(steps, max_size=14),
    st.sampled_from(["plain", "max_age", "last"]),
    st.sampled_from([(2, 4), (4, 64), None]),
    st.sampled_from([1, 3, 1000]),
    st.none() | st.integers(1, 40),
)
@a_share_of_examples(2)
def test_the_newest_come_first_in_reverse_and_a_limit_cuts(history, name, pages, most, limit):
    def flat(question):
        found = list(window.reader.entries(question, most))
        assert all(1 <= len(batch.times) <= most for batch in found)
        lists = [
            zip(batch.keys.decode().tolist(), batch.times.tolist(), batch.columns["x"].tolist(), strict=True)
            for batch in found
        ]
        return [each for some in lists for each in some]

    twins = Twins(spec(name, True), pages)
    for step in history:
        twins.step(*step)
    window = twins.stored
    entries = flat(EntriesQuery(keys=ALL_KEYS))
    assert flat(EntriesQuery(keys=ALL_KEYS, limit=limit)) == entries[:limit]
    assert flat(EntriesQuery(keys=ALL_KEYS, limit=limit, reverse=True)) == entries[::-1][:limit]


def test_a_limit_is_at_least_one():
    window = Window(WindowSpec.parse({"name": "w", "aggregates": {"n": {"function": "count"}}}))
    refused(window.reader.entries, EntriesQuery(limit=0), match="limit 0 is out of range")
