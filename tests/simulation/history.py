"""What a window may hold, given the calls so far: a checker of linearizability that follows a run.

    calls     insert 1 ├──────┤ ok      insert 2 ├─────── lost          read ├──┤ {1, 2}
    may be    {} ──────▶ {1} ─────────▶ {1} or {1, 2}? ───────────────▶ {1, 2}

Each call takes effect at one moment between its beginning and its end, or, if its answer is lost, at any later one
until its process dies, or never. A *case* is what the window holds, with the calls that have taken effect and are not
answered yet. An answer keeps the cases that it fits; if none is left, no order of the calls explains what was seen.

Source: Lowe, "Testing for linearizability", 2017 (just-in-time linearization).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["ANY", "GONE", "THERE", "Contradiction", "Entry", "History", "KeyedHistory", "Op", "State", "TooMany"]

Entry = tuple[str, int, int]
"""Key, time, value. Values are unique, and are the identities."""

State = frozenset[Entry] | None
"""None: there is no such window."""

GONE = "gone"
ANY = "any result"
THERE = "any result, of a window that there is"

_CASES_MAX = 20_000


class Contradiction(AssertionError):
    """No order of the calls explains what was seen."""


class TooMany(Exception):
    """There are more cases than are looked at."""


@dataclass(eq=False)
class Op:
    """A call.

    Args:
        what: it does, for people.
        apply: returns what the window then holds, and the result.
        of_key: returns the part of it that is about a key; None if none is.
        answered: False once the answer is lost for good.
    """

    what: str
    apply: Callable[[State], tuple[State, Hashable]]
    of_key: Callable[[str], Op | None] = lambda key: None
    answered: bool = True
    number: int = 0


Case = tuple[State, frozenset[tuple[int, Hashable]]]


class History:
    """The cases of one window.

    Attributes:
        cases: what may be.
        most: most cases there were.
    """

    def __init__(self) -> None:
        self.cases: set[Case] = {(None, frozenset())}
        self.pending: dict[int, Op] = {}
        self.most = 1
        self._next = 1

    def begin(self, op: Op) -> None:
        """A call begins."""
        op.number = self._next
        self._next += 1
        self.pending[op.number] = op

    def end(self, op: Op, result: Hashable) -> None:
        """A call is answered."""
        found: set[Case] = set()
        for state, done in self._closure(op.number):
            for number, got in done:
                if number == op.number and (result in (got, ANY) or (result == THERE and got != GONE)):
                    found.add((state, done - {(number, got)}))
        del self.pending[op.number]
        self._keep(found, f"{op.what} answers {_short(result)}")

    def refused(self, op: Op) -> None:
        """A call has changed nothing."""
        del self.pending[op.number]
        self._keep({case for case in self.cases if not any(number == op.number for number, _ in case[1])}, op.what)

    def lost(self, op: Op) -> None:
        """Nobody will say what became of a call; it may take effect later."""
        op.answered = False

    def died(self) -> None:
        """The process died: calls whose answers are lost have taken effect by now, or never will."""
        self._over({op.number for op in self.pending.values() if not op.answered}, "a process died")

    def fenced(self, op: Op) -> None:
        """A call whose answer is lost has taken effect by now, or never will: its producer is fenced."""
        if op.number in self.pending:
            self._over({op.number}, "a producer is fenced")

    def _over(self, lost: set[int], what: str) -> None:
        found = set()
        for state, done in self._closure(None):  # others that go on may have been before them
            found.add((state, frozenset(each for each in done if each[0] not in lost)))
        for number in lost:
            del self.pending[number]
        self._keep(found, what)

    def holds(self, state: State, what: str) -> None:
        """This is what the window holds, while no call is in progress."""
        op = Op(what, lambda state: (state, state))
        self.begin(op)
        self.end(op, state)

    def _closure(self, target: int | None) -> Iterable[Case]:
        """All cases that pending calls lead to; none goes on once the target has taken effect."""
        seen = set(self.cases)
        todo = list(seen)
        while todo:
            state, done = todo.pop()
            began = {number for number, _ in done}
            if target in began:
                continue
            for number, op in self.pending.items():
                if number in began:
                    continue
                after, result = op.apply(state)
                case = after, done | {(number, result)}
                if case not in seen:
                    seen.add(case)
                    todo.append(case)
            if len(seen) > _CASES_MAX:
                raise TooMany
        return seen

    def _keep(self, cases: set[Case], what: str) -> None:
        # A lost call has no answer to compare, so what it would have answered does not matter.
        lost = {op.number for op in self.pending.values() if not op.answered}
        found = {(state, frozenset((n, ANY if n in lost else got) for n, got in done)) for state, done in cases}
        if not found:
            few = sorted((_short(state) for state, _ in self.cases), key=len)[:4]
            raise Contradiction(f"{what}; but the window held one of {len(self.cases)} states, such as {few}")
        self.cases = found
        self.most = max(self.most, len(found))


class KeyedHistory:
    """The histories of a window's keys, each by itself: they are on different shards, and no call is one step on all.

    Args:
        keys: of the window.

    Attributes:
        unchecked: keys that are followed no more: they had too many cases.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self.of_key = {key: History() for key in keys}
        self.unchecked: set[str] = set()
        self._parts: dict[Op, dict[str, Op]] = {}
        self._keys: dict[int, str] = {}

    def begin(self, op: Op) -> None:
        """See `History`."""
        parts = {key: part for key in self.of_key if (part := op.of_key(key)) is not None}
        self._parts[op] = parts
        for key, part in parts.items():
            self._step(key, "begin", part)

    def end(self, op: Op, result: Hashable) -> None:
        """See `History`; a result of several keys is taken apart as far as it can be."""
        parts = self._parts.pop(op)
        for key, part in parts.items():
            self._step(key, "end", part, result if len(parts) == 1 else self._of_key(key, result))

    def knows(self, entries: Iterable[Entry]) -> None:
        """Take note of the keys of values."""
        for key, _, value in entries:
            self._keys[value] = key

    def _of_key(self, key: str, result: Hashable) -> Hashable:
        if isinstance(result, tuple):
            count, values, most, total = result
            if (count, most, total) != (len(values), max(values, default=None), sum(values)):
                raise Contradiction(f"an answer does not agree with itself: {result}")
            own = tuple(value for value in values if self._keys[value] == key)
            return len(own), own, max(own, default=None), sum(own)
        return result if result in (GONE, ANY) else THERE

    def refused(self, op: Op) -> None:
        """See `History`."""
        for key, part in self._parts.pop(op).items():
            self._step(key, "refused", part)

    def lost(self, op: Op) -> None:
        """See `History`."""
        for key, part in self._parts[op].items():
            self._step(key, "lost", part)

    def died(self) -> None:
        """Another process, and Redis, may go on with what this one was asked."""

    def fenced(self, op: Op) -> None:
        """See `History`."""
        for key, part in self._parts[op].items():
            self._step(key, "fenced", part)

    def settled(self) -> None:
        """Whatever was lost has taken effect by now, or never will."""
        for key, history in self.of_key.items():
            if key not in self.unchecked:
                self._step(key, "died")
            history.most = max(history.most, len(history.cases))

    def _step(self, key: str, step: str, *args: Any) -> None:
        if key in self.unchecked:
            return
        try:
            getattr(self.of_key[key], step)(*args)
        except TooMany:
            self.unchecked.add(key)
        except Contradiction as error:
            raise Contradiction(f"key {key!r}: {error}") from None


def _short(value: object) -> str:
    if isinstance(value, frozenset):
        value = sorted(value)
        return f"{len(value)} entries: {', '.join(f'{key}@{time}={number}' for key, time, number in value)}"
    return str(value)
