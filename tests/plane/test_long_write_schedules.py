"""Random schedules of long writes and everything that may happen meanwhile, each answer compared with what may be.

    schedule   bulk  turns(3)  checkpoint  bulk  delete  question  fail  stop …        on a loop in virtual time
    history    insert ──────┤      evict ──┤    question ──┤                           when each began and ended

Every write has an entry in each key. A question must see all of a write or nothing of it; all that was answered before
it began and not removed; and nothing that was removed before, or refused. The other aggregates must be a fold of the
entries that it sees.
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sash.durability.images import checkpoints
from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash.limits.memory import MemoryBudget
from sash_engine.errors import SashError, Unavailable
from sash_engine.windows.batches.batch import Batch, Coded, Origin
from sash_engine.windows.keys import keys as engine_keys
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Query, RangeQuery, SeriesQuery
from tests.support.failing import parts_of
from tests.support.served import PlaneServer
from tests.support.small_steps import small_question_steps, small_write_steps
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import turns

NAMES = [f"k{i}" for i in range(8)]
AGGREGATES = {"n": {"function": "count"}, "all": {"function": "collect"}, "max": {"function": "max"}}
EACH = Query(keys=ALL_KEYS)
MUCH = 10**9
OPS = (
    *("bulk", "bulk", "producer", "producer", "again", "insert", "commit", "commit", "evict"),
    *("long", "series", "series", "short", "range", "entries"),
    *("checkpoint", "checkpoint", "cancel", "tidy", "idle", "delete", "import"),
    *("fails", "unreadable", "full", "no memory", "away", "time", "time", "stop", "crash"),
)


@dataclass(eq=False)
class Span:
    """Something that was asked for.

    Attributes:
        began, ended: when. It never ended if it was not answered: it may have happened, at any time since.
        through, before: of a removal: it removed what is not later than this, and was asked for before that.
    """

    began: int
    ended: float = inf
    through: float = inf
    before: float = inf


@dataclass(eq=False)
class Entry:
    """What one write inserts: at this time, which is the value, too, into each of these keys."""

    time: int
    keys: list[str]
    inserted: list[Span] = field(default_factory=list)
    origin: Origin | None = None


class World:
    """A service of one window, what was asked of it, and so what it may answer."""

    def __init__(self, durability, seed):
        self.durability, self.chance = durability, random.Random(seed)
        self.used = self.now = self.fails = 0
        memory = MemoryBudget(
            MUCH, {"bodies": (MUCH, ""), "staged": (MUCH, "")}, lambda: self.used, itertools.count().__next__
        )
        self.server = PlaneServer(durability, checkpoint_bytes=20_000, store_entries=30, memory=memory)
        self.entries, self.removals, self.tasks = [], [], []
        self.numbers = itertools.count(1)
        self.file = None
        self.checked = 0

    def tick(self):
        self.now += 1
        return self.now

    @property
    def plane(self):
        return self.server.plane

    async def start(self):
        await self.server.start()
        await self.make()

    async def make(self):
        await self.server.create(aggregates=AGGREGATES, idle_expiry="1000s")

    async def do(self, name):
        """Begin an operation."""
        if name == "time":
            await asyncio.sleep(1)  # what failed is tried again
        elif name in ("stop", "crash"):
            await getattr(self, name)()
        else:
            self.tasks.append(asyncio.create_task(getattr(self, "do_" + name.replace(" ", "_"))()))

    # ---------------------------------------------------------------- what changes the window

    def new(self, keys=NAMES, origin=None):
        self.entries.append(Entry(len(self.entries) + 1, keys, origin=origin))
        return self.entries[-1]

    async def writes(self, call, *entries):
        """Do what inserts entries, and note what became of it."""
        spans = [Span(self.tick()) for _ in entries]
        for entry, span in zip(entries, spans, strict=True):
            entry.inserted.append(span)
        try:
            result = await call
        except (SashError, ZeroDivisionError) as error:
            if "may be applied" not in str(error):
                self.forget(entries, spans)
            return
        if getattr(result, "already_applied", False):
            self.forget(entries, spans)
            return
        for span in spans:
            span.ended = self.tick()

    def forget(self, entries, spans):
        for entry, span in zip(entries, spans, strict=True):
            entry.inserted.remove(span)

    async def removes(self, call, **reach):
        span = Span(self.tick(), **reach)
        self.removals.append(span)
        try:
            await call
        except SashError as error:
            if "may be applied" not in str(error):
                self.removals.remove(span)
            return
        span.ended = self.tick()

    async def write(self, entry):
        await self.writes(self.plane.write("w", BulkInsert(rows(entry)), entry.origin), entry)

    async def do_bulk(self):
        await self.write(self.new())

    async def do_producer(self):
        """A producer's first two writes; the second one is refused unless the first one was applied."""
        name = f"p{next(self.numbers)}"
        pair = [self.new(origin=Origin(name, number)) for number in (1, 2)]
        await asyncio.gather(*(self.write(entry) for entry in pair))

    async def do_again(self):
        """A producer's write once more, whatever became of it."""
        numbered = [entry for entry in self.entries if entry.origin is not None]
        if numbered:
            await self.write(self.chance.choice(numbered[-4:]))

    async def do_insert(self):
        entry = self.new([self.chance.choice(NAMES)])
        await self.writes(self.plane.write("w", Insert(entry.time, {"value": entry.time}, entry.keys[0], True)), entry)

    async def do_commit(self):
        pair, query = [self.new(), self.new()], f"q{next(self.numbers)}"
        try:
            staged = [await self.plane.write("w", StageBatch(rows(entry), query, 0)) for entry in pair]
        except SashError:
            return
        await self.writes(self.plane.write("w", Commit(query, 0, [each.stage for each in staged])), *pair)

    async def do_evict(self):
        through = self.chance.randint(0, len(self.entries))
        await self.removes(self.plane.write("w", BulkEvict(through)), through=through)

    async def do_delete(self):
        await self.removes(self.plane.delete("w"))
        with contextlib.suppress(SashError):
            await self.make()

    async def do_import(self):
        """Export the window; or put it back as it was exported."""
        if self.file is None:
            with contextlib.suppress(SashError):
                parts = await self.plane.export("w")
                found = values_of(self.server.storage.find("w").reader.query(EACH))
                entries = [self.entries[value - 1] for value in set().union(*found.values())]
                halves = [entry for entry in entries if not all(entry.time in found.get(key, ()) for key in entry.keys)]
                assert all(self.idle(entry, self.tick()) for entry in halves), "an export has all of a write or nothing"
                if not halves:
                    self.file = b"".join(parts), entries
            return
        data, entries = self.file
        await self.removes(self.plane.delete("w"))
        await self.writes(self.plane.restore(parts_of([data[:100], data[100:]])), *entries)
        with contextlib.suppress(SashError):
            await self.make()

    # ---------------------------------------------------------------- what happens to the service

    async def do_checkpoint(self):
        stored = self.server.storage.store.windows.get("w")
        if stored is not None:
            self.server.storage.store.checkpoints.begin(stored)

    async def do_cancel(self):
        going = [task for task in self.tasks if not task.done() and task is not asyncio.current_task()]
        if going:
            self.chance.choice(going).cancel()

    async def do_tidy(self):
        self.plane.tidy()

    async def do_idle(self):
        self.removals.append(Span(self.now, before=self.tick()))
        self.server.clock.advance(1001 * 10**9)
        self.plane.tidy()

    async def do_fails(self):
        """One of the next steps of a write fails half-way; nothing brings a window in memory back."""
        if self.durability != "memory":
            self.fails = self.chance.randint(1, 6)

    async def do_unreadable(self):
        if self.durability != "memory":
            self.server.tier.fail_reads = 1

    async def do_full(self):
        self.server.store.max_bytes = self.server.store.used_bytes + self.chance.choice((0, 20_000))
        await turns(self.chance.randint(0, 60))
        self.server.store.max_bytes = None

    async def do_no_memory(self):
        self.used = MUCH
        await turns(self.chance.randint(0, 60))
        self.used = 0

    async def do_away(self):
        self.server.tier.fail_before = self.chance.randint(1, 3)

    async def end(self, restart):
        """End the service, and all calls with it; start it again."""
        unsure = self.durability == "interval"
        answered = {span for entry in self.entries for span in entry.inserted if span.ended < inf}
        await restart()
        tasks, self.tasks = self.tasks, []
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=600)
            assert not stuck, "a call never ends"
            for task in tasks:
                assert task.cancelled() or task.exception() is None, task.exception()
        self.repair()
        if unsure:
            for span in (*self.removals, *(span for entry in self.entries for span in entry.inserted)):
                if restart == self.kill or span not in answered:
                    span.ended = inf
        elif self.durability == "memory":
            self.removals.append(Span(self.tick(), self.tick()))
        await self.start()

    def repair(self):
        self.fails = self.server.tier.fail_before = self.server.tier.fail_reads = self.used = 0
        self.server.store.max_bytes = None

    async def stop(self):
        await self.end(self.server.storage.stop)

    async def kill(self):
        await self.server.die()
        for task in self.tasks:
            task.cancel()

    async def crash(self):
        await self.end(self.kill)

    # ---------------------------------------------------------------- questions

    async def asks(self, call, keys=NAMES, first=0, last=inf):
        """Ask, and check what is answered."""
        began = self.tick()
        with contextlib.suppress(SashError):
            self.check(await call, began, keys, first, last)

    def check(self, found, began, keys=NAMES, first=0, last=inf):
        """Check values by key, of a question that began then and ends now."""
        ended = self.tick()
        for key, values in found.items():
            assert len(values) == len(set(values)), f"a value is there twice: {key} {values}"
            assert values == sorted(values)
        for entry in self.entries:
            mine = [key for key in entry.keys if key in keys]
            if first <= entry.time <= last and mine:
                there = {entry.time in found.get(key, ()) for key in mine}
                assert len(there) == 1 or self.idle(entry, ended), f"{entry.time} is there in part, at {began}: {found}"
                if True in there:
                    assert any(self.may_be(span, entry.time, began, ended) for span in entry.inserted), entry
                else:
                    assert not any(self.must_be(span, entry.time, began, ended) for span in entry.inserted), entry
        self.checked += 1

    def idle(self, entry, ended):
        """Whether some of its keys may have expired, and others may not."""
        return bool(entry.inserted) and any(each.before < inf and each.began < ended for each in self.removals)

    def may_be(self, span, time, began, ended):
        gone = any(
            time <= each.through and span.ended < each.began and span.began < each.before and each.ended < began
            for each in self.removals
        )
        return span.began < ended and not gone

    def must_be(self, span, time, began, ended):
        perhaps_gone = any(
            time <= each.through and each.ended > span.began and span.began < each.before and each.began < ended
            for each in self.removals
        )
        return span.ended < began and not perhaps_gone

    async def do_long(self):
        await self.asks(self.all_keys(EACH))

    async def all_keys(self, question):
        return values_of(await self.plane.ask("w", question))

    async def do_series(self):
        await self.asks(self.one_bucket())

    async def one_bucket(self):
        """Values by key, of an answer over all keys together."""
        found = await self.plane.ask("w", SeriesQuery(0, 1, 1, 10**6, keys=ALL_KEYS))
        values = found.aggregates["all"][0]
        assert found.entries[0] == found.aggregates["n"][0] == len(values)
        by_key = {key: [] for key in NAMES}
        for value, count in sorted(Counter(values).items()):
            for key in self.entries[value - 1].keys[:count]:
                by_key[key].append(value)
        return by_key

    async def do_short(self):
        key = self.chance.choice(NAMES)
        await self.asks(self.one_key(key), [key])

    async def one_key(self, key):
        (answer,) = await self.plane.ask("w", Query(key))
        return {key: folded(answer)}

    async def do_range(self):
        first, last = sorted(self.chance.randint(0, len(self.entries) + 1) for _ in range(2))
        key = self.chance.choice(NAMES)
        await self.asks(self.one_range(key, first, last), [key], first, last)

    async def one_range(self, key, first, last):
        return {key: folded(await self.plane.ask("w", RangeQuery(first, last, key=key)))}

    async def do_entries(self):
        """The entries as of one moment, which are taken one bulk after the other."""
        began = self.tick()
        with contextlib.suppress(SashError):
            bulks = await self.plane.ask("w", EntriesQuery(keys=ALL_KEYS))
            ended, found = self.tick(), {}
            for bulk in bulks:
                for name, value in zip(bulk.keys.codes.tolist(), bulk.columns["value"].tolist(), strict=True):
                    found.setdefault(bulk.keys.dictionary[name], []).append(value)
                await turns(3)
            self.now, now = ended, self.now
            self.check(found, began)
            self.now = now

    async def rest(self):
        """Let all end, and compare; a crash and a restart then change nothing."""
        if self.tasks:
            _, stuck = await asyncio.wait(self.tasks, timeout=600)
            assert not stuck, "a call never ends"
            for task in self.tasks:
                assert task.cancelled() or task.exception() is None, task.exception()
        self.tasks = []
        self.repair()
        await asyncio.sleep(60)
        await self.served()
        await self.write(entry := self.new())
        assert [span.ended < inf for span in entry.inserted] == [True], "it takes writes"
        found = await self.served()
        if self.durability != "memory":
            await self.server.settled()
            for restart in (self.server.crash, self.server.restart):
                await restart()
                assert await self.served() == found
        await self.server.storage.stop()

    async def served(self):
        """What is there, once the window is recovered."""
        for _ in range(200):
            began = self.tick()
            try:
                await self.make()
                found = await self.all_keys(EACH)
            except Unavailable:
                await asyncio.sleep(1)
            else:
                self.check(found, began)
                self.server.storage.find("w").check_invariants()
                return found
        raise AssertionError("it is never served again")


