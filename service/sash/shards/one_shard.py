"""The plane of one shard. Its windows can be closed, while they are created or deleted on all shards.

    create    made closed ──▶ home has it ──▶ opened         delete    closed ──▶ home has it no more ──▶ deleted

A closed window answers nothing and takes no write, as long as this process has the shard. A shard that starts, or
moves, gets the windows of home before it serves any: so it needs not remember what was closed. Each closing has a
token, and only who knows it opens or deletes the window: what an earlier owner of home said, and comes late, changes
nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from prometheus_client import CollectorRegistry

from sash.access.access import Access, Audited
from sash.durability import deriving
from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.held import Held
from sash.limits.turns import Turns
from sash.plane import Plane
from sash.runtime.metrics import Metrics
from sash_engine.clock import Clock
from sash_engine.errors import Unavailable
from sash_engine.windows.answers import WindowInfo
from sash_engine.windows.spec import WindowSpec

__all__ = ["OneShard"]

_RETRY_S = 0.5
_OPEN_ONLY = (
    *("insert", "bulk_insert", "bulk_evict", "retract", "update", "punctuate", "stage", "commit"),
    *("query", "range_query", "range_groups", "series", "series_groups", "entries", "export"),
    *("export_together", "keys"),
)
"""The operations that need an open window."""


class OneShard(Plane):
    """The plane of one shard. Calls have been admitted, counted and audited when they arrive here.

    Args:
        catalogue, clock, storage: as of `Plane`.
        held: is told how long its operations hold the loop.
        turns: are charged for it.

    Attributes:
        on_closed: called when a window was closed.
    """

    def __init__(self, catalogue: Catalogue, clock: Clock, storage: Storage, held: Held, turns: Turns) -> None:
        super().__init__(catalogue, Metrics(CollectorRegistry()), clock, storage, _Admitted(clock))
        self._held, self.turns = held, turns
        self._closed: dict[str, str] = {}
        self.on_closed: Callable[[], None] = lambda: None

    async def closed(self) -> dict[str, str]:
        """The windows that are closed, and the token of each; some may not be there (yet, or any more)."""
        return dict(self._closed)

    async def close(self, name: str, token: str) -> None:
        """Close a window; a later closing takes the place of an earlier one.

        Raises:
            NotFound: there is none.
            FailedPrecondition: it has views.
        """
        deriving.check_no_views(self._catalogue.find(name))
        self._close(name, token)

    async def reopen(self, name: str, token: str) -> None:
        """Open a window again that was closed with this token."""
        if self._closed.get(name) == token:
            del self._closed[name]

    async def create(self, spec: WindowSpec, token: str | None = None) -> tuple[WindowInfo, bool]:
        """As `Plane.create`; with a token, a new window is closed."""
        if token is None or spec.name in self._catalogue:
            return await super().create(spec)
        with self._coming(spec.name, token):
            return await super().create(spec)

    async def restore(
        self,
        parts: AsyncIterator[bytes],
        name: str | None = None,
        derived: Sequence[str] = (),
        token: str | None = None,
    ) -> WindowInfo:
        """As `Plane.restore`; with a token, the window is closed."""
        if token is None or name is None or name in self._catalogue:
            return await super().restore(parts, name, derived)
        with self._coming(name, token):
            return await super().restore(parts, name, derived)

    async def delete(self, name: str, token: str | None = None) -> int:
        """As `Plane.delete`; with a token, only as long as the window is closed with it.

        Raises:
            Unavailable: it was opened, or closed with another token.
        """
        if token is None:
            return await super().delete(name)
        if name in self._catalogue and self._closed.get(name) != token:
            raise Unavailable(
                f"window {name!r} is not deleted here: somebody else creates or deletes it",
                field="window",
                retry_after_s=_RETRY_S,
            )
        try:
            return await super().delete(name)
        finally:
            if name not in self._catalogue:
                await self.reopen(name, token)

    @contextmanager
    def _coming(self, name: str, token: str) -> Iterator[None]:
        """Close a window from its first moment on."""
        self._close(name, token)
        try:
            yield
        except BaseException:
            if name not in self._catalogue and self._closed.get(name) == token:
                del self._closed[name]
            raise

    def _close(self, name: str, token: str) -> None:
        self._closed[name] = token
        self.on_closed()

    def _check_open(self, name: str) -> None:
        if name in self._closed:
            raise Unavailable(
                f"window {name!r} is being created or deleted; nothing was changed",
                field="window",
                retry_after_s=_RETRY_S,
                unchanged=True,
            )


def _unless_closed(operation: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(operation)
    def call(self: OneShard, name: str, *args: Any, **kwargs: Any) -> Any:
        self._check_open(name)
        return operation(self, name, *args, **kwargs)

    return call


for _name in _OPEN_ONLY:
    setattr(OneShard, _name, _unless_closed(getattr(Plane, _name)))


class _Admitted(Access):
    """Lets every call do everything, and writes nothing to the audit log."""

    @contextmanager
    def audited(self, operation: str, window: str | None) -> Iterator[Audited]:
        yield Audited(window)
