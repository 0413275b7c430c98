"""Questions in steps: the answers are those of one go, and a step is bounded however much there is."""

import numpy as np
import pytest

import sash_engine
from sash_engine.forest import forest
from sash_engine.forest import series as forest_series
from sash_engine.monoids.sketches import Quantile
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, AnswersAt, Grouped, Query, RangeQuery, SeriesQuery
from sash_engine.windows.reading import group_folds, group_reader, group_series, key_finder
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_engine.windows.writing import writer
from tests.support.refused import refused
from tests.support.windows import batch, functions, keyed

AGGREGATES = functions(n="count", sum="sum v", low="min v", users="distinct_count v")
QUESTIONS = {
    "query": Query(keys=ALL_KEYS),
    "named": Query(keys=["k3", "k1", "none", "k3"], lookbacks=[3, 30]),
    "one key": Query(key="k1", lookbacks=[3, 30, 300]),
    "combined": Query(keys=ALL_KEYS, combine=True),
    "combined lookbacks": Query(keys=[f"k{i}" for i in range(30)], combine=True, lookbacks=[7, 70]),
    "combined nothing": Query(keys=["none"], combine=True),
    "range": RangeQuery(20, 90, keys=ALL_KEYS),
    "series": SeriesQuery(0, 200, 7, 7, keys=ALL_KEYS),
    "series that overlaps": SeriesQuery(-5, 200, 3, 20, keys=["k0", "k2", "k5", "k6"]),
    "series with gaps": SeriesQuery(0, 200, 20, 3, keys=ALL_KEYS),
    "series of one": SeriesQuery(0, 200, 7, 30, key="k0"),
    "series of a small one": SeriesQuery(0, 200, 7, 30, key="k9"),
    "series of nothing": SeriesQuery(0, 200, 7, keys=["none"]),
}


def filled(keys=12, large=3, granularity=None):
    """A window of small keys, and some with a forest of a few blocks."""
    spec = {"name": "w", "time_unit": "s", "keyed": True, "fields": {"v": "int64"}, "aggregates": AGGREGATES}
    if granularity is not None:
        spec["granularity"] = granularity
    window = Window(WindowSpec.parse(spec), block=16)
    rng = np.random.default_rng(7)
    for key in range(keys):
        n = 150 if key < large else 5
        times = rng.integers(0, 100, n)
        window.bulk_insert(Batch.of(window.spec, times, {"v": rng.integers(0, 50, n)}, [f"k{key}"] * n))
    return window


def plain(found):
    if isinstance(found, list):
        return [plain(each) for each in found]
    aggregates = {name: np.asarray(value).tolist() for name, value in found.aggregates.items()}
    bounds = (found.start, found.end) if hasattr(found, "start") else found.times.tolist()
    return bounds, np.asarray(found.entries).tolist(), aggregates


def together_by_hand(window, question):
    """A question about several keys, asked of a window that has all their entries under one key."""
    names = question.keys if question.keys is not ALL_KEYS else window.keys.names()
    document = window.spec.document() | {"keyed": False}
    one = Window(WindowSpec.parse(document), block=10**6)
    columns = [window.keys.columns(window.keys.find(name)) for name in names if window.keys.find(name) is not None]
    if columns:
        times, values = (np.concatenate(each) for each in zip(*columns, strict=True))
        one.bulk_insert(Batch.of(one.spec, times, {"v": values}))
    return one.reader.series(SeriesQuery(question.start, question.end, question.step, question.width))


