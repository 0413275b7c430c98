"""Which windows a tier has: the value `meta`, written anew whenever one comes or goes.

    meta ── windows     number, durability, spec of each
         ── next        the first number that was never a window's
         ── discarded   windows of which something is left that is being deleted: number, and what     see roots.py

Deleting goes on after a restart. A window that is imported is listed as one that is to be deleted until it is whole,
so that an import that ends half-way leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sash.durability.recovery import RecoveredTier
from sash.durability.roots import Meta
from sash.durability.session import TierSession
from sash.durability.stored_window import Remains, StoredWindow, discard_all

__all__ = ["Listing"]


class Listing:
    """The windows of one service as its tier knows them.

    Args:
        session: the tier.
        kept: the windows that are there, by name.
        forgotten: called when nothing is left of one that was deleted.
    """

    def __init__(self, session: TierSession, stored: Mapping[str, StoredWindow], forgotten: Callable[[], None]) -> None:
        self._session, self._stored, self._forgotten = session, stored, forgotten
        self._next = 1
        self._bound = 1
        self._discarded: dict[int, Remains] = {}

    def resume(self, found: RecoveredTier) -> Callable[[], None]:
        """Go on from what was recovered; what it returns goes on deleting, once the journal takes something."""
        self._next, self._bound = found.next_window, found.bound
        self._discarded = dict(found.discarded)
        remains = {number: remains.found(self._session, number) for number, remains in found.discarded.items()}

        def go_on() -> None:
            for number, what in remains.items():
                self._discard(number, what)

        return go_on

    def take_number(self) -> int:
        """A number for a new window."""
        self._next += 1
        return self._next - 1

    def write(self, new: Mapping[bytes, bytes] | None = None) -> int:
        """Write it, in order with the records; the number to wait for.

        Args:
            new: what goes into the same commit.
        """
        windows = [
            (stored.number, stored.durability, stored.document())
            for stored in sorted(self._stored.values(), key=lambda stored: stored.number)
        ]
        discarded = [(number, remains.document()) for number, remains in self._discarded.items()]
        journal = self._session.journal
        puts = {**Meta(windows, self._next, discarded, journal.last + 1, self._bound).puts(), **(new or {})}
        return journal.append(0, lambda: None, 1000, puts=lambda: puts, logged=False)

    # ---------------------------------------------------------------- windows that go, or are not there yet

    def expect(self, stored: StoredWindow) -> int | None:
        """A window is about to be stored that is not there yet: until `arrived`, who recovers deletes what is stored.

        Returns:
            the number to wait for; None where it was said before.
        """
        if stored.number in self._discarded:
            return None
        self._discarded[stored.number] = Remains()
        return self.write()

    def arrived(self, stored: StoredWindow) -> int:
        """A window that was expected is there, and whole; the number to wait for."""
        self._discarded.pop(stored.number)
        return self.write()

    def give_up(self, stored: StoredWindow, remains: Remains) -> int:
        """Delete all that the tier has of a window that is not there any more; the number to wait for.

        Args:
            remains: what that is, as far as it is known by now.
        """
        self._discarded[stored.number] = remains
        number = self.write()
        stored.give_up(lambda: self._discard(stored.number, stored.remains()))
        return number

    def _discard(self, number: int, remains: Remains) -> None:
        """Delete all values of a window in the background, then forget that there were any."""

        def done() -> None:
            self._discarded.pop(number, None)
            self.write()
            self._forgotten()

        discard_all(self._session, number, remains, done)
