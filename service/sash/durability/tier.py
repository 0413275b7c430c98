"""The protocol of a tier, which stores what must survive this process. Implementations are in `sash.tiers`.

    get_many   values by key, one round trip          commit   puts and deletes, all or nothing
    acquire    become the only server                 close    let another server acquire it
    check_room whether more fits

A tier knows keys and values, and nothing of windows. Keys are computed, never listed. Only a `TierView`, which reads a
tier while no server has it, lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol


class ColdTier(Protocol):
    """Stores values by key: keys of 1 to 200 bytes, values of 0 to 64 MiB.

    All methods block. Several threads may call them at once, except `commit`, which one thread calls at a time. None of
    them waits longer than the tier's own timeout.
    """

    name: str
    """Its kind, for people: "memory", "lmdb", "redis"."""

    @property
    def healthy(self) -> bool:
        """Whether it can be reached, as far as is known without trying."""

    @property
    def used_bytes(self) -> int | None:
        """Bytes in use, as of a moment ago; None if that is not known."""

    @property
    def limit_bytes(self) -> int | None:
        """With how many bytes in use new entries are refused; None without a limit, or if it is not known."""

    def acquire(self) -> None:
        """Become the only server of this tier. Call this first.

        Raises:
            FailedPrecondition: another server has it; the message says which, if that is known.
            InvalidArgument: the address or the directory is wrong.
            Unavailable: the tier cannot be reached.
        """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of n >= 0 keys in their order, None for a missing one; in one round trip.

        Raises:
            Unavailable: the tier cannot be reached; `retry_after_s` says when to try again.
            FailedPrecondition: another server has taken the tier over, and may have written these keys.
            DataLoss: the tier has lost values, or is damaged.
        """

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        """Check that so many more bytes fit. Call this before a write that will need them.

        This is an estimate for every write: it takes microseconds, and no round trip. `commit` itself refuses only what
        really does not fit.

        Args:
            size: bytes of values.
            reserve: how much of the reserve for freeing space may be used, 0 (none) to 1 (all).

        Raises:
            OutOfRoom: they do not fit; `limit` names what is full.
        """

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """Put values and delete keys, all or nothing. When it returns, they survive what the tier survives.

        A key of `deletes` may be missing. No key is in both.

        Raises:
            Unavailable: the tier cannot be reached, and the commit may have taken place. It may be repeated.
            OutOfRoom: the tier is full; nothing has changed. Commits that leave less in use than before still fit.
            FailedPrecondition: another server has taken the tier over; nothing has changed, and nothing will again.
        """

    def close(self) -> None:
        """Release the tier; another server may acquire it at once. Closing twice does nothing."""


class TierView(Protocol):
    """Reads a tier while no server has it. It changes nothing, and notices if a server starts."""

    name: str
    """As for `ColdTier`."""

    def keys(self) -> Iterator[bytes]:
        """Iterate over the keys of all values, each once, in any order."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of n >= 0 keys in their order, None for one that is missing or cannot be read."""

    def problems(self) -> list[str]:
        """Return what is wrong with the place itself, as far as it was seen by now.

        Raises:
            FailedPrecondition: a server has begun to use it meanwhile, so the values that were read may not fit
                together.
        """

    def close(self) -> None:
        """Release it."""
