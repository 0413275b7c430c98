"""gRPC between simulated processes: streams of messages that arrive in order, late, or never once a stream breaks.

    client ── message ── message ──▶ server        a network that is cut holds messages back. If it is so for longer
           ◀── message ── message ──               than keepalive allows, each side finds its stream broken

It takes the place of `grpc` in `sash.shards.peers` and `peer_server`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import grpc

from tests.simulation.loop import Process, SimulatedLoop, running

PEER_FAULTS = ("cut", "late", "partition", "partition")
"""What can happen at a message between processes."""
MESSAGE_FAULTS = (
    "cut",
    "cut",
    "late",
    "partition",
    "dies: sender",
    "dies: receiver",
    "stands still: sender",
    "stands still: receiver",
    "stands still soon: receiver",
)
"""What can happen at a message of a kind that has faults of its own: those that write, and those that administer."""

_WRITES = (b"\xa5write",)
_ADMINISTERS = (
    b"\xa6create",
    b"\xa5close",
    b"\xa6delete",
    b"\xa6reopen",
    b"\xadreconcile_one",
    b"\xa6window",
    b"\xa7restore",
)

_KEEPALIVE_S = 15.0
_END = object()


class Network:
    """The streams between all processes.

    Args:
        loop, draw: time, and chance.
        note: is told what happens.
        world: the context of what the network does.

    Attributes:
        faults: by number of a message over all time.
    """

    def __init__(
        self, loop: SimulatedLoop, draw: random.Random, note: Callable[[str], None], world: Any, met: Counter[str]
    ) -> None:
        self.loop, self.draw, self.note, self.world, self.met = loop, draw, note, world, met
        self.servers: dict[str, _Server] = {}
        self.streams: dict[_Stream, None] = {}
        self.cut: dict[frozenset[int], float] = {}
        """By two machines: until when they do not reach each other."""
        self.faults: dict[int, str] = {}
        self.faults_of: dict[tuple[str, int], str] = {}
        """By place and number of a message of those that have their own."""
        self.strikes: Callable[[Process, str], None] = lambda process, kind: None
        """Has something happen to a process."""
        self.messages = 0
        self.messages_of = Counter[str]()
        self._ports = 0

    @property
    def grpc(self) -> Any:
        """In place of the module."""
        aio = SimpleNamespace(
            insecure_channel=lambda address, options: _Channel(self, address),
            server=lambda options: _Server(self),
            AioRpcError=grpc.aio.AioRpcError,
        )
        return SimpleNamespace(
            aio=aio,
            StatusCode=grpc.StatusCode,
            method_handlers_generic_handler=lambda service, handlers: handlers,
            stream_stream_rpc_method_handler=lambda call: ("stream", "stream", call),
            unary_stream_rpc_method_handler=lambda call: ("unary", "stream", call),
            stream_unary_rpc_method_handler=lambda call: ("stream", "unary", call),
        )

    def port(self) -> int:
        self._ports += 1
        return self._ports

    def delay_s(self, one: Process, other: Process, stream: _Stream | None, data: Any = None) -> float | None:
        """How long a message takes; None: it never arrives, as the stream breaks."""
        self.messages += 1
        fault = self.faults.get(self.messages)
        if isinstance(data, bytes):
            for place, names in (("write", _WRITES), ("admin", _ADMINISTERS)):
                if any(name in data for name in names):
                    self.messages_of[place] += 1
                    fault = self.faults_of.get((place, self.messages_of[place]), fault)
        pair = frozenset((one.machine, other.machine))
        now_s = self.loop.time()
        delay_s = self.draw.choice([0.0, 0.0, 0.0002, 0.002, 0.05])
        if fault is not None and stream is not None:
            self.met[f"between processes: {fault}"] += 1
            self.note(f"message {self.messages} from process {one.number} to {other.number}: {fault}")
            kind, _, who = fault.partition(": ")
            if who:
                self.strikes(one if who == "sender" else other, kind)
            elif fault == "cut":
                # It may have arrived, and its answer has not.
                if self.draw.random() < 0.5:
                    self.loop.call_later(
                        self.draw.choice([0.0, 0.01, 0.1]), stream.breaks, 0.0, 0.01, context=self.world
                    )
                    return delay_s
                stream.breaks(self.draw.choice([0.0, 0.01]), self.draw.choice([0.0, 0.01, _KEEPALIVE_S]))
                return None
            elif fault == "late":
                delay_s += self.draw.choice([0.5, 3.0, 10.0])
            elif len(pair) > 1:
                self.cut[pair] = now_s + self.draw.choice([1.0, 8.0, 30.0, 90.0])
        left_s = self.cut.get(pair, 0.0) - now_s
        if left_s > _KEEPALIVE_S:
            if stream is not None:
                stream.breaks(_KEEPALIVE_S, _KEEPALIVE_S + self.draw.choice([0.0, 5.0]))
            return None
        return delay_s + max(left_s, 0.0)

    def died(self, process: Process) -> None:
        """Its machine ends its connections; who is cut off finds out later."""
        for address in [address for address, server in self.servers.items() if server.process is process]:
            del self.servers[address]
        for stream in [*self.streams]:
            if process in (stream.client, stream.server):
                pair = frozenset((stream.client.machine, stream.server.machine if stream.server else -1))
                late_s = _KEEPALIVE_S if self.cut.get(pair, 0.0) > self.loop.time() else 0.0
                stream.breaks(late_s, late_s)


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, None, None, details)  # type: ignore[arg-type]


class _Queue:
    """Messages that have arrived, for one reader."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def get(self) -> Any:
        while not self._items:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        item = self._items.popleft()
        if item is _END or isinstance(item, Exception):
            self._items.append(item)  # and so for ever
        return item


