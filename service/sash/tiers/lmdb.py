"""LMDB as cold tier: one directory on a local disk, and the default.

    DIR/server.lock   locked by the server while it runs; holds who it is, and whether there are values
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

**A file that is gone.** Without data.mdb, or with an empty one, a directory that held values is not taken for a new
one. Where it is removed or replaced under a running server, that can be read and not written to any more.

**Resident memory.** A page of the file that is read through the map counts as resident memory of this process, although
the kernel can drop it at any time: reading half a gigabyte makes the process look 640 MiB larger. So the file is mapped
anew after every 32 MiB or so; its pages stay in the kernel's cache.

**A write that the disk lost** although it had synced it leaves an older page, and maybe a tree as it was once. Values
know by themselves where they belong. The end of the journal does not: without its last page it is the journal of a
moment ago. So each commit writes its number in two places. One is beside that end. The other is in the unnamed
database, where every transaction writes its own number, too, as LMDB does in its meta page. All of them must agree at
the start.

**A full disk.** LMDB never overwrites pages in use, so that deleting needs free pages, too. Of a limit new entries get
four fifths, the rest is for making room: see `capacity.py`. So are the last 64 MiB of a disk (of a small one, the last
twentieth), where nothing else takes them. A commit that does not fit fails, and nothing changes. (What a commit frees
can be used by the next but one.)
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import resource
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb

from sash.tiers.capacity import ceiling
from sash.tiers.owner import Owner
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, OutOfRoom, SashError, Unavailable

__all__ = ["COMMIT_KEY", "STAMP_KEY", "VALUES", "LmdbTier", "lost_write", "owner_of"]

_log = logging.getLogger(__name__)

MIB = 2**20

_FORMAT = 1
_FORMAT_KEY = b"sash"  # in the unnamed database, beside the named one, so that no key of a window can be it
VALUES = b"values"
COMMIT_KEY = b"commit"  # beside the format: numbers of the last transaction, and of the last that changed values
STAMP_KEY = b"journal/last\0"  # among the values: the second of them, in the page where the journal ends
_HOLDS = b"\nholds values"
"""Behind the owner in `server.lock` once there is a file of values."""

_MAP_BYTES = 2**40  # address space only, and far more than a disk
_MAP_BYTES_LEAST = 2**28
_BYTES_LEAST = MIB
_DISK_KEPT = 64 * MIB
_DISK_KEPT_SHARE = 20

# Mapping anew costs 3 ms after 640 MiB were touched, and 0.1 to 0.2 ms at this interval. How much the kernel maps
# around a page that is touched, 64 KiB or 2 MiB, depends on how the file came into its cache, so it is asked: 15 µs.
_REMAP_AFTER_BYTES = 32 * MIB
_KEYS_PER_LOOK = 8

_RETRY_AFTER_S = 1.0
_NO_DATABASE = (lmdb.InvalidError, lmdb.VersionMismatchError)
# What LMDB says of pages that contradict each other. Nobody else writes to the file, so that it never outgrows the map;
# and a transaction that has just begun is never a bad one.
_DAMAGED = (
    *(lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.CursorFullError),
    *(lmdb.MapResizedError, lmdb.BadTxnError, lmdb.NotFoundError),
)
_BINDING = 0  # the code of what LMDB's binding, and not LMDB, says: a format that it does not know
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

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        if max_bytes is not None and max_bytes < _BYTES_LEAST:
            raise InvalidArgument(
                f"A data directory needs {_BYTES_LEAST:,} bytes, {max_bytes:,} are allowed", field="data", limit="1 MiB"
            )
        self._path = path.absolute()
        self._values_path = os.fspath(self._path / "data.mdb")
        self._max_bytes = max_bytes
        self._env: lmdb.Environment | None = None
        self._values: Any = None  # the handle of the named database
        self._unnamed: Any = None  # and of the other one
        self._map_bytes = 0
        self._limit_bytes = 0
        self._page_bytes = 0
        self._used_bytes = 0  # pages of values and of the tree above them
        self._floor_bytes = 0  # what was in use beyond the limit when this server began
        self._file_bytes = 0
        self._disk_bytes = 0  # free on it
        self._disk_kept = 0  # of them, for making room
        self._lock: int | None = None  # descriptor of the locked file while this is the server
        self._holds = False  # so that a file of values that is missing is a loss
        self._file: tuple[int, int] | None = None  # which one it is
        self._closed = False
        self._panicked = False
        self._touched_keys = 0  # since it was looked how much of the file is resident
        self._resident_bytes = 0  # pages of files, right after this one was mapped
        # Whoever needs both takes the first one first. Mapping anew and closing need both.
        self._writing = threading.Lock()
        self._reading = threading.Lock()

    def acquire(self) -> None:
        """Become the only server of the directory, see `ColdTier`.

        Raises:
            InvalidArgument: the path cannot be a data directory: it is a file, say, or must not be written to.
            FailedPrecondition: another server has it, or it holds something else, or data of a newer Sash.
            OutOfRoom: the disk is full.
            DataLoss: the file of values is damaged, or gone.
        """
        assert self._lock is None, "acquired before"
        try:
            missing = [folder for folder in (self._path, *self._path.parents) if not folder.exists()]
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._locked()
            self._open()
            for folder in (self._path, *(made.parent for made in missing)):
                _sync_directory(folder)
            self._say_that_it_holds()  # not before the name of the file of values survives loss of power, too
        except (OSError, lmdb.Error) as error:
            self._let_go()
            raise self._not_acquired(error) from error
        except BaseException:
            self._let_go()
            raise
        self._closed = False

    @property
    def healthy(self) -> bool:
        """Whether the file of values is where it was; what is written to one that was removed is lost."""
        return self._file is None or self._file == _identity(self._values_path)

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
        # A commit that is in progress does it when it is done.
        if self._grown(len(keys)) and self._writing.acquire(blocking=False):
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
            self._opened()
            self._check_same()
            try:
                self._write(puts, list(deletes))
                self._measure()
            except lmdb.Error as error:
                raise self._failed(error, sum(map(len, puts.values()))) from error
            if self._grown(len(puts)):
                self._map_anew()

    @property
    def used_bytes(self) -> int:
        """Bytes of pages in use, see `ColdTier`; the file is larger by those that are free."""
        return self._used_bytes

    @property
    def limit_bytes(self) -> int:
        """Where new entries stop, by the limit or by the disk, see `ColdTier`."""
        return min(ceiling(self._limit_bytes, 0.0, self._floor_bytes), int(self._disk_room(0.0)))

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        """Whether so many bytes fit into the limit and onto the disk, see `ColdTier`."""
        used = self._used_bytes + size
        if used > ceiling(self._limit_bytes, reserve, self._floor_bytes):
            raise self._full(self._limit)
        self._look_at_disk()  # others fill it, too, and make room on it; to look takes 5 µs
        if used > self._disk_room(reserve):
            raise self._full("the disk")

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
            self._holds = os.pread(file, 4096, 0).endswith(_HOLDS)
            content = Owner.here().token() + (_HOLDS if self._holds else b"")
            os.pwrite(file, content, 0)
            os.ftruncate(file, len(content))
        except BlockingIOError:
            owner = owner_of(file)
            os.close(file)
            raise FailedPrecondition(
                f"Another server has the data directory {str(self._path)!r}: {owner}", field="data"
            ) from None
        except BaseException:
            os.close(file)
            raise
        return file

    def _say_that_it_holds(self) -> None:
        """From now on a file of values that is missing is a loss."""
        assert self._lock is not None
        if not self._holds:
            os.pwrite(self._lock, _HOLDS, os.fstat(self._lock).st_size)
            os.fsync(self._lock)
            self._holds = True

    def _check_there(self) -> None:
        file = self._path / "data.mdb"
        if self._holds and not (file.exists() and file.stat().st_size):
            raise DataLoss(
                f"The data directory {str(self._path)!r} has held values, and its data.mdb is "
                f"{'empty' if file.exists() else 'gone'}: put it back from a backup, or remove the whole directory to "
                "begin with an empty one",
                field="data",
            )

    def _check_same(self) -> None:
        if not self.healthy:
            raise self._unavailable(
                "its data.mdb was removed or replaced while this server runs. What it has is still answered, and can "
                "be exported; put the file back, or start the server again"
            )

    def _open(self) -> None:
        self._check_there()
        if not (self._path / "data.mdb").exists():
            self._create()
        self._env = self._mapped()
        self._resident_bytes = _resident_bytes()
        self._file = _identity(self._values_path)
        self._map_bytes, self._page_bytes = self._env.info()["map_size"], self._env.stat()["psize"]
        self._limit_bytes = min(self._max_bytes or self._map_bytes, self._map_bytes)
        self._lengthen()
        self._unnamed = self._env.open_db(None)
        with self._env.begin() as view:
            known, entries = view.get(_FORMAT_KEY), view.stat()["entries"]
        if known is None and not entries:
            with self._env.begin(write=True) as change:
                self._values = self._env.open_db(VALUES, txn=change)
                change.put(_FORMAT_KEY, str(_FORMAT).encode())
                self._tell(change)
            self._measure()
            return
        if known is None or not known.isdigit():
            raise self._foreign("it holds a database of something else")
        if int(known) > _FORMAT:
            raise self._foreign(f"it was written by a newer Sash, in format {int(known)}; this one reads {_FORMAT}")
        self._values = self._env.open_db(VALUES, create=False)
        with self._env.begin() as view:
            told, stamp = view.get(COMMIT_KEY), view.get(STAMP_KEY, db=self._values)
        last = self._env.info()["last_txnid"]
        if lost_write(told, stamp, last):
            raise DataLoss(
                f"The data directory {str(self._path)!r} has lost a write that the disk had synced: put it back from a "
                "backup, or write what is whole to a new one with `sash check --salvage`",
                field="data",
            )
        if told is not None and int(told.split()[0]) > last:
            self._change({}, ())  # a compacted copy counts anew; from here on both go on together
        self._measure()
        if self._used_bytes > ceiling(self._limit_bytes, 1.0):
            self._floor_bytes = self._used_bytes

    def _tell(self, change: lmdb.Transaction[bytes]) -> None:
        """Write where `lost_write` looks what a transaction is, and the last commit as it has it."""
        stamp = change.get(STAMP_KEY, b"0", db=self._values)
        change.put(COMMIT_KEY, b"%d %s" % (change.id(), stamp), db=self._unnamed)

    def _create(self) -> None:
        """Make the file of values elsewhere and move it here: one that is half written is taken for somebody else's."""
        new = self._path / "new"
        shutil.rmtree(new, ignore_errors=True)
        env = lmdb.open(os.fspath(new), map_size=_BYTES_LEAST, mode=0o600, max_dbs=1)
        with env, env.begin(write=True) as change:
            env.open_db(VALUES, txn=change)
            change.put(_FORMAT_KEY, str(_FORMAT).encode())
            change.put(COMMIT_KEY, b"%d 0" % change.id())
        os.rename(new / "data.mdb", self._path / "data.mdb")
        shutil.rmtree(new)

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
            try:
                os.truncate(file, length)
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                raise self._damaged(f"it says that it is {length:,} bytes long") from error

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
        try:
            self._change(puts, deletes)
        except lmdb.MapFullError:
            # What the last commit freed can be used by the next but one: let there be one in between.
            with self._opened().begin(write=True) as change:
                self._tell(change)
            self._change(puts, deletes)

    def _change(self, puts: Mapping[bytes, bytes], deletes: Sequence[bytes]) -> None:
        with self._opened().begin(self._values, write=True) as change:
            before = _pages(change)
            # In order, a page that is emptied serves as the copy of the next one; else a copy of each is needed first.
            for key in sorted(deletes):
                change.delete(key)
            for key in sorted(puts):
                change.put(key, puts[key])
            change.put(STAMP_KEY, b"%d" % change.id())
            self._tell(change)
            after = _pages(change)
            if after > before and after * self._page_bytes > ceiling(self._limit_bytes, 1.0, self._floor_bytes):
                raise self._full(self._limit)

    def _measure(self) -> None:
        """Note how much is in use; whoever calls it has `_writing`, or is the only one there is."""
        with self._opened().begin(self._values) as view:
            self._used_bytes = _pages(view) * self._page_bytes
        self._look_at_disk()

    def _look_at_disk(self) -> None:
        try:
            # In this order: a commit that lengthens the file meanwhile makes the room look smaller, and never larger.
            file, disk = os.stat(self._values_path), os.statvfs(self._path)
        except OSError:
            return  # a commit will say what is wrong
        self._file_bytes = file.st_blocks * 512
        self._disk_bytes = disk.f_bavail * disk.f_frsize
        self._disk_kept = min(_DISK_KEPT, disk.f_blocks * disk.f_frsize // _DISK_KEPT_SHARE)

    def _disk_room(self, reserve: float) -> float:
        """How large all that is in use may become on this disk."""
        return self._file_bytes + self._disk_bytes - self._disk_kept * (1 - reserve)

    def _grown(self, keys: int) -> bool:
        """Whether so much of the file is resident, now that `keys` more were touched, that it should be mapped anew."""
        self._touched_keys += keys
        if self._touched_keys < _KEYS_PER_LOOK:
            return False
        self._touched_keys = 0
        return _resident_bytes() - self._resident_bytes > _REMAP_AFTER_BYTES

    def _map_anew(self) -> None:
        """Drop the file's pages from this process; whoever calls it has `_writing`."""
        with self._reading:
            if self._env is None:
                return
            try:
                self._env.set_mapsize(self._map_bytes)
                self._resident_bytes = _resident_bytes()
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
            self._check_same()
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
            return self._full(self._limit)
        if _code(error) in _FULL or self._no_room(error, put_bytes):
            return self._full("the disk")
        if isinstance(error, _DAMAGED):
            return self._damaged(str(error))
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

    @property
    def _limit(self) -> str:
        return f"{self._limit_bytes:,} bytes"

    def _full(self, limit: str) -> OutOfRoom:
        return OutOfRoom(
            f"The data directory {str(self._path)!r} is full ({limit}): evict entries, delete windows, or give it more",
            field="data",
            limit=limit,
        )

    def _unavailable(self, reason: str) -> Unavailable:
        return Unavailable(
            f"The data directory {str(self._path)!r} cannot be used now: {reason}", retry_after_s=_RETRY_AFTER_S
        )

    def _damaged(self, reason: str) -> DataLoss:
        return DataLoss(
            f"{self._values_path!r} is damaged: {reason}; put it back from a backup, or remove the whole directory to "
            "begin with an empty one",
            field="data",
        )

    def _foreign(self, reason: str) -> FailedPrecondition:
        return FailedPrecondition(f"{str(self._path)!r} cannot be the data directory: {reason}", field="data")

    def _fits_in_memory(self) -> bool:
        """Whether there is address space for all of the file; then one that cannot be mapped claims to be longer."""
        try:
            mmap.mmap(-1, max(os.stat(self._values_path).st_size, _MAP_BYTES_LEAST)).close()
        except OSError:
            return False
        return True

    def _not_acquired(self, error: OSError | lmdb.Error) -> SashError:
        code = _code(error)
        if code in _WRONG_PLACE:
            return InvalidArgument(f"{str(self._path)!r} cannot be the data directory: {error}", field="data")
        if isinstance(error, lmdb.InvalidError) and self._holds:
            return self._damaged(str(error))
        if isinstance(error, _NO_DATABASE) or code == _BINDING:
            return self._foreign("its data.mdb is no LMDB database, or of another version")
        if isinstance(error, lmdb.MemoryError) and self._fits_in_memory():
            return self._damaged("it says that it is longer than it is")
        if isinstance(error, lmdb.Error):
            return self._failed(error)
        return self._full("the disk") if code in _FULL else self._unavailable(str(error))


def lost_write(told: bytes | None, stamp: bytes | None, transaction: int) -> bool:
    """Whether a file is not as its last transaction left it. Files of versions that wrote neither do not tell.

    A compacted copy of a file begins to count its transactions anew, so the file may tell of a later one.

    Args:
        told: what `COMMIT_KEY` says.
        stamp: what `STAMP_KEY` says.
        transaction: the last one, as the file's meta page has it.
    """
    if told is None:
        return stamp is not None
    number, _, told_stamp = told.partition(b" ")
    return not number.isdigit() or int(number) < transaction or told_stamp != (stamp or b"0")


def owner_of(file: int) -> str:
    """Which process has the directory of this lock, as far as it says."""
    return str(Owner.parse(os.pread(file, 4096, 0).removesuffix(_HOLDS)) or "one that does not say who it is")


def _code(error: OSError | lmdb.Error) -> int | None:
    """The system's number of an error, or LMDB's, which is negative."""
    return error.errno if isinstance(error, OSError) else getattr(error, "code", None)


def _identity(path: str) -> tuple[int, int] | None:
    """Which file it is, whatever it is called; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _resident_bytes() -> int:
    """Pages of mapped files that count as memory of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[2]) * resource.getpagesize()
    except OSError:
        return 0


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
