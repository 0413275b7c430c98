"""The calls of the system that a data directory needs."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a file: the same under any name. None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def resident_bytes() -> int:
    """Bytes of mapped files that count as memory of this process; 0 if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[2]) * resource.getpagesize()
    except OSError:
        return 0


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive loss of power."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
