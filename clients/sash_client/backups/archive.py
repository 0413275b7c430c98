"""All windows of a service in one file, and back, while it serves.

    backup.sash = a ZIP file, nothing compressed
        windows/departure_delay     what `Client.export_window` writes
        windows/requests
        windows/minutes
        manifest.json               {"format": "sash admin backup", "version": 2, "created": …, "windows": […],
                                     "fed": {"minutes": "requests"}, "views": {"recent": {"name": "recent", …}}}

A window is as it is at one moment, with all windows that it feeds (`fed`). The moments of two others differ. A view has
no member: its entries are those of another window. Any tool that knows ZIP can list the file, check it (each member has
a CRC) and take a window out of it, which `Client.import_window` then reads.

A backup of version 1 has no `views`, and may have no `fed`: its windows are independent of each other.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any, BinaryIO, cast

from sash_client.answers import WindowInfo
from sash_client.client import Client
from sash_client.errors import AlreadyExists, DataLoss, InvalidArgument, NotFound, SashClientError, Unsupported
from sash_client.files import chunks, replacing

_FORMAT, _VERSIONS = "sash admin backup", (1, 2)
_FOLDER, _MANIFEST = "windows/", "manifest.json"

_TRIES = 5
"""So often the windows are listed again, because some of them were deleted meanwhile."""

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
    done = _Contents()
    with replacing(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        windows = _listed(client)
        for name in [name for name in windows if _root(windows, name) == name]:
            windows = _written(client, archive, windows, name, done, progress)
        for name, window in windows.items():
            of = window.spec.get("of")
            if name not in done.names and of in done.names:
                done.names.append(name)
                done.views[name] = dict(window.spec)
        archive.writestr(_MANIFEST, json.dumps(done.manifest(), indent=1))
    return done.names


def _listed(client: Client) -> dict[str, WindowInfo]:
    return {window.name: window for window in client.list_windows()}


def _root(windows: Mapping[str, WindowInfo], name: str) -> str | None:
    """The window at whose entries a window begins: itself, unless another one feeds it; None for a view.

    A window whose source is not among them is its own root: it is saved as one that nobody feeds.
    """
    if windows[name].spec.get("of") in windows:
        return None
    source = (windows[name].spec.get("from") or {}).get("window", "")
    return _root(windows, source) if source in windows else name


def _fed_by(windows: Mapping[str, WindowInfo], name: str) -> list[str]:
    """The windows that a window feeds, itself and by others; each follows its source."""
    found = []
    for each, window in windows.items():
        if (window.spec.get("from") or {}).get("window") == name:
            found += [each, *_fed_by(windows, each)]
    return found


def _written(
    client: Client,
    archive: zipfile.ZipFile,
    windows: dict[str, WindowInfo],
    name: str,
    done: _Contents,
    progress: Progress,
) -> dict[str, WindowInfo]:
    """Write a window, and those that it feeds; return the windows as they were listed last."""
    for left in reversed(range(_TRIES)):
        fed = _fed_by(windows, name)
        try:
            written = _export(client, archive, name, fed, progress)
        except NotFound:
            windows = _listed(client)
            if name not in windows:
                return windows
            if not left:
                raise
            continue
        done.names += written
        done.fed |= dict.fromkeys(written[1:], name)
        for each in fed:
            if each not in written:  # an earlier service: they are saved as windows that nobody feeds
                done.names += _export(client, archive, each, [], progress)
        break
    return windows


def _export(client: Client, archive: zipfile.ZipFile, name: str, fed: Sequence[str], progress: Progress) -> list[str]:
    """Write the files of a window and of those that it feeds; return the names of those that the service sent."""
    parts, written = client._exported(name, fed), list[str]()
    following: tuple[str, bytes] | None = next(parts, (name, b""))
    while following is not None:
        (each, data), following = following, None
        written.append(each)
        with archive.open(_FOLDER + each, "w", force_zip64=True) as member:
            out = _Counted(member, each, progress)
            if data:
                out.write(data)
            for of, data in parts:
                if of != each:
                    following = of, data
                    break
                out.write(data)
    return written


def backed_up(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the windows in a backup; raises as `restore`."""
    with _opened(path) as archive:
        return _contents(archive).names


