"""The journal: groups, order, when records are committed, and a tier that fails."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability import formats as values
from sash.durability.journal import journal as module
from sash.durability.journal.group_commit import BackgroundWrite
from sash.durability.journal.journal import Journal
from sash.durability.journal.roots import End, Group, JournalPosition, Start
from sash_engine.errors import DataLoss, FailedPrecondition, OutOfRoom, ResourceExhausted, Unavailable
from tests.support.journals import Recorder, append, end_of, start_of
from tests.support.virtual_time import in_virtual_time, now_s, passes, virtual
from tests.support.waiting import turns, until


@pytest.fixture
async def tier():
    return Recorder()


@pytest.fixture
async def journal(tier, monkeypatch):
    monkeypatch.setattr(module, "_RETRY_FIRST_S", 0.001)
    journal = Journal(tier, interval_s=0.05)
    journal.start()
    yield journal
    tier.gate.set()
    await journal.stop(0)


async def test_background_work_never_overtakes_a_record_before_it(journal, tier):
    tier.gate.clear()
    append(journal, "a")
    await until(tier.arrived.is_set)
    append(journal, "b")
    landed = []
    journal.background(BackgroundWrite(lambda: {b"block": b"x"}, done=lambda: landed.append(len(tier.commits))))
    tier.gate.set()
    await journal.drained()
    [at] = [i for i, (puts, _) in enumerate(tier.commits) if b"block" in puts]
    assert any(values.group_key(2) in puts for puts, _ in tier.commits[: at + 1])
    assert landed == [at + 1]


@pytest.mark.parametrize(
    ("failures", "kind", "told"),
    [
        ([Unavailable("gone", retry_after_s=1), Unavailable("gone")], Unavailable, "gone"),
        ([ResourceExhausted("full", field="data")], ResourceExhausted, "full"),
        ([ZeroDivisionError("as told")], Unavailable, "the tier failed: ZeroDivisionError"),
    ],
    ids=["away", "full", "defect"],
)
async def test_a_commit_that_fails_is_told_and_tried_again_under_the_same_number(journal, tier, failures, kind, told):
    """It may have taken place: a second group with the same records would apply them twice."""
    tier.failures = list(failures)
    number = append(journal, "a")
    with pytest.raises(kind, match=told):
        await journal.durable(number)
    with pytest.raises(kind):
        journal.check()
    later = append(journal, "b")  # of a write that was on its way already
    await until(lambda: journal.error is None)
    await journal.durable(later)
    assert tier.records() == [["a"], ["b"]]
    journal.check()


async def test_what_may_be_refused_makes_way_for_what_may_not(journal, tier):
    """An image that does not fit must not keep the deletes behind it waiting."""
    tier.gate.clear()
    told = []

    def make():
        raise OutOfRoom("full", field="data")

    first = append(journal, "a")
    journal.background(BackgroundWrite(make, size=50, done=lambda: told.append("done"), refused=told.append))
    journal.background(BackgroundWrite(deletes=[b"old"], size=10, done=lambda: told.append("deleted")))
    tier.gate.set()
    await journal.durable(first)
    await asyncio.wait_for(journal.drained(), 60)
    assert isinstance(told[0], OutOfRoom)
    assert told[1:] == ["deleted"]
    assert (journal.pending_bytes, journal.pending_record_bytes, journal.error) == (0, 0, None)


async def test_what_may_be_refused_for_want_of_room_is_not_refused_for_anything_else(journal, tier):
    told = []
    tier.failures = [Unavailable("gone")]
    journal.background(BackgroundWrite(lambda: {b"x": b"1"}, done=lambda: told.append("done"), refused=told.append))
    await journal.passed()
    assert told == ["done"]
    assert tier.values[b"x"] == b"1"


async def test_a_defect_in_what_follows_a_commit_does_not_end_all_commits(journal, tier):
    told = []
    journal.background(BackgroundWrite(lambda: {b"x": b"1"}, done=lambda: 1 / 0))
    journal.background(BackgroundWrite(lambda: {b"y": b"1"}, done=lambda: told.append("done")))
    await journal.drained()
    await journal.durable(append(journal, "a"))
    assert told == ["done"]


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
    assert start_of(tier) == Start(4, 3, {}, {1: 3}, number=1)
    assert end_of(tier) == End(3, 3, start=1)
    await journal.durable(append(journal, "d"))
    assert values.group_key(4) in tier.values


async def test_of_what_one_group_says_of_a_key_the_last_holds(journal, tier):
    tier.gate.clear()
    append(journal, "a")
    await until(tier.arrived.is_set)
    journal.background(BackgroundWrite(lambda: {b"gone": b"x", b"there": b"x"}))
    journal.background(BackgroundWrite(deletes=[b"gone", b"there"]))
    journal.background(BackgroundWrite(lambda: {b"there": b"y"}))
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
    await asyncio.wait_for(journal.passed(), 60)
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
    assert start_of(tier) == Start(6, 5, {3: 3}, {1: 5, 2: 4}, number=1)
    assert [number for number in range(1, 7) if values.group_key(number) in tier.values] == [3]
    assert (journal.groups, journal.groups_of(3)) == (1, [3]), "who recovers the window reads it"
    commits = len(tier.commits)
    journal.trim(through, damaged)
    await journal.drained()
    assert len(tier.commits) == commits, "there was nothing to do"
    again = Journal(tier)
    again.start(JournalPosition(6, 5, [(3, {3: 3})], Start(6)))
    await again.durable(again.append(1, lambda: "y", 10))
    again.trim({1: 0, 3: 0})
    assert again.oldest_window({1: 0, 3: 0}) == 3, "it is whole again"
    again.trim({1: 6, 3: 3})
    assert await again.stop(5)
    assert start_of(tier) == Start(7, 6, {}, {1: 6, 3: 3}, number=1)


async def test_groups_that_an_earlier_life_set_apart_stay_apart(tier):
    """The pointer's first group has no gap behind it: what was set apart is before it, and is named one by one."""
    journal = Journal(tier)
    journal.start(JournalPosition(7, 6, [(2, {2: 2}), (3, {3: 3}), (6, {1: 6})], Start(6)))
    assert [journal.groups_of(window) for window in (2, 3, 1)] == [[2], [3], [6]]
    journal.trim({1: 0, 3: 0})  # window 2 is deleted, and window 3 whole again
    await journal.drained()
    [(puts, deletes)] = tier.commits
    assert puts.keys() == {values.journal_key(), values.last_group_key()}
    assert start_of(tier) == Start(6, 6, {3: 3}, {}, number=1)
    assert deletes == [values.group_key(2)]
    assert [journal.groups_of(window) for window in (2, 3, 1)] == [[], [3], [6]]
    assert await journal.stop(5)


