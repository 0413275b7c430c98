"""LMDB as cold tier: one directory on a local disk, and the default.

    DIR/server.lock   locked by the server while it runs; holds who it is
    DIR/data.mdb      a tree of pages, mapped into memory: the format's number and the values
    DIR/lock.mdb      LMDB's own table of readers

    data.mdb    [ meta a | meta b | pages … | free | pages … ]       a commit writes to free pages and the end of the
                     ^ the newer one names the root                  file, syncs, then writes the older meta and syncs

**What survives.** When `commit` returns, its values survive kill -9 and loss of power, as far as the disk and its file
system keep what they have synced; a commit that was cut short by either leaves no trace. Nothing is replayed at start.
A commit costs two syncs: a slow disk makes slow commits, never unsafe ones. The directory must not be on a network
file system, where maps of several machines differ. A page that the disk cannot read back ends the process (SIGBUS), as
with every mapped file.

**One server.** The kernel lets go of the lock when the process ends, however it ends, so there is no stale lock to
remove by hand. (A child forked from the server holds it, too, until it ends or executes a program; Sash forks none.)

**Resident memory.** A page of the file that is read through the map counts as resident memory of this process, although
the kernel can drop it at any time: reading half a gigabyte makes the process look 640 MiB larger. So the file is mapped
anew after every 32 MiB or so; its pages stay in the kernel's cache.

**A full disk.** LMDB never overwrites pages in use, so that deleting needs free pages, too. With a limit, values get
four fifths of it; a commit that leaves no more pages in use than before may go into the last fifth. Without a limit, a
commit fails when the disk is full, and nothing changes. (What a commit frees can be used by the next but one.)
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb

from sash.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted, SashError, Unavailable
from sash.tiers.owner import Owner

__all__ = ["LmdbTier"]

_log = logging.getLogger(__name__)

MIB = 2**20

_FORMAT = 1
_FORMAT_KEY = b"sash"  # in the unnamed database, beside the named one, so that no key of a window can be it
_VALUES = b"values"

_MAP_BYTES = 2**40  # address space only, and far more than a disk
_MAP_BYTES_LEAST = 2**28
_BYTES_LEAST = MIB

# Mapping anew costs 3 ms after 640 MiB were touched, and 0.1 to 0.2 ms at this interval. The kernel maps up to 16 pages
# around one that is touched.
_REMAP_AFTER_BYTES = 32 * MIB
_TOUCHED_BYTES = 64 * 1024

_RETRY_AFTER_S = 1.0
_NO_DATABASE = (lmdb.InvalidError, lmdb.VersionMismatchError)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_WRONG_PLACE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
    | {errno.ENAMETOOLONG, errno.ENOLCK, errno.EOPNOTSUPP}
)


class LmdbTier:
    """A `ColdTier` in a directory of this machine.

    Reads take turns with each other, and never wait for a commit.

    Args:
        path: the directory, which is created with its parents if need be.
        max_bytes: most bytes that its file of values may take, at least 1 MiB; None for as many as there are.

    Raises:
        InvalidArgument: `max_bytes` is too small.
    """

    name = "lmdb"
    healthy = True  # a directory that is there can be reached; what it cannot do shows when it is tried

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        if max_bytes is not None and max_bytes < _BYTES_LEAST:
            raise InvalidArgument(
                f"A data directory needs {_BYTES_LEAST:,} bytes, {max_bytes:,} are allowed", field="data", limit="1 MiB"
            )
        self._path = path.absolute()
        self._max_bytes = max_bytes
        self._env: lmdb.Environment | None = None
        self._values: Any = None  # the handle of the named database
        self._map_bytes = 0
        self._limit_bytes = 0
        self._page_bytes = 0
        self._lock: int | None = None  # descriptor of the locked file while this is the server
        self._closed = False
        self._panicked = False
        self._touched_bytes = 0  # through the map since it was made; an estimate from above
        # Whoever needs both takes the first one first. Mapping anew and closing need both.
        self._writing = threading.Lock()
        self._reading = threading.Lock()

    def acquire(self) -> None:
        """Become the only server of the directory, see `ColdTier`.

        Raises:
            InvalidArgument: the path cannot be a data directory: it is a file, say, or must not be written to.
            FailedPrecondition: another server has it, or it holds something else, or data of a newer Sash.
            ResourceExhausted: the disk is full.
            DataLoss: the file of values is damaged.
        """
        assert self._lock is None, "acquired before"
        try:
            missing = [folder for folder in (self._path, *self._path.parents) if not folder.exists()]
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._locked()
            self._open()
            for folder in (self._path, *(made.parent for made in missing)):
                _sync_directory(folder)
        except (OSError, lmdb.Error) as error:
            self._let_go()
            raise self._not_acquired(error) from error
        except BaseException:
            self._let_go()
            raise
        self._closed = False

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values by key, see `ColdTier`.

        Raises:
            DataLoss: the tree of pages is damaged.
        """
        self._mend()
        try:
            with self._reading, self._opened().begin(self._values) as view:
                values = [view.get(key) for key in keys]
        except lmdb.Error as error:
            raise self._failed(error) from error
        self._touched_bytes += sum(_TOUCHED_BYTES + len(value) for value in values if value is not None)
        # A commit that is in progress does it when it is done.
        if self._touched_bytes > _REMAP_AFTER_BYTES and self._writing.acquire(blocking=False):
            try:
                self._map_anew()
            finally:
                self._writing.release()
        return values

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """Put and delete, all or nothing, see `ColdTier`.

        Raises:
            DataLoss: the tree of pages is damaged.
        """
        self._mend()
        with self._writing:
            try:
                self._write(puts, list(deletes))
            except lmdb.Error as error:
                raise self._failed(error, sum(map(len, puts.values()))) from error
            if self._touched_bytes > _REMAP_AFTER_BYTES:
                self._map_anew()

    def close(self) -> None:
        """Let go of the directory, see `ColdTier`."""
        with self._writing, self._reading:
            self._closed = True
            self._let_go()

    # Opening

    def _locked(self) -> int:
        """Lock the directory; the descriptor holds the lock."""
        file = os.open(self._path / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.pwrite(file, Owner.here().token(), 0)
        except BlockingIOError:
            owner = Owner.parse(os.pread(file, 4096, 0)) or "one that does not say who it is"
            os.close(file)
            raise FailedPrecondition(
                f"Another server has the data directory {str(self._path)!r}: {owner}", field="data"
            ) from None
        except BaseException:
            os.close(file)
            raise
        return file

    def _open(self) -> None:
        self._env = self._mapped()
        self._map_bytes, self._page_bytes = self._env.info()["map_size"], self._env.stat()["psize"]
        self._limit_bytes = min(self._max_bytes or self._map_bytes, self._map_bytes)
        self._lengthen()
        with self._env.begin() as view:
            known, entries = view.get(_FORMAT_KEY), view.stat()["entries"]
        if known is None and not entries:
            with self._env.begin(write=True) as change:
                self._values = self._env.open_db(_VALUES, txn=change)
                change.put(_FORMAT_KEY, str(_FORMAT).encode())
            return
        if known is None or not known.isdigit():
            raise self._foreign("it holds a database of something else")
        if int(known) > _FORMAT:
            raise self._foreign(f"it was written by a newer Sash, in format {int(known)}; this one reads {_FORMAT}")
        self._values = self._env.open_db(_VALUES, create=False)

    def _mapped(self) -> lmdb.Environment:
        """LMDB's environment, with as much address space as there is."""
        size = self._max_bytes or _MAP_BYTES
        if (file := self._path / "data.mdb").exists():
            size = max(size, file.stat().st_size * 5 // 4)  # so that deletes find room where the limit is lower now
        size = size // mmap.PAGESIZE * mmap.PAGESIZE
        while True:
            try:
                # Without read-ahead, two values of 16 KiB that are not in the kernel's cache take 1.1 ms each time, a
                # page at a time. With it, where the kernel reads 8 MiB ahead, half of such reads took 20 µs, others
                # 10 to 40 ms, and all that read-ahead puts into the cache displaces something else.
                return lmdb.open(
                    os.fspath(self._path), map_size=size, mode=0o600, max_dbs=1, max_spare_txns=2, readahead=False
                )
            except (lmdb.MemoryError, OverflowError):  # ulimit -v, a 32-bit system
                if size <= _MAP_BYTES_LEAST:
                    raise
                size = max(size // 4, _MAP_BYTES_LEAST)
                _log.warning("Address space is limited: %s may take %d MiB at most", self._path, size // MIB)

    def _lengthen(self) -> None:
        """Give a file that was cut short its length back, so that a read beyond its end is no deadly SIGBUS.

        What was there is zeros then, which no checksum lets pass. Pages that were never written may be missing, too.
        """
        assert self._env is not None
        length = (self._env.info()["last_pgno"] + 1) * self._page_bytes
        file = self._path / "data.mdb"
        if file.stat().st_size < length:
            os.truncate(file, length)

    def _let_go(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Reading and writing

    def _opened(self) -> lmdb.Environment:
        if self._closed:
            raise FailedPrecondition(f"The data directory {str(self._path)!r} has been closed")
        if self._env is None:
            raise Unavailable(f"The data directory {str(self._path)!r} is not open", retry_after_s=_RETRY_AFTER_S)
        return self._env

    def _write(self, puts: Mapping[bytes, bytes], deletes: Sequence[bytes]) -> None:
        with self._opened().begin(self._values, write=True) as change:
            before = _pages(change)
            for key in deletes:
                change.delete(key)
            for key, value in puts.items():
                change.put(key, value)
            after = _pages(change)
            if after > before and after * self._page_bytes > self._limit_bytes * 4 // 5:
                raise self._full(f"{self._limit_bytes:,} bytes")
        self._touched_bytes += _TOUCHED_BYTES * (len(puts) + len(deletes))

    def _map_anew(self) -> None:
        """Drop the file's pages from this process; whoever calls it has `_writing`."""
        with self._reading:
            if self._env is None:
                return
            try:
                self._env.set_mapsize(self._map_bytes)
                self._touched_bytes = 0
            except lmdb.Error:  # the old map is gone, and to touch where it was would be deadly
                _log.exception("%s could not be mapped anew; it is opened again", self._path)
                self._env.close()
                self._env = None
                self._panicked = True

    def _mend(self) -> None:
        """Open the environment again after an error that LMDB does not go on after."""
        if not self._panicked:
            return
        with self._writing, self._reading:
            if self._lock is None or not self._panicked:
                return
            if self._env is not None:
                self._env.close()
                self._env = None
            try:
                self._open()
            except (lmdb.Error, OSError) as error:
                raise self._unavailable(str(error)) from error
            self._panicked = False
            _log.warning("%s works again", self._path)

    # Errors

    def _failed(self, error: lmdb.Error, put_bytes: int = 0) -> SashError:
        """What an error of a read or a commit means for the caller."""
        if isinstance(error, lmdb.MapFullError):
            return self._full(f"{self._limit_bytes:,} bytes")
        if _code(error) in _FULL or self._no_room(error, put_bytes):
            return self._full("the disk")
        if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
            return DataLoss(f"The data directory {str(self._path)!r} is damaged: {error}")
        if isinstance(error, lmdb.PanicError):
            self._panicked = True
        _log.warning("%s: %s", self._path, error)
        return self._unavailable(str(error))

    def _no_room(self, error: lmdb.Error, put_bytes: int) -> bool:
        """Whether an input/output error only says that the last page did not fit in whole, as LMDB has it."""
        if _code(error) != errno.EIO or self._env is None:
            return False
        end = (self._env.info()["last_pgno"] + 1) * self._page_bytes
        try:
            with open(self._path / "data.mdb", "r+b") as file:
                os.posix_fallocate(file.fileno(), end, put_bytes + MIB)
        except OSError as refused:
            return refused.errno in _FULL
        return False

    def _full(self, limit: str) -> ResourceExhausted:
        return ResourceExhausted(
            f"The data directory {str(self._path)!r} is full, and does not take this commit", field="data", limit=limit
        )

    def _unavailable(self, reason: str) -> Unavailable:
        return Unavailable(
            f"The data directory {str(self._path)!r} cannot be used now: {reason}", retry_after_s=_RETRY_AFTER_S
        )

    def _foreign(self, reason: str) -> FailedPrecondition:
        return FailedPrecondition(f"{str(self._path)!r} cannot be the data directory: {reason}", field="data")

    def _not_acquired(self, error: OSError | lmdb.Error) -> SashError:
        code = _code(error)
        if code in _WRONG_PLACE:
            return InvalidArgument(f"{str(self._path)!r} cannot be the data directory: {error}", field="data")
        if isinstance(error, _NO_DATABASE):
            return self._foreign("its data.mdb is no LMDB database, or of another version")
        if isinstance(error, lmdb.Error):
            return self._failed(error)
        return self._full("the disk") if code in _FULL else self._unavailable(str(error))


def _code(error: OSError | lmdb.Error) -> int | None:
    """The system's number of an error, or LMDB's, which is negative."""
    return error.errno if isinstance(error, OSError) else getattr(error, "code", None)


def _pages(view: lmdb.Transaction[bytes]) -> int:
    """Pages that values and the tree above them take."""
    stat = view.stat()
    return stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]


def _sync_directory(path: Path) -> None:
    """Have the names in a directory survive loss of power."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
