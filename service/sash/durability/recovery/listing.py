"""Which windows a tier has: the value `meta`, written again whenever a window comes or goes.

    meta ── windows     number, durability and spec of each window
         ── derived     the specs of windows that are stored with another one: cascades and views
         ── next        the first number that was never given to a window
         ── discarded   windows whose values are being deleted: number and `Remains`          see roots.py

Deleting goes on after a restart. A window that is being imported is listed as discarded until it is complete. So an
import that ends half-way leaves nothing.

Cascades and views come and go with records of the window that they are stored with. `meta` lists them for the case that
this window is lost: they are then listed with its problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sash.durability.images.manifest import Remains
from sash.durability.images.stored_window import StoredWindow
from sash.durability.journal.roots import Meta
from sash.durability.journal.session import TierSession
from sash.durability.recovery.recovery import RecoveredTier


class Listing:
    """The windows of one service as its tier lists them.

    Args:
        session: the tier.
        windows: the stored windows, by name.
        deleted: called when all values of a deleted window are gone.
    """

    def __init__(self, session: TierSession, windows: Mapping[str, StoredWindow], deleted: Callable[[], None]) -> None:
        self._session, self._windows, self._deleted = session, windows, deleted
        self._next = 1
        self._bound = self._owned = 1
        self._discarded: dict[int, Remains] = {}

    def resume(self, found: RecoveredTier) -> Callable[[], None]:
        """Take over what was recovered. Call the result to go on deleting, once the journal runs."""
        self._next, self._bound, self._owned = found.next_window, found.bound, found.owned
        self._discarded = dict(found.discarded)
        found_remains = {
            number: remains.with_later(self._session, number) for number, remains in found.discarded.items()
        }

        def go_on() -> None:
            for number, remains in found_remains.items():
                self._discard(number, remains)

        return go_on

    def take_number(self) -> int:
        """Return the number for a new window."""
        self._next += 1
        return self._next - 1

    def write(self, new: Mapping[bytes, bytes] | None = None) -> int:
        """Write `meta`, in order with the records; return the number of the record to wait for.

        Args:
            new: further values for the same commit.
        """
        windows = [
            (stored.number, stored.durability, stored.document())
            for stored in sorted(self._windows.values(), key=lambda stored: stored.number)
        ]
        discarded = [(number, remains.document()) for number, remains in self._discarded.items()]
        derived = {
            stored.number: documents for stored in self._windows.values() if (documents := stored.derived_documents())
        }
        journal = self._session.journal
        meta = Meta(windows, self._next, discarded, journal.last + 1, self._bound, self._owned, derived)
        puts = {**meta.puts(self._session.id), **(new or {})}
        return journal.append(0, lambda: None, 1000, puts=lambda: puts, logged=False)

    # ---------------------------------------------------------------- windows that go, or are not complete yet

    def expect(self, stored: StoredWindow) -> int | None:
        """List a window that is being imported: until `arrived`, a restart deletes what the tier has of it.

        Returns:
            the number of the record to wait for; None if the window is listed already.
        """
        if stored.number in self._discarded:
            return None
        self._discarded[stored.number] = Remains()
        return self.write()

    def arrived(self, stored: StoredWindow) -> int:
        """List an imported window as complete; return the number of the record to wait for."""
        self._discarded.pop(stored.number)
        return self.write()

    def delete(self, stored: StoredWindow, remains: Remains) -> int:
        """Delete a window and everything that the tier has of it; return the number of the record to wait for.

        Args:
            remains: what the tier has of it by now. Images that are being written add to it.
        """
        self._discarded[stored.number] = remains
        number = self.write()
        stored.delete(lambda: self._discard(stored.number, stored.remains()))
        return number

    def _discard(self, number: int, remains: Remains) -> None:
        """Delete all values of a window in the background, then take it off the list."""

        def done() -> None:
            self._discarded.pop(number, None)
            self.write()
            self._deleted()

        self._session.discard(number, remains.all_keys(number), done)
