"""Signals and files of the command line."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sash.cli_output import fail

__all__ = ["drop_output", "files_named", "interrupts"]


def drop_output() -> None:
    """Close standard output, so that the interpreter does not fail to flush it again at exit."""
    with suppress(OSError, ValueError):
        sys.stdout.close()


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Note Ctrl-C in an event, because gRPC sometimes swallows the KeyboardInterrupt."""
    interrupted = threading.Event()

    def note(number: int, frame: FrameType | None) -> NoReturn:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def files_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")
