"""A window with views, and for each view a twin: a window of its own that was sent the same entries."""

import copy

import numpy as np
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import SashError
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch, Coded, PartialBatch
from sash_engine.windows.questions import (
    ALL_KEYS,
    EntriesQuery,
    Grouped,
    Having,
    Query,
    RangeQuery,
    SeriesQuery,
    Top,
    Where,
)
from sash_engine.windows.spec.derived import completed, widened
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.asking import answers_of, question_of
from tests.support.twins import alike

SECOND = 10**9
COMMON = {"time_unit": "s", "keys": ["a", "b"], "fields": {"v": "int64", "w": "string"}}
SUMS = {"n": {"function": "count"}, "sum": {"function": "sum", "field": "v"}}
SOURCE = {**COMMON, "name": "requests", "aggregates": {**SUMS, "low": {"function": "min", "field": "v"}}}
SOURCES = {
    "all entries": {},
    "by age": {"slide": {"max_age": 20}},
    "in steps": {"slide": {"max_age": 20, "every": 5}},
    "on wall time": {"slide": {"max_age": 20, "clock": "wall"}},
    "final": {"slide": {"max_age": 20, "until": "punctuation"}},
    "one of a time": {"slide": {"max_age": 20}, "order": {"equal_times": "last"}},
    "named": {"slide": {"max_age": 20}, "identity": "v"},
    "one key": {"slide": {"max_age": 20}, "keys": None},
    "one key on wall time": {"slide": {"max_age": 20, "clock": "wall"}, "keys": None},
    "with rollups": {"slide": {"max_age": 20}, "rollups": [["a"], []]},
    "panes": {"slide": {"max_age": 20}, "granularity": 2},
    "panes on wall time": {"slide": {"max_age": 20, "clock": "wall"}, "granularity": 2},
}
VIEWS = {
    "short": {
        "slide": {"max_age": 6},
        "aggregates": {
            **SUMS,
            "all": {"function": "collect", "field": "v"},
            "last": {"function": "last", "field": "w"},
        },
    },
    "steps": {
        "slide": {"max_age": 10, "every": 5},
        "aggregates": {"total": SUMS["sum"], "tops": {"function": "max_count", "field": "v"}},
    },
    "whole": {"aggregates": {"words": {"function": "max", "field": "w"}, "n": SUMS["n"]}},
}
MORE = {"high": {"function": "max", "field": "v"}}
WIDER = {"wide": {"function": "range", "field": "v"}, "few": {"function": "smallest", "field": "v", "n": 2}}
"""What a view may get later."""
VIEWS_OF_PANES = {
    "short": {"slide": {"max_age": 6}, "aggregates": {"total": SUMS["sum"], "n": SUMS["n"]}},
    "steps": {"slide": {"max_age": 10, "every": 6}, "aggregates": {"low": SOURCE["aggregates"]["low"]}},
    "whole": {"aggregates": dict(SUMS)},
}


def requests(**parts):
    """The spec of a window of requests, in ticks."""
    document = {"name": "requests", "keys": ["a", "b"], "fields": COMMON["fields"], "identity": "v"}
    aggregates = {**SUMS, "users": {"function": "distinct_count", "field": "w"}}
    return WindowSpec.parse({**document, "time_unit": "none", "aggregates": aggregates, **parts})


def some_requests(random, step, oldest=-30, n=50):
    """Entries of four keys, or of one; each step is 9 ticks later, and some are late."""
    keys = [f"{'xq'[i]}|{'yz'[j]}" for i, j in random.integers(0, 2, (n, 2))] if step % 3 else ["x|y"] * n
    values = 1000 * step + np.arange(n)
    columns = {"v": values, "w": Coded.of([f"u{value % 7}" for value in values])}
    return Batch(10 + 9 * step + random.integers(oldest, 12, n), columns, Coded.of(keys))


def names_in(batch, start, stop, **columns):
    """The names of some of them, with other columns."""
    keys = Coded(batch.keys.dictionary, batch.keys.codes[start:stop])
    return Batch(batch.times[start:stop], {"v": batch.columns["v"][start:stop], **columns}, keys)


def source_spec(kind="by age"):
    document = copy.deepcopy({**SOURCE, **SOURCES[kind]})
    if document["keys"] is None:
        del document["keys"]
    return WindowSpec.parse(document)


def view_spec(source, name, **more):
    """The complete spec of a view."""
    views = VIEWS if source.granularity is None else VIEWS_OF_PANES
    return completed(WindowSpec.parse({"name": name, "of": source.name, **copy.deepcopy(views[name]), **more}), source)


def twin_spec(view):
    """The spec of a window that answers as a view does, and has the entries itself."""
    return WindowSpec.parse({name: value for name, value in view.document().items() if name != "of"})