async def test_whoever_waits_at_the_end_is_told(journal, tier):
    tier.gate.clear()
    waiting = asyncio.create_task(journal.durable(append(journal, "a")))
    await until(tier.arrived.is_set)
    stopping = asyncio.create_task(journal.stop(0.01))
    await until(lambda: journal.ended)
    await turns()
    assert not stopping.done(), "the commit is under way, and the loop goes on meanwhile"
    tier.gate.set()
    assert not await stopping
    with pytest.raises(Unavailable, match="shuts down"):
        await waiting
    with pytest.raises(Unavailable, match="shuts down"):
        await journal.durable(append(journal, "b"))


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([4, 4], [2]),
        ([4, 5], [1, 1]),
        ([8, 1], [1, 1]),
        ([9], [1]),
        ([1, 9, 1], [1, 1, 1]),
        ([3, 3, 3, 3, 3, 3], [2, 2, 2]),
        ([1] * 20, [8, 8, 4]),
    ],
)
async def test_a_group_has_no_more_records_than_fit_and_a_large_one_is_alone(journal, tier, monkeypatch, sizes, groups):
    monkeypatch.setattr(module, "GROUP_BYTES", 8)
    tier.gate.clear()
    append(journal, "first")
    await until(tier.arrived.is_set)
    numbers = [journal.append(7, lambda: "x", size) for size in sizes]
    waiting = [asyncio.create_task(journal.durable(number)) for number in numbers]
    tier.gate.set()
    await asyncio.gather(*waiting)
    assert [len(group) for group in tier.records()[1:]] == groups
    assert (journal.commits, journal.committed_records) == (1 + len(groups), 1 + len(sizes))


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [([4, 4], [2]), ([4, 5], [2]), ([7, 8, 1], [2, 1]), ([9, 1], [1, 1]), ([3] * 6, [3, 3])],
)
async def test_background_values_fill_a_group_and_wait_for_all_records(journal, tier, monkeypatch, sizes, groups):
    monkeypatch.setattr(module, "GROUP_BYTES", 8)
    tier.gate.clear()
    append(journal, "first")
    await until(tier.arrived.is_set)
    for number, size in enumerate(sizes):
        journal.background(BackgroundWrite(lambda number=number: {b"%d" % number: b"x"}, size=size))
    records = [journal.append(7, lambda: "x", 5) for _ in range(2)]
    tier.gate.set()
    await journal.drained()
    _, first, second, *rest = [[key for key in puts if not key.startswith(b"journal")] for puts, _ in tier.commits]
    assert (first, len(second)) == ([], groups[0]), "the first values share the commit of the last record"
    assert [len(keys) for keys in rest] == groups[1:]
    waiting = asyncio.create_task(journal.durable(records[-1]))
    await asyncio.sleep(0)
    assert waiting.done()


