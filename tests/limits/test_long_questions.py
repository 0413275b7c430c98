"""How many long questions of one caller are in progress at a time."""

from __future__ import annotations

import asyncio

from sash.limits.long_questions import MOST, LongQuestions


class Questions:
    """Questions that end when they are told to."""

    def __init__(self, asking):
        self.asking, self.begun, self.may_end = asking, [], asyncio.Event()

    async def ask(self, caller):
        async with self.asking.one(caller):
            self.begun.append(caller)
            await self.may_end.wait()


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_further_questions_of_a_caller_wait_and_those_of_others_do_not():
    asking = LongQuestions()
    questions = Questions(asking)
    asked = [asyncio.create_task(questions.ask(caller)) for caller in ["ann"] * 3 * MOST + ["bob"]]
    await settled()
    assert questions.begun == ["ann"] * MOST + ["bob"]
    questions.may_end.set()
    await asyncio.gather(*asked)
    assert questions.begun.count("ann") == 3 * MOST
    assert (asking._callers, asking._counts) == ({}, {})


async def test_a_question_that_is_called_off_leaves_its_place():
    asking = LongQuestions(1)
    questions = Questions(asking)
    first, second, third = (asyncio.create_task(questions.ask("ann")) for _ in range(3))
    await settled()
    second.cancel()
    first.cancel()
    await settled()
    assert questions.begun == ["ann"] * 2
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert (asking._callers, asking._counts) == ({}, {})


async def test_what_the_service_asks_itself_waits_for_nobody():
    questions = Questions(LongQuestions(1))
    asked = [asyncio.create_task(questions.ask("")) for _ in range(3)]
    await settled()
    assert questions.begun == [""] * 3
    questions.may_end.set()
    await asyncio.gather(*asked)
