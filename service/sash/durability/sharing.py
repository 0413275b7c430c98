"""Views are stored with the window whose entries they show, in its journal and its image.

    create requests_1m {of: requests} ──▶ completed from the spec of requests ──▶ AddView ──▶ record of requests
    ask    requests_1m                ──▶ the lock, the blocks and the recovery of requests
    write  requests_1m                ──▶ refused

A view has no entries, no journal and no image of its own. To create and to delete one are writes to its window.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sash.durability.catalogue import Catalogue
from sash.durability.hosting import HostedWindow, WindowStorage
from sash.durability.records import AddAggregates, Operation
from sash.durability.view_records import AddView, DropView
from sash_engine.errors import NotFound, Unsupported
from sash_engine.windows.answers import Counts, WriteResult
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.view_spec import completed
from sash_engine.windows.views import View, check_no_views, widened
from sash_engine.windows.window import Window

__all__ = ["check_deletable", "check_writable", "create", "delete", "redirected"]

Apply = Callable[[HostedWindow, AddView], Awaitable[tuple[WriteResult, int]]]
"""Applies a write in slices, or refuses it where there is no memory for it."""


def check_writable(window: Window | View) -> None:
    """Refuse a write to a view."""
    if isinstance(window, View):
        raise Unsupported(
            f"window {window.spec.name!r} is a view of {window.spec.of!r}, and keeps nothing: write to that one",
            field="window",
        )


def check_deletable(window: Window | View) -> None:
    """Refuse to delete a window that has views."""
    if isinstance(window, Window):
        check_no_views(window.views, window.spec.name)


def redirected(catalogue: Catalogue, name: str, operation: Operation) -> tuple[str, Operation]:
    """A write to a window, and which one: more aggregates of a view are a wider view of its window."""
    view = catalogue.view(name)
    if view is None or not isinstance(operation, AddAggregates):
        return name, operation
    return catalogue.home(name), AddView(widened(view.spec, operation.aggregates).document())


async def create(catalogue: Catalogue, store: WindowStorage, spec: WindowSpec, apply: Apply) -> tuple[View, bool]:
    """Create a view, or find the one of this spec; raises as `WindowStorage.create`."""
    whole = _completed(catalogue, spec)
    if spec.name in catalogue:
        return await _found(catalogue, store, whole)
    catalogue.check_room()
    operation = AddView(whole.document())
    hosted = await store.admit(catalogue.home(whole.of or ""), operation.size)
    if _completed(catalogue, spec) != whole or spec.name in catalogue:  # somebody else was quicker
        return await create(catalogue, store, spec, apply)
    with catalogue.coming(spec.name):  # nobody else takes the name meanwhile
        try:
            _, record = await apply(hosted, operation)
        finally:  # it is added also where the caller has gone
            view = next((view for view in hosted.window.all_views if view.spec.name == spec.name), None)
            if view is not None:
                catalogue.put(view)
    await hosted.settled(WriteResult(), record)
    assert view is not None, "it was added"
    return view, True


def _completed(catalogue: Catalogue, spec: WindowSpec) -> WindowSpec:
    assert spec.of is not None, "the spec says whose entries it shows"
    if spec.of not in catalogue:
        raise NotFound(f"of: there is no window {spec.of[:140]!r}", field="of")
    return completed(spec, catalogue.find(spec.of).spec)


async def _found(catalogue: Catalogue, store: WindowStorage, spec: WindowSpec) -> tuple[View, bool]:
    """The view of this spec, when its creation is durable: the first commit may be on its way still."""
    catalogue.check_same(spec)
    store.check_served(spec.name)
    view = catalogue.view(spec.name)
    assert view is not None, "no other window says of"
    hosted = store.host(catalogue.home(spec.name))
    await hosted.settled(WriteResult(), hosted.last_record)
    return view, False


async def delete(catalogue: Catalogue, store: WindowStorage, name: str) -> Counts | None:
    """Delete a view; return the counts of what it showed, or None where the window is no view."""
    if catalogue.view(name) is None:
        return None
    operation, home = DropView(name), catalogue.home(name)
    hosted = await store.admit(home, operation.size, makes_room=True)
    view = catalogue.view(name)
    if view is None or catalogue.home(name) != home:
        return await delete(catalogue, store, name)  # somebody else was quicker, and may have created another one
    counts = view.counts
    _, record = hosted.apply(operation)
    catalogue.delete(name)
    await hosted.settled(WriteResult(), record)
    return counts