def bulk(spec, rows):
    """Rows (key, time, value) as a bulk; `w` follows from the value."""
    keys, times, values = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"v": values, "w": [f"w{value % 4}" for value in values]}
    return Batch.of(spec, times, {name: columns[name] for name in spec.fields}, keys if spec.keyed else None)


def named(spec, rows):
    """Rows as the names of entries."""
    whole = bulk(spec, rows)
    identity = spec.identity or "v"
    return Batch(whole.times, {identity: whole.columns[identity]}, whole.keys)


def write(window, kind, *arguments):
    """Do one write to a window that is written to; return what it says of it, or what went wrong."""
    keyed, fields = window.spec.keyed, window.spec.fields
    try:
        match kind, arguments:
            case "bulk", (rows,):
                return window.bulk_insert(bulk(window.spec, rows))
            case "insert", (key, time, value):
                values = {"v": value, "w": f"w{value % 4}"}
                return window.insert(time, {name: values[name] for name in fields}, key if keyed else None)
            case "evict", (time, key):
                return window.bulk_evict(time, key if keyed else None)
            case (("range" | "wrong"), (start, wide, key)):
                return window.evict_range(start, start + wide, key if keyed else None, kind == "wrong")
            case "retract", (rows,):
                return window.retract(named(window.spec, rows))
            case "update", (rows,):
                return window.update(bulk(window.spec, rows))
            case "punctuate", (time,):
                return window.punctuate(time)
            case "aggregates", ():
                return window.add_aggregates(MORE).counts
    except SashError as error:
        return error
    raise AssertionError(kind)


def same_write(windows, clocks, kind, *arguments):
    """Do one write to windows with a clock each: all say the same of it."""
    if kind == "clock":
        for window, clock in zip(windows, clocks, strict=True):
            clock.advance(arguments[0] * SECOND)
            window.tidy()
    elif kind != "restart":
        first, *others = [repr(write(window, kind, *arguments)) for window in windows]
        assert all(other == first for other in others), (kind, arguments, first, others)


class Viewed:
    """A window, its views, and a twin of each.

    Args:
        kind: one of `SOURCES`.
        late: names of views that are added later, with `add`.
    """

    def __init__(self, kind, late=(), cold=None):
        self.clock = ManualClock(30 * SECOND)
        self.window = Window(source_spec(kind), pages=(2, 4), block=4, clock=self.clock, cold=cold)
        self.twins = {}
        self.late = list(late)
        for name in VIEWS:
            spec = view_spec(self.window.spec, name)
            self.twins[name] = Window(twin_spec(spec), pages=(2, 4), block=4, clock=self.clock)
            if name not in late:
                self.window.derive(spec)

    def step(self, kind, *arguments):
        if kind == "clock":
            self.clock.advance(arguments[0] * SECOND)
            for window in (self.window, *self.twins.values()):
                window.tidy()
        elif kind == "aggregates":
            if self.window.spec.granularity is None:
                self.window.add_aggregates(MORE)
        elif kind == "add":
            if self.late:
                self.add(self.late.pop())
        elif kind == "wider":
            (name,) = arguments
            if self.window.spec.granularity is None:
                self.twins[name].add_aggregates(WIDER)
                if self.window.find(name) is not None:
                    self.add(name)
        elif kind == "drop":
            (name,) = arguments
            if self.window.find(name) is not None:
                self.window.drop(name)
                self.late.append(name)
        elif not isinstance(write(self.window, kind, *arguments), SashError):
            for twin in self.twins.values():
                write(twin, kind, *arguments)

    def add(self, name):
        """Add a view, or make it as wide as its twin."""
        spec = view_spec(self.window.spec, name)
        self.window.derive(widened(spec, self.twins[name].spec.document()["aggregates"]))

    def same(self):
        """Each view answers as its twin."""
        for view in self.window.views:
            same_answers(view, self.twins[view.spec.name])


def follow(both, writes, shelf=None):
    """Do writes to a window and its twins, and compare; with a shelf it is stored, and restarted by some steps."""
    for write in writes:
        if write[0] != "restart":
            both.step(*write)
            if shelf is not None:
                shelf.store(both.window)
        elif shelf is not None:
            both.window, shelf = shelf.reopened(shelf.parts(both.window), clock=both.clock)
    both.same()
    both.window.check_invariants(alike)


