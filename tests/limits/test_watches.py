"""Watching in virtual time: a question is computed once for all who watch it; all looks share a fifth of the loop."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar, copy_context

import pytest

from sash.limits.metered import metered
from sash.limits.watches import Watches
from sash_engine.errors import NotFound, PermissionDenied
from tests.support.virtual_time import now_s, passes, virtual


class Question:
    """What is watched: an answer, and how long a look at it holds the loop, on a clock of its own."""

    held_s = 0.0

    def __init__(self, cost_s=0.0):
        self.answer, self.cost_s, self.looks = b"1", cost_s, []
        self.error = None

    async def look(self):
        self.looks.append(now_s())
        Question.held_s += self.cost_s
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def watches():
    return Watches(0.2, lambda: Question.held_s)


def watch(watches, question, interval_ms=1000, key=None, closing=None, quiet_s=10**9, may=lambda: None):
    """A watcher's answers, as they come, and the task that takes them."""
    found = []

    async def run():
        stop = closing or asyncio.Event()
        stream = watches.changes(key or question, question.look, interval_ms, stop, quiet_s, may)
        async with contextlib.aclosing(stream):
            async for each in stream:
                found.append(each)  # noqa: PERF401  # as they come

    return found, asyncio.create_task(run())


@virtual
async def test_a_question_is_computed_once_for_all_who_watch_it(watches):
    question = Question()
    found = [watch(watches, question)[0] for _ in range(40)]
    await passes(0.5)
    assert found == [[b"1"]] * 40
    assert len(question.looks) == 40  # each who joins
    question.answer = b"2"
    await passes(10)
    assert found == [[b"1", b"2"]] * 40
    assert len(question.looks) == 50
    assert watches.questions == 1


@virtual
async def test_questions_and_intervals_are_told_apart(watches):
    question, other = Question(), Question()
    watch(watches, question, 1000, ("q", 1000))
    watch(watches, question, 5000, ("q", 5000))
    watch(watches, other)
    await passes(10.5)
    assert (len(question.looks), len(other.looks)) == (11 + 3, 11)
    assert watches.questions == 3


@virtual
async def test_who_joins_gets_the_answer_of_now(watches):
    question = Question()
    first, _ = watch(watches, question, 3_600_000)
    await passes(1)
    question.answer = b"2"
    second, _ = watch(watches, question, 3_600_000)
    await passes(1)
    assert second == [b"2"]
    assert first == [b"1", b"2"]


@virtual
async def test_nobody_watches_nobody_looks(watches):
    question = Question()
    tasks = [watch(watches, question)[1] for _ in range(2)]
    await passes(1.5)
    tasks[0].cancel()
    await passes(1)
    looks = len(question.looks)
    assert looks == 2 + 2
    tasks[1].cancel()
    await passes(10)
    assert len(question.looks) == looks
    assert watches.questions == 0


@virtual
async def test_a_refusal_ends_all_who_watch_and_the_next_one_looks_again(watches):
    question = Question()
    tasks = [watch(watches, question)[1] for _ in range(3)]
    await passes(0.5)
    question.error = NotFound("there is no window 'w'")
    await passes(1)
    for task in tasks:
        with pytest.raises(NotFound):
            await task
    with pytest.raises(NotFound):  # on the way in
        await watch(watches, question)[1]
    question.error = None
    found, _ = watch(watches, question)
    await passes(0.5)
    assert found == [b"1"]


WHO = ContextVar("who", default="nobody")


class Rights:
    """Who may see the answer; a look is made as one of the watchers, and refused to those who may not."""

    def __init__(self, *names):
        self.names, self.asked, self.looked, self.lost_in_look = set(names), [], [], set()

    def may(self):
        self.asked.append(WHO.get())
        if WHO.get() not in self.names:
            raise PermissionDenied(f"{WHO.get()} has no right 'read'")

    async def look(self):
        self.may()
        self.names -= self.lost_in_look
        self.looked.append(WHO.get())
        return b"%d" % len(self.looked)

    def watched_by(self, watches, name, interval_ms=1000):
        context = copy_context()
        context.run(WHO.set, name)
        return context.run(watch, watches, self, interval_ms, key="q", may=self.may)


@virtual
async def test_one_who_loses_the_right_sees_no_more_and_the_others_do(watches):
    rights = Rights("ann", "bob")
    (of_ann, ann), (of_bob, bob) = (rights.watched_by(watches, name) for name in ("ann", "bob"))
    await passes(1.5)
    assert rights.looked == ["ann", "bob", "ann"]
    assert of_ann[-1] == of_bob[-1] == b"3"
    rights.names.discard("ann")  # of whom the question was asked
    await passes(1)
    with pytest.raises(PermissionDenied, match="ann"):
        await ann
    assert of_ann[-1] == b"3"
    assert of_bob[-1] == b"4"
    assert rights.looked[-1] == "bob"
    rights.names.discard("bob")
    await passes(1)
    with pytest.raises(PermissionDenied, match="bob"):
        await bob
    assert len(rights.looked) == 4
    assert watches.questions == 0


