"""Derived windows are stored with the window that they are derived from, in its records and in its image.

    write  ──▶ requests ──▶ record ──▶ journal          the record of the write is that of all windows that it reaches
                 └──▶ minutes ──▶ hours
    create requests_1m {of: requests} ──▶ completed from the spec of requests ──▶ Derive ──▶ record of requests
    ask    requests_1m                ──▶ the lock, the blocks and the recovery of requests
    write  requests_1m, hours         ──▶ refused

So a derived window has no place of its own in a storage: what is asked of the place of `hours` is asked of that of
`requests`. To create one, and to delete it, are writes to the window at the root.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sash.durability.catalogue import Catalogue
from sash.durability.hosting import HostedWindow, WindowStorage
from sash.durability.records.commands import AddAggregates, Operation
from sash.durability.records.derived import DROPS, Derive, Drop
from sash_engine.errors import FailedPrecondition, NotFound, Unsupported
from sash_engine.windows.answers import Counts, WriteResult
from sash_engine.windows.derived.views import View
from sash_engine.windows.spec.derived import completed, widened
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

Apply = Callable[[HostedWindow, Derive], Awaitable[tuple[WriteResult, int]]]
"""Applies a write, in slices where it is long, or refuses it where there is no memory for it."""


def check_writable(window: Window | View | None) -> None:
    """Refuse a direct write to a window that is derived."""
    if window is None:  # whoever admits the write says so
        return
    spec = window.spec
    if spec.of is not None:
        raise Unsupported(
            f"window {spec.name!r} is a view of {spec.of!r}, and keeps nothing: write to that one", field="window"
        )
    if spec.source is not None:
        raise FailedPrecondition(
            f"window {spec.name!r} is fed by {spec.source.window!r}, and takes nothing else: write to that one",
            field="window",
        )


def check_deletable(window: Window | View) -> None:
    """Refuse to delete a window from which others are derived."""
    if isinstance(window, Window):
        window.derived.check_none(window.spec.name)


def check_no_views(window: Window | View) -> None:
    """Refuse to close a window that has views, before it is deleted."""
    if isinstance(window, Window):
        window.derived.check_no_views(window.spec.name)


def redirected(catalogue: Catalogue, name: str, operation: Operation) -> tuple[str, Operation]:
    """A write to a window, and which one: more aggregates of a view are a wider view of its window."""
    if not isinstance(operation, AddAggregates) or (view := catalogue.view(name)) is None:
        return name, operation
    return catalogue.home(name), Derive(widened(view.spec, operation.aggregates).document())


async def create(
    catalogue: Catalogue, store: WindowStorage, spec: WindowSpec, apply: Apply
) -> tuple[Window | View, bool]:
    """Create a window that another one feeds, or a view, or find the one of this spec.

    Raises as `WindowStorage.create`.
    """
    whole = _completed(catalogue, spec)
    if spec.name in catalogue:
        return await _found(catalogue, store, whole)
    catalogue.check_room()
    operation, (source,) = Derive(whole.document()), whole.feeds_on
    hosted = await store.admit(catalogue.home(source), operation.size)
    if spec.name in catalogue or _completed(catalogue, spec) != whole:  # somebody else was quicker
        return await create(catalogue, store, spec, apply)
    with catalogue.coming(spec.name):  # nobody else takes the name meanwhile
        try:
            _, record = await apply(hosted, operation)
        finally:  # it is added also where the caller has gone
            found = hosted.window.find(spec.name)
            if found is not None:
                catalogue.put(found)
    await hosted.settled(WriteResult(), record)
    assert found is not None, "it was added"
    return found, True


def _completed(catalogue: Catalogue, spec: WindowSpec) -> WindowSpec:
    """The spec with what a view has of its window; raises if there is no such window to derive one from."""
    if spec.of is not None:
        if spec.of not in catalogue:
            raise NotFound(f"of: there is no window {spec.of[:140]!r}", field="of")
        return completed(spec, catalogue.find(spec.of).spec)
    assert spec.source is not None, "the spec says which window feeds it"
    if spec.name not in catalogue:
        if catalogue.view(spec.source.window) is not None:
            raise FailedPrecondition(
                f"from.window: {spec.source.window!r} is a view, and nobody writes to it; say the window that it shows",
                field="from.window",
            )
        catalogue.find(spec.source.window)
    return spec


async def _found(catalogue: Catalogue, store: WindowStorage, spec: WindowSpec) -> tuple[Window | View, bool]:
    """The window of this spec, when its creation is durable: the first commit may be on its way still."""
    catalogue.check_same(spec)
    store.check_served(spec.name)
    hosted = store.host(catalogue.home(spec.name))
    await hosted.settled(WriteResult(), hosted.last_record)
    return catalogue.find(spec.name), False


async def delete(catalogue: Catalogue, store: WindowStorage, name: str) -> Counts | None:
    """Delete a derived window; return the counts of what it has or shows, or None where there is none.

    Raises:
        FailedPrecondition: others are derived from it.
    """
    window = catalogue.get(name)
    if window is None or not window.spec.feeds_on:
        return None
    check_deletable(window)
    operation, home = Drop(DROPS[isinstance(window, View)], name), catalogue.home(name)
    hosted = await store.admit(home, operation.size, makes_room=True)
    if catalogue.get(name) is not window or catalogue.home(name) != home:
        return await delete(catalogue, store, name)  # somebody else was quicker, and may have created another one
    check_deletable(window)
    counts = Counts(**window.counts.document())
    _, record = hosted.apply(operation)
    catalogue.delete(name)
    await hosted.settled(WriteResult(), record)
    return counts
