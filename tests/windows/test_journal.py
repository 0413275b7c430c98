"""The journal: groups, order, and a tier that fails."""

import asyncio
import threading

import pytest

from sash.errors import FailedPrecondition, OutOfRoom, ResourceExhausted, Unavailable
from sash.windows import journal as module
from sash.windows import values
from sash.windows.journal import Job, Journal
from sash.windows.roots import End, Group, Start


class Recorder:
    """A tier that keeps values in a dict and fails as it is told to; a gate holds commits back."""

    name = "recorder"
    healthy = True

    def __init__(self):
        self.values = {}
        self.commits = []
        self.failures = []
        self.gate = threading.Event()
        self.gate.set()

    def commit(self, puts, deletes=()):
        assert self.gate.wait(10)
        if self.failures:
            raise self.failures.pop(0)
        self.commits.append((dict(puts), list(deletes)))
        self.values.update(puts)
        for key in deletes:
            self.values.pop(key, None)

    def check_room(self, size, reserve=0.0):
        pass

    def records(self):
        """The records by group, as a recovery would read them."""
        groups, number = [], 1
        while (data := self.values.get(values.group_key(number))) is not None:
            groups.append([fields for _, _, fields in Group.of(number, data, bound=True).records])
            number += 1
        return groups


def start_of(tier):
    """Where the journal begins, as the tier has it."""
    key = values.journal_key()
    return Start.of(values.unseal("pointer", tier.values[key], key, bound=True))


def end_of(tier):
    """Where it ends."""
    key = values.last_group_key()
    return End.of(values.unseal("last", tier.values[key], key, bound=True))


@pytest.fixture
async def tier():
    return Recorder()


@pytest.fixture
async def journal(tier):
    journal = Journal(tier, interval_s=0.05)
    journal.start(1, 0, [])
    yield journal
    tier.gate.set()
    await journal.stop(5)


def append(journal, text, **options):
    return journal.append(7, lambda: text, 10, **options)


async def test_a_record_is_durable_when_its_commit_is_done(journal, tier):
    number = append(journal, "a")
    await journal.durable(number)
    assert tier.records() == [["a"]]


