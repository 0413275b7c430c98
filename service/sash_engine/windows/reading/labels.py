"""Keys by their labels: which of them conditions select, and how labels group them.

    where   carrier in (AA, B6)   codes of the values ──▶ a mask over the column of codes ──▶ numbers of keys
            airport=~J.*          the expression is asked about each distinct value, not about each key
    by      airport, carrier      ranks of the codes ──▶ one number for each combination ──▶ dense, in text order

A key with parts has these as labels; a key that is one text has the label `key`.

Where: O(keys), 1 ms for a million, and some 2 µs for each distinct value with a regular expression.
By: O(keys) for each label.

Conditions may also be asked about some keys after the other (`Labels.conditions`): a page of a listing does not look at
all keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_engine.errors import InvalidArgument, refuse
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished, spans_of
from sash_engine.windows.keys.keys import Keys
from sash_engine.windows.keys.label_table import Label, LabelTable, in_order_steps
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.questions import Where
from sash_engine.windows.reading.conditions import Condition, by_codes, by_names, only_of, pattern
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.labels import CONDITIONS, join
from sash_wire.meant import instead

MAX_CONDITIONS, MAX_VALUES = 64, 100_000
MAX_EXPRESSIONS = 16

_NUMBERS = 262_144
"""Numbers that one step looks at: 1 to 2 ms."""
_TEXTS = 4_096
"""Names of keys that one step sorts: 1 to 2 ms."""
_DENSE = 2**20
"""Up to so many combinations are counted by a table; more are sorted."""


class Groups:
    """Groups of keys, in the order of their values.

    Args:
        names: of the labels.
        values: for each label its values, by rank.
        ranks: for each label int32 (g,), the rank of each group's value.
        spec: of the window.
    """

    def __init__(
        self, names: Sequence[str], values: Sequence[Sequence[str]], ranks: Sequence[Array], spec: WindowSpec
    ) -> None:
        self.names, self._values, self._ranks, self._spec = names, values, ranks, spec

    def __len__(self) -> int:
        return len(self._ranks[0]) if self._ranks else 1

    def texts(self, group: int) -> tuple[str, ...]:
        """The values of a group."""
        return tuple([values[ranks.item(group)] for values, ranks in zip(self._values, self._ranks, strict=True)])

    def labels(self, group: int) -> dict[str, str]:
        """The values of a group by name."""
        return dict(zip(self.names, self.texts(group), strict=True))

    def key(self, group: int) -> str | None:
        """The name of the one key of a group, where all labels of keys are its names."""
        if len(self.names) < len(self._spec.labels):
            return None
        labels = self.labels(group)
        return join([labels[name] for name in self._spec.parts]) if self._spec.parts else labels["key"]

    def behind(self, texts: tuple[str, ...]) -> int:
        """The first group whose values are greater than these."""
        return bisect_right(range(len(self)), texts, key=self.texts)


class Labels:
    """The labels of one window's keys.

    Args:
        spec, keys: the window's.
        shared: labels of the same keys, whose table these use; None: they have one of their own.
    """

    def __init__(self, spec: WindowSpec, keys: Keys, shared: Labels | None = None) -> None:
        self._spec = spec
        self._names = spec.labels
        self._keys = keys
        self._parts = len(spec.parts)
        self._shared = shared
        self._table: LabelTable | None = None

    # ---------------------------------------------------------------- checking

    def check(self, where: Sequence[Where], by: Sequence[str] | None) -> None:
        """Check conditions and the names by which to group.

        Raises:
            InvalidArgument: names the field and the limit.
        """
        if len(where) > MAX_CONDITIONS:
            raise InvalidArgument(f"{len(where)} conditions in one question", field="where", limit=f"{MAX_CONDITIONS}")
        expressions = 0
        for condition in where:
            self._check_name(condition.part, "where")
            if condition.op not in CONDITIONS:
                known = ", ".join(CONDITIONS)
                refuse("where", f"no comparison {str(condition.op)[:40]!r}", limit=known)
            several = condition.op in ("in", "not in")
            if not several and len(condition.values) != 1:
                refuse("where", f"{condition.op!r} compares with one value", limit="1 value")
            if len(condition.values) > MAX_VALUES:
                refuse("where", f"{len(condition.values)} values", limit=f"{MAX_VALUES} values")
            if condition.op in ("=~", "!~"):
                expressions += 1
                if expressions > MAX_EXPRESSIONS:
                    raise InvalidArgument(
                        "too many regular expressions in one question", field="where", limit=f"{MAX_EXPRESSIONS}"
                    )
                pattern(condition.values[0])
        for i, name in enumerate(by or ()):
            self._check_name(name, "by")
            if name in (by or ())[:i]:
                raise InvalidArgument(f"by names {name!r} twice", field="by")

    def _check_name(self, name: str, field: str) -> None:
        if not self._names:
            raise InvalidArgument(f"window {self._spec.name!r} is not keyed", field=field)
        if name not in self._names:
            no = f"no {name[:140]!r}{instead(name, self._names, 'they have')}"
            refuse(field, f"keys of {self._spec.name!r} have {no}")

    def check_invariants(self) -> None:
        """Raise AssertionError if the labels of a key are not those of its name."""
        if self._parts and self._shared is None:
            finished(self._labels())
            assert self._table is not None
            self._table.check_invariants()

    # ---------------------------------------------------------------- selecting

    def conditions(self, where: Sequence[Where]) -> Steps[Sequence[Condition]]:
        """Make what finds the keys for which conditions hold, among all keys or among some after the other."""
        labels = (yield from self._labels()) if self._parts and where else []
        found = list[Condition]()
        for each in where:
            if self._parts:
                found.append((yield from by_codes(each, labels[self._names.index(each.part)], self._keys)))
            else:
                found.append((yield from by_names(each, self._keys)))
        return found

    def select(self, where: Sequence[Where], numbers: Numbers | None) -> Steps[Numbers]:
        """The numbers of keys for which all conditions hold.

        Args:
            numbers: int64, among which keys; None: all that were ever written.
        """
        conditions = yield from self.conditions(where)
        if numbers is None:
            numbers = only_of(conditions)
        if numbers is None:
            numbers = self._keys.written()
        for condition in conditions:
            numbers = yield from condition.kept(numbers)
        return numbers

    # ---------------------------------------------------------------- grouping

    def group(self, by: Sequence[str], numbers: Numbers) -> Steps[tuple[npt.NDArray[np.int64], Groups]]:
        """Group keys by some labels.

        Returns:
            the group of each of `numbers`, int64; and the groups, all of which have a key.
        """
        if not self._parts and by:
            return (yield from self._group_names(by, numbers))
        labels = (yield from self._labels()) if by else []
        of, size = np.zeros(len(numbers), np.int64), 1
        values, ranks_of = [], list[Array]()
        for name in by:
            label = labels[self._names.index(name)]
            ranks, in_order = yield from label.ranks()
            values.append(
                [label.values[code] for code in in_order] if len(in_order) < _TEXTS else _InOrder(label, in_order)
            )
            rank = np.empty(len(numbers), np.int32)
            for a, b in spans_of(len(numbers), _NUMBERS):
                rank[a:b] = ranks[label.codes[numbers[a:b]]]
                yield
            ranks_of.append(rank)
            if size > 1 and size * len(in_order) >= 2**62:
                of, size, _ = yield from _dense(of, size)
            for a, b in spans_of(len(numbers), _NUMBERS):
                of[a:b] *= len(in_order)
                of[a:b] += rank[a:b]
                yield
            size *= len(in_order)
        of, size, member = yield from _dense(of, size)
        return of, Groups(by, values, [rank[member] for rank in ranks_of], self._spec)

    def _group_names(self, by: Sequence[str], numbers: Numbers) -> Steps[tuple[npt.NDArray[np.int64], Groups]]:
        """Each key that is one text is a group of its own."""
        names = list[str]()
        for a, b in spans_of(len(numbers), _TEXTS):
            names += map(self._keys.name, numbers[a:b].tolist())
            yield
        in_order = np.array((yield from in_order_steps(names)), np.int64)
        of, in_text_order = np.empty(len(names), np.int64), list[str]()
        of[in_order] = np.arange(len(names))
        for a, b in spans_of(len(names), _TEXTS):
            in_text_order += map(names.__getitem__, in_order[a:b].tolist())
            yield
        return of, Groups(by, [in_text_order], [np.arange(len(names))], self._spec)

    def _labels(self) -> Steps[list[Label]]:
        if self._shared is not None:
            return (yield from self._shared._labels())
        if self._table is None:
            self._table = LabelTable(self._keys, self._parts)
        return (yield from self._table.current())


class _InOrder(Sequence[str]):
    """The many values of a label by rank, without a copy."""

    def __init__(self, label: Label, in_order: Sequence[int]) -> None:
        self._values, self._in_order = label.values, in_order

    def __len__(self) -> int:
        return len(self._in_order)

    def __getitem__(self, rank: Any) -> Any:
        return self._values[self._in_order[rank]]


def _dense(of: Numbers, size: int) -> Steps[tuple[Numbers, int, Numbers]]:
    """Numbers below `size` as dense ones in the same order: they, how many there are, and a place that has each."""
    if size <= _DENSE:
        place = np.full(size, -1)
        for a, b in spans_of(len(of), _NUMBERS):
            place[of[a:b]] = np.arange(a, b)
            yield
        there = place >= 0
        to = np.cumsum(there) - 1
        yield
        for a, b in spans_of(len(of), _NUMBERS):
            of[a:b] = to[of[a:b]]
            yield
        return of, int(np.count_nonzero(there)), place[there]
    _, member, dense = np.unique(of, return_index=True, return_inverse=True)
    yield
    return dense.astype(np.int64), len(member), member
