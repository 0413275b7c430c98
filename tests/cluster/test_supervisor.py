"""The process that starts the others: it goes on whatever becomes of them, and does not wait for ever."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from sash.processes import supervisor as processes
from sash.processes.supervisor import _Worker
from sash.settings import load_settings
from sash.shards.layout import Share
from tests.support.servers import WAIT_S


async def child(code: str) -> asyncio.subprocess.Process:
    """A process that has begun with its code."""
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"{code}; print(flush=True); import time; time.sleep(1000)"),
        stdout=asyncio.subprocess.PIPE,
    )
    await made.stdout.readline()
    return made


def worker() -> _Worker:
    return _Worker(load_settings(data="memory"), Share(0, 1, 1))


@pytest.mark.parametrize("error", [OSError("no memory"), ValueError("no JSON")])
async def test_a_process_that_cannot_be_started_is_started_later(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(processes, "_PAUSE_S", (0.0, 0.0))
    watched, starts, started = worker(), [], asyncio.Event()

    async def start() -> None:
        starts.append(None)
        if len(starts) < 3:
            raise error
        watched._process = await child("pass")
        started.set()

    monkeypatch.setattr(watched, "start", start)
    watched._process = await child("pass")
    watching = asyncio.create_task(watched.watch())
    watched._process.kill()
    async with asyncio.timeout(WAIT_S):
        await started.wait()
    assert not watching.done()
    watching.cancel()
    await watched.stop()
    assert watched._process.returncode == -signal.SIGTERM


async def test_a_process_that_does_not_stop_is_killed() -> None:
    stopped = worker()
    stopped._process = await child("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    stopped._patience_s = 0.0
    await stopped.stop()
    assert stopped._process.returncode == -signal.SIGKILL


def test_the_first_process_does_not_import_what_only_the_others_need() -> None:
    """It would start them only after that, and a start would take twice as long."""
    code = (
        "import sys, sash.processes.supervisor; print(*{'fastapi', 'grpc', 'pyarrow', 'sash.plane'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"