async def test_a_group_without_records_has_no_number(journal, tier):
    for name in (b"x", b"y"):
        journal.background(BackgroundWrite(lambda name=name: {name: b""}, size=1))
        await journal.drained()
    journal.append(0, lambda: None, 10, puts=lambda: {b"meta": b"m"}, logged=False)
    await journal.drained()
    assert set(tier.values) == {b"x", b"y", b"meta", b"journal", b"journal/last"}
    await journal.durable(append(journal, "a"))
    assert tier.records() == [["a"]], "it is group 1"
    assert journal.groups == 1


async def test_with_exactly_as_much_pending_as_may_be_writers_go_on(journal, tier, monkeypatch):
    monkeypatch.setattr(module, "PENDING_BYTES", 30)
    tier.gate.clear()
    for text in "abc":
        append(journal, text)
    assert not journal.congested
    journal.background(BackgroundWrite(deletes=[b"x"], size=1))
    assert journal.congested
    assert (journal.pending_bytes, journal.pending_record_bytes) == (31, 30)
    waiting = asyncio.create_task(journal.uncongested())
    await turns()
    assert not waiting.done()
    tier.gate.set()
    await asyncio.wait_for(waiting, 60)
    await journal.drained()
    assert journal.pending_bytes == 0


async def test_groups_say_what_comes_before_them_and_the_end_what_comes_last(journal, tier):
    for window, text in ((1, "a"), (2, "b"), (1, "c")):
        await journal.durable(journal.append(window, lambda text=text: text, 10))
    listing = journal.append(0, lambda: None, 10, puts=lambda: {b"meta": b"x"}, logged=False)
    await journal.durable(listing)
    assert end_of(tier) == End(3, 3, listing, 1)
    assert start_of(tier) == Start(listing=listing, number=1)
    await asyncio.gather(*[journal.durable(journal.append(window, lambda: "d", 10)) for window in (2, 2, 1, 3)])
    groups = [Group.of(number, tier.values[values.group_key(number)], bound=True) for number in range(1, 5)]
    assert [(group.after, group.before) for group in groups] == [
        (0, {1: 0}),
        (1, {2: 0}),
        (2, {1: 1}),
        (3, {1: 3, 2: 2, 3: 0}),
    ]
    assert end_of(tier) == End(4, 8, listing, 1)


async def test_a_commit_that_is_tried_again_says_the_same(journal, tier, monkeypatch):
    monkeypatch.setattr(module, "_RETRY_FIRST_S", 0.001)
    for _ in range(3):
        tier.failures = [Unavailable("it is gone")] * 2
        with pytest.raises(Unavailable):
            await journal.durable(journal.append(1, lambda: "x", 10))
        await journal.passed()
    groups = [Group.of(number, tier.values[values.group_key(number)], bound=True) for number in range(1, 4)]
    assert [(group.after, group.before) for group in groups] == [(0, {1: 0}), (1, {1: 1}), (2, {1: 2})]
    assert end_of(tier) == End(3, 3, 0)


async def test_a_journal_goes_on_from_what_was_recovered(tier):
    journal = Journal(tier)
    start, end = Start(4, 6, {2: 3}, {1: 3, 9: 2}, 2, 6, 8), End(5, 7, 6, 8)
    journal.start(JournalPosition(6, 9, [(2, {8: 3}), (4, {1: 5}), (5, {8: 7})], start, end, {1: 8, 8: 7}))
    await journal.durable(journal.append(1, lambda: "x", 10))
    group = Group.of(6, tier.values[values.group_key(6)], bound=True)
    assert (group.after, group.before) == (7, {1: 8})
    assert end_of(tier) == End(6, 10, 6, 8)
    assert journal.groups_of(8) == [2, 5]
    assert journal.groups_of(1) == [4, 6]
    journal.trim({1: 9, 8: 0}, {8})
    await journal.drained()
    assert start_of(tier) == Start(6, 10, {2: 3, 5: 7}, {1: 5}, 2, 6, 9), "window 9 is no more"
    assert await journal.stop(5)


