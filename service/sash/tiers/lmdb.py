"""LMDB as cold tier: one directory on a local disk, and the default.

    DIR/server.lock   locked by the server while it runs          lmdb_lock.py
    DIR/data.mdb      a tree of pages, mapped into memory: the number of the format, and the values
    DIR/lock.mdb      LMDB's own table of readers

    data.mdb    [ meta a | meta b | pages … | free | pages … ]       a commit writes to free pages and the end of the
                     ^ the newer one names the root                  file, syncs, then writes the older meta and syncs

**What survives.** When `commit` returns, its values survive kill -9 and loss of power, if the disk and its file system
keep what they have synced. A commit that either of them interrupts leaves no trace. Nothing is replayed at start. A
commit costs two syncs: a slow disk makes commits slow, and never unsafe. The directory must not be on a network file
system, where the maps of several machines differ. If the disk cannot read a page back, the process ends (SIGBUS), as
with every mapped file. A write that the disk lost although it had synced it is noticed at the start, see
`lmdb_commits.py`.

**A missing file.** A directory that held values is not taken for a new one if its data.mdb is missing or empty. If the
file is removed or replaced while the server runs, it can still be read, and no longer be written.

**Resident memory.** A page that is read through the map counts as resident memory of this process, although the kernel
can drop it at any time: reading half a gigabyte makes the process look 640 MiB larger. So the file is mapped again
after every 32 MiB or so. Its pages stay in the kernel's cache.

**A full disk.** LMDB never overwrites pages in use, so deleting needs free pages, too. New entries get four fifths of a
limit; the rest is for freeing space: see `capacity.py` and `lmdb_space.py`. A commit that does not fit fails, and
changes nothing. (Pages that a commit frees can be used by the next but one.)
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb

from sash.tiers.lmdb_commits import COMMIT_KEY, STAMP_KEY, lost_write, number_transaction
from sash.tiers.lmdb_errors import DAMAGED, FULL, NO_DATABASE, UNKNOWN_FORMAT, WRONG_PLACE, DirectoryErrors, code_of
from sash.tiers.lmdb_lock import DirectoryLock
from sash.tiers.lmdb_open import FORMAT, FORMAT_KEY, VALUES, create, fits_in_memory, open_environment
from sash.tiers.lmdb_space import Space, pages_in_use
from sash.tiers.lmdb_system import identity, resident_bytes, sync_directory
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, SashError, Unavailable

__all__ = ["VALUES", "LmdbTier"]

_log = logging.getLogger(__name__)

MIB = 2**20

_BYTES_LEAST = MIB

# Mapping again costs 3 ms after 640 MiB were touched, and 0.1 to 0.2 ms at this interval. For a touched page the kernel
# maps 64 KiB or 2 MiB, depending on how the file came into its cache. So the tier asks how much is mapped: 15 µs.
_REMAP_AFTER_BYTES = 32 * MIB
_KEYS_PER_LOOK = 8


class LmdbTier:
    """A `ColdTier` in a directory of this machine.

    Reads take turns with each other, and never wait for a commit.

    Args:
        path: the directory. It is created, with its parents, if it does not exist.
        max_bytes: most bytes that its file of values may take, at least 1 MiB; None for no limit.

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
        self._values: Any = None  # handles of the named database, and of the unnamed one
        self._unnamed: Any = None
        self._map_bytes = 0
        self._page_bytes = 0
        self._space = Space(self._path, self._values_path)
        self._errors = DirectoryErrors(self._path, self._values_path)
        self._lock = DirectoryLock(self._path)
        self._file: tuple[int, int] | None = None  # identity of the file of values
        self._closed = False
        self._panicked = False
        self._touched_keys = 0  # since resident memory was last measured
        self._resident_bytes = 0  # right after the file was mapped
        # Take `_writing` before `_reading`. Mapping again and closing need both.
        self._writing = threading.Lock()
        self._reading = threading.Lock()

    def acquire(self) -> None:
        """Become the only server of the directory, see `ColdTier`.

        Raises:
            InvalidArgument: the path cannot be a data directory: it is a file, say, or must not be written to.
            FailedPrecondition: another server has it, or it holds something else, or data of a newer Sash.
            OutOfRoom: the disk is full.
            DataLoss: the file of values is damaged or missing.
        """
        assert not self._lock.locked, "acquired before"
        try:
            missing = [folder for folder in (self._path, *self._path.parents) if not folder.exists()]
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.lock()
            self._open()
            for folder in (self._path, *(made.parent for made in missing)):
                sync_directory(folder)
            self._lock.say_that_it_holds_values()  # once the name of data.mdb survives loss of power
        except (OSError, lmdb.Error) as error:
            self._let_go()
            raise self._not_acquired(error) from error
        except BaseException:
            self._let_go()
            raise
        self._closed = False

    @property
    def healthy(self) -> bool:
        """Whether the file of values is still the one that was opened. Writes to a removed file are lost."""
        return self._file is None or self._file == identity(self._values_path)

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
        # A commit that is in progress does this when it is done.
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
        """Bytes of pages in use, see `ColdTier`. The file also has free pages."""
        return self._space.used_bytes

    @property
    def limit_bytes(self) -> int:
        """With how many bytes in use new entries are refused, by the limit or by the disk; see `ColdTier`."""
        return min(self._space.within_limit(0.0), int(self._space.within_disk(0.0)))

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        """Check that so many bytes fit into the limit and onto the disk, see `ColdTier`."""
        used = self._space.used_bytes + size
        if used > self._space.within_limit(reserve):
            raise self._errors.full(self._limit)
        self._space.look_again(used)
        if used > self._space.within_disk(reserve):
            raise self._errors.full("the disk")

    def close(self) -> None:
        """Release the directory, see `ColdTier`."""
        with self._writing, self._reading:
            self._closed = True
            self._let_go()

    # Opening

    def _check_there(self) -> None:
        file = self._path / "data.mdb"
        if self._lock.holds_values and not (file.exists() and file.stat().st_size):
            raise DataLoss(
                f"The data directory {str(self._path)!r} has held values, and its data.mdb is "
                f"{'empty' if file.exists() else 'gone'}: put it back from a backup, or remove the whole directory to "
                "begin with an empty one",
                field="data",
            )

    def _check_same(self) -> None:
        if not self.healthy:
            raise self._errors.unavailable(
                "its data.mdb was removed or replaced while this server runs. What it has is still answered, and can "
                "be exported; put the file back, or start the server again"
            )

    def _open(self) -> None:
        self._check_there()
        if not (self._path / "data.mdb").exists():
            create(self._path)
        self._env = open_environment(self._path, self._max_bytes)
        self._resident_bytes = resident_bytes()
        self._file = identity(self._values_path)
        self._map_bytes, self._page_bytes = self._env.info()["map_size"], self._env.stat()["psize"]
        self._space.set_limit(min(self._max_bytes or self._map_bytes, self._map_bytes))
        self._lengthen()
        self._unnamed = self._env.open_db(None)
        with self._env.begin() as view:
            known, entries = view.get(FORMAT_KEY), view.stat()["entries"]
        if known is None and not entries:
            with self._env.begin(write=True) as change:
                self._values = self._env.open_db(VALUES, txn=change)
                change.put(FORMAT_KEY, str(FORMAT).encode())
                number_transaction(change, self._values, self._unnamed)
            self._measure()
            return
        if known is None or not known.isdigit():
            raise self._errors.foreign("it holds a database of something else")
        if int(known) > FORMAT:
            raise self._errors.foreign(
                f"it was written by a newer Sash, in format {int(known)}; this one reads {FORMAT}"
            )
        self._values = self._env.open_db(VALUES, create=False)
        with self._env.begin() as view:
            told, stamp = view.get(COMMIT_KEY), view.get(STAMP_KEY, db=self._values)
        last = self._env.info()["last_txnid"]
        if lost_write(told, stamp, last):
            raise DataLoss(
                f"The data directory {str(self._path)!r} has lost a write that the disk had synced: put it back from a "
                "backup, or write what is whole to a new one with `sash admin check --salvage`",
                field="data",
            )
        if told is not None and int(told.split()[0]) > last:
            self._change({}, ())  # a compacted copy counts anew; write both numbers again
        self._measure()
        if self._space.allow_what_is_there():
            # Deletes need pages. This depends on what is in use, not on the file, or the file would grow at each start.
            self._map_bytes = max(self._map_bytes, self._space.used_bytes * 5 // 4 // mmap.PAGESIZE * mmap.PAGESIZE)
            self._env.set_mapsize(self._map_bytes)

    def _lengthen(self) -> None:
        """Extend a file that was cut short to its length, because a read beyond the end is SIGBUS.

        The missing bytes are zeros then, and checksums find them. Pages that were never written may be missing, too.
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
                raise self._errors.damaged(f"it says that it is {length:,} bytes long") from error

    def _let_go(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None
        self._lock.release()

    # Reading and writing

    def _opened(self) -> lmdb.Environment:
        if self._closed:
            raise FailedPrecondition(f"The data directory {str(self._path)!r} has been closed")
        if self._env is None:
            raise Unavailable(f"The data directory {str(self._path)!r} is not open", retry_after_s=1.0)
        return self._env

    def _write(self, puts: Mapping[bytes, bytes], deletes: Sequence[bytes]) -> None:
        try:
            self._change(puts, deletes)
        except lmdb.MapFullError:
            # Pages that the last commit freed can be used by the next but one. So commit once in between.
            with self._opened().begin(write=True) as change:
                number_transaction(change, self._values, self._unnamed)
            self._change(puts, deletes)

    def _change(self, puts: Mapping[bytes, bytes], deletes: Sequence[bytes]) -> None:
        with self._opened().begin(self._values, write=True) as change:
            before = pages_in_use(change)
            # In order, an emptied page serves as the copy of the next one. Otherwise each needs a copy first.
            for key in sorted(deletes):
                change.delete(key)
            for key in sorted(puts):
                change.put(key, puts[key])
            change.put(STAMP_KEY, b"%d" % change.id())
            number_transaction(change, self._values, self._unnamed)
            after = pages_in_use(change)
            if after > before and after * self._page_bytes > self._space.within_limit(1.0):
                raise self._errors.full(self._limit)

    def _measure(self) -> None:
        """Note how much is in use. The caller has `_writing`, or is the only thread."""
        with self._opened().begin(self._values) as view:
            self._space.measure(pages_in_use(view) * self._page_bytes)

    def _grown(self, keys: int) -> bool:
        """Count touched keys. True if so much of the file is resident that it should be mapped again."""
        self._touched_keys += keys
        if self._touched_keys < _KEYS_PER_LOOK:
            return False
        self._touched_keys = 0
        return resident_bytes() - self._resident_bytes > _REMAP_AFTER_BYTES

    def _map_anew(self) -> None:
        """Drop the file's pages from this process. The caller has `_writing`."""
        with self._reading:
            if self._env is None:
                return
            try:
                self._env.set_mapsize(self._map_bytes)
                self._resident_bytes = resident_bytes()
            except lmdb.Error:  # the old map is gone: touching it would end the process
                _log.exception("%s could not be mapped again; it is opened again", self._path)
                self._env.close()
                self._env = None
                self._panicked = True

    def _mend(self) -> None:
        """Open the environment again after an error that LMDB cannot go on after."""
        if not self._panicked:
            return
        with self._writing, self._reading:
            if not self._lock.locked or not self._panicked:
                return
            if self._env is not None:
                self._env.close()
                self._env = None
            self._check_same()
            try:
                self._open()
            except (lmdb.Error, OSError) as error:
                raise self._errors.unavailable(str(error)) from error
            self._panicked = False
            _log.warning("%s works again", self._path)

    # Errors

    def _failed(self, error: lmdb.Error, put_bytes: int = 0) -> SashError:
        """The error of the tier for an error of a read or a commit."""
        if isinstance(error, lmdb.MapFullError):
            return self._errors.full(self._limit)
        if code_of(error) in FULL or self._no_room(error, put_bytes):
            return self._errors.full("the disk")
        if isinstance(error, DAMAGED):
            return self._errors.damaged(str(error))
        if isinstance(error, lmdb.PanicError):
            self._panicked = True
        _log.warning("%s: %s", self._path, error)
        return self._errors.unavailable(str(error))

    def _no_room(self, error: lmdb.Error, put_bytes: int) -> bool:
        """Whether an input/output error only says that the last page did not fit: LMDB does not tell them apart."""
        if code_of(error) != errno.EIO or self._env is None:
            return False
        end = (self._env.info()["last_pgno"] + 1) * self._page_bytes
        try:
            with open(self._path / "data.mdb", "r+b") as file:
                os.posix_fallocate(file.fileno(), end, put_bytes + MIB)
        except OSError as refused:
            return refused.errno in FULL
        return False

    @property
    def _limit(self) -> str:
        return f"{self._space.limit_bytes:,} bytes"

    def _not_acquired(self, error: OSError | lmdb.Error) -> SashError:
        """The error for a directory that cannot be opened."""
        code = code_of(error)
        if code in WRONG_PLACE:
            return self._errors.wrong_place(str(error))
        if isinstance(error, lmdb.InvalidError) and self._lock.holds_values:
            return self._errors.damaged(str(error))
        if isinstance(error, NO_DATABASE) or code == UNKNOWN_FORMAT:
            return self._errors.foreign("its data.mdb is not an LMDB database, or of another version")
        if isinstance(error, lmdb.MemoryError) and fits_in_memory(self._path):
            return self._errors.damaged("it says that it is longer than it is")
        if isinstance(error, lmdb.Error):
            return self._failed(error)
        return self._errors.full("the disk") if code in FULL else self._errors.unavailable(str(error))
