"""One of several processes of a service; `supervisor.py` starts it, and tells it by its input what to serve.

input     a line of JSON: {"settings": {…}, "share": {…}}; its end: stop, for nobody looks after this process any more
output    a line of JSON: {"grpc": 7070, "rest": 7071, "own": 40001}, or {"error": "…"}
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from typing import Any

import uvloop

from sash.limits.files import raise_limit
from sash.runtime import logs
from sash.runtime.memory import keep_free, keep_together, settle, unsettle
from sash.runtime.preparation import RELOAD
from sash.service import Service, tracing
from sash.settings import Settings
from sash.shards.layout import Share
from sash_engine.errors import SashError

_log = logging.getLogger("sash")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Serve until the input ends, or a signal says so."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as unbuffered:
        given = json.loads(unbuffered.readline())
    settings, share = Settings(**given["settings"]), Share(**given["share"])
    logs.begin(settings.log_level, settings.log_format)
    raise_limit()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(RELOAD, signal.SIG_IGN)  # it reads its files each second
    try:
        with tracing(settings):
            uvloop.run(_serve(settings, share))
    except SashError as error:
        _say(error=error.message)
        raise SystemExit(1) from None


async def _serve(settings: Settings, share: Share) -> None:
    keep_together()
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    service = Service(settings, share=share)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    starting = asyncio.create_task(service.start())
    orphaned = asyncio.create_task(reader.read())
    await asyncio.wait([starting, orphaned], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        return
    await starting
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    orphaned.add_done_callback(lambda _: stop.set())
    settle()
    keep_free()
    _say(grpc=service.grpc_port, rest=service.rest_port, own=service.own_grpc_port)
    await stop.wait()
    await service.stop(at_once=orphaned.done())  # who is started next in its place waits for the store
    unsettle()


def _say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
