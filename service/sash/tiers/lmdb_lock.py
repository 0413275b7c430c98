"""The lock of a data directory: `server.lock`, locked by the server while it runs.

The file has the owner as JSON. Behind it, a second line says that the directory holds values: so a missing data.mdb is
a loss. The kernel releases the lock when the process ends, however it ends, so there is no stale lock to remove. (A
child that was forked from the server holds it, too, until it ends or executes a program; Sash forks none.)
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sash.tiers.owner import Owner
from sash_engine.errors import FailedPrecondition

_HOLDS_VALUES = b"\nholds values"


class DirectoryLock:
    """The lock of one directory, not locked at first.

    Args:
        path: the directory.

    Attributes: to be read only.
        locked: whether this process has the lock.
        holds_values: whether the directory was used; known once it is locked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.holds_values = False

    @property
    def locked(self) -> bool:
        return self._file is not None

    def lock(self) -> None:
        """Lock the directory.

        Raises:
            FailedPrecondition: another server has it.
            OSError: the file cannot be opened or locked.
        """
        assert self._file is None, "acquired before"
        file = os.open(self._path / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.holds_values = os.pread(file, 4096, 0).endswith(_HOLDS_VALUES)
            content = Owner.here().token() + (_HOLDS_VALUES if self.holds_values else b"")
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
        self._file = file

    def say_that_it_holds_values(self) -> None:
        """Note in the file that the directory holds values."""
        assert self._file is not None, "the directory is not locked"
        if not self.holds_values:
            os.pwrite(self._file, _HOLDS_VALUES, os.fstat(self._file).st_size)
            os.fsync(self._file)
            self.holds_values = True

    def release(self) -> None:
        """Let another server have the directory."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def owner_of(file: int) -> str:
    """Describe the process that has a directory, from the descriptor of its lock."""
    return str(Owner.parse(os.pread(file, 4096, 0).removesuffix(_HOLDS_VALUES)) or "one that does not say who it is")
