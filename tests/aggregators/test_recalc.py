"""The oracle itself: against Python's own sort and fold, so that nothing rests on it alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators import Recalc
from sash_engine.errors import FailedPrecondition
from sash_engine.monoids import Collect

TIMES = st.integers(-5, 12)

OPERATIONS = st.one_of(
    st.tuples(st.just("insert"), TIMES),
    st.tuples(st.just("bulk_insert"), st.lists(TIMES, max_size=6)),
    st.tuples(st.just("evict"), st.none() | TIMES),
    st.tuples(st.just("bulk_evict"), TIMES),
    st.tuples(st.just("evict_count"), st.integers(0, 4)),
)


class Entries:
    """A list of (time, value), in the order of arrival: everything else is worked out when it is asked for."""

    def __init__(self, equal_times):
        self.equal_times = equal_times
        self.arrived = []
        self.value = 0

    def ordered(self):
        return sorted(self.arrived, key=lambda entry: entry[0])

    def grouped(self):
        """The values of each entry of the window, oldest first, with its time."""
        if self.equal_times == "keep":
            return [(time, [value]) for time, value in self.ordered()]
        return [
            (time, [value for other, value in self.arrived if other == time])
            for time in sorted({time for time, _ in self.arrived})
        ]

    def insert(self, times):
        pairs = []
        for time in times:
            self.value -= 1  # falls, so that an order by value is not one by arrival
            pairs.append((time, self.value))
        self.arrived += pairs
        return pairs

    def remove(self, entries):
        gone = {value for _, values in entries for value in values}
        self.arrived = [entry for entry in self.arrived if entry[1] not in gone]
        return len(entries)


@pytest.mark.parametrize("equal_times", ["combine", "keep"])
@given(history=st.lists(OPERATIONS, max_size=25))
def test_random_histories(equal_times, history):
    window, entries = Recalc(Collect("int64"), equal_times=equal_times), Entries(equal_times)
    for operation, argument in history:
        grouped = entries.grouped()
        if operation == "insert":
            ((time, value),) = entries.insert([argument])
            window.insert(time, value)
        elif operation == "bulk_insert":
            window.bulk_insert(iter(entries.insert(argument)))
        elif operation == "evict":
            found = [entry for entry in grouped if argument in (None, entry[0])]
            if found:
                window.evict(argument)
                entries.remove(found[:1])
            else:
                with pytest.raises(FailedPrecondition):
                    window.evict(argument)
        elif operation == "bulk_evict":
            gone = entries.remove([entry for entry in grouped if entry[0] <= argument])
            assert window.bulk_evict(argument) == gone
        else:
            assert window.evict_count(argument) == entries.remove(grouped[:argument])
        window.check_invariants()
        grouped = entries.grouped()
        times = [time for time, _ in grouped]
        assert window.times == times
        assert (len(window), window.oldest, window.youngest) == (
            len(times),
            min(times, default=None),
            max(times, default=None),
        )
        assert window.query() == [value for _, value in entries.ordered()]
        for start, end in [(-9, 20), (0, 5), (3, 3), (5, 0)]:
            assert window.range_query(start, end) == [v for t, v in entries.ordered() if start <= t <= end]


def test_an_absent_time_is_named():
    window = Recalc(Collect("int64"))
    window.insert(3, 3)
    with pytest.raises(FailedPrecondition, match="time 4") as error:
        window.evict(4)
    assert error.value.field == "time"
