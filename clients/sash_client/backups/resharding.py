"""All windows of one deployment into another one, which may have another number of shards.

    source ── export ──▶ a file ── import ──▶ target        window by window; the file is deleted behind it

The target splits a file by the shards that it has. Producers must rest: a window that was written meanwhile is deleted
again in the target, and is an error.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sash_client.answers import WindowInfo
from sash_client.client import Client
from sash_client.errors import AlreadyExists, DataLoss, FailedPrecondition, SashClientError


def reshard(
    source: Client, target: Client, folder: str | os.PathLike[str] | None = None
) -> dict[str, SashClientError | None]:
    """Copy all windows of a deployment into another one.

    Args:
        source, target: the deployments. The source stays as it is.
        folder: where the file of one window has room at a time; the system's folder for temporary files if None.

    Returns:
        for each window the error that kept it from being copied, or None. A window that gets its entries from another
        one has an error and a copy, which gets none. A view is a view in the target, too.

    Raises:
        SashClientError: the windows cannot be listed.
        OSError: a file cannot be written.
    """
    there = {window.name for window in target.list_windows()}
    found: dict[str, SashClientError | None] = {}
    for window in sorted(source.list_windows(), key=lambda window: "of" in window.spec):  # views come last
        if window.name in there:
            found[window.name] = AlreadyExists(f"window {window.name!r} exists in the target already", field="name")
            continue
        try:
            _copy(source, target, window, folder)
        except SashClientError as error:
            found[window.name] = error
        else:
            found[window.name] = None
    return found


def _copy(source: Client, target: Client, window: WindowInfo, folder: str | os.PathLike[str] | None) -> None:
    if "of" in window.spec:
        target.create_window(window.spec)
        return
    with tempfile.TemporaryDirectory(prefix="sash-", dir=folder) as made:
        file = Path(made) / "window"
        source.export_window(window.name, file)
        copy = target.import_window(file, window.name)
    wrong: SashClientError | None = None
    if _state(source.window(window.name).describe()) != _state(window):
        wrong = FailedPrecondition(
            f"window {window.name!r} was written while it was copied: let its producers rest", field="name"
        )
    elif (copy.entries, copy.keys) != (window.entries, window.keys):
        wrong = DataLoss(
            f"window {window.name!r} has {window.entries} entries of {window.keys} keys, and its copy {copy.entries} "
            f"of {copy.keys}"
        )
    if wrong is not None:
        target.delete_window(window.name)
        raise wrong
    if "from" in window.spec and "from" not in copy.spec:
        source_name = window.spec["from"]["window"]
        raise FailedPrecondition(
            f"window {window.name!r} is copied, and its copy gets no entries from {source_name!r} any more: an export "
            "stands alone",
            field="from",
        )


def _state(window: WindowInfo) -> object:
    return window.entries, window.keys, window.counts, window.high_water_mark, window.punctuated