def rows(entry):
    count = len(entry.keys)
    return Batch(np.full(count, entry.time), {"value": np.full(count, entry.time)}, Coded.of(entry.keys))


def values_of(answers):
    return {answer.key: folded(answer) for answer in answers}


def folded(answer):
    """The values of an answer, whose other aggregates are a fold of them."""
    values = answer.aggregates["all"]
    assert answer.entries == answer.aggregates["n"] == len(values)
    assert answer.aggregates["max"] == max(values, default=None)
    return values


async def run(durability, seed, schedule):
    world = World(durability, seed)
    insert_each = engine_keys.Keys.bulk_insert_each

    def may_fail(*args):
        world.fails = max(world.fails - 1, 0) if world.fails != 1 else -1
        if world.fails < 0:
            world.fails = 0
            raise ZeroDivisionError
        return insert_each(*args)

    loop = asyncio.get_running_loop()
    loop.call_s = lambda: world.chance.choice((0.0, 0.0, 0.01))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_keys.Keys, "bulk_insert_each", may_fail)
        patch.setattr(checkpoints, "_TURN_S", -1.0)
        small_write_steps(patch, 200)
        small_question_steps(patch)
        await world.start()
        for name, pause in schedule:
            await world.do(name)
            await turns(pause)
        await world.rest()
    assert world.checked >= 2


SCHEDULES = st.lists(st.tuples(st.sampled_from(OPS), st.sampled_from((0, 0, 1, 2, 3, 5, 9, 17, 40))), max_size=40)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(("memory", "interval", "sync", "sync")), st.integers(0, 10**6), SCHEDULES)
def test_whatever_meets_a_long_write_answers_are_of_whole_writes(durability, seed, schedule):
    in_virtual_time(run(durability, seed, schedule))
