"""Views of tiers that no server has: see `sash.durability.tier.TierView`. They change nothing.

directory    the view shares the server's lock while it is open, so no server starts
Redis        refused while a server's lease runs; the fence shows whether a server has committed meanwhile
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sash.tiers.lmdb import VALUES
from sash.tiers.lmdb_commits import COMMIT_KEY, STAMP_KEY, lost_write
from sash.tiers.lmdb_file import LmdbFile, PageError
from sash.tiers.lmdb_lock import owner_of
from sash_engine.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from sash.tiers.redis_view import RedisView


def open_view(address: str, prefix: str = "sash") -> LmdbView | RedisView:
    """Open a view of the tier of an address.

    Args:
        address, prefix: as for `open_tier`, without ``memory``.

    Raises:
        InvalidArgument: there is no such place, or nothing was ever stored there.
        FailedPrecondition: a server has it, or another program uses it.
        Unavailable: it cannot be reached.
    """
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", address):
        return LmdbView(Path(address))
    if not address.startswith(("redis://", "rediss://")):
        raise InvalidArgument(f"{address!r} is not a place where windows are stored", field="data")
    from sash.tiers.redis_view import RedisView  # redis-py takes 0.1 s to import, and only this needs it

    return RedisView(address, prefix)


class LmdbView:
    """A `TierView` of a directory. It reads LMDB's file itself, see `LmdbFile`.

    Args:
        path: the directory.
    """

    name = "lmdb"

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._problems: list[str] = []
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if not (self._path / "data.mdb").is_file():
                raise InvalidArgument(f"{str(path)!r} is not a data directory: it has no data.mdb", field="data")
            try:
                self._lock()
                self._file = LmdbFile(self._path / "data.mdb")
                self._closing.callback(self._file.close)
                self._root = self._file.root(VALUES)
                told = self._file.get(self._file.root(), COMMIT_KEY)
            except PageError as error:
                raise FailedPrecondition(f"data.mdb of {str(path)!r} is unreadable: {error}", field="data") from None
            except OSError as error:
                raise InvalidArgument(f"{str(path)!r} cannot be read: {error}", field="data") from error
            if self._root is None:
                raise FailedPrecondition(f"data.mdb of {str(path)!r} belongs to another program", field="data")
            stamp = self._value(STAMP_KEY)
            if lost_write(told, stamp, self._file.transaction):
                self._problems.append("data.mdb has lost a write that the disk had synced: it may be an older state")
            undo.pop_all()

    def keys(self) -> Iterator[bytes]:
        """Iterate over all keys, see `TierView`."""
        return (key for key in self._file.keys(self._root, self._problems) if key != STAMP_KEY)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return values by key, see `TierView`."""
        return [self._value(key) for key in keys]

    def _value(self, key: bytes) -> bytes | None:
        try:
            return self._file.get(self._root, key)
        except PageError as error:
            self._problems.append(f"value {key.decode('ascii', 'backslashreplace')!r} cannot be read: {error}")
            return None

    def problems(self) -> list[str]:
        """Return what is wrong with the directory itself, see `TierView`."""
        return self._problems

    def close(self) -> None:
        """Release the directory, see `TierView`."""
        self._closing.close()

    def _lock(self) -> None:
        """Keep servers out. A directory that was copied without its lock has no server."""
        try:
            file = os.open(self._path / "server.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._closing.callback(os.close, file)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise FailedPrecondition(
                f"A server has the data directory {str(self._path)!r}: {owner_of(file)}. Stop it first", field="data"
            ) from None
