"""A long answer that is made part by part is made in the task of its call, and no further than its client reads."""

import asyncio
from types import SimpleNamespace

from sash.rest.connection import ANSWERS
from sash.rest.routes.common import streamed


async def sent(gone_after=None):
    """Which tasks made the parts, what was sent, and whether the parts were closed."""
    made, bodies, closed = [], [], []
    exchange = SimpleNamespace(gone=False)

    async def parts():
        try:
            for number in range(5):
                made.append(asyncio.current_task())
                yield b"%d" % number
        finally:
            closed.append(True)

    async def send(message):
        if "body" in message:
            bodies.append(message["body"])
            exchange.gone = len(bodies) == gone_after

    await streamed(parts(), "text/plain")({"type": "http", ANSWERS: exchange}, None, send)
    return made, bodies, closed


async def test_its_parts_are_made_in_the_task_of_the_call():
    made, bodies, closed = await sent()
    assert set(made) == {asyncio.current_task()}
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b""]
    assert closed


async def test_no_more_parts_are_made_for_a_client_that_has_gone():
    made, bodies, closed = await sent(gone_after=2)
    assert len(made) == 3
    assert bodies == [b"0", b"1", b""]
    assert closed == [True]
