"""What benchmarks share: their command line, tables and clocks, the service as a process, and what processes use.

Processor time is what is compared on a machine that others use, too: it leaves out waits for a core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httptools

if TYPE_CHECKING:
    from tests.support.servers import Running

CORES = sorted(os.sched_getaffinity(0))
MIB = 2**20


# ---------------------------------------------------------------- what is asked, and what is printed


def arguments(about: str | None, options: Mapping[str, Mapping[str, Any]] = {}) -> Any:
    """Parse the command line: `--smoke`, and options, each with its settings of argparse."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes; figures mean nothing")
    for name, settings in options.items():
        parser.add_argument(name, **settings)
    return parser.parse_args()


def row(*cells: object) -> None:
    """Print a row of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def head(*titles: str) -> None:
    """Print the head of a Markdown table."""
    row(*titles)
    row(*["---"] * len(titles))


def digest(answers: object) -> str:
    """Hash what was answered: it depends on the sizes, and on nothing else."""
    return hashlib.sha256(answers if isinstance(answers, bytes) else repr(answers).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- clocks


def timed(call: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds of one call, by the processor unless told otherwise."""
    began = clock()
    call()
    return clock() - began


def median_us(calls: int, call: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    """The median of several calls."""
    return 1e6 * statistics.median(timed(call, clock) for _ in range(calls))


def in_fresh_process(work: Callable[..., Any], *given: Any) -> Any:
    """Run a function in a process of its own, in which nothing else ran."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *given).result()


def pin(pid: int, cores: Sequence[int]) -> None:
    """Keep a process, with the threads that it has, to some cores."""
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), cores)


@contextlib.contextmanager
def pinned() -> Iterator[None]:
    """Keep to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# ---------------------------------------------------------------- processes


@contextlib.contextmanager
def service(*given: str, cores: Sequence[int] = (), under: Sequence[str] = (), **environment: str) -> Iterator[Running]:
    """Run `sash serve` as a process of its own, in memory unless told otherwise, on these cores where any are named.

    Args:
        under: a command that runs the command behind it.
    """
    from tests.support.servers import service_process  # which imports the service: benchmarks of the engine do not

    settings = {"SASH_LOG_LEVEL": "warning"} | environment
    with service_process(*given, forked=False, under=under, **settings) as running:
        if cores:
            pin(pid_of(running), cores)
        yield running


def pid_of(running: Running) -> int:
    """The number of a service's process."""
    assert running.process is not None
    return running.process.pid


def processor_s(*pids: int) -> float:
    """Processor time of some processes, all threads: nanoseconds, where /proc/PID/stat counts in ticks of 10 ms."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def used_s(root: int, alone: bool = False) -> float:
    """Processor time of a process, its descendants, and those of them that have ended, in ticks; or of it alone."""
    used = 0
    for pid in [root] if alone else family(root):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            used += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return used / os.sysconf("SC_CLK_TCK")


def loop_s(pid: int) -> tuple[float, float]:
    """Processor time of a process's first thread, which runs the event loop; and for how long it waited for a core."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def family(root: int) -> list[int]:
    """A process and its descendants."""
    children = ""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        children = " ".join(path.read_text() for path in Path(f"/proc/{root}/task").glob("*/children"))
    return [root, *(each for child in map(int, children.split()) for each in family(child))]


def memory_of(pid: int | str = "self", *names: str) -> list[int]:
    """Bytes of memory of a process by their names in /proc/PID/status; its own, without pages of files, by default."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return [1024 * int(status[name].split()[0]) for name in names or ("RssAnon",)]


# ---------------------------------------------------------------- callers


class Http(asyncio.Protocol):
    """A connection of HTTP; several requests may be on their way, and are answered in order."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[tuple[int, bytes]]] = deque()
        self._parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    @classmethod
    async def connected(cls, port: int, address: str = "127.0.0.1") -> Http:
        """Connect, from an address of this machine."""
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(cls, "127.0.0.1", port, local_addr=(address, 0)))[1]

    def ask(self, path: str, body: bytes = b"", kind: str = "application/json") -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; what is returned waits for the status and the body of the answer."""
        method, typed = ("POST", f"content-type: {kind}\r\n") if body else ("GET", "")
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{typed}content-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    async def asked(self, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
        """Send a request that must be answered with 200; return the body of the answer."""
        status, found = await self.ask(path, body, kind)
        if status != 200:
            raise RuntimeError(found.decode())
        return found

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        body, self._parts = b"".join(self._parts), []
        self._waiting.popleft().set_result((self._parser.get_status_code(), body))

    def connection_lost(self, error: Exception | None) -> None:
        for each in self._waiting:
            each.set_exception(ConnectionResetError())


async def all_of(calls: int, in_flight: int, call: Callable[[int], Awaitable[Any]]) -> None:
    """Make calls by their numbers, so many of them at a time."""
    room = asyncio.Semaphore(in_flight)

    async def one(number: int) -> None:
        await call(number)
        room.release()

    async with asyncio.TaskGroup() as group:
        for number in range(calls):
            await room.acquire()
            group.create_task(one(number))
