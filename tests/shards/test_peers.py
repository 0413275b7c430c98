"""The connections between processes."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from sash.shards.lifecycle import Lifecycle
from sash.shards.peer_server import PeerServer
from sash_engine.errors import DataLoss, OutOfRoom
from tests.support.sharded import hosts

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY, ACK = 4, 6, 7, 1


def frame(kind: int, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, 0]) + bytes(4) + data


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    head = await reader.readexactly(9)
    return head[3], head[4], await reader.readexactly(int.from_bytes(head[:3], "big"))


async def test_a_process_that_asks_often_whether_another_is_there_keeps_its_connection() -> None:
    server = PeerServer("127.0.0.1:0", lambda shard, operation: None)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(PREFACE + frame(SETTINGS))
        async with asyncio.timeout(120):
            for number in range(50):
                asked = struct.pack(">Q", number)
                writer.write(frame(PING, asked))
                while (found := await read_frame(reader)) != (PING, ACK, asked):
                    assert found[0] != GOAWAY, found
    finally:
        writer.close()
        await server.stop()


@pytest.mark.parametrize("error", [DataLoss("damaged"), OutOfRoom("full")])
async def test_a_shard_that_does_not_get_its_windows_at_once_is_served_later(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    reconciled = Lifecycle.reconcile_one
    refused: set[int] = set()

    async def refuse_once(self: Lifecycle, shard: int) -> Any:
        if shard not in refused:
            refused.add(shard)
            raise error
        await reconciled(self, shard)

    monkeypatch.setattr(Lifecycle, "reconcile_one", refuse_once)
    monkeypatch.setattr("sash.shards.host._PAUSE_S", 0.0)
    monkeypatch.setattr("sash.shards.host._PAUSE_MAX_S", 0.0)
    async with hosts(4) as made:
        assert {shard for host in made for shard in host.shards.hosted} == {0, 1, 2, 3}
        assert refused >= {1, 2, 3}
