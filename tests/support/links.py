"""Links of a network: each passes bytes to one address, and can be slow, silent or cut. One thread has them all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

_READ_BYTES = 65536


class Link:
    """What listens on one address, and passes all bytes on. Use its methods from any thread.

    Attributes:
        delay_s: so long each piece of bytes is on its way, in both directions.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self._loop, self._to = loop, port
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._left: int | None = None
        self.delay_s = 0.0
        self.port = 0

    def lead_to(self, port: int) -> None:
        """Pass new connections to another port, and cut those there are."""
        self._to = port
        self.cut()

    def silence(self) -> None:
        """Pass nothing on, and lose nothing, until `speak`: as a network does that drops packets for a while."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def speak(self) -> None:
        """Pass on again, first what came meanwhile."""
        self._loop.call_soon_threadsafe(self._open.set)

    def cut(self) -> None:
        """Close all connections; what is on its way is lost."""
        self._loop.call_soon_threadsafe(self._end)

    def cut_within(self, n_bytes: int) -> None:
        """Close all connections once so many bytes more were passed on."""
        self._left = n_bytes

    def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def listen(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._begin, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        self._writers.add(writer)
        task = self._loop.create_task(self._serve(reader, writers))

        def ended(_: asyncio.Task[None]) -> None:
            # Not in the task itself: one that is cancelled before its first step runs nothing.
            self._tasks.discard(task)
            for each in writers:
                each.transport.abort() if task.cancelled() else each.close()
            self._writers.difference_update(each for each in writers if each.transport.get_write_buffer_size() == 0)

        self._tasks.add(task)
        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]) -> None:
        with contextlib.suppress(OSError):  # nobody listens there
            await self._open.wait()  # a connection that begins meanwhile has no answer either
            up, down = await asyncio.open_connection("127.0.0.1", self._to)
            writers.append(down)
            self._writers.add(down)
            ways = [asyncio.create_task(self._pass_on(*way)) for way in ((reader, down), (up, writers[0]))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_READ_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                sink.write(data[: self._left])
                if self._left is not None:
                    self._left -= len(data)
                    if self._left <= 0:
                        self._left = None
                        await sink.drain()
                        self._end()
                await sink.drain()


class Links:
    """All links of a test. Call `made` for a new one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._all: list[Link] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def made(self, to: int, host: str = "127.0.0.1", port: int = 0) -> Link:
        """A link from an address, by default one with a free port, to a port of this machine."""

        async def make() -> Link:
            link = Link(self._loop, to)
            await link.listen(host, port)
            return link

        link = asyncio.run_coroutine_threadsafe(make(), self._loop).result(60)
        self._all.append(link)
        return link

    def close(self) -> None:
        """Close all of them."""

        async def close() -> None:
            await asyncio.gather(*(link.close() for link in self._all))

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def links() -> Iterator[Links]:
    """Links that are closed at the end."""
    running = Links()
    try:
        yield running
    finally:
        running.close()