@virtual
async def test_a_right_that_goes_just_before_the_look_ends_one_watcher_only(watches):
    rights = Rights("ann", "bob")
    (_, ann), (of_bob, bob) = (rights.watched_by(watches, name) for name in ("ann", "bob"))
    await passes(0.5)
    rights.names = Revoked("ann", "bob")  # asked for the second time, ann is not there
    await passes(2)
    with pytest.raises(PermissionDenied, match="ann"):
        await ann
    assert not bob.done()
    assert of_bob[-1] == b"3"


class Revoked(set):
    """Names, of which the first is there once."""

    def __init__(self, first, *others):
        super().__init__(others)
        self.first = [first]

    def __contains__(self, name):
        return super().__contains__(name) or (name in self.first and self.first.pop() == name)


@virtual
async def test_somebody_without_the_right_gets_no_answer_that_others_share(watches):
    rights = Rights("ann")
    rights.watched_by(watches, "ann")
    found, eve = rights.watched_by(watches, "eve")
    await passes(3)
    with pytest.raises(PermissionDenied, match="eve"):
        await eve
    assert found == []


@virtual
async def test_the_first_look_of_another_is_not_for_one_who_lost_the_right(watches):
    """It would be an hour until the question is asked again."""
    rights = Rights("ann", "bob")
    (of_ann, ann), (of_carl, _) = (rights.watched_by(watches, name, 3_600_000) for name in ("ann", "bob"))
    await passes(1)
    rights.names.discard("ann")
    of_bob, _ = rights.watched_by(watches, "bob", 3_600_000)
    await passes(1)
    assert of_ann == [b"1", b"2"]
    assert of_carl == [b"2", b"3"]
    assert of_bob == [b"3"]
    with pytest.raises(PermissionDenied, match="ann"):
        await ann


@virtual
async def test_a_right_that_goes_while_the_look_is_made(watches):
    rights = Rights("ann", "bob")
    (_, _), (of_bob, bob) = (rights.watched_by(watches, name) for name in ("ann", "bob"))
    await passes(0.5)
    rights.lost_in_look.add("bob")
    await passes(2)
    with pytest.raises(PermissionDenied, match="bob"):
        await bob
    assert of_bob == [b"2"]


@virtual
async def test_a_slow_watcher_gets_the_newest(watches):
    question = Question()
    stream = watches.changes("q", question.look, 1000, asyncio.Event(), 10**9)
    assert await anext(stream) == b"1"
    for answer in (b"2", b"3", b"4"):
        question.answer = answer
        await passes(1)
    await passes(0.5)
    assert await anext(stream) == b"4"
    await stream.aclose()


@virtual
async def test_all_looks_together_take_their_share(watches):
    """Forty questions of 10 ms, each to be asked every 50 ms, would need eight loops."""
    questions = [Question(0.01) for _ in range(40)]
    for question in questions:
        watch(watches, question, 50)
    await passes(100)  # the looks of those who join are paid off
    held_s, counts = Question.held_s, [len(question.looks) for question in questions]
    await passes(100)
    assert 0.19 <= (Question.held_s - held_s) / 100 <= 0.21
    more = [len(question.looks) - count for question, count in zip(questions, counts, strict=True)]
    assert max(more) - min(more) <= 1  # all intervals stretch alike
    assert watches.late_s > 1


@virtual
async def test_cheap_looks_are_on_time(watches):
    questions = [Question(0.0001) for _ in range(40)]
    for question in questions:
        watch(watches, question, 50)
    await passes(10.01)
    assert min(len(question.looks) for question in questions) >= 195
    assert watches.late_s < 0.05


@virtual
async def test_the_end_of_the_service_ends_all(watches):
    closing = asyncio.Event()
    tasks = [watch(watches, Question(), 3_600_000, closing=closing)[1] for _ in range(3)]
    await passes(1)
    closing.set()
    await asyncio.gather(*tasks)
    assert watches.questions == 0


# ---------------------------------------------------------------- metering


@virtual
async def test_the_time_of_steps_is_counted_and_errors_pass():
    clock = [0.0]
    spent = []

    async def work():
        clock[0] += 1
        try:
            await asyncio.sleep(5)
        except TimeoutError:
            clock[0] += 10
        await asyncio.sleep(5)
        clock[0] += 100
        raise KeyError("at its end")

    task = asyncio.ensure_future(metered(work(), spent.append, lambda: clock[0]))
    await passes(1)
    task._fut_waiter.set_exception(TimeoutError())
    with pytest.raises(KeyError):
        await task
    assert spent == [1, 10, 100]


@virtual
async def test_a_metered_coroutine_can_be_called_off():
    ended = []

    async def work():
        try:
            await asyncio.sleep(5)
        finally:
            ended.append(True)

    async def run():
        await metered(work(), lambda _: None)

    task = asyncio.create_task(run())
    await passes(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
