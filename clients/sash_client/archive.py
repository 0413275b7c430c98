"""All windows of a service in one file, and back, while it serves.

    backup.sash = a ZIP file, nothing compressed
        windows/departure_delay     what `Client.export_window` writes
        windows/requests
        manifest.json               {"format": "sash backup", "version": 1, "created": …, "windows": […]}

Each window is as it is at one moment; the moments of two windows differ. Any tool that knows ZIP can list the file,
check it (each member has a CRC) and take a window out of it, which `Client.import_window` then reads.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, BinaryIO, cast

from sash_client.client import Client
from sash_client.errors import DataLoss, InvalidArgument, NotFound, SashClientError
from sash_client.files import replacing

__all__ = ["backed_up", "backup", "restore"]

_FORMAT, _VERSION = "sash backup", 1
_FOLDER, _MANIFEST = "windows/", "manifest.json"

Progress = Callable[[str, int], None]


def backup(client: Client, path: str | os.PathLike[str], progress: Progress = lambda name, size: None) -> list[str]:
    """Write all windows of a service into one file, which appears when it is whole; return their names.

    A window that somebody deletes meanwhile is left out.

    Args:
        client: the service to read from.
        path: the file; one that is there is replaced.
        progress: called with a window's name and how many of its bytes are written, again and again.

    Raises:
        SashClientError: a window cannot be exported; there is no file then.
        OSError: the file cannot be written.
    """
    done = []
    with replacing(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in [window.name for window in client.list_windows()]:
            try:
                with archive.open(_FOLDER + name, "w", force_zip64=True) as member:
                    client.export_window(name, _counted(member, name, progress))
                done.append(name)
            except NotFound:
                pass  # the manifest does not name it
        manifest = {"format": _FORMAT, "version": _VERSION, "created": datetime.now(UTC).isoformat(), "windows": done}
        archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
    return done


def backed_up(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the windows in a backup; raises as `restore`."""
    with _opened(path) as archive:
        return _names(archive)


def restore(
    client: Client,
    path: str | os.PathLike[str],
    only: Sequence[str] = (),
    progress: Progress = lambda name, size: None,
) -> dict[str, SashClientError | None]:
    """Create the windows that `backup` wrote. Windows that exist stay as they are.

    Args:
        client: the service to write to.
        path: the file.
        only: these windows; none: all of them.
        progress: as for `backup`, with the bytes that are read.

    Returns:
        for each window the error that kept it from being restored, or None.

    Raises:
        InvalidArgument: the file is not a backup, or lacks a window of `only`; nothing is restored.
        OSError: the file cannot be read.
    """
    with _opened(path) as archive:
        names = _names(archive)
        for name in only:
            if name not in names:
                raise InvalidArgument(f"window {name!r} is not in {os.fspath(path)}", field="only")
        return {name: _restored(client, archive, name, progress) for name in only or names}


def _restored(client: Client, archive: zipfile.ZipFile, name: str, progress: Progress) -> SashClientError | None:
    try:
        with archive.open(_FOLDER + name) as member:
            client.import_window(_counted(member, name, progress), name)
    except SashClientError as error:
        return error
    except (zipfile.BadZipFile, EOFError, KeyError) as error:
        return DataLoss(f"window {name!r} is damaged in the backup: {error}")
    return None


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InvalidArgument(f"{os.fspath(path)} is no backup, or not a whole one: {error}", field="path") from None
    with archive:
        yield archive


def _names(archive: zipfile.ZipFile) -> list[str]:
    try:
        manifest = json.loads(archive.read(_MANIFEST))
        kind, version, names = manifest["format"], manifest["version"], manifest["windows"]
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise TypeError("windows are a list of names")
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"{archive.filename} is no backup: its manifest is {error!r}", field="path") from None
    if kind != _FORMAT or version != _VERSION:
        raise InvalidArgument(
            f"{archive.filename} is a {kind!r} of version {version!r}", field="path", limit=f"{_FORMAT!r}, {_VERSION}"
        )
    return list(names)


def _counted(file: Any, name: str, progress: Progress) -> BinaryIO:
    return cast("BinaryIO", _Counted(file, name, progress))


class _Counted:
    """A file that reports its progress."""

    def __init__(self, file: Any, name: str, progress: Progress) -> None:
        self._file, self._name, self._progress = file, name, progress
        self._size = 0

    def write(self, data: bytes) -> int:
        self._moved(len(data))
        return int(self._file.write(data))

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        self._moved(len(data))
        return data

    def _moved(self, size: int) -> None:
        self._size += size
        self._progress(self._name, self._size)
