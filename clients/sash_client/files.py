"""Files that appear when they are whole, and files in chunks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

_CHUNK_BYTES = 2**20


@contextmanager
def replacing(file: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    """Open a file to write. At a path, the new file appears when the block ends without an error.

    Only its owner may read the new file. An open file, a pipe or a device is written to directly. Raises OSError.
    """
    if not isinstance(file, str | os.PathLike):
        yield file
        return
    path = Path(file)
    if path.exists() and not path.is_file():
        with path.open("wb") as out:
            yield out
        return
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            yield cast("BinaryIO", out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextmanager
def open_to_read(file: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    """Open a file to read; one that is open is handed on as it is. Raises OSError."""
    if isinstance(file, str | os.PathLike):
        with open(file, "rb") as source:
            yield source
    else:
        yield file


def chunks(source: BinaryIO) -> Iterator[bytes]:
    """Yield a file's bytes, 1 MiB at a time; of an empty one, one empty chunk."""
    chunk = source.read(_CHUNK_BYTES)
    yield chunk
    while chunk := source.read(_CHUNK_BYTES):
        yield chunk
