"""The slide policy: which entries leave after a write, and as wall time passes.

    max_age     time <= now - max_age leaves       now: a key's newest entry, or the wall clock
    every       with max_age: the window moves in steps, and ends with the step that now is in
    max_gap     all before the last gap of more than max_gap leaves: see sessions.py
    max_count   all but the newest max_count leave
    when        the longest prefix for which the predicate holds leaves
    adaptive    what is older than a change of a field's mean leaves (adaptive.py)
    history     in the place of max_age: what that would evict stays, and is not shown (derived/views.py)

Each moves `late_through` of the key: entries older than those that have left are late.

On wall time a question evicts, too, and may fail, because a block cannot be read. So entries leave first and are
counted at once; then `late_through` moves. After a failure the next question evicts the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_engine.clock import Clock
from sash_engine.forest import Layout
from sash_engine.monoids import Partial
from sash_engine.windows.answers import Counts
from sash_engine.windows.keys.keys import NEVER, Keys
from sash_engine.windows.sliding.adaptive import Adaptive
from sash_engine.windows.sliding.sessions import Sessions
from sash_engine.windows.spec.predicate import Predicate
from sash_engine.windows.spec.window import NANOSECONDS_PER_TICK, WindowSpec

Numbers = npt.NDArray[np.int64]


class Slide:
    """The slide policy of one window.

    Args:
        spec: has the policy.
        layout: of the keys.
        keys: the entries to evict from.
        clock: tells wall time, where the policy uses it.
        counts: counts evicted entries.
    """

    def __init__(self, spec: WindowSpec, layout: Layout, keys: Keys, clock: Clock, counts: Counts) -> None:
        self._keys = keys
        self._counts = counts
        self._clock = clock
        self._max_age = spec.kept_ticks
        self._every = spec.every_ticks or 1
        gap = spec.max_gap_ticks
        self.sessions = None if gap is None else Sessions(gap, keys, counts)
        self._max_count = spec.slide.max_count
        self._tick_ns = NANOSECONDS_PER_TICK.get(spec.time_unit, 1)
        self._predicate: Predicate | None = None
        self._adaptive: Adaptive | None = None
        self.wall = spec.slide.clock == "wall"
        """Whether now is wall time."""
        self.until = spec.slide.until is not None
        """Whether now is `punctuated`."""
        self.punctuated = NEVER
        """Entries of this time and older are final."""
        self.refuses = self.wall or self.until
        """Whether entries can be late for every key."""
        self.use(spec, layout)

    def use(self, spec: WindowSpec, layout: Layout) -> None:
        """Use other aggregates, which the predicate may name."""
        self._layout = layout
        if spec.slide.when is not None:
            aggregates = {name: monoid for name, (monoid, _) in spec.monoids().items()}
            self._predicate = Predicate(spec.slide.when, aggregates)
        if spec.slide.adaptive is not None:
            self._adaptive = Adaptive(spec.slide.adaptive, layout.hidden[0])

    def now(self) -> int:
        """Wall time in ticks."""
        return self._clock.now_ns() // self._tick_ns

    def late_through(self) -> int:
        """Entries of this time and older are late for every key, by wall time; else `NEVER`."""
        return max(self.through(self.now()), NEVER) if self.wall and self._max_age is not None else NEVER

    def gone_through(self) -> int:
        """Entries of this time and older have left every key; `NEVER` where each key has a now of its own."""
        if self.until and self._max_age is not None:
            return max(int(self.through(self.punctuated)), NEVER)
        return self.late_through()

    def refused_through(self) -> int:
        """Entries of this time and older are late for every key; `NEVER` if there are none."""
        return self.punctuated if self.until else self.late_through()

    def evicted_through(self) -> int | None:
        """No newer entry was evicted by the policy, of any key; None if none was. 0.5 ms for a million keys."""
        through = int(self._keys.late_through[: self._keys.numbered].max(initial=NEVER))
        by_entry = any(each is not None for each in (self._max_count, self._predicate, self._adaptive))
        return None if through == NEVER else through + by_entry  # see `_leave`

    def through(self, now: Any) -> Any:
        """The newest time, or times, that `max_age` evicts at some now; the policy has one.

        max_age 10, every 5    now 12     5 ...... 12 .. 15      4 and older leave, as does nothing before now is 15

        Of an array it is wrapped around where it is before all time.
        """
        return now - self._kept(now)

    def _kept(self, now: Any) -> Any:
        """How far back the window reaches from some now, or nows: `max_age` from the end of the step."""
        return self._max_age - (self._every - 1 - now % self._every)

    def by_age(self, number: int) -> None:
        """Evict the entries of one key that are too old; also done by questions on wall time, which are not logged.

        Doing it again, or later, has the same effect. So later writes do not depend on which questions were asked. They
        would if questions evaluated the predicate.
        """
        keys = self._keys
        if self._max_age is not None:
            now = self.now() if self.wall else self.punctuated if self.until else keys.now_of[number]
            through = self.through(now)
            if through > keys.late_through_of[number]:
                self._counts.evicted += keys.bulk_evict(number, through)
                keys.late_through_of[number] = through

    def by_age_each(self, numbers: Numbers) -> None:
        """As `by_age`, of many keys."""
        keys = self._keys
        if self._max_age is not None:
            now, late_through = keys.now[numbers], keys.late_through[numbers]
            if self.wall or self.until:
                now = np.full(len(numbers), self.now() if self.wall else self.punctuated)
            # Where the first is false, `through` is before all time, and would be wrapped around.
            sliding = (now > NEVER + self._kept(now)) & (self.through(now) > late_through)
            if sliding.any():
                some, through = numbers[sliding], self.through(now[sliding])
                self._counts.evicted += int(keys.bulk_evict_each(some, through).sum())
                keys.late_through[some] = through

    def after(self, number: int, written: int = 1, ended: int = NEVER) -> int:
        """Evict what the policy says from one key; return how many entries left.

        Args:
            written: how many entries it was sent.
            ended: where the last session ends that is not the current one.
        """
        keys, counts, before = self._keys, self._counts, self._counts.evicted
        if self.sessions is not None and ended > NEVER:
            self.sessions.evict(np.array([number]), np.array([ended]))
        self.by_age(number)
        if self._max_count is not None:
            surplus = keys.entries(number) - self._max_count
            if surplus > 0:
                self._leave(number, keys.evict(number, surplus))
                counts.evicted += surplus
        if self._predicate is not None:
            self._evict_while(number, self._predicate)
        if self._adaptive is not None and self._adaptive.is_due(counts.inserted, number, written):
            self._evict_before_change(number, self._adaptive)
        return counts.evicted - before

    def after_each(self, numbers: Numbers, written: Numbers | None = None) -> int:
        """As `after`, of many keys; `written` None: nothing was, time has passed."""
        keys, counts, before = self._keys, self._counts, self._counts.evicted
        self.by_age_each(numbers)
        if self._max_count is not None:
            surplus = keys.entries_each(numbers) - self._max_count
            over = surplus > 0
            if over.any():
                some = numbers[over]
                last = keys.evict_each(some, surplus[over])
                keys.late_through[some] = np.maximum(keys.late_through[some], last - 1)
                counts.evicted += int(surplus[over].sum())
        if self._predicate is not None:
            for number in numbers.tolist():
                self._evict_while(number, self._predicate)
        if self._adaptive is not None and written is not None:
            for number, entries in zip(numbers.tolist(), written.tolist(), strict=True):
                if self._adaptive.is_due(counts.inserted, number, entries):
                    self._evict_before_change(number, self._adaptive)
        return counts.evicted - before

    def _evict_before_change(self, number: int, adaptive: Adaptive) -> None:
        surplus = adaptive.leaving(*self._keys.own_store(number).pieces(adaptive.slot))
        if surplus:
            last = self._keys.evict(number, surplus)
            self._counts.evicted += surplus
            self._leave(number, last)

    def _evict_while(self, number: int, predicate: Predicate) -> None:
        keys, layout = self._keys, self._layout
        entries, answers = keys.query(number)
        if not entries:
            return
        total = dict(zip(layout.names, answers, strict=True), entries=entries)

        def holds(count: int, partials: Sequence[Partial]) -> bool:
            old = dict(zip(layout.names, layout.lower(count, partials), strict=True), entries=count)
            return predicate.holds(total, old)

        evicted, last = keys.evict_while(number, holds)
        if last is not None:
            self._counts.evicted += evicted
            self._leave(number, last)

    def _leave(self, number: int, last: int) -> None:
        """Note the time of the newest entry that left: from now on older entries are late, others are not."""
        self._keys.late_through_of[number] = max(self._keys.late_through_of[number], last - 1)
