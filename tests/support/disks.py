"""A small file system of its own, for what happens where a disk is really full. Mounting one takes root.

with small_disk(folder, 8 * MIB) as disk:
    filler = fill(disk)      takes all that is free, as another process would
    filler.unlink()          gives it back
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a tmpfs of so many bytes on an empty folder; unmounted at the end. Skips the test where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        pytest.skip(f"no file system can be mounted here: {said.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    """Write a file until there is no room for another byte; return it."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(2**20)):  # the last one is cut short
            pass
    return filler
