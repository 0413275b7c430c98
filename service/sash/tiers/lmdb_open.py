"""Creating and mapping the file of values of a data directory."""

from __future__ import annotations

import logging
import mmap
import os
import shutil
from pathlib import Path

import lmdb

from sash.tiers.lmdb_commits import COMMIT_KEY

_log = logging.getLogger(__name__)

FORMAT = 1
FORMAT_KEY = b"sash"
"""In the unnamed database, beside the named one, so that no key of a window can be it."""

VALUES = b"values"
"""The named database."""

_MIB = 2**20
_MAP_BYTES = 2**40  # only address space, and far more than a disk
_MAP_BYTES_LEAST = 2**28


def create(path: Path) -> None:
    """Create the file of values under another name, then rename it: a half-written one is not taken for Sash's."""
    new = path / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)  # LMDB would make it with the mode of the file, and only root could enter it
    env = lmdb.open(os.fspath(new), map_size=_MIB, mode=0o600, max_dbs=1)
    with env, env.begin(write=True) as change:
        env.open_db(VALUES, txn=change)
        change.put(FORMAT_KEY, str(FORMAT).encode())
        change.put(COMMIT_KEY, b"%d 0" % change.id())
    os.rename(new / "data.mdb", path / "data.mdb")
    shutil.rmtree(new)


def open_environment(path: Path, max_bytes: int | None) -> lmdb.Environment:
    """Map the file of values, with as much address space as there is. The file grows no further than it is mapped.

    LMDB maps a file that is longer as far as it goes.
    """
    size = (max_bytes or _MAP_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
    while True:
        try:
            # Without read-ahead, two values of 16 KiB that are not in the kernel's cache take 1.1 ms each time, a page
            # at a time. With it, where the kernel reads 8 MiB ahead, half of such reads took 20 µs and others 10 to
            # 40 ms, and everything that read-ahead puts into the cache displaces something else.
            return lmdb.open(os.fspath(path), map_size=size, mode=0o600, max_dbs=1, max_spare_txns=2, readahead=False)
        except (lmdb.MemoryError, OverflowError):  # ulimit -v, a 32-bit system
            if size <= _MAP_BYTES_LEAST:
                raise
            size = max(size // 4, _MAP_BYTES_LEAST)
            _log.warning("Address space is limited: %s may take %d MiB at most", path, size // _MIB)


def fits_in_memory(path: Path) -> bool:
    """Whether there is address space for the whole file. If it cannot be mapped all the same, its length is wrong."""
    try:
        mmap.mmap(-1, max(os.stat(path / "data.mdb").st_size, _MAP_BYTES_LEAST)).close()
    except OSError:
        return False
    return True
