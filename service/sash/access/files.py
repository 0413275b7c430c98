"""Values that are made from files, and made again when a file changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from sash_engine.errors import InvalidArgument, SashError

__all__ = ["FromFiles", "read_file"]

T = TypeVar("T")

_log = logging.getLogger("sash")


class FromFiles(Generic[T]):
    """A value that follows its files. Files that do not make a valid value leave the old one in use.

    Args:
        what: what the value is, for the log.
        paths: the files.
        make: reads them; runs in a thread, but for the first time.
        use: gets each new value, on the event loop.

    Raises:
        InvalidArgument: the files do not make a valid value at the start.
    """

    def __init__(self, what: str, paths: Sequence[Path], make: Callable[[], T], use: Callable[[T], None]) -> None:
        self._what = what
        self._paths = paths
        self._make = make
        self._use = use
        # Before the files are read: a change while they are read is a change after this.
        self._seen = self._states()
        use(make())

    async def refresh(self) -> None:
        """Make the value again if a file has changed; to be called about once a second."""
        seen = await asyncio.to_thread(self._states)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            value = await asyncio.to_thread(self._make)
        except SashError as error:
            _log.error("%s; the %s of before stay in use", error.message, self._what)
            return
        self._use(value)
        _log.info("the %s are reloaded", self._what)

    def _states(self) -> list[tuple[int, int, int] | None]:
        return [_state(path) for path in self._paths]


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # of what a link leads to: Kubernetes changes a link
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_file(path: Path, field: str) -> bytes:
    """Read a file that a setting names; raises InvalidArgument with the setting's name."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"SASH_{field.upper()}: cannot read {path}: {error.strerror}", field=field) from None
