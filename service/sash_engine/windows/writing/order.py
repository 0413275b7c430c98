"""The order policy: entries too far ahead, out of order, late, or of a time that has one already.

    arrival      7   9   8   9   3  99        ahead: 99 is too far ahead of wall time: dropped, or refused
    arrival      7   9   8   9   3            out_of_order: reject   refuses the write for the 8, the 9 and the 3
    key's rows   7   8   9   9'      | 3      late: 3 is older than what the slide policy evicted: dropped, or refused
                             ^ equal_times: kept behind the first, dropped, put in its place, or refused

Entries too far ahead are dropped first, in order of arrival, as if they had not been sent. Then rows are sorted by key,
time and arrival, so that every decision compares neighbours. Everything is decided before anything changes.

Wall time is that of the window's clock, which stands still while a write is applied. So a replay decides as the write
did.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sash_engine.clock import Clock
from sash_engine.errors import FailedPrecondition, InvalidArgument
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished, spans_of
from sash_engine.windows.batches.batch import Coded
from sash_engine.windows.batches.rows import Rows
from sash_engine.windows.keys.keys import NEVER, Keys
from sash_engine.windows.spec.window import NANOSECONDS_PER_TICK, WindowSpec

Numbers = npt.NDArray[np.int64]

_TIMES_A_STEP, _A_SERIES = 2048, 512
"""Times that one step looks for: 1 ms. To begin with a key takes as long as 512 of them."""
_KEYS_A_STEP = 4096
"""Keys whose rows one step sets aside: 2 ms."""


class Order:
    """The order policy of one window.

    Args:
        spec: has the policy.
        keys: the entries that are there already.
        clock: tells wall time.
    """

    def __init__(self, spec: WindowSpec, keys: Keys, clock: Clock) -> None:
        self._name = spec.name
        self._clock = clock
        self._ahead = spec.ahead_ticks
        self.guards = self._ahead is not None
        """Whether entries can be too far ahead."""
        self.rejects_ahead = spec.order.too_far_ahead == "reject"
        """Whether such an entry refuses its write."""
        self._unit = spec.time_unit
        self._tick_ns = NANOSECONDS_PER_TICK.get(spec.time_unit, 1)
        self._late = spec.order.late
        self._equal = spec.order.equal_times
        self._keys = keys
        self.in_order_only = spec.order.out_of_order == "reject"
        self.rejects_late = self._late == "reject"
        self.one_per_time = self._equal != "keep"

    # ---------------------------------------------------------------- too far ahead

    def is_ahead(self, time: int) -> bool:
        """Whether an entry is too far ahead, and dropped; raises FailedPrecondition where the policy rejects it."""
        ahead = time > self._through()
        if ahead:
            self._refuse_ahead(1, time)
        return ahead

    def drop_ahead(
        self, columns: list[Array], keys: Coded | None, weighted: bool
    ) -> tuple[list[Array], Coded | None, int]:
        """Drop the rows of a write that are too far ahead.

        Args:
            columns: times first, n >= 1 rows in any order.
            keys: whose they are, where the window is keyed.
            weighted: whether the second column says how many entries each row stands for.

        Returns:
            the columns and the keys without these rows, and how many entries they stood for.

        Raises:
            FailedPrecondition: the policy rejects the write.
        """
        through = self._through()
        if columns[0].max() <= through:
            return columns, keys, 0
        kept = columns[0] <= through
        ahead = int(columns[1][~kept].sum()) if weighted else len(kept) - int(np.count_nonzero(kept))
        self._refuse_ahead(ahead, int(columns[0].max()))
        coded = None if keys is None else Coded(keys.dictionary, keys.codes[kept])
        return [column[kept] for column in columns], coded, ahead

    def _through(self) -> int:
        """The newest time that is not too far ahead."""
        assert self._ahead is not None, "the policy has a guard"
        return self._clock.now_ns() // self._tick_ns + self._ahead

    def check_ahead(self, stages: Sequence[Array]) -> None:
        """Refuse a write that comes in stages if an entry of it is too far ahead; for windows that reject those.

        Args:
            stages: the times of each.
        """
        through = self._through()
        newest = max((int(times.max()) for times in stages if len(times)), default=through)
        if newest > through:
            self._refuse_ahead(sum(int(np.count_nonzero(times > through)) for times in stages), newest)

    def _refuse_ahead(self, entries: int, newest: int) -> None:
        if self.rejects_ahead:
            through = self._through()
            read_as = {unit: newest * ns // self._tick_ns for unit, ns in NANOSECONDS_PER_TICK.items()}
            # Since the seventies: units are a thousand apart, so one is likely, or none.
            likely = next((unit for unit, time in read_as.items() if through // 10 <= time <= through), None)
            hint = f"; is {newest} in {likely}? Its times are in {self._unit}" if likely else ""
            raise FailedPrecondition(
                f"window {self._name!r} rejects entries too far ahead of wall time, and {_of_this(entries)}" + hint,
                field="time",
                limit=f"time <= {through}",
            )

    # ---------------------------------------------------------------- single entries

    def check_next(self, number: int, time: int) -> None:
        """Refuse an entry that is older than the newest of its key; for windows that are `in_order_only`."""
        if time < self._keys.now_of[number]:
            self._refuse_disorder(1, self._keys.now_of[number])

    def refuse_late(self, entries: int, through: int) -> int:
        """Refuse late entries where the policy says so; else they are dropped, and it returns how many.

        Args:
            entries: how many there are.
            through: the newest time that is late, for the first of them.
        """
        if self._late == "reject":
            raise FailedPrecondition(
                f"window {self._name!r} rejects late entries, and {_of_this(entries)} older than what "
                "its slide policy evicted",
                field="time",
                limit=f"time > {through}",
            )
        return entries

    def replaces(self, number: int, time: int) -> bool | None:
        """Whether an entry takes the place of one of its time (True), is dropped for it (False), or is new (None)."""
        if time > self._keys.now_of[number] or not self._keys.range_totals(number, time, time)[0]:
            return None
        if self._equal == "reject":
            self._refuse_equal(1)
        return self._equal == "last"

    # ---------------------------------------------------------------- bulks

    def check_arrival(self, codes: Array, times: Array, numbers: Numbers) -> None:
        """Refuse a bulk in which a key's entries do not come in order of time.

        Args:
            codes: int64 (n,), which key each row is of, 0 to k - 1; `times` (n,); both in order of arrival.
            numbers: int64 (k,), the keys' numbers, -1 for new ones.
        """
        order = np.argsort(codes, kind="stable")
        of, time = codes[order], times[order]
        newest = np.full(len(numbers), NEVER)
        newest[numbers >= 0] = self._keys.now[numbers[numbers >= 0]]
        before = np.concatenate(([NEVER], time[:-1]))
        first = np.concatenate(([True], of[1:] != of[:-1]))
        least = np.where(first, newest[of], before)
        wrong = np.flatnonzero(time < least)
        if len(wrong):
            self._refuse_disorder(len(wrong), least.item(wrong[0]))

    def late_through_each(self, numbers: Numbers, floor: int) -> Numbers:
        """The newest times that are late for k keys, -1 for new ones: `floor` and older are late for every key."""
        known, through = numbers >= 0, np.full(len(numbers), floor)
        through[known] = np.maximum(self._keys.late_through[numbers[known]], floor)
        return through

    def drop_late(self, rows: Rows, floor: int) -> None:
        """Drop the rows that come too late; those of time `floor` and older do for every key."""
        late_through = self.late_through_each(rows.numbers, floor)
        if late_through.max(initial=NEVER) == NEVER:
            return
        bounds = np.repeat(late_through, rows.lengths)
        on_time = rows.columns[0] > bounds
        late = rows.count(~on_time)
        if late:
            rows.late = self.refuse_late(late, bounds.item(np.argmin(on_time)))
            rows.keep(on_time)

    def settle_equal(self, rows: Rows) -> Steps[None]:
        """Leave one row per key and time, none of which is there: others are dropped, or set aside as `replaced`."""
        times = rows.columns[0]
        if not len(times):
            return
        of = np.repeat(np.arange(len(rows.numbers)), rows.lengths)
        same = (times[1:] == times[:-1]) & (of[1:] == of[:-1])
        kept = np.concatenate((~same, [True])) if self._equal == "last" else np.concatenate(([True], ~same))
        duplicates = len(kept) - int(np.count_nonzero(kept))
        taking = yield from self._there(rows, kept)
        if self._equal == "reject" and (duplicates or taking.any()):
            self._refuse_equal(duplicates + int(np.count_nonzero(taking)))
        if self._equal == "last" and taking.any():
            for i, (number, a, b) in enumerate(rows.spans()):
                if taking[a:b].any():
                    rows.replaced.append((number, [column[a:b][taking[a:b]] for column in rows.columns]))
                if i % _KEYS_A_STEP == _KEYS_A_STEP - 1:
                    yield
        kept &= ~taking
        rows.duplicates = len(kept) - int(np.count_nonzero(kept))
        rows.keep(kept)

    def check_loaded(self, rows: Rows) -> None:
        """Raise InvalidArgument where a key gets a second entry of one time, and the window keeps one."""
        times = rows.columns[0]
        of = np.repeat(np.arange(len(rows.numbers)), rows.lengths)
        same = (times[1:] == times[:-1]) & (of[1:] == of[:-1])
        if same.any() or finished(self._there(rows, np.ones(len(times), np.bool_))).any():
            raise InvalidArgument(
                f"two entries of one key have one time, and window {self._name!r} takes one per time", field="time"
            )

    def _there(self, rows: Rows, asked: npt.NDArray[np.bool_]) -> Steps[npt.NDArray[np.bool_]]:
        """Which of some rows have the key and the time of an entry that is there already."""
        times, there, cost = rows.columns[0], np.zeros(len(asked), np.bool_), 0
        for number, a, b in rows.spans():
            if number < 0:
                continue
            b = a + int(times[a:b].searchsorted(self._keys.now_of[number], "right"))
            places = np.flatnonzero(asked[a:b]) + a
            for c, d in spans_of(len(places), _TIMES_A_STEP):
                some = places[c:d]
                entries, _ = self._keys.store(number).series(times[some], times[some] + 1)
                there[some] = entries > 0
                cost += _A_SERIES + d - c
                if cost >= _TIMES_A_STEP:
                    cost = 0
                    yield
        return there

    def _refuse_disorder(self, entries: int, newest: int) -> None:
        raise FailedPrecondition(
            f"window {self._name!r} takes entries in order of time only, and {_of_this(entries)} older than "
            "the newest of their key",
            field="time",
            limit=f"time >= {newest}",
        )

    def _refuse_equal(self, entries: int) -> None:
        raise FailedPrecondition(
            f"window {self._name!r} takes one entry per time, and {_of_this(entries)} of a time that has one",
            field="time",
            limit="one entry per time",
        )


def _of_this(entries: int) -> str:
    return f"{entries} of this write {'is' if entries == 1 else 'are'}"
