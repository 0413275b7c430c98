"""The journal in virtual time: when records are committed, retried, and given up."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability.journal import journal as module
from sash.durability.journal.group_commit import BackgroundWrite
from sash.durability.journal.journal import Journal
from sash_engine.errors import DataLoss, FailedPrecondition, Unavailable
from tests.support.journals import Recorder, append
from tests.support.virtual_time import in_virtual_time, now_s, passes


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


def test_nobody_waits_for_the_interval_but_those_that_nobody_waits_for():
    async def main():
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

    in_virtual_time(main())


def test_the_interval_counts_from_when_a_record_came_and_not_from_the_commit_before_it():
    async def main():
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

    in_virtual_time(main())


def test_what_is_more_than_a_group_waits_for_the_interval_once(monkeypatch):
    monkeypatch.setattr(module, "GROUP_BYTES", 20)

    async def main():
        tier = Timed(commit_s=1.0)
        journal = started(tier, interval_s=10.0)
        numbers = [append(journal, text, urgent=False) for text in "abcdefg"]
        await journal.durable(numbers[-1])
        assert [len(group) for group in tier.records()] == [2, 2, 2, 1]
        assert tier.tried_s == [11.0, 12.0, 13.0, 14.0]

    in_virtual_time(main())


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


def test_a_commit_that_fails_is_tried_again_less_and_less_often_and_at_most_every_two_seconds():
    async def main():
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

    in_virtual_time(main())


@pytest.mark.parametrize("kind", [FailedPrecondition, DataLoss])
def test_a_tier_that_is_lost_is_never_written_again(kind):
    async def main():
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

    in_virtual_time(main())


def test_a_journal_that_stops_commits_at_once_what_would_wait_for_the_interval():
    async def main():
        tier = Timed()
        journal = started(tier, interval_s=60.0)
        append(journal, "a", urgent=False)
        assert await journal.stop(5)
        assert (tier.records(), now_s()) == ([["a"]], 0.0)

    in_virtual_time(main())


def test_a_journal_that_stops_waits_for_a_slow_tier_as_long_as_it_may():
    async def main():
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

    in_virtual_time(main())


@pytest.mark.parametrize("away_s", [0.0, 10.0])
def test_a_journal_that_stops_waits_three_seconds_for_a_tier_that_fails(away_s):
    async def main():
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

    in_virtual_time(main())


def test_a_journal_that_stops_goes_on_waiting_for_a_tier_that_is_back():
    async def main():
        tier = Timed(commit_s=1.0, away=0.0, back=3.0)
        journal = started(tier)
        append(journal, "a")
        await passes(0.5)
        append(journal, "b")
        assert await journal.stop(3600)
        assert tier.records() == [["a"], ["b"]]
        assert now_s() < 10

    in_virtual_time(main())


def test_writers_go_on_as_soon_as_no_more_is_pending_than_may_be(monkeypatch):
    monkeypatch.setattr(module, "GROUP_BYTES", 10)
    monkeypatch.setattr(module, "PENDING_BYTES", 20)

    async def main():
        journal = started(Timed(commit_s=1.0))
        for text in "abcd":
            append(journal, text)
        await passes(1.5)
        assert journal.congested, "three are pending"
        await passes(1)
        assert not journal.congested, "two are"
        assert await journal.stop(10)

    in_virtual_time(main())