def restore(
    client: Client,
    path: str | os.PathLike[str],
    only: Sequence[str] = (),
    progress: Progress = lambda name, size: None,
) -> dict[str, SashClientError | None]:
    """Create the windows that `backup` wrote. Windows that exist stay as they are.

    A window is restored with all windows that it feeds, or not at all. They are fed again from then on. Then come
    views, which show what their windows have.

    Args:
        client: the service to write to.
        path: the file.
        only: these windows; none: all of them.
        progress: as for `backup`, with the bytes that are read.

    Returns:
        for each window the error that kept it from being restored, or None.

    Raises:
        InvalidArgument: the file is not a backup, or lacks a window of `only`; or a window of `only` is fed by one that
            is not among them. Nothing is restored.
        OSError: the file cannot be read.
    """
    with _opened(path) as archive:
        saved = _contents(archive)
        for name in only:
            if name not in saved.names:
                raise InvalidArgument(f"window {name!r} is not in {os.fspath(path)}", field="only")
            if saved.fed.get(name, name) not in (only or saved.names):
                raise InvalidArgument(
                    f"window {name!r} is fed by others, and is restored with {saved.fed[name]!r}: name that one",
                    field="only",
                )
        done: dict[str, SashClientError | None] = {}
        chosen = only or saved.names
        for name in chosen:
            if name not in saved.fed and name not in saved.views:
                fed = [each for each in saved.names if saved.fed.get(each) == name]
                done |= _restored(client, archive, name, fed, progress)
        views = [name for name in chosen if name in saved.views]
        there = _listed(client) if views else {}
        return done | {name: _viewed(client, saved.views[name], there) for name in views}


def _restored(
    client: Client, archive: zipfile.ZipFile, name: str, fed: Sequence[str], progress: Progress
) -> dict[str, SashClientError | None]:
    """Create a window, and those that it feeds; return the error of each."""
    error = _imported(client, archive, name, fed, progress)
    if fed and isinstance(error, Unsupported):  # a service of several shards has no such windows, but this one
        return {name: _imported(client, archive, name, [], progress), **dict.fromkeys(fed, error)}
    return dict.fromkeys([name, *fed], error)


def _imported(
    client: Client, archive: zipfile.ZipFile, name: str, fed: Sequence[str], progress: Progress
) -> SashClientError | None:
    try:
        with ExitStack() as stack:  # whoever refuses the files does not read them to their ends
            members = {each: stack.enter_context(archive.open(_FOLDER + each)) for each in (name, *fed)}
            parts = (chunks(counted(member, each, progress)) for each, member in members.items())
            client._imported(chain.from_iterable(parts), name, fed)
    except SashClientError as error:
        return error
    except (zipfile.BadZipFile, EOFError, KeyError) as error:
        return DataLoss(f"window {name!r} is damaged in the backup: {error}")
    return None


def _viewed(client: Client, spec: Mapping[str, Any], there: Mapping[str, WindowInfo]) -> SashClientError | None:
    """Create a view."""
    try:
        if spec["name"] in there:
            return AlreadyExists(f"there is a window {spec['name']!r} already", field="name")
        client.create_window(spec)
    except SashClientError as error:
        return error
    return None


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InvalidArgument(f"{os.fspath(path)} is no backup, or not a whole one: {error}", field="path") from None
    with archive:
        yield archive


@dataclass
class _Contents:
    """What a manifest says.

    Attributes:
        names: the windows.
        fed: those that another one feeds, itself or by others, with that one.
        views: the specs of views.
    """

    names: list[str] = field(default_factory=list)
    fed: dict[str, str] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """Return it as a document; of version 1 if earlier versions can restore all windows."""
        return {
            "format": _FORMAT,
            "version": 2 if self.views else 1,
            "created": datetime.now(UTC).isoformat(),
            "windows": self.names,
            "fed": self.fed,
            "views": self.views,
        }

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> _Contents:
        """Read what `manifest` returned; raises LookupError, TypeError or ValueError."""
        found = cls(manifest["windows"], manifest.get("fed", {}), manifest.get("views", {}))
        if not (isinstance(found.names, list) and all(isinstance(name, str) for name in found.names)):
            raise TypeError("windows are a list of names")
        if not (isinstance(found.fed, dict) and isinstance(found.views, dict)):
            raise TypeError("fed and views are objects")
        if not {*found.fed, *found.fed.values(), *found.views} <= {*found.names}:
            raise ValueError("fed and views name windows that are not among the windows")
        if found.fed.keys() & {*found.fed.values(), *found.views} or {*found.fed.values()} & found.views.keys():
            raise ValueError("a window is fed, and feeds, or is a view")
        for name, spec in found.views.items():
            if not isinstance(spec, dict) or spec.get("name") != name:
                raise TypeError("views are specs by name")
        return found


def _contents(archive: zipfile.ZipFile) -> _Contents:
    try:
        manifest = json.loads(archive.read(_MANIFEST))
        kind, version = manifest["format"], manifest["version"]
        known = kind == _FORMAT and version in _VERSIONS
        found = _Contents.of(manifest) if known else _Contents()
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"{archive.filename} is no backup: its manifest is {error!r}", field="path") from None
    if not known:
        raise InvalidArgument(
            f"{archive.filename} is a {kind!r} of version {version!r}",
            field="path",
            limit=f"{_FORMAT!r}, {_VERSIONS[-1]}",
        )
    return found


def counted(file: Any, name: str, progress: Progress) -> BinaryIO:
    """Return a file that says how many bytes went through it."""
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
