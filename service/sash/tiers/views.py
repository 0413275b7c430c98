"""What a tier has, to be read while no server has it: see `sash.durability.tier.TierView`. Nothing is changed.

directory    the server's lock is shared as long as the view is open, so no server starts; LMDB is opened read-only
Redis        refused while a server's lease runs; whether one has committed meanwhile, the fence says
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from sash.tiers.lmdb import STAMP_KEY, VALUES, lost_write, owner_of
from sash_engine.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from sash.tiers.redis import RedisView

__all__ = ["LmdbView", "open_view"]


def open_view(address: str, prefix: str = "sash") -> LmdbView | RedisView:
    """A view of the tier of an address.

    Args:
        address, prefix: as for `open_tier`, without ``memory``.

    Raises:
        InvalidArgument: there is no such place, or nothing was ever kept there.
        FailedPrecondition: a server has it, or it is somebody else's.
        Unavailable: it cannot be reached.
    """
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", address):
        return LmdbView(Path(address))
    if not address.startswith(("redis://", "rediss://")):
        raise InvalidArgument(f"{address!r} is no place where windows are kept", field="data")
    from sash.tiers.redis import RedisView  # redis-py takes 0.1 s to import, and only this needs it

    return RedisView(address, prefix)


class LmdbView:
    """A `TierView` of a directory.

    A file that is cut short is looked at in a temporary copy of the right length: to read behind the end of a mapped
    file is deadly.

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
                raise InvalidArgument(f"{str(path)!r} is no data directory: it has no data.mdb", field="data")
            try:
                self._lock()
                env = self._opened(self._path)
                length = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
                if (self._path / "data.mdb").stat().st_size < length:
                    env = self._opened(self._copied(length))
                self._env, self._values = env, env.open_db(VALUES, create=False)
            except lmdb.Error as error:
                raise FailedPrecondition(
                    f"the data.mdb in {str(path)!r} cannot be read: {error}", field="data"
                ) from error
            except OSError as error:
                raise InvalidArgument(f"{str(path)!r} cannot be read: {error}", field="data") from error
            try:
                if lost_write(self._env, self._values):
                    self._problems.append(
                        "data.mdb has lost a write that the disk had synced: it may be as it once was"
                    )
            except lmdb.Error as error:
                self._problems.append(f"data.mdb is damaged: {error}")
            undo.pop_all()

    def keys(self) -> Iterator[bytes]:
        """All keys, see `TierView`."""
        try:
            with self._env.begin(self._values) as view:
                for key in view.cursor().iternext(values=False):
                    if key != STAMP_KEY:
                        yield bytes(key)
        except lmdb.Error as error:
            self._problems.append(f"data.mdb is damaged, and more values may be in it: {error}")

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values by key, see `TierView`."""
        found: list[bytes | None] = []
        with self._env.begin(self._values) as view:
            for key in keys:
                try:
                    found.append(view.get(key))
                except lmdb.Error as error:
                    self._problems.append(f"value {key.decode('ascii', 'backslashreplace')!r} cannot be read: {error}")
                    found.append(None)
        return found

    def problems(self) -> list[str]:
        """What is wrong with the directory itself, see `TierView`."""
        return self._problems

    def close(self) -> None:
        """Let go of the directory, see `TierView`."""
        self._closing.close()

    def _lock(self) -> None:
        """Keep servers out; where the directory was copied without its lock, there are none."""
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

    def _opened(self, path: Path) -> lmdb.Environment:
        env = lmdb.open(os.fspath(path), readonly=True, lock=False, max_dbs=1, readahead=False)
        self._closing.callback(env.close)
        return env

    def _copied(self, length: int) -> Path:
        """A copy that is as long as it says; the end may have been lost, or never been written."""
        copy = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="sash-check-")))
        shutil.copyfile(self._path / "data.mdb", copy / "data.mdb")
        os.truncate(copy / "data.mdb", length)
        return copy