def writes_until(newest, *more):
    """Up to 12 random writes of times from 10 to `newest`, with restarts between them, and `more` kinds of steps."""
    keys_of, times_of, values_of = st.sampled_from(["x|y", "x|z", "q|y"]), st.integers(10, newest), st.integers(-9, 9)
    rows_of = st.lists(st.tuples(keys_of, times_of, values_of), min_size=1, max_size=14)
    return st.lists(
        st.one_of(
            st.tuples(st.just("bulk"), rows_of),
            st.tuples(st.just("bulk"), rows_of),
            st.tuples(st.just("bulk"), rows_of.map(lambda rows: [("x|y", *row[1:]) for row in rows])),
            st.tuples(st.just("insert"), keys_of, times_of, values_of),
            st.tuples(st.just("evict"), times_of, st.one_of(st.none(), keys_of)),
            st.tuples(st.just("range"), times_of, st.integers(0, 9), st.one_of(st.none(), keys_of)),
            st.tuples(st.just("retract"), rows_of),
            st.tuples(st.just("update"), rows_of),
            st.tuples(st.just("punctuate"), times_of),
            st.tuples(st.just("clock"), st.integers(1, 12)),
            st.tuples(st.just("aggregates")),
            *more,
            st.tuples(st.just("restart")),
        ),
        max_size=12,
    )


def many_writes(steps):
    """Bulks of some keys whose times overlap, and time that passes now and then."""
    for step in range(steps):
        yield "bulk", [(f"{'xq'[i % 2]}|{'yz'[i % 3 > 1]}", 12 + step + (7 * i) % 5 - i % 3, i) for i in range(9)]
        if step % 10 == 9:
            yield from (("clock", 9), ("punctuate", 12 + step))


def same_answers(view, twin):
    """All answers of a view are those of a window."""
    for question in questions_about(twin.spec):
        assert ask(view, question) == ask(twin, question), question
    mine, theirs = view.info(), twin.info()
    if twin.spec.slide.clock != "wall":  # the twin waits for a question
        assert mine.entries == theirs.entries
        assert mine.counts.present == theirs.counts.present
    for name in ("keys", "oldest", "newest", "punctuated"):
        assert getattr(mine, name) == getattr(theirs, name), name
    if twin.spec.keyed:
        assert sorted(listed(view, "")) == sorted(listed(twin, ""))
        assert listed(view, "x|") == [n for n in listed(view, "") if n.startswith("x|")]


def listed(window, prefix):
    return finished(window.reader.key_names_steps(prefix, 100, 0, ()))[0]


def questions_about(spec):
    for times in ({}, {"lookbacks": [3, 7, 40]}, {"as_of": 31}, {"lookbacks": [4, 12], "as_of": 27}):
        if not spec.keyed:
            yield Query(**times)
            continue
        for key in ("x|y", "x|z", "q|y"):
            yield Query(key, **times)
        yield Query(keys=["x|y", "nobody|y", "q|y"], **times)
        yield Query(keys=ALL_KEYS, **times)
        yield Query(keys=ALL_KEYS, combine=True, **times)
        yield Query(selection=Grouped(by=["a"]), **times)
        yield Query(partials=True, selection=Grouped(by=["a"], where=[Where("b", "=", ["y"])]), **times)
        yield Query(
            selection=Grouped(by=["a", "b"], having=[Having("entries", ">", 1)], top=Top("entries", 2)), **times
        )
        yield Query(selection=Grouped(by=["b"], limit=1), **times)
    for start, end in ((20, 29), (25, 34), (0, 90)):
        for about in [{"key": "x|y"}, {"keys": ALL_KEYS}, {"by": ["a"]}] if spec.keyed else [{}]:
            yield question_of(RangeQuery, start, end, **about)
            yield question_of(RangeQuery, start, end, partials=True, **about)
            yield question_of(SeriesQuery, start, end, 4, **about)
            yield question_of(SeriesQuery, start, end, 3, 7, partials=True, **about)
            if "by" not in about:
                yield EntriesQuery(start, end, **about)
        if not spec.keyed or "key" in about:
            yield SeriesQuery(start, end, 0, gap=3, **about)
    if spec.keyed:
        yield SeriesQuery(20, 60, 0, gap=3, key="x|z")
        yield EntriesQuery(keys=ALL_KEYS)
        yield EntriesQuery(where=[Where("a", "=", ["x"])])


def ask(window, question):
    """What a window answers, in an order that does not depend on which of its keys came first."""
    reader = window.reader
    try:
        if isinstance(question, EntriesQuery):
            return sorted(row for batch in reader.entries(question) for row in rows_of(batch))
        found = answers_of(reader, question)
    except SashError as error:
        return type(error), error.message.replace(window.spec.name, ""), error.field
    texts = [str(answer) for answer in found]
    return texts if getattr(question, "top", None) else sorted(texts), getattr(found, "position", None)


def rows_of(batch):
    keys = [""] * len(batch.times) if batch.keys is None else [batch.keys.dictionary[code] for code in batch.keys.codes]
    if isinstance(batch, PartialBatch):
        columns = [batch.entries.tolist()]
        columns += [part.tolist() for name in sorted(batch.partials) for part in batch.partials[name]]
    else:
        columns = [
            [column.dictionary[code] for code in column.codes] if hasattr(column, "codes") else column.tolist()
            for _, column in sorted(batch.columns.items())
        ]
    return list(zip(keys, batch.times.tolist(), *columns, strict=True))
