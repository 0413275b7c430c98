"""Values that are made from files, and made again when a file changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from sash_engine.errors import InvalidArgument, SashError

T = TypeVar("T")
_State = tuple[int, int, int, int]

_BYTES_MAX = 16 << 20

_log = logging.getLogger("sash")


class Unreadable(InvalidArgument):
    """A file that a setting names cannot be read now."""


class FromFiles(Generic[T]):
    """A value that follows its files. Files that do not make a valid value leave the old one in use.

    A file that cannot be read is tried again each time: whoever uses up all open files must not keep a token alive.

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
        self._seen: list[_State | None] | None = self._states()
        self._said = ""
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
            if isinstance(error, Unreadable):
                self._seen = None
            if not isinstance(error, Unreadable) or error.message != self._said:
                _log.error("%s; the %s of before stay in use", error.message, self._what)
            self._said = error.message
            return
        self._said = ""
        self._use(value)
        _log.info("the %s are reloaded", self._what)

    def _states(self) -> list[_State | None]:
        return [_state(path) for path in self._paths]


def _state(path: Path) -> _State | None:
    try:
        found = os.stat(path)  # of what a link leads to: Kubernetes changes a link
    except OSError:
        return None
    # The last one changes with the rights of a file, too.
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns


def read_file(path: Path, field: str) -> bytes:
    """Read a file that a setting names.

    Raises:
        Unreadable: it cannot be read.
        InvalidArgument: it is too long.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise Unreadable(f"SASH_{field.upper()}: cannot read {path}: {error.strerror}", field=field) from None
    if len(text) > _BYTES_MAX:
        raise InvalidArgument(f"SASH_{field.upper()}: {path} is too long", field=field, limit=f"{_BYTES_MAX >> 20} MiB")
    return text
