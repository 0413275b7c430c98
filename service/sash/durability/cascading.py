"""Windows that another window feeds: they are stored with it, in its records and in its image.

    write ──▶ requests ──▶ record ──▶ journal           the record of the write is that of all windows that it reaches
                └──▶ minutes ──▶ hours

So a cascade has no place of its own in a storage: what is asked of the place of `hours` is asked of that of `requests`.
To create one, and to delete it, are writes to the window at the root.
"""

from __future__ import annotations

from sash.durability.cascade_records import AddCascade, DropCascade
from sash.durability.catalogue import Catalogue
from sash.durability.hosting import WindowStorage
from sash_engine.errors import FailedPrecondition
from sash_engine.windows.answers import Counts, WriteResult
from sash_engine.windows.cascades import check_feeds_none
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.views import View, check_no_views
from sash_engine.windows.window import Window

__all__ = ["check_writable", "create", "delete"]


def check_writable(window: Window | View) -> None:
    """Refuse a direct write to a window that another one feeds."""
    source = window.spec.source
    if source is not None:
        raise FailedPrecondition(
            f"window {window.spec.name!r} is fed by {source.window!r}, and takes nothing else: write to that one",
            field="window",
        )


async def create(catalogue: Catalogue, store: WindowStorage, spec: WindowSpec) -> tuple[Window, bool]:
    """Create a window that another one feeds, or find the one of this spec; raises as `WindowStorage.create`."""
    assert spec.source is not None, "the spec says which window feeds it"
    if spec.name in catalogue:
        return await _found(catalogue, store, spec)
    catalogue.check_room()
    if catalogue.view(spec.source.window) is not None:
        raise FailedPrecondition(
            f"from.window: {spec.source.window!r} is a view, and nobody writes to it; say the window that it shows",
            field="from.window",
        )
    catalogue.find(spec.source.window)
    operation = AddCascade(spec.document())
    hosted = await store.admit(catalogue.home(spec.source.window), operation.size)
    if spec.name in catalogue:  # somebody else was quicker
        return await _found(catalogue, store, spec)
    catalogue.check_room(spec.name)
    _, record = hosted.apply(operation)
    window = hosted.window.cascades.find(spec.name)
    assert window is not None, "it was added"
    catalogue.put(window)
    await hosted.settled(WriteResult(), record)
    return window, True


async def _found(catalogue: Catalogue, store: WindowStorage, spec: WindowSpec) -> tuple[Window, bool]:
    """The window of this spec, when its creation is durable: the first commit may be on its way still."""
    found = catalogue.create(spec)
    store.check_served(spec.name)
    hosted = store.host(catalogue.home(spec.name))
    await hosted.settled(WriteResult(), hosted.last_record)
    return found


async def delete(catalogue: Catalogue, store: WindowStorage, name: str) -> Counts | None:
    """Delete a window that another one feeds; None for another one, which feeds none.

    Raises:
        FailedPrecondition: it feeds others.
    """
    window = catalogue.window(name)
    check_feeds_none(window)
    if window.spec.source is None:
        return None
    operation = DropCascade(name)
    hosted = await store.admit(catalogue.home(name), operation.size, makes_room=True)
    if name not in catalogue or catalogue.find(name).spec.source is None:
        return None  # somebody else was quicker
    window = catalogue.window(name)
    check_feeds_none(window)
    check_no_views(window.views, name)
    counts = Counts(**window.counts.document())
    _, record = hosted.apply(operation)
    catalogue.delete(name)
    await hosted.settled(WriteResult(), record)
    return counts