@pytest.fixture
def tiny(monkeypatch):
    """The least work in each step."""
    for module, name, value in (
        (key_finder, "_NAMES", 2),
        (group_reader, "_SPANS", 2),
        *((group_folds, name, 2) for name in ("_KEYS", "_ROWS")),
        *((group_series, name, 2) for name in ("KEYS", "_ROWS", "_ROWS_OF_FOREST")),
        *((forest_series, name, 2) for name in ("_RANGES", "_ROWS", "_WIDE_PANES", "_COLUMNS", "_SCALARS", "_LARGE")),
        (forest_series, "_WIDE_BLOCKS", 1),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("granularity", [None, "5s"])
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_small_steps_and_large_ones_give_the_same_answers(question, granularity, request):
    window = filled(granularity=granularity)
    expected = plain(finished(window.reader.steps(question)))
    request.getfixturevalue("tiny")
    assert plain(finished(window.reader.steps(question))) == expected


@pytest.mark.parametrize("name", ["series", "series that overlaps", "series with gaps"])
def test_a_series_over_several_keys_is_that_of_all_their_entries(name, tiny):
    window = filled()
    found = finished(window.reader.steps(QUESTIONS[name]))
    assert plain(found) == plain(together_by_hand(window, QUESTIONS[name]))


def test_a_key_that_is_named_again_counts_once(tiny):
    window = filled()
    once = finished(window.reader.steps(Query(keys=["k3", "k1", "k5", "k0"], combine=True)))
    again = Query(keys=["k3", "k1", "k5", "k3", "k0", "k1", "k1", "k3"], combine=True)
    assert plain(finished(window.reader.steps(again))) == plain(once)


def count_of(window, question):
    """How many steps a question takes."""
    return sum(1 for _ in window.reader.steps(question))


@pytest.mark.parametrize("name", [name for name, question in QUESTIONS.items() if question.keys is ALL_KEYS])
def test_twice_the_keys_are_at_most_twice_the_steps(name, tiny):
    question = QUESTIONS[name]
    once = count_of(filled(40, 6), question)
    twice = count_of(filled(80, 12), question)
    assert once > 10
    assert twice <= 2.2 * once


def test_a_step_looks_at_so_many_keys_and_no_more(monkeypatch):
    """Of 300 keys, none of the calls for several keys is given more than a step may have."""
    window = filled(300, 3)
    given = []

    for name in ("shared_rows", "newest_each", "find_each", "small"):
        whole = getattr(window.keys, name)

        def counted(several, *args, whole=whole):
            given.append(len(several))
            return whole(several, *args)

        monkeypatch.setattr(window.keys, name, counted)
    monkeypatch.setattr(key_finder, "_NAMES", 32)
    monkeypatch.setattr(group_reader, "_SPANS", 32)
    monkeypatch.setattr(group_folds, "_KEYS", 32)
    monkeypatch.setattr(group_series, "KEYS", 32)
    for question in QUESTIONS.values():
        finished(window.reader.steps(question))
    assert len(given) > 50
    assert max(given) == 32


def test_a_question_about_too_many_names_is_refused_before_a_look_at_them():
    class Names(list):
        """Fails who looks into it."""

        def __iter__(self):
            raise AssertionError("it was looked into")

    names = Names(["k1"] * 100_001)
    refused(filled().reader.query, Query(keys=names), match="100001 keys in one query")


@pytest.mark.skipif(sash_engine.compiled(), reason="functions of compiled modules cannot be replaced")
def test_sketches_of_a_series_are_freed_in_steps(monkeypatch):
    """Those of 10,000 buckets with eight quantiles were freed at once, when the series was there: 30 ms."""
    freed = []

    def noted(partials):
        left = [part for columns in partials for part in columns if part.dtype.hasobject]
        for _ in free_steps(partials):
            freed.append(sum(int(np.count_nonzero(part)) for part in left))
            yield

    free_steps = forest_series.free_steps
    monkeypatch.setattr(forest_series, "_FREED", 5)
    monkeypatch.setattr(forest, "free_steps", noted)
    finished(filled().reader.steps(SeriesQuery(0, 100, 5, key="k0")))
    assert freed == list(range(freed[0], freed[-1] - 1, -5))
    assert freed[0] - freed[-1] >= 15


@pytest.mark.parametrize(
    ("n", "first", "lookback", "least", "most"),
    [
        pytest.param(800, 500, 400, 40, 60, id="few blocks are folded as they are, range by range"),
        pytest.param(4000, 3990, 3900, 32, 70, id="many are paired, 64 in a step"),
    ],
)
def test_blocks_that_are_in_no_pair_yet_take_several_steps(n, first, lookback, least, most, monkeypatch):
    """The folds of 1,000 pairs of a key with two million entries were made in one step: 26,000 unions, 0.9 s."""
    unions = 0

    def counted(self, older, newer):
        nonlocal unions
        unions += 1
        return union(self, older, newer)

    union = Quantile.join
    monkeypatch.setattr(Quantile, "join", counted)
    aggregates = {"q": {"function": "quantile", "field": "v", "q": 0.5}}
    spec = {"name": "w", "time_unit": "s", "fields": {"v": "float64"}, "aggregates": aggregates}
    window = Window(WindowSpec.parse(spec), block=8)
    window.bulk_insert(Batch.of(window.spec, np.arange(n), {"v": np.arange(n) / 3}))
    before, largest = unions, 0
    for _ in window.past.answers_at_steps(AnswersAt(np.arange(first, n), None, (lookback,))):
        largest, before = max(largest, unions - before), unions
    assert least <= largest <= most


@pytest.mark.parametrize(
    ("question", "takes_a_step"),
    [
        (Query(key="k1"), True),
        (Query(key="k1", lookbacks=[3, 30]), True),
        (Query(keys=["k1", "k2"]), True),
        (Query(keys=ALL_KEYS), False),
        (Query(keys=["k1", "k2"], lookbacks=[1, 2, 3, 4, 5]), False),
        (Query(selection=Grouped(by=[])), False),
    ],
)
def test_a_question_about_few_answers_takes_a_step(question, takes_a_step):
    assert question.is_short
    assert filled().reader.is_quick(question) is takes_a_step


def test_a_range_of_one_key_takes_a_step():
    assert RangeQuery(1, 9, key="k1").is_short


def test_many_rows_of_one_key_are_inserted_some_at_a_time(monkeypatch):
    """Also where other keys have rows in the same write."""
    monkeypatch.setattr(writer, "_ROWS", 8)
    window, given = keyed(), []
    whole = window.keys.bulk_insert

    def noted(number, times, columns):
        given.append(len(times))
        whole(number, times, columns)

    monkeypatch.setattr(window.keys, "bulk_insert", noted)
    window.bulk_insert(batch([*(("a", time) for time in range(30)), ("b", 1)], 0))
    assert given == [8, 8, 8, 6, 1]