class _Stream:
    """One call. It is what the client holds; the server's task reads and writes it, too."""

    def __init__(self, network: Network, address: str, path: str, metadata: Any, first: bytes | None) -> None:
        self._network, self._address, self._path, self._metadata = network, address, path, metadata
        client = running()
        assert client is not None
        self.client, self.server = client, None  # type: tuple[Process, Process | None]
        self._requests, self._answers = _Queue(), _Queue()
        self._last_s = {True: 0.0, False: 0.0}
        self._coming: dict[bool, deque[Any]] = {True: deque(), False: deque()}
        self._broken = self._connected = False
        self._task: asyncio.Task[None] | None = None
        self._connecting = network.loop.create_future()
        network.streams[self] = None
        self._begin()
        if first is not None:
            self._send(True, first)

    def _begin(self) -> None:
        network = self._network
        server = network.servers.get(self._address)
        draw = network.draw
        if server is None:
            network.loop.call_later(draw.choice([0.0, 0.001]), self._refused, context=network.world)
            return
        self.server = server.process
        delay_s = network.delay_s(self.client, server.process, None)
        if delay_s is None:
            network.loop.call_later(draw.choice([1.0, 20.0]), self._refused, context=network.world)
            return
        self._last_s[True] = network.loop.time() + delay_s
        network.loop.call_at(self._last_s[True], self._accepted, server, context=network.world)

    def _refused(self) -> None:
        self._fail(True, "failed to connect to all addresses")

    def _accepted(self, server: _Server) -> None:
        if self._broken:
            return
        if not server.process.alive or self._network.servers.get(self._address) is not server:
            self._refused()
            return
        self._connected = True
        server.streams[self] = None
        self._task = server.process.spawn(self._serve(server))
        if not self._connecting.done():
            self._connecting.set_result(None)

    async def _serve(self, server: _Server) -> None:
        requests, answers, call = server.handlers[self._path.rpartition("/")[2]]
        context = SimpleNamespace(invocation_metadata=lambda: self._metadata, write=self._written, abort=self._aborted)
        try:
            given = self._arriving() if requests == "stream" else await self._requests.get()
            if answers == "unary":
                self._send(False, await call(given, context))
            else:
                made = call(given, context)
                if hasattr(made, "__aiter__"):
                    async for part in made:
                        self._send(False, part)
                else:
                    await made
            self._send(False, _END)
        except grpc.aio.AioRpcError as error:
            self._send(False, error)
        except _Gone:
            pass
        finally:
            server.streams.pop(self, None)

    async def _arriving(self) -> AsyncIterator[bytes]:
        while (item := await self._requests.get()) is not _END:
            if isinstance(item, Exception):
                raise _Gone
            yield item

    async def _written(self, data: bytes) -> None:
        self._send(False, data)

    async def _aborted(self, code: grpc.StatusCode, details: str) -> None:
        raise _error(code, details)

    # ---------------------------------------------------------------- the way

    def _send(self, onward: bool, item: Any) -> None:
        if self._broken or self.server is None:
            return
        network = self._network
        one, other = (self.client, self.server) if onward else (self.server, self.client)
        delay_s = network.delay_s(one, other, self, item)
        if delay_s is None:
            return
        at_s = self._last_s[onward] = max(self._last_s[onward], network.loop.time() + delay_s)
        self._coming[onward].append(item)
        network.loop.call_at(at_s, self._arrives, onward, context=network.world)

    def _arrives(self, onward: bool) -> None:
        item = self._coming[onward].popleft()  # in order, also where two are due
        if not self._broken:
            (self._requests if onward else self._answers).put(item)

    def breaks(self, client_s: float, server_s: float) -> None:
        """Nothing arrives any more; each side finds out after so long."""
        if self._broken:
            return
        self._broken = True
        self._network.streams.pop(self, None)
        loop, world = self._network.loop, self._network.world
        loop.call_later(client_s, self._fail, True, "Socket closed", context=world)
        loop.call_later(server_s, self._fail, False, "Socket closed", context=world)

    def _fail(self, client: bool, details: str) -> None:
        error = _error(grpc.StatusCode.UNAVAILABLE, details)
        if client:
            self._broken = True
            self._network.streams.pop(self, None)
            self._answers.put(error)
            if not self._connecting.done():
                self._connecting.set_exception(error)
                self._connecting.exception()
        elif self._task is not None:
            self._task.cancel()

    # ---------------------------------------------------------------- what a client holds

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> bytes:
        item = await self._answers.get()
        if item is _END:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return item  # type: ignore[no-any-return]

    async def _only(self) -> bytes:
        return await self.__anext__()

    def __await__(self) -> Any:
        return self._only().__await__()

    async def wait_for_connection(self) -> None:
        await asyncio.shield(self._connecting)

    async def write(self, data: bytes) -> None:
        await self.wait_for_connection()
        if self._broken:
            raise _error(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        self._send(True, data)

    async def done_writing(self) -> None:
        self._send(True, _END)

    def cancel(self) -> None:
        if not self._broken:
            self._answers.put(_error(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))
            self.breaks(0.0, 0.001)


class _Gone(Exception):
    """The client has gone."""


class _Channel:
    def __init__(self, network: Network, address: str) -> None:
        self._network, self._address = network, address
        self._streams: list[_Stream] = []

    def _made(self, path: str, metadata: Any, first: bytes | None = None) -> _Stream:
        stream = _Stream(self._network, self._address, path, metadata, first)
        self._streams = [each for each in self._streams if not each._broken] + [stream]
        return stream

    def stream_stream(self, path: str) -> Any:
        return lambda metadata: self._made(path, metadata)

    def stream_unary(self, path: str) -> Any:
        return lambda metadata: self._made(path, metadata)

    def unary_stream(self, path: str) -> Any:
        return lambda request, metadata: self._made(path, metadata, request)

    async def close(self) -> None:
        for stream in self._streams:
            stream.cancel()


class _Server:
    def __init__(self, network: Network) -> None:
        self._network = network
        process = running()
        assert process is not None
        self.process = process
        self.handlers: dict[str, Any] = {}
        self.streams: dict[_Stream, None] = {}
        self._address = ""

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        (self.handlers,) = handlers

    def add_insecure_port(self, address: str) -> int:
        host, port = f"node{self.process.machine}", self._network.port()
        self._address = f"{host}:{port}"
        return port

    async def start(self) -> None:
        self._network.servers[self._address] = self

    async def stop(self, grace: float | None) -> None:
        self._network.servers.pop(self._address, None)
        for stream in list(self.streams):
            if stream._task is not None:
                stream._task.cancel()
            stream.breaks(0.001, 0.0)
