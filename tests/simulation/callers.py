"""Callers: each draws its steps from the seed, makes them one after the other, and tells the histories of the windows.

A numbered write is sent until it is answered, always with its number. Another write is sent as the client does; where
its answer is lost, nobody knows.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import sash_client
from sash_client.aio import AsyncWindow
from sash_client.errors import DataLoss, DeadlineExceeded, NotFound, SashClientError, Unavailable
from sash_engine.windows.questions import Limit, RangeQuery
from tests.simulation.history import ANY, GONE, Applied, Entries, Entry, Op, State
from tests.simulation.world import Caller, World
from tests.support.admit_model import decide

__all__ = [
    "GATHERED",
    "KEPT",
    "KEYS",
    "KNOWN",
    "PARTS",
    "PASSING",
    "PLAIN",
    "ROLLED",
    "TIMES",
    "VIEW",
    "as_logged",
    "asked",
    "calls",
    "compared",
    "creating",
    "spec",
    "view",
]

KEPT, PASSING, PLAIN, ROLLED = "kept", "passing", "plain", "rolled"
"""The window that is there always, the one that is created and deleted all the time, one without keys, and one whose
groups are kept as it is written."""
GATHERED = "gathered"
"""A window of durability `interval`."""
KNOWN = "known"
"""A window that keeps what was known when."""
VIEW = "shown"
"""A view of the window that is there always."""
PARTS = ("team", "name")
"""The parts of keys."""
KEYS = ["x|a", "y|b", "x|c"]
NO_KEY = ""
TIMES = 1000
_PATIENCE_S = 3600.0
_SPANS = [TIMES // 4 * 10**6, TIMES * 10**6]
"""Lookbacks of answers that are logged."""


def spec(name: str) -> dict[str, Any]:
    """The spec of a window."""
    found: dict[str, Any] = {
        "name": name,
        **({"keyed": False} if name == PLAIN else {"keys": list(PARTS)}),
        "time_unit": "ms",
        "fields": {"value": "int64"},
        "identity": "value",
        "aggregates": {
            "n": {"function": "count"},
            "all": {"function": "collect", "field": "value"},
            "max": {"function": "max", "field": "value"},
            "sum": {"function": "sum", "field": "value"},
        },
    }
    if name == ROLLED:  # such a window has neither an identity nor aggregates for which order matters
        del found["identity"], found["aggregates"]["all"]
        found["rollups"] = [[PARTS[0]], []]
    if name == GATHERED:
        found["durability"] = "interval"
    if name == KNOWN:
        found["known"] = "arrival"
    return found


def view() -> dict[str, Any]:
    """The spec of a view."""
    return {"name": VIEW, "of": KEPT, "aggregates": {n: a for n, a in spec(KEPT)["aggregates"].items() if n != "all"}}


# ---------------------------------------------------------------- what calls do


def _on_window(change: Callable[[int], tuple[State, Hashable]]) -> Applied:
    return lambda state: (None, GONE) if state is None else change(state)


def inserting(entries: Sequence[Entry]) -> Op:
    """Entries arrive."""
    added = functools.cache(lambda known: known.bits(entries))

    def bound(known: Entries) -> Applied:
        new = added(known)
        return _on_window(lambda state: (state | new, len(entries)))

    return Op(f"insert {list(entries)}", bound, _split(inserting, entries), adds=added)


def admitting(entries: Sequence[Entry], limit: Limit) -> Op:
    """Entries of one key arrive, as far as a limit holds with them; the answer says which they are."""
    (key,) = {key for key, _, _ in entries}
    group = dict(zip(PARTS, key.split("|"), strict=False))

    def counts(entry: Entry) -> bool:
        if limit.by is None:
            return entry[0] == key
        other = dict(zip(PARTS, entry[0].split("|"), strict=True))
        return all(other[part] == group[part] for part in limit.by)

    def bound(known: Entries) -> Applied:
        bits, among = [known.bits([entry]) for entry in entries], known.where(counts)
        found: dict[int, tuple[int, Hashable]] = {}

        def change(state: int) -> tuple[State, Hashable]:
            there = state & among()
            if there not in found:
                admitted = [each.admitted for each in decide(known.of(there), entries, [limit], PARTS, 0)]
                went_in = sum(bit for bit, each in zip(bits, admitted, strict=True) if each)
                found[there] = went_in, str(admitted)
            return state | found[there][0], found[there][1]

        return _on_window(change)

    return Op(
        f"admit {list(entries)} by {limit}",
        bound,
        lambda one: admitting(entries, limit) if one == key else None,
        decides=True,
        idle=frozenset((GONE, str([False] * len(entries)))),
    )


def _split(op: Callable[[Sequence[Entry]], Op], entries: Sequence[Entry]) -> Callable[[str], Op | None]:
    def of_key(key: str) -> Op | None:
        own = [entry for entry in entries if entry[0] == key]
        return op(own) if own else None

    return of_key


def evicting(start: int, end: int, key: str | None) -> Op:
    """Entries leave."""
    leaving = functools.cache(
        lambda known: known.where(lambda each: start <= each[1] <= end and key in (None, each[0]))
    )

    def bound(known: Entries) -> Applied:
        gone = leaving(known)

        def evict(state: int) -> tuple[State, Hashable]:
            some = state & gone()
            return state ^ some, some.bit_count()

        return _on_window(evict)

    return Op(
        f"evict {start} to {end} of {key or 'all'}",
        bound,
        lambda one: evicting(start, end, one) if key in (None, one) else None,
        takes=lambda known: leaving(known)(),
    )


def retracting(entries: Sequence[Entry]) -> Op:
    """Single entries leave."""
    taken = functools.cache(lambda known: known.bits(entries))

    def bound(known: Entries) -> Applied:
        gone = taken(known)
        return _on_window(lambda state: (state & ~gone, (state & gone).bit_count()))

    return Op(f"retract {list(entries)}", bound, _split(retracting, entries), takes=taken)


def creating() -> Op:
    """The window comes."""
    return Op("create", lambda _: lambda state: (0, True) if state is None else (state, False), lambda _: creating())


def deleting() -> Op:
    """The window goes."""
    return Op("delete", lambda _: _on_window(lambda state: (None, state.bit_count())), lambda _: deleting())


def reading(start: int, end: int, keys: Sequence[str], ordered: bool = True) -> Op:
    """A question, whose answer is a fold of what is there. Over several keys, entries have no order."""

    def bound(known: Entries) -> Applied:
        asked = known.where(lambda each: each[0] in keys and start <= each[1] <= end)
        answers: dict[int, Hashable] = {}

        def answer(state: int) -> tuple[State, Hashable]:
            bits = state & asked()
            found = answers.get(bits)
            if found is None:
                found = answers[bits] = folded(known.of(bits), keys, ordered)
            return state, found

        return _on_window(answer)

    return Op(
        f"read {keys} {start} to {end}",
        bound,
        lambda key: reading(start, end, [key], ordered) if key in keys else None,
        writes=False,
    )


def folded(entries: Iterable[Entry], keys: Sequence[str], ordered: bool) -> Hashable:
    """The plain fold of entries."""
    values = [value for _, _, value in sorted((time, keys.index(key), value) for key, time, value in entries)]
    return len(values), tuple(values) if len(keys) == 1 and ordered else (), max(values, default=None), sum(values)


def _seen(aggregates: Any) -> Hashable:
    total = aggregates["sum"]
    return aggregates["n"], tuple(aggregates.get("all", ())), aggregates["max"], 0 if total is None else total


# ---------------------------------------------------------------- callers


class Logged(NamedTuple):
    """An answer that was logged.

    Args:
        key, start, end: it is of.
        known_at: it says.
        seen: it was.
        owner: who gave it, see `World.owner_of`.
    """

    key: str
    start: int
    end: int
    known_at: int
    seen: Any
    owner: Hashable


class _Numbers:
    """How far a producer has come in a window.

    Attributes:
        given_up: numbered writes whose answers were lost, and that were not sent again: a higher epoch fences them.
    """

    def __init__(self) -> None:
        self.sequence, self.epoch = 0, 0
        self.given_up: list[Op] = []


class _Calls:
    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.draw = random.Random(f"{world.scenario.seed} caller {number}")
        self.client = Caller(world, str(number), self.draw.choice([3.0, 20.0, 20.0]))
        self.windows = {name: self.client.window(name) for name in world.histories}
        self.numbered = {name: _Numbers() for name in world.histories if name != PASSING}
        self.batch = -1
        self.copies = 0
        self.values = 0
        self.mine: dict[str, list[Entry]] = {name: [] for name in world.histories}

    def keys(self, name: str) -> list[str]:
        """The keys of a window."""
        return [NO_KEY] if name == PLAIN else self.world.keys

    def entries(self, name: str, count: int) -> list[Entry]:
        """New entries: no two of a run have the same time, or the same value."""
        found = []
        for _ in range(count):
            self.values += 1
            value = self.values * 10 + self.number
            key = self.draw.choice(self.keys(name))
            found.append((key, self.draw.randrange(TIMES) * 10**6 + value, value))
        self.mine[name] += found
        self.world.knows(name, found)
        return found

    async def run(self) -> None:
        for _ in range(self.world.scenario.steps):
            if self.draw.random() < 0.3:
                await asyncio.sleep(self.draw.choice([0.0, 0.01, 0.3, 1.5]))
            await self.step()
            if self.world.failure is not None or self.world.damaged:
                return

    async def step(self) -> None:
        draw = self.draw
        name = KEPT if draw.random() >= self.world.scenario.life else PASSING
        if PLAIN in self.windows and draw.random() < 0.2:
            name = PLAIN
        if ROLLED in self.windows and draw.random() < 0.3:
            name = ROLLED
        if GATHERED in self.windows and draw.random() < 0.4:
            name = GATHERED
        if KNOWN in self.windows and draw.random() < 0.4:
            name = KNOWN
        if self.world.moves and draw.random() < self.world.move_share:
            await self.world.move(self.client, draw)
            return
        window, history = self.windows[name], self.world.histories[name]
        numbered = name in self.numbered and draw.random() < 0.6 and not self.world.loses
        evicts = name != KNOWN  # what is evicted was never known, so logged answers would change
        shares = {
            "insert": 30,
            "bulk": 25,
            "evict": 6 * evicts,
            "range": 4 * evicts,
            "retract": 8 * (name != ROLLED),
            "read": 22,
            "life": 25 * (name == PASSING and not self.world.left_alone),
            "log": 30 * (name == KNOWN),
            "again": 15 * (name == KNOWN),
        }
        what = draw.choices([*shares], [*shares.values()])[0]
        if self.world.scenario.limited and what in ("insert", "bulk") and draw.random() < 0.5:
            what = "admit"
        if draw.random() < self.world.scenario.others:
            await (self._copy() if draw.random() < 0.5 else self._add())
        elif name == KEPT and draw.random() < self.world.scenario.batches:
            await self._batch(window, history, name)
        elif what == "life":
            await self._life(history, name)
        elif what == "read":
            await self._read(window, history, name)
        elif what == "log":
            await self._log(window, history)
        elif what == "again":
            await self._again(window)
        else:
            op, call, result = self._write(what, window, name)
            op.soon = name == GATHERED
            if numbered:
                op.idle = frozenset((GONE,))  # its number is written
                await self._numbered(history, op, call, result, self.numbered[name])
            else:
                await self._once(history, op, call, result)

    def _write(
        self, what: str, window: AsyncWindow, name: str
    ) -> tuple[Op, Callable[..., Coroutine[Any, Any, Any]], Any]:
        draw = self.draw
        if what == "insert":
            ((key, time, value),) = entries = self.entries(name, 1)
            return (
                inserting(entries),
                lambda **numbers: window.insert(time, fields={"value": value}, key=key or None, **numbers),
                lambda done: done.inserted,
            )
        if what == "bulk":
            entries = self.entries(name, draw.choice([2, 5, 12, 40]))
            keys, times, values = _columns(entries)
            return (
                inserting(entries),
                lambda **numbers: window.bulk_insert(times, {"value": values}, keys=keys, **numbers),
                lambda done: done.inserted,
            )
        if what == "admit":
            return self._admitting(window, name)
        if what == "retract":
            mine = self.mine[name]
            some = draw.sample(mine, min(len(mine), draw.choice([1, 1, 4]))) or self.entries(name, 1)
            keys, times, values = _columns(some)
            return (
                retracting(some),
                lambda **numbers: window.retract(times, values, keys=keys, **numbers),
                lambda done: done.retracted,
            )
        key = draw.choice([None, *self.keys(name)]) or None
        end = draw.randrange(TIMES // 3) * 10**6
        if what == "evict":
            return (
                evicting(-1, end, key),
                lambda **numbers: window.bulk_evict(end, key=key, **numbers),
                lambda done: done.evicted,
            )
        start, end = end, end + draw.randrange(TIMES // 3) * 10**6
        return (
            evicting(start, end, key),
            lambda **numbers: window.bulk_evict(start=start, end=end, key=key, **numbers),
            lambda done: done.evicted,
        )

    def _admitting(self, window: AsyncWindow, name: str) -> tuple[Op, Callable[..., Coroutine[Any, Any, Any]], Any]:
        draw = self.draw
        key = draw.choice(self.keys(name))
        entries = [(key, time, value) for _, time, value in self.entries(name, draw.choice([1, 1, 3]))]
        self.mine[name][-len(entries) :] = entries
        self.world.knows(name, entries)
        by_team = name == ROLLED and self.world.scenario.cluster is None
        limit = Limit("n", draw.choice([30, 200]) * 10**6, "<=", draw.choice([1, 2, 4]), PARTS[:1] if by_team else None)
        asked = [sash_client.Limit(limit.aggregate, limit.lookback, limit.value, limit.op, limit.by)]
        keys, times, values = _columns(entries)
        if len(entries) == 1:
            call = functools.partial(window.admit, times[0], fields={"value": values[0]}, key=key or None, limits=asked)
        else:
            call = functools.partial(window.bulk_admit, times, {"value": values}, keys=keys, limits=asked)
        return admitting(entries, limit), call, lambda done: str([*done.admitted])

    async def _numbered(self, history: Any, op: Op, call: Any, result: Any, numbers_: _Numbers) -> None:
        """Send a write with the next number until it is answered."""
        world = self.world
        numbers_.sequence += 1
        sequence, epoch = numbers_.sequence, numbers_.epoch
        numbers = {"producer": f"p{self.number}", "sequence": sequence, "epoch": epoch}
        gives_up = self.draw.random() < 0.2
        self._begin(history, op, f" as number {sequence} of epoch {epoch}")
        end_s = world.loop.time() + _PATIENCE_S
        while world.failure is None:
            try:
                self.client.delay_s = self.draw.choice([0.0, 0.5, 3.0]) if gives_up else 0.0
                async with asyncio.timeout(0.3 if gives_up else None):
                    done = await call(**numbers)
            except (TimeoutError, Unavailable, DeadlineExceeded) as error:
                self._say(op, f"not answered: {error}")
                self.client.delay_s = 0.0
                if gives_up:
                    self._gives_up(history, op, numbers_)
                    return
            except SashClientError as error:
                if op.soon and error.field == "sequence":  # what it was answered before is lost with memory
                    world.met["begins again | what it was answered is lost"] += 1
                    self._say(op, error.message)
                    self._gives_up(history, op, numbers_)
                    return
                if error.reason != "OUT_OF_ROOM" and not self._excused(error):
                    world.fail(AssertionError(f"{op.what} as number {sequence} is refused: {error.message}"))
                    return
                self._say(op, f"no room: {error.message}")
            else:
                self.client.delay_s = 0.0
                # The client may have sent it twice: shards that have applied it before count nothing then.
                unknown = (done.already_applied or world.moves) and not op.decides
                self._end(history, op, ANY if unknown else result(done))
                for old in numbers_.given_up:
                    if not op.soon:  # else the epoch, too, may be lost with memory
                        world.checked(history.fenced, old)
                numbers_.given_up = []
                return
            self.client.delay_s = 0.0
            if world.damaged:
                world.lost(history, op, self.client)
                return
            if world.loop.time() > end_s:
                world.fail(AssertionError(f"{op.what} is not answered in {_PATIENCE_S:.0f} s"))
                return
            await asyncio.sleep(1.0)

    def _gives_up(self, history: Any, op: Op, numbers: _Numbers) -> None:
        """Begin again with a higher epoch, as a client that has ended: nobody knows what became of a write."""
        self.world.met["fenced | a write that is lost"] += 1
        self.world.lost(history, op, self.client)
        numbers.given_up.append(op)
        numbers.epoch, numbers.sequence = numbers.epoch + 1, 0

    async def _batch(self, window: AsyncWindow, history: Any, name: str) -> None:
        """Stage a batch as a streaming query does, parts of it twice, and commit it until that is answered."""
        self.batch += 1
        entries = self.entries(name, self.draw.choice([1, 4, 20]))
        keys, times, values = _columns(entries)
        names = {"query": f"q{self.number}", "batch": self.batch}
        op, again, tried = inserting(entries), self.draw.random() < 0.3, False
        self._begin(history, op, f" as batch {self.batch}")
        staged, keeps = None, self.draw.random() < 0.5  # a driver commits what tasks have staged, until it is answered
        for _ in range(1000):
            try:
                if staged is None or not keeps:
                    staged = await window.stage(times, {"value": values}, keys=keys, **names)
                    if self.draw.random() < 0.3:  # by a task that is run twice
                        staged = await window.stage(times, {"value": values}, keys=keys, **names)
                    if self.draw.random() < 0.3:
                        await asyncio.sleep(0.5)
                tried = True
                done = await window.commit(names["query"], names["batch"], staged)
                if again:  # by a driver that does not know
                    again = False
                    done = await window.commit(names["query"], names["batch"], staged)
            except (Unavailable, DeadlineExceeded) as error:
                self._say(op, f"not answered: {error.message}")
            except SashClientError as error:
                if tried and error.field == "batch" and error.code == "FAILED_PRECONDITION":
                    self._end(history, op, ANY)  # an earlier attempt has committed it
                    return
                jumped = any(fault.kind == "clock" for fault in self.world.scenario.faults)
                if error.field == "stages" and jumped:
                    staged = None  # the clock of who staged it was behind: on the next owner, it has expired
                elif error.reason != "OUT_OF_ROOM" and not self._excused(error):
                    self.world.fail(AssertionError(f"batch {self.batch} is refused: {error.message}"))
                    return
            else:
                self._end(history, op, ANY if done.already_applied or self.world.moves else done.inserted)
                if self.draw.random() < 0.3:
                    await self._other_rows(window, history, name, names)
                return
            if self.world.damaged:
                self.world.lost(history, op, self.client)
                return
            await asyncio.sleep(1.0)
        self.world.fail(AssertionError(f"batch {self.batch} is not committed in 1,000 attempts"))

    async def _other_rows(self, window: AsyncWindow, history: Any, name: str, names: dict[str, Any]) -> None:
        """Commit the last batch again, with other rows, as a source that cannot repeat itself has it: none arrives."""
        entries = self.entries(name, 3)
        op = inserting(entries)
        self._begin(history, op, f" as batch {self.batch}, which is committed")
        keys, times, values = _columns(entries)
        said = "no row arrives"
        try:
            staged = await window.stage(times, {"value": values}, keys=keys, **names)
            done = await window.commit(names["query"], names["batch"], staged)
            if not done.already_applied:
                self.world.fail(AssertionError(f"batch {self.batch} is committed twice"))
        except SashClientError as error:
            said = error.message
        self._say(op, said)
        self.world.checked(history.refused, op)

    async def _add(self) -> None:
        """Add an aggregate."""
        world = self.world
        name = f"least{self.number}x{sum(each.startswith(f'least{self.number}x') for each in world.added)}"
        world.note(f"caller {self.number}: {KEPT}: add {name} …")
        world.added[name] = False
        try:
            await self.windows[KEPT].add_aggregates({name: {"function": "min", "field": "value"}})
        except SashClientError as error:
            world.note(f"caller {self.number}: … add {name}: {error.message}")
        else:
            world.added[name] = True
            world.note(f"caller {self.number}: … {name} is added")

    async def _copy(self) -> None:
        """Export a window, and import it under another name, or where there are more shards.

        Others write meanwhile. The copy has what its keys had at one moment each.
        """
        world = self.world
        if world.stale:
            return
        self.copies += 1
        copy, history, window = f"copy{self.number}x{self.copies}", world.histories[KEPT], f"a copy of {KEPT}"
        resharded = self.draw.random() < 0.5
        if resharded:
            window = f"{KEPT}, resharded"
        ops = {key: reading(-1, TIMES * 10**6, [key]) for key in world.keys}
        for op in ops.values():
            self._begin(history, op, f" in {window}")
        seen: dict[str, Hashable] = {}
        if not resharded:
            world.copies.append(copy)
        try:
            served = await world.serving()
            async with asyncio.timeout(60.0):
                parts = await world.done_by(served, world.exported(served, KEPT))
                if not resharded:
                    await world.done_by(await world.serving(), world.imported(parts, copy))
            other = await world.resharded(parts, KEPT) if resharded else None
            for key in world.keys:
                answer: Any
                if other is not None:
                    answer = await other.ask(KEPT, RangeQuery(-1, TIMES * 10**6, key))
                else:
                    answer = await self.client.window(copy).range_query(-1, TIMES * 10**6, key=key)
                seen[key] = _seen(answer.aggregates)
        except (TimeoutError, SashClientError) as error:
            if not isinstance(error, TimeoutError | Unavailable | DeadlineExceeded) and not self._excused(error):
                raise
            world.note(f"caller {self.number}: … {window}: {error}")
        for key, op in ops.items():
            if len(seen) == len(ops):
                self._end(history, op, seen[key])
            else:
                world.checked(history.refused, op)

    async def _once(self, history: Any, op: Op, call: Any, result: Any) -> bool:
        """Send a write once, or as the client sends it; return whether it is answered."""
        self._begin(history, op)
        try:
            done = await call()
        except NotFound:
            self._gone(history, op)
        except SashClientError as error:
            self._failed(history, op, error)
        else:
            if self.world.stale and op.decides and not any(done.admitted):
                self._say(op, "nothing is admitted, perhaps by what was before")  # and so nothing is written
                self.world.checked(history.refused, op)
            else:
                self._end(history, op, result(done))
            return True
        return False

    async def _log(self, window: AsyncWindow, history: Any) -> None:
        """Ask, and write: if that is durable, the answer is what was known, for as long as the window lives."""
        world, draw = self.world, self.draw
        ((key, time, value),) = entries = self.entries(KNOWN, 1)
        end = draw.randrange(TIMES) * 10**6
        start = end - draw.choice(_SPANS) + 1
        op, owner = reading(start, end, [key]), world.owner_of(KNOWN, key)
        self._begin(history, op)
        try:
            (answer,) = await window.query(key=key, lookbacks=[end - start + 1], as_of=end)
        except SashClientError as error:
            self._failed(history, op, error, reads=True)
            return
        seen = _seen(answer.aggregates)
        self._end(history, op, seen)
        op = inserting(entries)
        done = await self._once(
            history, op, lambda: window.insert(time, fields={"value": value}, key=key), lambda done: done.inserted
        )
        if done and world.owner_of(KNOWN, key) == owner:  # else what was seen may be lost with memory
            world.logged.append(Logged(key, start, end, answer.known_at, seen, owner))
            world.met["known | logged"] += 1

    async def _again(self, window: AsyncWindow) -> None:
        """Ask for a logged answer again."""
        if not self.world.logged:
            return
        try:
            await _same_as_logged(self.world, window, self.draw.choice(self.world.logged))
        except (Unavailable, DeadlineExceeded) as error:
            self.world.note(f"caller {self.number}: {KNOWN}: again: {error.message}")
        except DataLoss:
            if not self.world.damaged:
                raise

    async def _read(self, window: AsyncWindow, history: Any, name: str) -> None:
        draw = self.draw
        start, end = sorted(draw.randrange(TIMES) * 10**6 for _ in range(2))
        keys = [draw.choice(self.keys(name))]
        if draw.random() < 0.4:
            start, end = -1, TIMES * 10**6
        if draw.random() < 0.3 and not self.world.moves:  # keys of two shards have no order
            keys = draw.sample(self.keys(name), 2)
        op = reading(start, end, keys, name != ROLLED)
        self._begin(history, op)
        try:
            if len(keys) == 1:
                answer = await window.range_query(start, end, key=keys[0] or None)
            else:
                answer = await window.range_query(start, end, keys=keys, aggregates=["max", "n", "sum"])
        except NotFound:
            self._gone(history, op)
        except SashClientError as error:
            self._failed(history, op, error, reads=True)
        else:
            if self.world.stale:
                self._say(op, "something, perhaps of before")
                self.world.checked(history.refused, op)
            else:
                self._end(history, op, _seen(answer.aggregates))

    async def _life(self, history: Any, name: str) -> None:
        create = self.draw.random() < 0.6
        op = creating() if create else deleting()
        self._begin(history, op)
        try:
            if create:
                await self.client.create_window(spec(name))
                if self.world.stale:  # it may have been there before, and not be now
                    self._say(op, "done, perhaps before")
                    self.world.lost(history, op, self.client)
                else:
                    self._end(history, op, ANY)
            else:
                count = await self.client.delete_window(name)
                self._end(history, op, ANY if self.world.damaged else count)
        except NotFound:
            self._gone(history, op)
        except SashClientError as error:
            self._failed(history, op, error)
            # What it has left half-done must come right by itself.
            self.world.left_alone |= self.draw.random() < 0.3

    # ---------------------------------------------------------------- what the histories hear

    def _begin(self, history: Any, op: Op, how: str = "") -> None:
        name = next(name for name, each in self.world.histories.items() if each is history)
        self.world.note(f"caller {self.number}: {name}: {op.what}{how} …")
        self.client.sent.clear()
        self.client.began_s = self.world.loop.time()
        self.world.checked(history.begin, op)

    def _end(self, history: Any, op: Op, result: Hashable) -> None:
        self._say(op, str(result))
        self.world.answered(history, op, result, self.client)

    def _excused(self, error: SashClientError) -> bool:
        """Whether a process may say this that has slept while a window came, or whose disk is damaged."""
        world = self.world
        return (world.stale and isinstance(error, NotFound)) or (world.damaged and isinstance(error, DataLoss))

    def _gone(self, history: Any, op: Op) -> None:
        if self.world.stale:
            self._say(op, "gone, perhaps before")
            self.world.checked(history.refused, op)
        else:
            self._end(history, op, GONE)

    def _failed(self, history: Any, op: Op, error: SashClientError, reads: bool = False) -> None:
        excused = self._excused(error)
        if isinstance(error, DataLoss) and not self.world.loses and not excused:
            self.world.fail(error)
        self._say(op, f"{type(error).__name__}: {error.message}")
        unknown = excused or isinstance(error, Unavailable | DeadlineExceeded)
        if not reads and unknown and not error.unchanged:
            self.world.lost(history, op, self.client)
        else:
            self.world.checked(history.refused, op)

    def _say(self, op: Op, said: str) -> None:
        self.world.note(f"caller {self.number}: … {op.what[:40]}: {said}")


def _columns(entries: Sequence[Entry]) -> tuple[list[str] | None, list[int], list[int]]:
    """Keys, None for a window that has none, times and values."""
    keys, times, values = map(list, zip(*entries, strict=True))
    return keys if any(keys) else None, times, values  # type: ignore[return-value]


async def calls(world: World, number: int) -> None:
    """Make the steps of a caller."""
    await _Calls(world, number).run()


async def compared(world: World, what: str) -> None:
    """Compare what the windows hold, every answer to it, and what was logged, with what they may be."""
    client, draw = Caller(world, "reader", 60.0), random.Random(f"{world.scenario.seed} {what}")
    for name, history in world.histories.items():
        window, total, gone = client.window(name), 0, set[bool]()
        for key in [NO_KEY] if name == PLAIN else world.keys:
            part = sorted(draw.randrange(TIMES) * 10**6 for _ in range(2))
            for start, end in [(-1, TIMES * 10**6), (part[0], part[1])]:
                op = reading(start, end, [key], name != ROLLED)
                world.checked(history.begin, op)
                seen: Hashable = GONE
                try:
                    seen = _seen((await asked(window.range_query, start, end, key=key or None)).aggregates)
                    if end == part[1]:
                        lookback = {"lookbacks": [end - start + 1], "as_of": end}
                        (answer,) = await asked(window.query, key=key or None, **lookback)
                        if _seen(answer.aggregates) != seen:  # a call whose answer is lost may take effect meanwhile
                            again = await asked(window.range_query, start, end, key=key or None)
                            if _seen(answer.aggregates) != _seen(again.aggregates):
                                world.fail(AssertionError(f"a lookback and its range differ: {answer}, {seen}"))
                    else:
                        total += seen[0]  # type: ignore[index]
                except NotFound:
                    pass
                except DataLoss as error:
                    if not world.damaged:
                        raise
                    world.note(f"{what}: {name}: {error.message}")
                    world.met["damaged | a key is not answered"] += 1
                    world.checked(history.refused, op)
                    continue
                world.checked(history.end, op, seen)
                gone.add(seen == GONE)
        if len(gone) > 1 and not world.unchecked:
            world.fail(AssertionError(f"{what}: {name} is there for some keys, and for others it is not"))
        world.note(f"{what}: {name}: {total} entries")
    await as_logged(world, what)


async def _same_as_logged(world: World, window: AsyncWindow, logged: Logged) -> None:
    question = {"key": logged.key, "lookbacks": [logged.end - logged.start + 1], "as_of": logged.end}
    (answer,) = await window.query(**question, known_at=logged.known_at)
    world.met[
        f"known | again {'of the same' if world.owner_of(KNOWN, logged.key) == logged.owner else 'of another'}"
    ] += 1
    world.note(f"{KNOWN}: {logged} again")
    if _seen(answer.aggregates) != logged.seen:
        world.fail(AssertionError(f"{KNOWN}: {logged}, and again {_seen(answer.aggregates)}"))


async def as_logged(world: World, what: str) -> None:
    """Ask for all logged answers again, in one question, and one by one."""
    if not world.logged or world.damaged or world.failure is not None:
        return
    window = Caller(world, "known", 60.0).window(KNOWN)
    keys, ends, known = ([getattr(each, name) for each in world.logged] for name in ("key", "end", "known_at"))
    question = {"keys": keys, "lookbacks": _SPANS, "known_at": known, "aggregates": ["n", "max"]}
    found = await asked(window.answers_at, ends, **question)
    for at, logged in enumerate(world.logged):
        count, most = (found.columns[f"{name}_{logged.end - logged.start + 1}"].tolist()[at] for name in ("n", "max"))
        if (count, most) != (logged.seen[0], logged.seen[2]):
            world.fail(AssertionError(f"{what}: {KNOWN}: {logged}, and again {count} and {most}"))
    for logged in world.logged:
        await asked(_same_as_logged, world, window, logged)


async def asked(call: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any) -> Any:
    """Ask until it is answered."""
    for _ in range(100):
        try:
            return await call(*args, **options)
        except (Unavailable, DeadlineExceeded):
            await asyncio.sleep(1.0)
    raise AssertionError("a question is not answered in 100 attempts")
