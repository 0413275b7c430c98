"""How much a data directory takes, and how much more it may.

used      pages of values, and of the tree above them
limit     of its file: `max_bytes`, or as many as can be mapped. Free pages may be too scattered for a long value, so
          the last 64 MiB are left for them (of a small limit, the last fifth)
disk      what the file has by now, and what is free; the last 64 MiB are for freeing space (of a small disk, the
          last twentieth)
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import lmdb

from sash.tiers.capacity import ceiling

_DISK_KEPT = 64 * 2**20
_DISK_KEPT_SHARE = 20

# Of 2 MiB, 406 of 512 pages were in use, and there was no place for a value of 13 pages: a full directory could not be
# emptied. With a fifth that was never seen.
_SCATTERED = 64 * 2**20
_SCATTERED_SHARE = 5

_MOMENT_S, _AMPLE_BYTES = 0.01, 2**30
"""No program writes so much in so short a time: 100 GB/s."""


class Space:
    """The space of one directory.

    Args:
        path: the directory.
        values_path: its file of values.
        clock_s: tells how long ago it looked at the disk.

    Attributes: to be read only.
        used_bytes: bytes in use.
        limit_bytes: most bytes that the file may take.
    """

    def __init__(self, path: os.PathLike[str], values_path: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._values_path, self._clock_s = path, values_path, clock_s
        self._looked_s = -math.inf
        self.used_bytes = 0
        self.limit_bytes = 0
        self._floor_bytes = 0  # what was in use beyond the limit when this server began
        self._file_bytes = 0
        self._disk_bytes = 0  # free on the disk
        self._disk_kept = 0  # of them, for freeing space

    def set_limit(self, limit_bytes: int) -> None:
        """Set the limit of the file."""
        self.limit_bytes = limit_bytes

    def allow_what_is_there(self) -> bool:
        """Begin the reserve behind what is in use, if that is beyond the limit: the limit was higher once.

        Returns:
            whether it was.
        """
        if self.used_bytes > self.within_limit(1.0):
            self._floor_bytes = self.used_bytes
        return self._floor_bytes > 0

    def measure(self, used_bytes: int) -> None:
        """Note how much is in use, and look at the disk."""
        self.used_bytes = used_bytes
        self.look_at_disk()

    def look_at_disk(self) -> None:
        """Look how much is free: other programs use the disk, too. It takes 5 to 15 µs."""
        self._looked_s = self._clock_s()
        try:
            # In this order, a commit that lengthens the file meanwhile makes the space look smaller, never larger.
            file, disk = os.stat(self._values_path), os.statvfs(self._path)
        except OSError:
            return  # a commit will say what is wrong
        self._file_bytes = file.st_blocks * 512
        self._disk_bytes = disk.f_bavail * disk.f_frsize
        self._disk_kept = min(_DISK_KEPT, disk.f_blocks * disk.f_frsize // _DISK_KEPT_SHARE)

    def look_again(self, used_bytes: int) -> None:
        """Look how much is free, unless there was so much a moment ago that nobody can have filled it since.

        Args:
            used_bytes: how much is to be in use.
        """
        now_s = self._clock_s()
        if now_s - self._looked_s > _MOMENT_S or used_bytes + _AMPLE_BYTES > self.within_disk(0.0):
            self.look_at_disk()

    def within_limit(self, reserve: float) -> int:
        """Most bytes that may be in use within the limit; `reserve` as for `ColdTier.check_room`."""
        scattered = min(_SCATTERED, self.limit_bytes // _SCATTERED_SHARE)
        return ceiling(self.limit_bytes - scattered, reserve, self._floor_bytes)

    def within_disk(self, reserve: float) -> float:
        """Most bytes that may be in use on the disk."""
        return self._file_bytes + self._disk_bytes - self._disk_kept * (1 - reserve)


def pages_in_use(view: lmdb.Transaction[bytes]) -> int:
    """How many pages the values and the tree above them take."""
    stat = view.stat()
    return stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
