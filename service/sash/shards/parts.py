"""What a sharded deployment is made of: the planes of its shards, wherever they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sash.durability.records import Command
from sash.shard import Parts
from sash_engine.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SashError,
    Unavailable,
    Unsupported,
)
from sash_engine.windows.answers import WindowInfo
from sash_engine.windows.batch import Origin
from sash_engine.windows.questions import Question
from sash_engine.windows.spec import WindowSpec

__all__ = ["HOME", "Administration", "Shard", "Shards", "together", "worst"]

A = TypeVar("A")
R = TypeVar("R")

HOME = 0
"""The shard that says which windows there are. A window exists once, and as long as, this shard has it."""


class Shard(Protocol):
    """The windows of one shard, here or elsewhere; each method is the one of `LocalShard` by its name."""

    async def write(self, name: str, command: Command[R], origin: Origin | None = None) -> R: ...

    async def ask(self, name: str, question: Question[A]) -> A: ...

    async def window(self, name: str) -> WindowInfo: ...

    async def windows(self) -> list[WindowInfo]: ...

    async def create(self, spec: WindowSpec, token: str | None = None) -> tuple[WindowInfo, bool]: ...

    async def delete(self, name: str, token: str | None = None) -> int: ...

    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> WindowInfo: ...

    async def export(self, name: str) -> Parts[bytes]: ...

    async def restore(
        self, parts: Any, name: str | None = None, derived: Sequence[str] = (), token: str | None = None
    ) -> WindowInfo: ...

    async def closed(self) -> dict[str, str]: ...

    async def close(self, name: str, token: str) -> None: ...

    async def reopen(self, name: str, token: str) -> None: ...


class Administration(Protocol):
    """Creates, changes and deletes windows on all shards, as `Lifecycle`. One process does it at a time."""

    async def create(self, spec: WindowSpec) -> bool: ...

    async def delete(self, name: str) -> int: ...

    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> None: ...

    async def restore(self, parts: AsyncIterator[bytes], name: str) -> None: ...

    async def reconcile_one(self, shard: int) -> None: ...


class Shards(Protocol):
    """The shards of a deployment, as one process sees them."""

    @property
    def count(self) -> int:
        """How many there are."""

    def plane(self, shard: int) -> Shard:
        """The operations on a shard, here or elsewhere.

        Raises:
            Unavailable: nobody has it at the moment; `retry_after_s` says when to try again.
        """

    def local(self, shard: int) -> Shard:
        """The operations on a shard that this process has; raises Unavailable if it has it not (any more)."""

    async def confirm(self, shard: int) -> None:
        """Ask the store if this process has a shard, whatever it knows; raises Unavailable if another one has it."""

    async def guarded(self, shard: int, call: Coroutine[Any, Any, R]) -> R:
        """Make a call to a shard that `plane` or `local` returned; raises Unavailable if the shard moves meanwhile."""

    @property
    def administration(self) -> Callable[[], Administration | None]:
        """Returns where windows are created and deleted; None means here. Raises Unavailable if nobody does it now."""

    def administered(self, shard: int) -> Shard:
        """As `plane`, to create and delete windows; also on a shard that serves nothing else yet."""

    def spec(self, name: str) -> WindowSpec | None:
        """The spec of a window, if this process has a shard that knows it."""

    def class_of(self, name: str) -> str:
        """The kind of a window, for metrics; "none" if it is not known here."""

    def infos(self) -> Iterable[WindowInfo]:
        """The windows as far as this process has them."""

    def tidy(self) -> None:
        """Do what time alone brings, to every shard here."""

    def trim(self) -> None:
        """Shrink the caches of the shards here to their budgets."""


_SEVERE: tuple[type[SashError], ...] = (
    PermissionDenied,
    NotFound,
    InvalidArgument,
    Unsupported,
    FailedPrecondition,
    SashError,
)


def worst(errors: Iterable[SashError]) -> SashError:
    """Return the error to tell: one that does not pass, before one that does."""
    found = list(errors)
    lasting = [error for error in found if not isinstance(error, Unavailable)]
    for kind in _SEVERE:
        for error in lasting:
            if isinstance(error, kind):
                return error
    return found[0]


async def together(calls: Mapping[int, Coroutine[Any, Any, R]]) -> tuple[dict[int, R], dict[int, SashError]]:
    """Make calls to several shards side by side; return the answers, and the errors, by shard.

    Raises:
        Exception: what is no `SashError`, once all calls have ended.
    """
    found = await asyncio.gather(*calls.values(), return_exceptions=True)
    answers: dict[int, R] = {}
    errors: dict[int, SashError] = {}
    for shard, answer in zip(calls, found, strict=True):
        if isinstance(answer, SashError):
            errors[shard] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[shard] = answer
    return answers, errors
