"""The connections between processes."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from typing import Any

import pytest

from sash.shards.lifecycle import Lifecycle
from sash.shards.peer_server import PEER_SECRET, PeerServer
from sash.shards.peers import Peer
from sash_engine.errors import DataLoss, OutOfRoom, Unavailable
from tests.support import http2
from tests.support.sharded import hosts
from tests.support.waiting import turns


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    head = await reader.readexactly(9)
    return head[3], head[4], await reader.readexactly(int.from_bytes(head[:3], "big"))


@pytest.mark.parametrize("sent", [None, "", "wrong", "secre", "secret ", "secrets"])
async def test_strangers_are_refused(sent: str | None) -> None:
    called: list[str] = []

    def resolve(shard: int | None, operation: str) -> Any:
        async def call(*_: Any) -> Any:
            called.append(operation)
            return []

        return call

    server = PeerServer("127.0.0.1:0", resolve, "secret")
    await server.start()
    address = f"127.0.0.1:{server.port}"
    stranger = Peer(address, "it", [] if sent is None else [(PEER_SECRET, sent)])
    friend = Peer(address, "it", [(PEER_SECRET, "secret")])
    newer = Peer(address, "it", [(PEER_SECRET, "newer")])

    async def nothing() -> Any:
        return
        yield b""

    try:
        for call in (
            lambda: stranger.call(0, "query"),
            lambda: stranger.read(0, "entries"),
            lambda: stranger.restore(0, nothing(), "w"),
            lambda: newer.call(0, "query"),
        ):
            with pytest.raises(Unavailable, match="cannot be reached"):
                await call()
        assert not called
        server.also_admit("newer")
        for peer in (friend, newer):
            assert await peer.call(0, "query") == []
    finally:
        for peer in (stranger, friend, newer):
            await peer.close()
        await server.stop()


async def test_what_a_host_has_begun_is_not_forgotten() -> None:
    """The loop has weak references to tasks only."""
    async with hosts(1, 1) as (host,):
        ended: list[str] = []

        async def wait() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append("it")

        waiting = weakref.ref(host.serving.spawn(wait()))
        await turns()
        gc.collect()
        assert waiting() is not None
        assert not ended
    assert ended == ["it"]
    assert not host.serving._tasks


async def test_a_process_that_asks_often_whether_another_is_there_keeps_its_connection() -> None:
    server = PeerServer("127.0.0.1:0", lambda shard, operation: None)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(http2.PREFACE + http2.settings())
        async with asyncio.timeout(120):
            for number in range(50):
                asked = struct.pack(">Q", number)
                writer.write(http2.frame(http2.PING, payload=asked))
                while (found := await read_frame(reader)) != (http2.PING, http2.ACK, asked):
                    assert found[0] != http2.GOAWAY, found
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
    monkeypatch.setattr("sash.shards.serving._PAUSE_S", 0.0)
    monkeypatch.setattr("sash.shards.serving._PAUSE_MAX_S", 0.0)
    async with hosts(4) as made:
        assert {shard for host in made for shard in host.shards.hosted} == {0, 1, 2, 3}
        assert refused >= {1, 2, 3}
