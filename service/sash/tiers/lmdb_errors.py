"""Errors of LMDB and of the system, in words for the user of a data directory."""

from __future__ import annotations

import errno
from pathlib import Path

import lmdb

from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, OutOfRoom, Unavailable

NO_DATABASE = (lmdb.InvalidError, lmdb.VersionMismatchError)
DAMAGED = (
    *(lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.CursorFullError),
    *(lmdb.MapResizedError, lmdb.BadTxnError, lmdb.NotFoundError),
)
"""LMDB raises these for pages that contradict each other. (No other process writes to the file, so it never outgrows
the map. A transaction that has just begun is never a bad one.)"""

UNKNOWN_FORMAT = 0
"""The code of an error that LMDB's binding raises, and not LMDB: it does not know the format of the file."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
WRONG_PLACE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
    | {errno.ENAMETOOLONG, errno.ENOLCK, errno.EOPNOTSUPP}
)

_RETRY_AFTER_S = 1.0


def code_of(error: OSError | lmdb.Error) -> int | None:
    """The system's number of an error, or LMDB's, which is negative."""
    return error.errno if isinstance(error, OSError) else getattr(error, "code", None)


class DirectoryErrors:
    """Makes the errors of one directory.

    Args:
        path: the directory.
        values_path: its file of values.
    """

    def __init__(self, path: Path, values_path: str) -> None:
        self._path, self._values_path = str(path), values_path

    def full(self, limit: str) -> OutOfRoom:
        """There is no space; `limit` says what is full."""
        return OutOfRoom(
            f"The data directory {self._path!r} is full ({limit}): evict entries, delete windows, or give it more",
            field="data",
            limit=limit,
        )

    def unavailable(self, reason: str) -> Unavailable:
        """It cannot be used now."""
        return Unavailable(
            f"The data directory {self._path!r} cannot be used now: {reason}", retry_after_s=_RETRY_AFTER_S
        )

    def damaged(self, reason: str) -> DataLoss:
        """Its file of values is damaged."""
        return DataLoss(
            f"{self._values_path!r} is damaged: {reason}; put it back from a backup, or remove the whole directory to "
            "begin with an empty one",
            field="data",
        )

    def foreign(self, reason: str) -> FailedPrecondition:
        """It holds something that this version does not read."""
        return FailedPrecondition(f"{self._path!r} cannot be the data directory: {reason}", field="data")

    def wrong_place(self, reason: str) -> InvalidArgument:
        """The path cannot be a data directory."""
        return InvalidArgument(f"{self._path!r} cannot be the data directory: {reason}", field="data")
