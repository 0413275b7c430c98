"""The cold tier: where what must survive this process is kept. Implementations are in `sash.tiers`.

    get_many   values by key, one round trip          commit   some values in and others out, all or nothing
    acquire    be the only server there               close    let another be it
    check_room whether more fits

A tier knows keys and values and nothing of windows. Keys are computed, never listed: whoever wrote one knows its name.
Only a `TierView`, which reads what a tier has while no server has it, lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

__all__ = ["ColdTier", "TierView"]


class ColdTier(Protocol):
    """Keeps values by key: keys of 1 to 200 bytes, values of 0 to 64 MiB.

    All methods block and may be called from several threads at once, but for `commit`, which one thread calls at a
    time. None of them waits longer than the tier's own timeout.
    """

    name: str
    """What it is, for people: "memory", "lmdb", "redis"."""

    @property
    def healthy(self) -> bool:
        """Whether it can be reached, as far as is known without trying."""

    @property
    def used_bytes(self) -> int | None:
        """Bytes in use there, as of a moment ago; None where it is not known."""

    @property
    def limit_bytes(self) -> int | None:
        """With how many in use new entries are refused; None where there is no limit, or it is not known."""

    def acquire(self) -> None:
        """Become the only server of this tier; do it before anything else.

        Raises:
            FailedPrecondition: another server has it; the message says which, as far as that is known.
            InvalidArgument: the address or the directory is wrong.
            Unavailable: the tier cannot be reached.
        """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of n >= 0 keys in their order, None where there is none; in one round trip.

        Raises:
            Unavailable: the tier cannot be reached; `retry_after_s` says when to try again.
            FailedPrecondition: another server has taken the tier over, and may have written these keys.
            DataLoss: the tier has lost values, or is damaged.
        """

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        """Raise where so many bytes more would be too many; ask before something is done that will need them.

        An estimate that is asked for before every write: it takes microseconds, and no round trip. `commit` itself
        refuses only what really does not fit.

        Args:
            size: bytes of values.
            reserve: how much of what is kept back for making room may be used, 0 (none) to 1 (all).

        Raises:
            OutOfRoom: there is no room; `limit` names what is full.
        """

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """Put values and delete keys, all or nothing; when it returns they survive what the tier survives.

        A key of `deletes` that is not there is fine; no key is in both.

        Raises:
            Unavailable: the tier cannot be reached, and it is not known whether the commit took place; the same one
                may be tried again.
            OutOfRoom: the tier is full; nothing has changed. Commits that leave less in use than before still fit.
            FailedPrecondition: another server has taken the tier over; nothing has changed, and nothing will again.
        """

    def close(self) -> None:
        """Let go of the tier; another server may have it at once. Closing twice does nothing."""


class TierView(Protocol):
    """Reads what a tier has, while no server has it. Nothing is changed, and no server starts unnoticed."""

    name: str
    """As of `ColdTier`."""

    def keys(self) -> Iterator[bytes]:
        """The keys of all values, each once, in any order."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of n >= 0 keys in their order, None where there is none, or it cannot be read."""

    def problems(self) -> list[str]:
        """What is wrong with the place itself, as far as was seen by now.

        Raises:
            FailedPrecondition: a server has begun to use it meanwhile, so that what was read is of several moments.
        """

    def close(self) -> None:
        """Let go of it."""