class Timed(Recorder):
    """A tier whose commits take `commit_s`, and which is away from `away` to `back`; says when each was tried."""

    def __init__(self, commit_s=0.0, away=float("inf"), back=float("inf"), error=Unavailable):
        super().__init__()
        asyncio.get_running_loop().call_s = lambda: commit_s
        self.away, self.back, self.error = away, back, error
        self.tried_s = []

    def commit(self, puts, deletes=()):
        self.tried_s.append(round(now_s(), 6))
        if self.away <= now_s() < self.back:
            raise self.error("as told")
        super().commit(puts, deletes)


def started(tier, **options):
    journal = Journal(tier, **options)
    journal.start()
    return journal


@virtual
async def test_nobody_waits_for_the_interval_but_those_that_nobody_waits_for():
    tier = Timed()
    journal = started(tier, interval_s=10.0)
    await passes(3)
    append(journal, "slow", urgent=False)
    await passes(9)
    append(journal, "more", urgent=False)
    await passes(100)
    assert tier.tried_s == [13.0], "when the first has waited for the interval"
    append(journal, "slow", urgent=False)
    await passes(4)
    await journal.durable(append(journal, "fast"))
    assert (tier.tried_s, now_s()) == ([13.0, 116.0], 116.0), "the slow one goes with it"
    assert tier.records() == [["slow", "more"], ["slow", "fast"]]
    append(journal, "slow", urgent=False)
    await passes(1)
    journal.background(BackgroundWrite(lambda: {b"x": b""}))
    await journal.drained()
    assert now_s() == 117.0, "nor does a value in the background wait"


@virtual
async def test_the_interval_counts_from_when_a_record_came_and_not_from_the_commit_before_it():
    tier = Timed(commit_s=7.0)
    journal = started(tier, interval_s=10.0)
    append(journal, "a")
    await passes(1)
    number = append(journal, "b", urgent=False)
    await journal.durable(number)
    assert now_s() == 1 + 10 + 7
    append(journal, "c")
    await passes(1)
    number = append(journal, "d", urgent=False)
    asyncio.get_running_loop().call_s = lambda: 30.0
    await passes(3)
    append(journal, "e")
    await journal.durable(number)
    assert now_s() == 18 + 7 + 30, "it goes with the next commit, and waits for none after that"


@virtual
async def test_what_is_more_than_a_group_waits_for_the_interval_once(monkeypatch):
    monkeypatch.setattr(module, "GROUP_BYTES", 20)
    tier = Timed(commit_s=1.0)
    journal = started(tier, interval_s=10.0)
    numbers = [append(journal, text, urgent=False) for text in "abcdefg"]
    await journal.durable(numbers[-1])
    assert [len(group) for group in tier.records()] == [2, 2, 2, 1]
    assert tier.tried_s == [11.0, 12.0, 13.0, 14.0]


steps = st.tuples(st.sampled_from(["interval", "interval", "sync", "values"]), st.integers(0, 12), st.integers(1, 12))


