"""What a window may hold, given the calls so far: a checker of linearizability that follows a run.

    calls     insert 1 ├──────┤ ok      insert 2 ├─────── lost          read ├──┤ {1, 2}
    may be    {} ──────▶ {1} ─────────▶ {1} or {1, 2}? ───────────────▶ {1, 2}, of which 2 may not be durable

Each call takes effect at one moment between its beginning and its end, or, if its answer is lost, at any later one
until its process dies, or never. A *case* is what the window holds, with the calls that have taken effect and are not
answered yet. An answer keeps the cases that it fits; if none is left, no order of the calls explains what was seen.

Readers may see a write before it is durable, so a case also says what is durable, and in which order the rest came. An
answered write is durable, and so is all that came before it. Memory that is lost takes the rest, from some call on.

Sets of entries are integers, with a bit for each entry.

Source: Lowe, "Testing for linearizability", 2017 (just-in-time linearization).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

Entry = tuple[str, int, int]
"""Key, time, value. Values are unique, and are the identities."""

State = int | None
"""What a window holds, as bits of `Entries`; None: there is no such window."""

GONE = "gone"
ANY = "any result"
THERE = "any result, of a window that there is"

_CASES_MAX = 20_000
_ALIKE_MAX = 200
"""Cases of one state: each is compared with all others."""


class Contradiction(AssertionError):
    """No order of the calls explains what was seen."""


class TooMany(Exception):
    """There are more cases than are looked at."""


class Entries:
    """The entries that a window may hold, each with its bit."""

    def __init__(self) -> None:
        self.all: list[Entry] = []
        self._bits: dict[Entry, int] = {}

    def bits(self, entries: Iterable[Entry]) -> int:
        """Return the set of these."""
        found = 0
        for entry in entries:
            bit = self._bits.get(entry)
            if bit is None:
                bit = self._bits[entry] = 1 << len(self.all)
                self.all.append(entry)
            found |= bit
        return found

    def of(self, bits: int) -> list[Entry]:
        """Return the entries of a set, in order of time."""
        found = []
        while bits:
            lowest = bits & -bits
            found.append(self.all[lowest.bit_length() - 1])
            bits ^= lowest
        return sorted(found, key=lambda each: (each[1], each[2]))

    def where(self, holds: Callable[[Entry], bool]) -> Callable[[], int]:
        """Return what returns the set of all for which something holds, whatever comes later."""
        looked = found = 0

        def bits() -> int:
            nonlocal looked, found
            for at in range(looked, len(self.all)):
                if holds(self.all[at]):
                    found |= 1 << at
            looked = len(self.all)
            return found

        return bits


Applied = Callable[[State], tuple[State, Hashable]]
"""What a call does to what a window holds; with its result."""


@dataclass(eq=False)
class Op:
    """A call.

    Args:
        what: it does, for people.
        bound: returns what it does to a window of these entries.
        of_key: returns the part of it that is about a key; None if none is.
        writes: whether it changes anything.
        adds, takes: return which entries it adds and takes away; None: it concerns the window as a whole.
        answered: False once the answer is lost for good.
        closed: it has taken effect by now, or never will; it need not be durable.
        soon: it is answered before it is durable.
        decides: its answer is the same however often it is sent.
        idle: the results of a call that has written nothing: it waits for nothing, as a question.
    """

    what: str
    bound: Callable[[Entries], Applied]
    of_key: Callable[[str], Op | None] = lambda key: None
    writes: bool = True
    adds: Callable[[Entries], int] | None = None
    takes: Callable[[Entries], int] | None = None
    answered: bool = True
    closed: bool = False
    soon: bool = False
    decides: bool = False
    idle: frozenset[Hashable] = frozenset((GONE,))
    number: int = 0
    apply: Applied = lambda state: (state, None)

    def passes(self, other: Op, entries: Entries) -> bool:
        """Whether it leads to the same entries before and after another one."""
        if (self.adds is None and self.takes is None) or (other.adds is None and other.takes is None):
            return False
        for one, two in ((self, other), (other, self)):
            if one.adds is not None and two.takes is not None and one.adds(entries) & two.takes(entries):
                return False
        return True


Chain = tuple[tuple[int, ...], ...]
"""Calls that are not known to be durable, in order; those of one link in any. An empty last link: it is closed."""


class Case(NamedTuple):
    """See above.

    Args:
        durable: what survives the loss of memory.
        state: what the window holds: that, with the calls of the chain.
        done: the numbers of calls that have taken effect and are not answered yet, with what they found.
    """

    durable: State
    state: State
    chain: Chain
    done: frozenset[tuple[int, Hashable]]


Mark = tuple[set[Case], dict[int, Op]]
"""The cases at a moment, and the calls that went on."""


class History:
    """The cases of one window.

    Args:
        again: whether what was answered, and lost with memory, may take effect once more.

    Attributes:
        cases: what may be.
        most: most cases there were.
    """

    def __init__(self, again: bool = False) -> None:
        self.entries = Entries()
        self._again = again
        self.cases: set[Case] = {Case(None, None, (), frozenset())}
        self.pending: dict[int, Op] = {}
        self._shaken: set[int] = set()
        self._links: dict[tuple[Chain, int], Chain] = {}
        """What is known of `_linked`: it depends on nothing that changes."""
        self.most = 1
        self._next = 1

    def begin(self, op: Op) -> None:
        """A call begins."""
        op.number = self._next
        op.apply = op.bound(self.entries)
        self._next += 1
        self.pending[op.number] = op

    def end(self, op: Op, result: Hashable) -> None:
        """A call is answered."""
        if op.number in self._shaken:  # perhaps before what it did was lost
            if op.writes:
                self.lost(op)
            else:
                self.refused(op)
            return
        found: set[Case] = set()
        durable = op.writes and result not in op.idle
        if durable and op.soon:
            self._answered(op, result)
            return
        for case in self._closure(op.number):
            for number, got in case.done:
                if number == op.number and _fits(result, got):
                    left = Case(case.durable, case.state, case.chain, case.done - {(number, got)})
                    found.add(self._durable(left, number) if durable else self._without(left, number))
        del self.pending[op.number]
        self._keep(found, f"{op.what} answers {result}")

    def _answered(self, op: Op, result: Hashable) -> None:
        """It has taken effect; it is followed until it is durable, or lost with memory."""
        found = {
            case
            for case in self._closure(op.number)
            if any(number == op.number and _fits(result, got) for number, got in case.done)
        }
        op.answered, op.closed = False, not self._again
        self._keep(found, f"{op.what} answers {result}")

    def stored(self, op: Op) -> None:
        """A call that was answered before it was durable is durable, and so is all that came before it."""
        if op.number in self.pending:
            self._over({op.number}, f"{op.what} is stored")

    def refused(self, op: Op) -> None:
        """A call has changed nothing."""
        del self.pending[op.number]
        self._keep({case for case in self.cases if not any(number == op.number for number, _ in case.done)}, op.what)

    def lost(self, op: Op) -> None:
        """Nobody will say what became of a call; it may take effect later."""
        op.answered = False

    def forgot(self) -> None:
        """Memory is lost, and with it what was not durable; who sent it may send it again."""
        self._forgot(set(), "memory is lost")

    def mark(self) -> Mark:
        """What may be now, to which the store may go back."""
        return self.cases, dict(self.pending)

    def went_back(self, mark: Mark) -> None:
        """The store, and all memory, is as it was; answers to calls that go on may be of before that."""
        now = self.pending
        self.cases, self.pending = mark[0], dict(mark[1])
        found = self._left(self._closure(None), self.pending.keys() - now.keys())
        self.pending = now
        self._shaken.update(now)
        self._keep(found, "the store went back")

    def _forgot(self, lost: set[int], what: str) -> None:
        found = self._left(self._closure(None), lost)
        for number in lost:
            del self.pending[number]
        self._keep(found, what)

    def died(self) -> None:
        """The process died: calls whose answers are lost have taken effect by now, or never will."""
        self._forgot({op.number for op in self.pending.values() if not op.answered}, "a process died")

    def settled(self) -> None:
        """Whatever was lost has taken effect by now, or never will; and all is durable."""
        self._over({op.number for op in self.pending.values() if not op.answered}, "all is settled")

    def served(self, op: Op) -> None:
        """Nobody does anything more for a call whose answer is lost; what it did may still be in memory only."""
        if op.number in self.pending:
            cases = set(self._closure(None))
            op.closed = True
            self._keep(cases, f"{op.what} is served")

    def fenced(self, op: Op) -> None:
        """A call whose answer is lost has taken effect by now, or never will: its producer is fenced."""
        if op.number in self.pending:
            self._over({op.number}, "a producer is fenced")

    def _over(self, lost: set[int], what: str) -> None:
        found: set[Case] = set()
        for durable, state, chain, done in self._closure(None):  # others that go on may have been before them
            case = Case(durable, state, chain, frozenset(each for each in done if each[0] not in lost))
            for number in lost:
                case = self._durable(case, number)
            found.add(case)
        for number in lost:
            del self.pending[number]
        self._keep(found, what)

    def held(self) -> list[Entry] | None:
        """What the window holds, where that is known: all was read."""
        states = {case.state for case in self.cases}
        return self.entries.of(*states) if len(states) == 1 and None not in states else None

    # ---------------------------------------------------------------- what is durable

    def _replayed(self, state: State, numbers: Iterable[int]) -> State:
        for number in numbers:
            state, _ = self.pending[number].apply(state)
        return state

    def _durable(self, case: Case, number: int) -> Case:
        """A call of the chain is durable, and so is what came before it."""
        durable, state, chain, done = case
        for at, link in enumerate(chain):
            if number in link:
                before = [each for earlier in chain[:at] for each in earlier]
                left = tuple([each for each in link if each != number])
                rest = (left, *chain[at + 1 :]) if left else chain[at + 1 :]
                return Case(self._replayed(durable, [*before, number]), state, rest, done)
        return case

    @staticmethod
    def _without(case: Case, number: int) -> Case:
        """A call that has changed nothing, and is answered, is followed no more."""
        chain = tuple(left for link in case.chain if (left := tuple(n for n in link if n != number)) or not link)
        return case if chain == case.chain else case._replace(chain=chain)

    def _left(self, cases: Iterable[Case], lost: AbstractSet[int]) -> set[Case]:
        """What may be left of cases when memory is lost; calls that are undone may take effect again.

        Args:
            lost: the numbers of calls that are followed no more.
        """
        found: set[Case] = set()
        parts: dict[tuple[State, Chain], list[tuple[State, set[int]]]] = {}
        for durable, state, chain, done in cases:
            if lost:
                done = frozenset([each for each in done if each[0] not in lost])
            found.add(Case(state, state, (), done))
            if not chain:
                continue
            some = parts.get((durable, chain))
            if some is None:
                some = parts[durable, chain] = list(self._prefixes(durable, chain))
            for left, gone in some:
                found.add(Case(left, left, (), frozenset([each for each in done if each[0] not in gone])))
        return found

    def _prefixes(self, durable: State, chain: Chain) -> Iterable[tuple[State, set[int]]]:
        """What may be left of a chain but the whole, each with the numbers of the calls that are undone."""
        gone = {number for link in chain for number in link}
        for link in chain:
            for choice in range(2 ** len(link) - 1):
                some = [number for at, number in enumerate(link) if choice >> at & 1]
                yield self._replayed(durable, some), gone.difference(some)
            durable = self._replayed(durable, link)
            gone.difference_update(link)

    def _linked(self, chain: Chain, op: Op) -> Chain:
        found = self._links.get((chain, op.number))
        if found is None:
            if not chain or not chain[-1]:
                found = (*chain[:-1], (op.number,))
            elif all(op.passes(self.pending[number], self.entries) for number in chain[-1]):
                found = (*chain[:-1], tuple(sorted((*chain[-1], op.number))))
            else:
                found = (*chain, (op.number,))
            self._links[chain, op.number] = found
        return found

    # ---------------------------------------------------------------- cases

    def _closure(self, target: int | None) -> Iterable[Case]:
        """All cases that pending calls lead to; none goes on once the target has taken effect."""
        seen = set(self.cases)
        todo = list(seen)
        pending = [(number, op) for number, op in self.pending.items() if not op.closed]
        while todo and pending:
            durable, state, chain, done = todo.pop()
            began = {number for number, _ in done}
            if target in began:
                continue
            for number, op in pending:
                if number in began:
                    continue
                after, result = op.apply(state)
                # One that writes nothing, as it finds no window, is answered at once: it stays so whatever is lost.
                changes = after != state or (op.writes and chain and result not in op.idle)
                linked = self._linked(chain, op) if changes else chain
                case = Case(durable, after, linked, done | {(number, result)})
                if case not in seen:
                    seen.add(case)
                    todo.append(case)
            if len(seen) > _CASES_MAX:
                raise TooMany
        return seen

    def _keep(self, cases: set[Case], what: str) -> None:
        # A lost call has no answer to compare, so what it would have answered does not matter.
        lost = {op.number for op in self.pending.values() if not op.answered}
        groups: dict[tuple[State, frozenset[tuple[int, Hashable]]], set[tuple[State, Chain]]] = {}
        for durable, state, chain, done in cases:
            if lost and done:
                done = frozenset([(n, ANY if n in lost else got) for n, got in done])
            closed = (*chain, ()) if chain and chain[-1] else () if chain == ((),) else chain
            groups.setdefault((state, done), set()).add((durable, closed))
        if not groups:
            few = sorted((self._said(case.state) for case in self.cases), key=len)[:4]
            raise Contradiction(f"{what}; but the window held one of {len(self.cases)} states, such as {few}")
        self.cases = {
            Case(durable, state, chain, done)
            for (state, done), group in groups.items()
            for durable, chain in (group if len(group) == 1 else self._widest(group))
        }
        self.most = max(self.most, len(self.cases))
        for number in [number for number in lost if self.pending[number].closed]:
            if not any(number in link for case in self.cases for link in case.chain):  # it is durable, or is not there
                del self.pending[number]
                self.cases = {
                    case._replace(done=frozenset(each for each in case.done if each[0] != number))
                    for case in self.cases
                }

    def _widest(self, group: set[tuple[State, Chain]]) -> list[tuple[State, Chain]]:
        """Leave out what allows nothing that another one does not allow: less is durable there, or in any order.

        With the calls that are not in its chain, that one has the same durable: what was evicted since may differ.
        """
        found: list[tuple[State, Chain]] = []
        for durable, chain in sorted(group, key=lambda each: (-sum(map(len, each[1])), len(each[1]))):
            own = {number for link in chain for number in link}
            if not any(
                _within(chain, wider)
                and self._replayed(less, [n for link in wider for n in link if n not in own]) == durable
                for less, wider in found
            ):
                found.append((durable, chain))
                if len(found) > _ALIKE_MAX:
                    raise TooMany
        return found

    def _said(self, state: State) -> str:
        if state is None:
            return "no window"
        entries = self.entries.of(state)
        return f"{len(entries)} entries: {', '.join(f'{key}@{time}={number}' for key, time, number in entries)}"


def _fits(result: Hashable, got: Hashable) -> bool:
    """Whether an answer may be of a call that found this."""
    return result in (got, ANY) or (result == THERE and got != GONE)


def _within(chain: Chain, wider: Chain) -> bool:
    place = {number: at for at, link in enumerate(wider) for number in link}
    own = {number for link in chain for number in link}
    if not own <= place.keys():
        return False
    last = max((at for number, at in place.items() if number not in own), default=-1)
    for link in chain:
        if not link:
            continue
        places = {place[number] for number in link}
        if len(places) > 1 or min(places) < last:
            return False
        last = max(places)
    return True


class KeyedHistory:
    """The histories of a window's keys, each by itself: they are on different shards, and no call is one step on all.

    Args:
        keys: of the window.

    Attributes:
        unchecked: keys that are followed no more: they had too many cases.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self.of_key = {key: History(again=True) for key in keys}  # another process may have it to do still
        self.unchecked: set[str] = set()
        self._parts: dict[Op, dict[str, Op]] = {}
        self._keys: dict[int, str] = {}

    def begin(self, op: Op) -> None:
        """See `History`."""
        parts = {key: part for key in self.of_key if (part := op.of_key(key)) is not None}
        for part in parts.values():
            part.soon, part.idle = op.soon, op.idle
        self._parts[op] = parts
        for key, part in parts.items():
            self._step(key, "begin", part)

    def end(self, op: Op, result: Hashable, unsure: Callable[[str], bool] = lambda key: False) -> None:
        """See `History`; a result of several keys is taken apart as far as it can be.

        Args:
            unsure: says of which keys the answer may be of before memory was lost.
        """
        parts = self._parts.pop(op)
        for key, part in parts.items():
            if unsure(key):
                self._step(key, "lost", part)
            else:
                self._step(key, "end", part, result if len(parts) == 1 else self._of_key(key, result))

    def parts(self, op: Op) -> dict[str, Op]:
        """A call, by key."""
        return self._parts[op]

    def stored(self, key: str, part: Op) -> None:
        """See `History`, of a part of a call."""
        self._step(key, "stored", part)

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

    def forgot(self, of: Callable[[str], bool]) -> None:
        """See `History`: of the keys for which something holds."""
        for key in self.of_key:
            if of(key):
                self._step(key, "forgot")

    def mark(self) -> dict[str, Mark]:
        """See `History`."""
        return {key: history.mark() for key, history in self.of_key.items()}

    def went_back(self, marks: dict[str, Mark]) -> None:
        """See `History`."""
        for key, mark in marks.items():
            self._step(key, "went_back", mark)

    def settled(self) -> None:
        """See `History`."""
        for key in self.of_key:
            self._step(key, "settled")

    def held(self) -> list[Entry] | None:
        """See `History`."""
        parts = [None if key in self.unchecked else history.held() for key, history in self.of_key.items()]
        return None if None in parts else [entry for part in parts for entry in part or ()]

    def _step(self, key: str, step: str, *args: Any) -> None:
        if key in self.unchecked:
            return
        try:
            getattr(self.of_key[key], step)(*args)
        except TooMany:
            self.unchecked.add(key)
        except Contradiction as error:
            raise Contradiction(f"key {key!r}: {error}") from None
