"""What tests fork `sash` from: it has imported what a service takes a second to import, and has no threads.

    test ── arguments, environment, directory, files ─▶ daemon ─ fork ─▶ `sash …`
         ◀────────── its number, later its exit status ──┘

A child has the arguments, environment, directory, input and output of the command that it stands for, and begins where
that does: in `sash.main`. `forked.py` starts a daemon for each process of tests; it ends with that.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as `serve` does: gRPC reads it as it is imported
gc.disable()


import sash_client  # noqa: E402, F401
from sash import commands, main, service  # noqa: E402, F401
from sash.processes import supervisor  # noqa: E402, F401
from tests.support.forked import NUMBER  # noqa: E402

MESSAGE_BYTES = 1 << 20
FILES = 4
"""Input, output, errors, and where the number and the status are written."""


def forked(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a child for each message. Returns the message and its files in a child, None at the end."""
    running: dict[int, tuple[int, int]] = {}
    with channel, selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    selector.unregister(key.fd)
                    pid, telling = running.pop(key.fd)
                    _tell(telling, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    os.close(telling)
                    os.close(key.fd)
                    continue
                message, files, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, FILES)
                if not message:
                    return None
                pid = os.fork()
                if pid == 0:
                    for ended, (_, telling) in running.items():
                        os.close(ended)
                        os.close(telling)
                    return json.loads(message), files
                for file in files[:3]:
                    os.close(file)
                ended = os.pidfd_open(pid)
                running[ended] = pid, files[3]
                selector.register(ended, selectors.EVENT_READ)
                _tell(files[3], pid)


def _tell(file: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test has ended
        os.write(file, NUMBER.pack(number))


def become(given: dict[str, Any], files: list[int]) -> None:
    """Have this process run the command of a message.

    It ends after its threads and what is registered for its end, but does not take its modules apart: that takes longer
    than its start. `test_serve.py` starts and ends the real command.
    """
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(given["directory"])
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.argv = ["sash", *given["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()
    status = 1

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    atexit.register(leave)
    try:
        main.run()
    except SystemExit as ended:
        status = int(ended.code or 0)


if __name__ == "__main__":
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the tests
    child = forked(socket.socket(fileno=int(sys.argv[1])))
    if child is not None:
        become(*child)
