"""The first times that there are: what `max_age` evicts there does not depend on how entries come."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Query
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import TICK_MIN, WindowSpec
from sash_engine.windows.window import Window
from tests.support.model import NEVER, Slow
from tests.support.windows import BASE

DOCUMENT = BASE | {"keyed": True}


@settings(max_examples=200)
@given(
    times=st.lists(st.integers(TICK_MIN + 1, TICK_MIN + 14), min_size=1, max_size=12),
    every=st.integers(1, 12),
    more=st.integers(0, 3),
    until=st.sampled_from([None, 1, 7, 12]),
)
def test_single_entries_and_bulks_leave_alike(times, every, more, until):
    age = every + more
    slide = {"max_age": age, "every": every} | ({} if until is None else {"until": "punctuation"})
    spec = WindowSpec.parse({**DOCUMENT, "slide": slide})
    whole = WindowSpec.parse({**DOCUMENT, "slide": {} if until is None else {"until": "punctuation"}})
    single, bulk, source = Window(spec), Window(spec), Window(whole)
    shown = WindowSpec.parse({"name": "view", "of": "w", "slide": slide, "aggregates": DOCUMENT["aggregates"]})
    view = source.derive(completed(shown, whole))
    slow = {key: Slow(age, every=every, punctuated=None if until is None else NEVER) for key in "ab"}
    keys = ["ab"[i % 2] for i in range(len(times))]
    for i, (key, time) in enumerate(zip(keys, sorted(times), strict=True)):
        single.insert(time, {"value": i}, key)
        slow[key].write([(time, i)])
    for each in (bulk, source):
        each.bulk_insert(Batch.of(each.spec, sorted(times), {"value": range(len(times))}, keys))
    if until is not None:
        for each in (single, bulk, source, *slow.values()):
            each.punctuate(TICK_MIN + until)
    for each in (single, bulk, view):
        for key, model in slow.items():
            (answer,) = each.reader.query(Query(key))
            assert answer.aggregates["all"] == [value for _, value in model.entries]
        found = {answer.key: answer.entries for answer in each.reader.query(Query(keys=ALL_KEYS))}
        assert found == {key: len(model.entries) for key, model in slow.items() if model.entries}
    assert single.info().evicted_through == bulk.info().evicted_through