async def test_records_that_come_during_a_commit_share_the_next_one(journal, tier):
    tier.gate.clear()
    first = append(journal, "a")
    await asyncio.sleep(0.05)
    numbers = [append(journal, text) for text in "bcd"]
    waiting = [asyncio.create_task(journal.durable(number)) for number in (first, *numbers)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    tier.gate.set()
    await asyncio.gather(*waiting)
    assert tier.records() == [["a"], ["b", "c", "d"]]


async def test_nobody_waits_for_the_interval_but_those_that_nobody_waits_for(journal, tier):
    append(journal, "slow", urgent=False)
    await asyncio.sleep(0)
    append(journal, "more", urgent=False)
    await asyncio.sleep(0.02)
    assert tier.records() == []
    await journal.drained()
    assert tier.records() == [["slow", "more"]]


async def test_background_work_never_overtakes_a_record_before_it(journal, tier):
    tier.gate.clear()
    append(journal, "a")
    await asyncio.sleep(0.02)
    append(journal, "b")
    landed = []
    journal.background(Job(lambda: {b"block": b"x"}, done=lambda: landed.append(len(tier.commits))))
    tier.gate.set()
    await journal.drained()
    [at] = [i for i, (puts, _) in enumerate(tier.commits) if b"block" in puts]
    assert any(values.group_key(2) in puts for puts, _ in tier.commits[: at + 1])
    assert landed == [at + 1]


async def test_an_unavailable_tier_fails_its_writers_and_gets_the_records_later(journal, tier):
    tier.failures = [Unavailable("gone", retry_after_s=1), Unavailable("gone")]
    number = append(journal, "a")
    with pytest.raises(Unavailable, match="gone"):
        await journal.durable(number)
    with pytest.raises(Unavailable):
        journal.check()
    later = append(journal, "b")  # of a write that was on its way already
    for _ in range(100):
        if journal.error is None:
            break
        await asyncio.sleep(0.02)
    await journal.durable(later)
    assert tier.records() == [["a"], ["b"]]
    journal.check()


async def test_a_full_tier_is_tried_again_too(journal, tier):
    tier.failures = [ResourceExhausted("full", field="data")]
    number = append(journal, "a")
    with pytest.raises(ResourceExhausted):
        await journal.durable(number)
    await asyncio.sleep(0.3)
    await journal.durable(number)
    assert tier.records() == [["a"]]


async def test_what_may_be_refused_makes_way_for_what_may_not(journal, tier):
    """An image that does not fit must not keep the deletes behind it waiting."""
    tier.gate.clear()
    told = []

    def make():
        raise OutOfRoom("full", field="data")

    first = append(journal, "a")
    journal.background(Job(make, size=50, done=lambda: told.append("done"), refused=told.append))
    journal.background(Job(deletes=[b"old"], size=10, done=lambda: told.append("deleted")))
    tier.gate.set()
    await journal.durable(first)
    await asyncio.wait_for(journal.drained(), 5)
    assert isinstance(told[0], OutOfRoom)
    assert told[1:] == ["deleted"]
    assert (journal.pending_bytes, journal.pending_record_bytes, journal.error) == (0, 0, None)


async def test_a_tier_that_another_server_took_is_never_written_again(journal, tier):
    tier.failures = [FailedPrecondition("another server has it")]
    number = append(journal, "a")
    with pytest.raises(FailedPrecondition, match="another server"):
        await journal.durable(number)
    await asyncio.sleep(0.3)
    assert tier.commits == []
    with pytest.raises(FailedPrecondition):
        journal.check()
    assert not await journal.stop(0.1)


async def test_a_commit_that_failed_is_tried_again_under_the_same_number(journal, tier):
    """It may have taken place: a second group with the same records would apply them twice."""
    tier.failures = [Unavailable("unknown")]
    number = append(journal, "a")
    with pytest.raises(Unavailable):
        await journal.durable(number)
    append(journal, "b")
    await asyncio.sleep(0.3)
    await journal.drained()
    assert tier.records() == [["a"], ["b"]]


async def test_groups_are_trimmed_when_all_their_windows_are_checkpointed(journal, tier):
    for window, text in ((1, "a"), (2, "b"), (1, "c")):
        await journal.durable(journal.append(window, lambda text=text: text, 10))
    assert journal.groups == 3
    assert journal.oldest_window({1: 0, 2: 0}) == 1
    journal.trim({1: 0, 2: 2})
    assert journal.groups == 3, "window 1 needs the first"
    journal.trim({1: 1, 2: 0})
    assert journal.oldest_window({1: 1, 2: 0}) == 2
    journal.trim({1: 3})  # window 2 is deleted
    await journal.drained()
    assert tier.records() == []
    assert start_of(tier) == Start(4, 3, {}, {1: 3})
    await journal.durable(append(journal, "d"))
    assert values.group_key(4) in tier.values


async def test_writers_wait_where_too_much_is_pending(journal, tier, monkeypatch):
    monkeypatch.setattr("sash.windows.journal.PENDING_BYTES", 25)
    tier.gate.clear()
    for text in "abc":
        append(journal, text)
    assert journal.full
    waiting = asyncio.create_task(journal.room())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    tier.gate.set()
    await asyncio.wait_for(waiting, 5)
    await journal.drained()
    assert journal.pending_bytes == 0


async def test_of_what_one_group_says_of_a_key_the_last_holds(journal, tier):
    tier.gate.clear()
    append(journal, "a")
    await asyncio.sleep(0.02)
    journal.background(Job(lambda: {b"gone": b"x", b"there": b"x"}))
    journal.background(Job(deletes=[b"gone", b"there"]))
    journal.background(Job(lambda: {b"there": b"y"}))
    tier.gate.set()
    await journal.drained()
    [(puts, deletes)] = [commit for commit in tier.commits if b"there" in commit[0]]
    assert (puts, deletes) == ({b"there": b"y"}, [b"gone"])


async def test_who_waits_for_what_was_appended_does_not_wait_for_what_comes_after(journal, tier):
    stop = False

    async def load():
        while not stop:
            await journal.durable(append(journal, "more"))

    writers = [asyncio.create_task(load()) for _ in range(3)]
    await asyncio.wait_for(journal.passed(), 5)
    assert not any(writer.done() for writer in writers)
    stop = True
    await asyncio.gather(*writers)


async def test_groups_that_only_a_damaged_window_needs_are_set_apart(journal, tier):
    for window in (1, 2, 3, 2, 1):
        await journal.durable(journal.append(window, lambda: "x", 10))
    through, damaged = {1: 5, 2: 4, 3: 0}, {3}
    assert journal.oldest_window(through, damaged) is None
    journal.trim(through, damaged)
    await journal.drained()
    assert start_of(tier) == Start(6, 5, {3: 3}, {1: 5, 2: 4})
    assert [number for number in range(1, 7) if values.group_key(number) in tier.values] == [3]
    assert journal.groups == 1
    commits = len(tier.commits)
    journal.trim(through, damaged)
    await journal.drained()
    assert len(tier.commits) == commits, "there was nothing to do"
    again = Journal(tier)
    again.start(6, 5, [(3, {3: 3})], Start(6))
    await again.durable(again.append(1, lambda: "y", 10))
    again.trim({1: 0, 3: 0})
    assert again.oldest_window({1: 0, 3: 0}) == 3, "it is whole again"
    again.trim({1: 6, 3: 3})
    assert await again.stop(5)
    assert start_of(tier) == Start(7, 6, {}, {1: 6, 3: 3})


async def test_whoever_waits_at_the_end_is_told(journal, tier):
    tier.gate.clear()
    waiting = asyncio.create_task(journal.durable(append(journal, "a")))
    await asyncio.sleep(0.02)
    stopping = asyncio.create_task(journal.stop(0.01))
    await asyncio.sleep(0.05)
    assert not stopping.done(), "the commit is under way, and the loop goes on meanwhile"
    tier.gate.set()
    assert not await stopping
    with pytest.raises(Unavailable, match="shuts down"):
        await waiting
    with pytest.raises(Unavailable, match="shuts down"):
        await journal.durable(append(journal, "b"))


async def test_a_journal_that_stops_waits_little_for_a_tier_that_fails_meanwhile(tier, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_WHILE_DOWN_S", 0.05)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    journal = Journal(tier)
    journal.start(1, 0, [])
    tier.gate.clear()
    append(journal, "a")
    stopping = asyncio.create_task(journal.stop(3600))
    await asyncio.sleep(0.1)
    assert not stopping.done(), "nothing is wrong so far"
    tier.failures = [Unavailable("it is gone")] * 1000
    tier.gate.set()
    assert not await asyncio.wait_for(stopping, 30)
    assert tier.failures, "it was not tried until the end of time"


async def test_a_journal_that_stops_goes_on_waiting_for_a_tier_that_is_back(tier, monkeypatch):
    monkeypatch.setattr(module, "_RETRY_FIRST_S", 0.001)
    journal = Journal(tier)
    journal.start(1, 0, [])
    tier.failures = [Unavailable("it is gone")] * 3
    append(journal, "a")
    assert await asyncio.wait_for(journal.stop(3600), 30)
    assert tier.records() == [["a"]]