@given(st.lists(steps, min_size=5, max_size=40), st.sampled_from([1, 5, 20]), st.lists(st.integers(0, 20), min_size=1))
def test_what_bounds_how_late_a_record_of_an_interval_is(history, interval_s, commits_s):
    """The interval, or what is left of the commit under way; and its own commit, and those of groups before it."""

    async def main():
        tier = Timed()
        durations = iter(commits_s * 100)
        asyncio.get_running_loop().call_s = lambda: next(durations)
        journal = started(tier, interval_s=interval_s)
        late = []

        async def landed(number, groups):
            began_s = now_s()
            await journal.durable(number)
            late.append((now_s() - began_s, max(interval_s, longest_s) + groups * longest_s))

        longest_s = max(commits_s)
        tasks = []
        for kind, pause_s, size in history:
            await passes(pause_s)
            if kind == "values":
                journal.background(BackgroundWrite(lambda: {b"x": b""}, size=size))
                continue
            before = journal.pending_record_bytes
            number = journal.append(7, lambda: "x", size, urgent=kind == "sync")
            # Two records that follow each other are more than a group, or in one.
            tasks.append(asyncio.create_task(landed(number, 1 + 2 * (before + size) // module.GROUP_BYTES)))
        await asyncio.gather(*tasks)
        assert all(took_s <= bound_s + 1e-6 for took_s, bound_s in late), late
        assert await journal.stop(1000)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GROUP_BYTES", 30)
        in_virtual_time(main())


@virtual
async def test_a_commit_that_fails_is_tried_again_less_and_less_often_and_at_most_every_two_seconds():
    tier = Timed(away=0.0, back=9.0)
    journal = started(tier)
    waiting = [asyncio.create_task(journal.durable(append(journal, "a"))) for _ in range(3)]
    for task in waiting:
        with pytest.raises(Unavailable):
            await task
    assert now_s() == 0.0, "all are told at once"
    await passes(20)
    assert tier.tried_s == [0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1, 9.1]
    tier.away, tier.back = 20.0, 20.25
    await passes(1)
    append(journal, "b")
    tier.away, tier.back = 21.0, 21.25
    await passes(20)
    assert tier.tried_s[9:] == [21.0, 21.1, 21.3], "the next time it begins anew"
    assert tier.records() == [["a"] * 3, ["b"]]


@pytest.mark.parametrize("kind", [FailedPrecondition, DataLoss])
@virtual
async def test_a_tier_that_is_lost_is_never_written_again(kind):
    tier = Timed(away=0.0, back=1.0, error=kind)
    journal = started(tier)
    assert not journal.lost
    number = append(journal, "a")
    with pytest.raises(kind, match="as told"):
        await journal.durable(number)
    await passes(3600)
    append(journal, "b")
    await passes(3600)
    assert (tier.tried_s, tier.commits, journal.lost) == ([0.0], [], True)
    with pytest.raises(kind):
        journal.check()
    began_s = now_s()
    assert not await journal.stop(30)
    assert now_s() == began_s, "there is nothing to wait for"


@virtual
async def test_a_journal_that_stops_commits_at_once_what_would_wait_for_the_interval():
    tier = Timed()
    journal = started(tier, interval_s=60.0)
    append(journal, "a", urgent=False)
    assert await journal.stop(5)
    assert (tier.records(), now_s()) == ([["a"]], 0.0)


@virtual
async def test_a_journal_that_stops_waits_for_a_slow_tier_as_long_as_it_may():
    tier = Timed(commit_s=20.0)
    journal = started(tier)
    append(journal, "a")
    assert await journal.stop(30)
    assert now_s() == pytest.approx(20.0)
    journal = started(Timed(commit_s=40.0))
    append(journal, "a")
    began_s = now_s()
    assert not await journal.stop(30)
    assert now_s() - began_s == pytest.approx(30.0)


@pytest.mark.parametrize("away_s", [0.0, 10.0])
@virtual
async def test_a_journal_that_stops_waits_three_seconds_for_a_tier_that_fails(away_s):
    tier = Timed(commit_s=1.0, away=away_s)
    journal = started(tier)

    async def writes():
        while True:
            append(journal, "a")
            await passes(0.5)

    writing = asyncio.create_task(writes())
    await passes(0)
    assert not await journal.stop(30)
    writing.cancel()
    # The commit that is on its way when it fails has begun up to a second before, and it looks 5 times a second.
    assert away_s + 3 <= now_s() <= away_s + 3 + 1 + 1 + 0.2


@virtual
async def test_a_journal_that_stops_goes_on_waiting_for_a_tier_that_is_back():
    tier = Timed(commit_s=1.0, away=0.0, back=3.0)
    journal = started(tier)
    append(journal, "a")
    await passes(0.5)
    append(journal, "b")
    assert await journal.stop(3600)
    assert tier.records() == [["a"], ["b"]]
    assert now_s() < 10


@virtual
async def test_writers_go_on_as_soon_as_no_more_is_pending_than_may_be(monkeypatch):
    monkeypatch.setattr(module, "GROUP_BYTES", 10)
    monkeypatch.setattr(module, "PENDING_BYTES", 20)
    journal = started(Timed(commit_s=1.0))
    for text in "abcd":
        append(journal, text)
    await passes(1.5)
    assert journal.congested, "three are pending"
    await passes(1)
    assert not journal.congested, "two are"
    assert await journal.stop(10)
