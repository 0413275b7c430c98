"""Writes of one iteration of the loop become one; nothing is lost, and the order stays."""

import asyncio

from sash.rest.joined import Joined


class Transport:
    def __init__(self):
        self.did = []

    def write(self, data):
        self.did.append(data)

    def close(self):
        self.did.append("closed")

    def abort(self):
        self.did.append("aborted")

    def get_write_buffer_size(self):
        return 7


async def test_what_is_written_in_one_iteration_is_one_write():
    under = Transport()
    transport = Joined(under, asyncio.get_running_loop())
    transport.write(b"head")
    transport.write(b"body")
    assert under.did == []
    assert transport.get_write_buffer_size() == 7 + 8
    await asyncio.sleep(0)
    assert under.did == [b"headbody"]
    assert transport.get_write_buffer_size() == 7
    transport.write(b"next")
    await asyncio.sleep(0)
    assert under.did == [b"headbody", b"next"]


async def test_closing_writes_what_is_left_first_and_aborting_does_not():
    for end, expected in (("close", [b"last", "closed"]), ("abort", ["aborted"])):
        under = Transport()
        transport = Joined(under, asyncio.get_running_loop())
        transport.write(b"last")
        getattr(transport, end)()
        await asyncio.sleep(0)
        assert under.did == expected
