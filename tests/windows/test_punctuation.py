"""Windows until punctuation against the slow model: what is late, what leaves, and which answers are final."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import FailedPrecondition, InvalidArgument, Unsupported
from sash_engine.windows.spec.window import WindowSpec
from tests.support.model import NEVER, Slow
from tests.windows.test_window import KEYS, batch, window

times = st.integers(0, 40)
steps = st.one_of(
    st.tuples(st.just("write"), st.lists(st.tuples(st.sampled_from(KEYS), times), max_size=12)),
    st.tuples(st.just("punctuate"), times),
)
slides = st.sampled_from([{}, {"max_age": 9}, {"max_age": 9, "every": 4}, {"max_age": 5, "every": 5}])


@given(st.lists(steps, max_size=20), slides, st.sampled_from([1, 2, 8]))
def test_any_history_equals_the_fold_and_what_is_final_stays(history, slide, block):
    w = window(block, slide=slide | {"until": "punctuation"})
    slow = {key: Slow(slide.get("max_age"), every=slide.get("every", 1), punctuated=NEVER) for key in KEYS}
    value, final, answers = 0, None, {}
    for step, what in history:
        if step == "punctuate":
            assert w.punctuate(what) == sum([each.punctuate(what) for each in slow.values()])
            final = what if final is None else max(final, what)
            answers = {}
        else:
            result = w.bulk_insert(batch(what, value))
            expected = np.zeros(3, int)
            for key in KEYS:
                mine = [(time, value + i) for i, (k, time) in enumerate(what) if k == key]
                expected += slow[key].write(mine) if mine else (0, 0, 0)
            assert [result.inserted, result.late, result.evicted] == expected.tolist()
            value += len(what)
        assert w.info().punctuated == final
        for key in KEYS:
            (answer,) = w.query(key)
            assert answer.aggregates["all"] == slow[key].between(0, 99)
            (answer,) = w.query(key, [7])
            assert answer.end == final
            assert answer.aggregates["all"] == ([] if final is None else slow[key].trailing(7))
            assert answers.setdefault(key, answer) == answer, "it was final"
        w.check_invariants()


def test_a_key_whose_entries_are_all_final_is_there():
    w = window(slide={"until": "punctuation"})
    w.bulk_insert(batch([("a", 3), ("b", 9)], 0))
    w.punctuate(5)
    assert w.key_names("", 10) == (["a", "b"], None)
    assert [answer.key for answer in w.query(keys=["a", "b"])] == ["a", "b"]
    assert w.insert(5, {"value": 1}, "new").late == 1
    assert w.insert(6, {"value": 1}, "new").inserted == 1


def test_panes_are_final_when_all_of_their_time_is():
    """An entry of 15 was late after a punctuation of 12, because its pane starts at 10."""
    w = window(slide={"until": "punctuation", "max_age": 20}, granularity="10", aggregates={"n": {"function": "count"}})
    w.bulk_insert(batch([("a", -25), ("a", 5), ("a", 12)], 0))
    w.punctuate(12)
    assert w.info().punctuated == 9
    assert [w.insert(time, {"value": 1}, "a").late for time in (15, 9, 30)] == [0, 1, 0]
    (answer,) = w.query("a", [20])
    assert (answer.end, answer.entries) == (9, 1)
    assert w.punctuate(18) == 0
    assert w.info().punctuated == 9
    assert w.punctuate(29) == 1
    assert w.info().punctuated == 29
    assert w.query("a", [20])[0].entries == 2
    w.punctuate(2**63 - 2)
    first = window(slide={"until": "punctuation"}, granularity="10", aggregates={"n": {"function": "count"}})
    first.punctuate(-(2**63) + 1)
    assert first.info().punctuated is None
    assert first.insert(0, {"value": 1}, "a").inserted == 1


def test_late_entries_are_refused_where_the_order_policy_says_so():
    w = window(slide={"until": "punctuation"}, order={"late": "reject"})
    w.punctuate(10)
    with pytest.raises(FailedPrecondition, match="late") as caught:
        w.insert(10, {"value": 1}, "a")
    assert caught.value.limit == "time > 10"


OTHERS = [{"max_count": 5}, {"max_gap": 5}, {"when": "old.n > 3"}, {"adaptive": {}}, {"clock": "wall"}]


@pytest.mark.parametrize("slide", OTHERS)
def test_what_evicts_otherwise_is_refused(slide):
    document = window().spec.document() | {"time_unit": "s", "slide": slide | {"until": "punctuation"}}
    with pytest.raises(InvalidArgument) as caught:
        WindowSpec.parse(document)
    assert caught.value.field == "slide.until"


def test_other_windows_refuse_punctuation():
    with pytest.raises(Unsupported, match=r"no slide\.until"):
        window().punctuate(5)
    with pytest.raises(InvalidArgument) as caught:
        window(slide={"until": "punctuation"}).punctuate(2**63 - 1)
    assert caught.value.field == "time"
