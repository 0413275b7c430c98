"""Several processes that serve one store on one machine: started, watched, started again, and stopped together.

    sash serve --processes 4 ─┬─▶ worker 0: shards 0, 4, 8, …    all listen on the two ports (SO_REUSEPORT),
                              ├─▶ worker 1: shards 1, 5, 9, …    and call each other over sockets in a private folder
                              └─▶ …

A worker that ends is started again; its keys are UNAVAILABLE until it has recovered. A worker stops when this process
has gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from sash.runtime.preparation import RELOAD, budget, prepared, started, told_to_reload
from sash.settings import MIB, Settings
from sash.shards.layout import Share, check_standby, shards_of_store
from sash_engine.errors import InvalidArgument, SashError, Unavailable

_log = logging.getLogger("sash")

_PAUSE_S = (0.1, 5.0)
"""First and longest pause before a worker is started again that ended soon after its start."""
_SOON_S = 30.0
_STOP_S = 60.0
"""So many seconds a worker may take to store what it has, after its calls have ended."""


def serve(settings: Settings) -> None:
    """Serve until told to stop (SIGINT, SIGTERM).

    Raises:
        SashError: as `Service.start`, of the first worker that fails to start.
    """
    settings = prepared(settings)
    check_standby(settings)
    processes = settings.processes
    shards = shards_of_store(settings, processes)
    with ExitStack() as held:
        grpc_port = held.enter_context(_reserved(settings.host, settings.grpc_port, "grpc_port"))
        rest_port = held.enter_context(_reserved(settings.host, settings.rest_port, "rest_port"))
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="sash-"))
        of_each = settings.model_copy(
            update={
                "grpc_port": grpc_port,
                "rest_port": rest_port,
                "memory_bytes": max(budget(settings).limit_bytes // processes, 64 * MIB),
                "cache_bytes": settings.cache_bytes // processes,
                "max_connections": max(settings.max_connections // processes, 1),
            }
        )
        workers = [_Worker(of_each, Share(number, processes, shards, folder)) for number in range(processes)]
        asyncio.run(_supervise(workers, started(settings, grpc_port, rest_port)))


@contextmanager
def _reserved(host: str, port: int, name: str) -> Iterator[int]:
    """Keep a port for the workers, so that nobody else takes it; yield its number."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as alone, socket.socket(family) as shared:
        try:
            # Another service may listen on a port that is shared: without the option, that is noticed.
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((host, port))
            port = alone.getsockname()[1]
            alone.close()
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.bind((host, port))
        except OSError as error:
            raise InvalidArgument(f"cannot listen on {host}, port {port}: {error.strerror}", field=name) from None
        yield port


async def _supervise(workers: list[_Worker], line: str) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(RELOAD, told_to_reload)
    stopping = asyncio.create_task(stop.wait())
    try:
        all_started = asyncio.ensure_future(asyncio.gather(*(worker.start() for worker in workers)))
        either: list[asyncio.Future[Any]] = [all_started, stopping]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            all_started.cancel()
            return
        await all_started
        print(line, flush=True)
        watching = [asyncio.create_task(worker.watch()) for worker in workers]
        await stopping
        _log.info("shutting down")
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    finally:
        stopping.cancel()
        await asyncio.gather(*(worker.stop() for worker in workers))
        _log.info("stopped")


class _Worker:
    """One process, which may be started several times."""

    def __init__(self, settings: Settings, share: Share) -> None:
        self._given = json.dumps({"settings": settings.model_dump(mode="json"), "share": asdict(share)})
        self._called = f"process {share.number} of {share.processes}"
        self._patience_s = settings.shutdown_delay_s + settings.shutdown_grace_s + _STOP_S
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it serves; raises Unavailable if it ends before."""
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sash.processes.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a terminal's SIGINT is for this process, which passes it on
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._given.encode() + b"\n")
        line = await process.stdout.readline()
        told: dict[str, Any] = json.loads(line) if line.strip() else {}
        if "error" in told or not told:
            await process.wait()
            raise Unavailable(told.get("error", f"{self._called} ended with status {process.returncode}"))

    async def watch(self) -> None:
        """Start it again whenever it ends."""
        loop, pause_s = asyncio.get_running_loop(), _PAUSE_S[0]
        began_s = loop.time()
        while True:
            assert self._process is not None
            status = await self._process.wait()
            pause_s = _PAUSE_S[0] if loop.time() - began_s > _SOON_S else min(2 * pause_s, _PAUSE_S[1])
            _log.error("%s ended with status %d; it is started again", self._called, status)
            began_s = loop.time()
            try:
                await self.start()
            except Exception as error:  # no memory for a process, for example: whatever it is may pass
                said = error.message if isinstance(error, SashError) else repr(error)
                _log.error("%s does not start: %s", self._called, said)
            else:
                _log.warning("%s serves again", self._called)
                continue
            await asyncio.sleep(pause_s)

    async def stop(self) -> None:
        """Have it stop, and wait for it; one that takes too long is killed, and recovers with its next start."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        # A stopped process does not get the other signal. In this order: before Python sends a signal, it takes the
        # status of a process that has ended, which `wait` would then miss.
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            async with asyncio.timeout(self._patience_s):
                await process.wait()
        except TimeoutError:
            _log.error("%s does not stop, and is killed", self._called)
            process.kill()
            await process.wait()
