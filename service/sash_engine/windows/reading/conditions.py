"""Conditions on keys, made once and asked about all keys, or about some after the other.

    carrier in (AA, B6)   codes of the values ──▶ a mask over the codes of a label ──▶ numbers of keys
    airport=~J.*          asked about each distinct value of the label when it is needed first
    key=~J.*              a key that is one text: asked about its name

A page of a listing asks about the keys that it looks at, and not about all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import re2

from sash_engine.errors import InvalidArgument, refuse
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.keys.allocator import Numbers
from sash_engine.windows.keys.keys import Keys
from sash_engine.windows.keys.label_table import Label
from sash_engine.windows.keys.ragged import grown
from sash_engine.windows.questions import Where
from sash_engine.windows.sliding.view_keys import ReadableKeys

MAX_PATTERN, MAX_PROGRAM = 1_024, 2_000

PAGE_NAMES = 32_768
"""Names that one page of a listing looks at: 3 ms of a million's 100, where none of them fits the prefix."""
_NAMES_AT_ONCE = 1_024

_NUMBERS = 262_144
"""Numbers that one step looks at: 1 to 2 ms."""
_TEXTS = 4_096
"""Names of keys that one step takes from their list: below 1 ms."""
_WORK, _TEXT_WORK = 140_000, 140
"""What one step asks a regular expression: 2 ms, or one text. A text takes 2 µs, and at worst 14 ns for each byte and
instruction, where the expression is too hard for RE2's fast way."""
_PATTERNS = 8
"""So many regular expressions are remembered for each label, with a byte for each distinct value."""
_VALUES = 8_192
"""Values of a condition that one step looks up: 1 ms."""

_OPTIONS = re2.Options()
_OPTIONS.max_mem = 1 << 20
_OPTIONS.dot_nl = True
_OPTIONS.log_errors = False


class Condition(Protocol):
    """A condition on keys, ready to be asked."""

    only: Numbers | None
    """The only keys for which it may hold, sorted; None: it does not say."""

    def kept(self, numbers: Numbers) -> Steps[Numbers]:
        """Return the keys, of some, for which it holds."""


def only_of(conditions: Sequence[Condition]) -> Numbers | None:
    """The only keys for which conditions may hold, as far as one of them says so; None: any."""
    return next((each.only for each in conditions if each.only is not None), None)


def names_steps(
    keys: ReadableKeys, prefix: str, limit: int, position: int, floor: int, conditions: Sequence[Condition]
) -> Steps[tuple[list[str], int | None]]:
    """A page of a listing: up to `limit` names that start with `prefix`, by number from `position` on.

    Only keys with entries newer than `floor` are named. No more than `PAGE_NAMES` are looked at, whatever was asked
    for, so that the time does not depend on how many keys there are.

    Args:
        conditions: only keys for which all of these hold are named. They are asked about keys with the prefix.

    Returns:
        the names, and where to go on; None where there are no more.
    """
    among = only_of(conditions)
    candidates = range(position, keys.numbered) if among is None else among[among.searchsorted(position) :]
    looked = candidates[:PAGE_NAMES]
    stop, found = int(looked[-1]) + 1 if len(looked) else 0, list[str]()
    for start in range(0, len(looked), _NAMES_AT_ONCE):
        some = list(map(int, looked[start : start + _NAMES_AT_ONCE]))
        named = zip(some, keys.names_of(some), strict=True)
        fit = [number for number, name in named if name is not None and name.startswith(prefix)]
        numbers = np.array(fit, np.int64)
        numbers = numbers[keys.newest_each(numbers) > floor]
        for condition in conditions:
            numbers = yield from condition.kept(numbers)
        if len(found) + len(numbers) >= limit:
            numbers = numbers[: limit - len(found)]
            stop = int(numbers[-1]) + 1
            found += map(keys.name, numbers.tolist())
            break
        found += map(keys.name, numbers.tolist())
        yield
    return found, stop if len(candidates) and stop <= candidates[-1] else None


class _Kept:
    """Keeps the keys for which a mask of some of them is what it should be."""

    only: Numbers | None = None

    def __init__(self, holds: Callable[[Numbers], Steps[npt.NDArray[np.bool_]]], wanted: bool, size: int) -> None:
        self._holds, self._wanted, self._size = holds, wanted, size

    def kept(self, numbers: Numbers) -> Steps[Numbers]:
        found = [numbers[:0]]
        for a, b in spans_of(len(numbers), self._size):
            some = numbers[a:b]
            holds = yield from self._holds(some)
            found.append(some[holds if self._wanted else ~holds])
            yield
        return np.concatenate(found)


