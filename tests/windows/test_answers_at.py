"""Many pairs of a key and a time: each row is what a query as of that time answers, to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.forest import sliding
from sash_engine.monoids import DistinctCount
from sash_engine.steps import finished
from sash_engine.version import compiled
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import AnswersAt, Grouped, Query, Where
from sash_engine.windows.reading import costs, pairs
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.coded import Coded
from tests.support.pairs import FIELDS, bits, columns_of, every_aggregate
from tests.support.refused import refusal, refused
from tests.support.shelf import Shelf
from tests.support.twins import a_share_of_examples
from tests.support.windows import functions, keyed

SOME = functions(
    n="count", sum="sum v", spread="stddev v", most="max v", users="distinct_count i", all="collect v", last="last s"
)
KINDS = {
    "keys": {"keyed": True},
    "parts": {"keys": ["part", "other"]},
    "no keys": {},
    "by age": {"keyed": True, "slide": {"max_age": 30}},
    "by count": {"keyed": True, "slide": {"max_count": 7}},
    "panes": {"keyed": True, "granularity": 3},
    "rollups": {"keys": ["part", "other"], "rollups": [["part"]]},
    "a history": {"keyed": True, "slide": {"max_age": 10}, "history": 40},
    "nulls": {"keyed": True, "nullable": ["v", "i"]},
}


def spec_of(kind, aggregates=SOME, **more):
    document = {"name": "w", "time_unit": "none", "fields": FIELDS, "aggregates": aggregates, **KINDS[kind], **more}
    if kind == "panes":
        document["aggregates"] = {name: each for name, each in aggregates.items() if name != "all"}
    if kind == "rollups":
        document["aggregates"] = {name: each for name, each in aggregates.items() if name not in ("all", "last")}
    return WindowSpec.parse(document)


def key_of(spec, key):
    return None if not spec.keyed else f"{'xy'[key % 2]}|{key}" if spec.keys else f"k{key}"


def fill(window, rows, bulk=9):
    spec = window.spec
    for a in range(0, len(rows), bulk):
        some = rows[a : a + bulk]
        values = [v for _, _, v in some]
        columns = columns_of(values, spec.nullable or ())
        keys = [key_of(spec, key) for key, _, _ in some] if spec.keyed else None
        window.bulk_insert(Batch.of(spec, [time for _, time, _ in some], columns, keys))
    return window


def window_of(spec, rows, pages=(2, 8), block=8, **more):
    return fill(Window(spec, pages=pages, block=block, clock=ManualClock(), **more), rows)


def check(window, asked, lookbacks, names=(), where=()):
    """Compare with a query for each pair before, and for every third one after."""
    times = np.array([time for _, time in asked], np.int64)
    keys = [key_of(window.spec, key) for key, _ in asked] if window.spec.keyed else None

    def one_by_one(some):
        selection = Grouped(aggregates=names)
        return {
            (key, time): window.past.query(Query(key_of(window.spec, key), lookbacks, time, selection=selection))
            for key, time in dict.fromkeys(some)
        }

    before = one_by_one(asked)
    question = AnswersAt(times, None if keys is None else Coded.of(keys), lookbacks, where, names)
    assert question.is_about_the_past
    found = finished(window.past.answers_at_steps(question))
    assert len(found) == max(len(lookbacks), 1)
    for each, some in ((before, range(len(asked))), (one_by_one(asked[::3]), range(0, len(asked), 3))):
        for at, columns in enumerate(found):
            listed = {name: column.tolist() for name, column in columns.aggregates.items()}
            for i in some:
                expected = each[asked[i]][at]
                assert columns.lookback == expected.lookback
                assert columns.entries[i] == expected.entries, (asked[i], lookbacks)
                assert list(listed) == list(expected.aggregates)
                for name, answer in expected.aggregates.items():
                    assert bits(listed[name][i]) == bits(answer), (name, asked[i], at, lookbacks)


rows_of = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(-9, 99)), max_size=90)
few_keys = st.lists(st.tuples(st.just(1), st.integers(0, 90), st.integers(-9, 99)), max_size=120)
asked_of = st.lists(st.tuples(st.integers(0, 5), st.integers(-20, 99)), max_size=30)
lookbacks_of = st.lists(st.sampled_from([1, 5, 17, 40, 1000]), max_size=3, unique=True)


@pytest.mark.parametrize("kind", list(KINDS))
@a_share_of_examples(25)
@given(
    rows=st.one_of(rows_of, few_keys),
    asked=asked_of,
    lookbacks=lookbacks_of,
    names=st.lists(st.sampled_from(["n", "sum", "most", "users"]), max_size=2),
)
def test_a_row_is_what_a_query_answers(kind, rows, asked, lookbacks, names):
    check(window_of(spec_of(kind), rows), asked, lookbacks, names)


@pytest.mark.parametrize("part", range(8))
@a_share_of_examples(10)
@given(rows=st.one_of(rows_of, few_keys), asked=asked_of, lookbacks=lookbacks_of)
def test_every_aggregate(part, rows, asked, lookbacks):
    some = dict(list(every_aggregate().items())[part::8])
    check(window_of(spec_of("keys", some), rows), asked[:9], lookbacks)


@pytest.mark.parametrize("kind", ["keys", "panes", "by age"])
@a_share_of_examples(25)
@given(rows=st.one_of(rows_of, few_keys), asked=asked_of, lookbacks=lookbacks_of)
def test_views(kind, rows, asked, lookbacks):
    window = window_of(spec_of(kind), rows[: len(rows) // 2])
    aggregates = {"n": SOME["n"], "sum": SOME["sum"]}
    view = window.derive(
        completed(
            WindowSpec.parse({"name": "view", "of": "w", "slide": {"max_age": 20}, "aggregates": aggregates}),
            window.spec,
        )
    )
    fill(window, rows[len(rows) // 2 :])
    check(view, asked, lookbacks)
    check(window, asked, lookbacks)


@a_share_of_examples(25)
@given(rows=few_keys, asked=asked_of, lookbacks=lookbacks_of, out_of_order=st.booleans())
def test_stored_blocks(rows, asked, lookbacks, out_of_order):
    shelf = Shelf()
    rows = rows if out_of_order else sorted(rows, key=lambda row: row[1])
    window = window_of(spec_of("no keys"), rows, cold=shelf.cold)
    shelf.store(window)
    check(window, asked, lookbacks)


def test_each_stored_block_is_read_once():
    shelf = Shelf()
    window = window_of(spec_of("no keys", {"sum": SOME["sum"]}), [(0, i, i) for i in range(800)], cold=shelf.cold)
    window.range_query(0, 799)
    shelf.store(window)
    shelf.loads.clear()
    window.answers_at(np.arange(800)[::-1].copy(), None, [3, 20, 300])
    loaded = [number for load in shelf.loads for number in load]
    assert len(loaded) == len(set(loaded)) > 80
    assert max(map(len, shelf.loads)) > 1, "in runs"


@pytest.mark.parametrize("part", [1, 3])
def test_parts_of_a_long_question_are_put_together(part, monkeypatch):
    monkeypatch.setattr(pairs, "_PAIRS", part)
    monkeypatch.setattr(pairs, "_SIZED_PAIRS", part)
    rows = [(i % 3, i % 50, i) for i in range(200)]
    asked = [(i % 4, (i * 7) % 60) for i in range(40)]
    check(window_of(spec_of("keys"), rows), asked, [5, 40])


def test_conditions_leave_pairs_without_entries():
    window = window_of(spec_of("parts"), [(i % 4, i, i) for i in range(40)])
    keys = ["x|0", "y|1", "x|2", "x|9"]
    (found,) = window.answers_at(np.full(4, 99), keys, [1000], [Where("part", "=", ["x"])])
    assert found.entries.tolist() == [10, 0, 10, 0]
    assert found.aggregates["all"].tolist()[1] == []


@pytest.mark.parametrize("kind", ["no keys", "keys"])
@pytest.mark.parametrize("rows", [3, 8, 16, 21, 40])
@pytest.mark.parametrize("left", [0, 3])
def test_everything_is_folded_as_it_grew(kind, rows, left):
    """The fold of all entries is kept from question to question: it rounds as it was made."""
    window = window_of(spec_of(kind, {"sum": SOME["sum"], "spread": SOME["spread"]}), [])
    random = np.random.default_rng(rows)
    for i in range(rows):
        fill(window, [(1, i, int(random.integers(1, 10**9)))])
        window.past.query(Query(key_of(window.spec, 1)))
    if left:
        window.bulk_evict(left - 1)
    newest = rows - 1
    check(window, [(1, newest - 1), (1, newest), (1, newest + 1)], [1, rows, 1000])
    check(window, [(1, newest - 1), (1, newest), (1, newest + 1)], [])


def test_rows_that_left_are_not_counted():
    """A block of which some rows were retracted is folded again, and rows of the first block may have left."""
    spec = spec_of("no keys", {"sum": SOME["sum"], "n": SOME["n"]}, identity="i")
    window = window_of(spec, [(0, i, i) for i in range(60)])
    window.query()
    gone = [9, 10, 25, 47]
    window.retract(Batch.of(spec, gone, {"i": gone}))
    asked = [(0, time) for time in (8, 12, 30, 59, 70)]
    check(window, asked, [5, 20, 45, 100])
    window.bulk_evict(11)
    check(window, asked, [5, 20, 45, 100])


def test_an_open_block_is_folded_as_it_grew():
    window = window_of(spec_of("no keys", {"sum": SOME["sum"]}), [], block=256)
    random = np.random.default_rng(1)
    differs = 0
    for i in range(200):
        fill(window, [(0, i, int(random.integers(1, 10**9)))])
        (grown,) = window.query()
        (found,) = window.answers_at(np.array([i]))
        assert found.aggregates["sum"][0] == grown.aggregates["sum"]
        differs += grown.aggregates["sum"] != float(np.sum(window.keys.columns(0)[1]))
    assert differs, "or this test shows nothing"


def test_on_wall_time_entries_leave_before_a_question():
    clock = ManualClock(1000 * 10**9)
    window = keyed(clock=clock, time_unit="s", slide={"max_age": "10s", "clock": "wall"})
    for key in "ab":
        window.insert(1000, {"value": 1}, key)
    clock.advance(60 * 10**9)
    (found,) = window.answers_at(np.array([1000, 1000]), ["a", "b"])
    assert found.entries.tolist() == [0, 0]


def test_a_hot_key_of_many_blocks():
    random = np.random.default_rng(5)
    rows = [(0, int(time), i) for i, time in enumerate(random.integers(0, 3000, 4000))]
    window = window_of(spec_of("no keys"), rows, block=16)
    asked = [(0, int(time)) for time in random.integers(-10, 3100, 150)]
    window.query()  # pairs the blocks
    check(window, asked, [3, 100, 2000, 5000])
    fill(window, [(0, 3000 + i, i) for i in range(200)])  # blocks in no pair yet
    check(window, [(0, int(time)) for time in random.integers(2900, 3300, 50)], [3, 100, 400])


DISTINCT = functions(
    few={"function": "distinct_count", "field": "i", "lg_k": 4}, users="distinct_count s", sum="sum i", most="max v"
)


@pytest.fixture
def slid(monkeypatch):
    """How many ranges slide, one number for each run of them."""
    found, own = [], DistinctCount.over_sliding

    def over_sliding(self, values, starts, stops):
        assert (starts < stops).all()
        found.append(len(starts))
        return own(self, values, starts, stops)

    monkeypatch.setattr(DistinctCount, "over_sliding", over_sliding)
    return found


@pytest.mark.parametrize("max_age", [None, 900])
@pytest.mark.parametrize("span", [30, 3000])
@pytest.mark.parametrize("names", [(), ("few",), ("n", "users")])
def test_pairs_of_a_hot_key_slide(max_age, span, names, slid):
    random = np.random.default_rng(span)
    rows = [(0, int(time), i * 7 % 1201) for i, time in enumerate(np.sort(random.integers(0, span, 3000)))]
    late = [(0, int(time), -i) for i, time in enumerate(random.integers(0, span, 40))]
    slide = {} if max_age is None else {"slide": {"max_age": max_age}}
    window = window_of(spec_of("no keys", {"n": SOME["n"], **DISTINCT}, **slide), [*rows, *late], block=16)
    check(window, [(0, int(time)) for time in random.integers(-10, span + 100, 400)], [3, 100, span], names)
    assert sum(slid) > 300
    fill(window, [(0, span + i, i) for i in range(20)])
    check(window, [(0, int(time)) for time in random.integers(span - 50, span + 30, 100)], [20, 40], names)
    check(window, [(0, int(time)) for time in random.integers(0, span + 30, 100)], (), names)


def test_a_range_alone_does_not_slide(slid):
    """Behind the newest entry each range was a run of its own if the open block was empty: 25 µs a pair."""
    window = fill(Window(spec_of("no keys", DISTINCT), block=16), [(0, time, time) for time in range(96)], 96)
    check(window, [(0, time) for time in range(200, 300)], [5])
    assert slid == []


@pytest.mark.skipif(compiled(), reason="compiled, these are near enough to each other")
def test_few_pairs_far_from_each_other_do_not_slide(slid):
    rows = [(0, time, time) for time in range(3000)]
    window = window_of(spec_of("no keys", DISTINCT), rows, block=16)
    check(window, [(0, 2900), (0, 10)], [100, 1000])
    assert not slid
    check(window, [(0, 2900), (0, 10), *[(0, 700 + i % 7) for i in range(40)]], [100])
    assert sum(slid) == 2 * 40, "those that are near each other, for two aggregates"


@pytest.mark.skipif(compiled(), reason="constants of compiled modules cannot be replaced")
@pytest.mark.parametrize("rows", [100, 150, 500])
def test_ranges_slide_over_so_many_rows_together(rows, slid, monkeypatch):
    monkeypatch.setattr(sliding, "_ROWS", rows)
    monkeypatch.setattr(sliding, "_ROWS_A_RANGE", 1_000)  # as compiled: else the wider ranges are too far apart
    window = window_of(spec_of("no keys", DISTINCT), [(0, time, time % 91) for time in range(1500)], block=16)
    asked = [(0, time) for time in range(0, 1500, 3)]
    check(window, asked, [20, 110, 130, 2000])
    widths = 1 + (rows > 140) * 2
    assert len(slid) >= 2 * widths * 1500 // rows


def test_stored_blocks_of_a_hot_key_slide(slid):
    shelf = Shelf()
    window = window_of(spec_of("no keys", DISTINCT), [(0, i // 2, i % 511) for i in range(2000)], cold=shelf.cold)
    shelf.store(window)
    check(window, [(0, time) for time in range(0, 1000, 2)], [3, 300])
    assert slid


@pytest.mark.parametrize(
    ("kind", "times", "keys", "field"),
    [
        ("keys", [1], None, "keys"),
        ("no keys", [1], ["a"], "keys"),
        ("keys", [1, 2], ["a"], "keys"),
        ("keys", [1], [""], "key"),
        ("keys", [-(2**63)], ["a"], "times"),
        ("keys", [2**63 - 1], ["a"], "times"),
        ("parts", [1], ["a"], "key"),
    ],
)
def test_refused(kind, times, keys, field):
    assert refused(window_of(spec_of(kind), []).answers_at, np.array(times, np.int64), keys, [1]).field == field


@pytest.mark.parametrize(
    ("name", "most", "times", "lookbacks", "told"),
    [
        ("MAX_PAIR_ANSWERS", 5, np.zeros(3, np.int64), [1, 2], ("times", "5 answers")),
        ("MAX_VALUES", 20, np.full(2, 20), [100], ("keys", "20 values")),
    ],
)
def test_too_much_is_refused(name, most, times, lookbacks, told, monkeypatch):
    monkeypatch.setattr(costs, name, most)
    window = window_of(spec_of("no keys"), [(0, i, i) for i in range(15)])
    window.answers_at(times[:1], None, lookbacks)
    assert refusal(window.answers_at, times, None, lookbacks) == told


def test_the_times_at_both_ends():
    window = window_of(spec_of("no keys"), [(0, -(2**63) + 1, 1), (0, 2**63 - 2, 2)])
    check(window, [(0, -(2**63) + 1), (0, 2**63 - 2), (0, 0)], [1, 2, 2**62, 2**63 - 1])
    check(window, [(0, -(2**63) + 1), (0, 2**63 - 2), (0, 0)], [])


def test_small_and_larger_keys_together_in_several_gathers():
    """Of keys in pages and in open blocks, whole and in part, and more rows than are gathered at once."""
    fields = {"v": "float64"}
    sums = {"sum": {"function": "sum", "field": "v"}}
    spec = {"name": "w", "time_unit": "s", "keyed": True, "fields": fields, "aggregates": sums}
    window, random = Window(WindowSpec.parse(spec)), np.random.default_rng(29)
    names = [f"k{i}" for i in range(300)]
    codes = np.concatenate([np.repeat(np.arange(260), 180), np.repeat(np.arange(260, 300), 3)])
    times = np.sort(random.integers(0, 1_000, len(codes)))
    random.shuffle(codes)
    window.bulk_insert(Batch(times, {"v": random.random(len(codes))}, Coded(names, codes)))
    asked = np.concatenate([np.full(300, 1_000), np.full(300, 900)])
    keys = Coded(names, np.tile(np.arange(300), 2))
    (found,) = finished(window.reader.answers_at_steps(AnswersAt(asked, keys, ())))
    for i, (key, time) in enumerate(zip(keys.decode().tolist(), asked.tolist(), strict=True)):
        rows = (codes == names.index(key)) & (times <= time)
        assert found.entries[i] == rows.sum()
        (alone,) = finished(
            window.reader.answers_at_steps(AnswersAt(asked[i : i + 1], Coded([key], np.zeros(1, int)), ()))
        )
        assert found.aggregates["sum"][i] == alone.aggregates["sum"][0]