def by_codes(condition: Where, label: Label, keys: Keys) -> Steps[Condition]:
    """A condition on a label, of which each distinct value is looked at once."""
    wanted = condition.op in ("=", "in", "=~")
    if condition.op in ("=~", "!~"):
        return _Kept(_Matching(label, condition.values[0]).of, wanted, _NUMBERS)
    listed = np.zeros(len(label.values), np.bool_)
    for a, b in spans_of(len(condition.values), _VALUES):
        codes = [code for value in condition.values[a:b] if (code := label.index.get(value)) is not None]
        listed[codes] = True
        yield

    def holds(numbers: Numbers) -> Steps[npt.NDArray[np.bool_]]:
        # Of all keys the codes lie as they are asked for.
        codes = label.codes[: len(numbers)] if len(numbers) == keys.numbered else label.codes[numbers]
        yield
        return listed[codes]

    return _Kept(holds, wanted, _NUMBERS)


def by_names(condition: Where, keys: Keys) -> Steps[Condition]:
    """A condition on the names of keys that are one text."""
    if condition.op in ("=~", "!~"):

        def fits(numbers: Numbers) -> Steps[npt.NDArray[np.bool_]]:
            return (yield from _fitting(condition.values[0], map(keys.name, numbers.tolist())))

        return _Kept(fits, condition.op == "=~", _TEXTS)
    found, values = [np.empty(0, np.int64)], condition.values
    for a, b in spans_of(len(values), _VALUES):
        numbers = keys.find_each(values[a:b])
        found.append(numbers[numbers >= 0])
        yield
    there = np.unique(np.concatenate(found))

    def listed(numbers: Numbers) -> Steps[npt.NDArray[np.bool_]]:
        yield
        return np.append(there, -1)[there.searchsorted(numbers)] == numbers  # type: ignore[no-any-return]

    kept = _Kept(listed, condition.op in ("=", "in"), _NUMBERS)
    kept.only = there if condition.op in ("=", "in") else None
    return kept


def _fitting(text: str, values: Iterable[str]) -> Steps[npt.NDArray[np.bool_]]:
    """Whether a regular expression fits each of some values."""
    compiled = pattern(text)
    fits, each = compiled.fullmatch, compiled.programsize
    found, work = bytearray(), 0
    for value in values:
        found.append(fits(value) is not None)
        work += _TEXT_WORK + each * len(value)
        if work > _WORK:
            yield
            work = 0
    return np.frombuffer(found, np.bool_) if found else np.empty(0, np.bool_)


class _Matching:
    """Which keys have a value of a label that a regular expression fits; it is asked about each value once."""

    def __init__(self, label: Label, text: str) -> None:
        self._label, self._text = label, text
        # The last one that was used is the last one to be forgotten.
        label.matches[text] = label.matches.pop(text, np.empty(0, np.int8))
        if len(label.matches) > _PATTERNS:
            del label.matches[next(iter(label.matches))]
        self._known = label.matches[text]

    def of(self, numbers: Numbers) -> Steps[npt.NDArray[np.bool_]]:
        """Of so many keys that a step may look at them."""
        label = self._label
        if len(self._known) < len(label.values):
            self._known = grown(self._known, len(label.values), 0)
            label.matches[self._text] = self._known
        known, codes = self._known, label.codes[numbers]
        asked = np.zeros(len(known), np.bool_)
        asked[codes] = True
        asked &= known == 0
        yield
        new = np.flatnonzero(asked)
        values = map(
            label.values.__getitem__, (code for a, b in spans_of(len(new), _TEXTS) for code in new[a:b].tolist())
        )
        fits = yield from _fitting(self._text, values)
        known[new] = np.where(fits, 1, -1)
        return known[codes] > 0


@lru_cache(16)
def pattern(text: str) -> Any:
    """Compile a regular expression, which takes time linear in what it is asked about.

    Raises:
        InvalidArgument: it is none, or too large.
    """
    if len(text) * 4 > MAX_PATTERN and len(text.encode()) > MAX_PATTERN:
        refuse("where", f"a regular expression of {len(text.encode())} bytes", limit=f"{MAX_PATTERN} bytes")
    try:
        compiled = re2.compile(text, _OPTIONS)
    except (re2.error, UnicodeError) as error:
        reason = (
            error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        )
        raise InvalidArgument(
            f"where: {text[:100]!r} is no regular expression that can be used: {reason}",
            field="where",
            limit="the syntax of RE2",
        ) from None
    if compiled.programsize > MAX_PROGRAM:
        refuse("where", f"the regular expression {text[:100]!r} is too large", limit=f"{MAX_PROGRAM} instructions")
    return compiled
