"""The world of one service on one disk."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from sash_client.errors import NotFound, Unavailable
from tests.simulation.callers import GATHERED, KEPT, KNOWN, PASSING, ROLLED, VIEW, as_logged, compared
from tests.simulation.ending import all_forms, resharded
from tests.simulation.history import History
from tests.simulation.world import Caller, World
from tests.support.stored import ALWAYS

__all__ = ["Single"]

_EMPTY_TRIES = 12
_SETTLED_S = 10.0
"""After the last fault: longer than a commit is tried again, so that what is in memory is durable."""


class Single(World):
    """See above."""

    def begin(self) -> None:
        """Make the histories."""
        said = self.scenario
        some = (*[ROLLED] * said.rolled, *[GATHERED] * said.gathered, *[KNOWN] * said.known)
        self.histories = {name: History() for name in (KEPT, PASSING, *some)}

    def made(self) -> None:
        self.disk.misdirects = self.scenario.misdirects

    async def compare(self) -> None:
        """Whatever has happened, all is well now, and stays so."""
        self.disk.misdirects = False
        self.disk.faults.clear()
        self.disk.faults_of.clear()
        self.disk.failing_reads.clear()
        self.net.clear()
        self.kills.clear()
        if self.damaged:
            with contextlib.suppress(Unavailable):  # if not at all, nothing is answered wrong
                await self._damaged()
            self.met[f"damaged | {'no process starts' if self.told else 'a process starts'}"] += 1
            return
        await self._settle()
        await compared(self, "at the end")
        await as_logged(self, "at the end")
        await all_forms(self, "at the end")
        await resharded(self)
        ending = self.random.choice(["stopped", "power", "killed"])
        served = await self.serving()
        if ending == "stopped":
            await served.stop()
        else:
            served.die(ending == "power")
        await self.serving()
        what = f"after it was {ending}" if ending != "power" else "after a loss of power"
        await compared(self, what)
        await as_logged(self, what)
        await all_forms(self, what)
        await self._emptied()

    async def _settle(self) -> None:
        """Wait until what was held back has happened, a process that stands still included."""
        await self.serving()
        await asyncio.sleep(max(self.loop.late_until_s - self.loop.time(), 0.0) + _SETTLED_S)
        for history in self.histories.values():
            self.checked(history.settled)

    async def _damaged(self) -> None:
        """What is answered fits, now and after another start; all else is an error that says what is damaged."""
        for what in ("damaged", "damaged, and started again"):
            await self._settle()
            await compared(self, what)
            (await self.serving()).die()

    async def _emptied(self) -> None:
        """Nothing is left of windows that are deleted, in memory and in the store, but what a store always has."""
        client = Caller(self, "last", 60.0)
        for name in [VIEW, *self.copies, *self.histories]:
            with contextlib.suppress(NotFound):
                await client.delete_window(name)
        self.histories.clear()
        for _ in range(
            _EMPTY_TRIES
        ):  # an image that is being taken is ended first: of small blocks on a slow disk it is long
            await asyncio.sleep(5.0)
            served = await self.serving()
            still = _in_memory(served.storage)
            if not still:
                break
        if still:
            raise AssertionError(f"the windows are deleted, and memory has still {still}")
        await served.stop()
        left = sorted(self.disk.values.keys() - ALWAYS)
        if left:
            raise AssertionError(f"the windows are deleted, and the store has still {left[:8]}")


def _in_memory(storage: Any) -> dict[str, Any]:
    """What the storage has of windows."""
    store = storage.store
    session, journal = store.session, store.session.journal
    found = {
        "windows": [*store.windows, *(each.spec.name for each in storage._catalogue.all())],
        "bytes of blocks": session.cache.used_bytes,
        "bytes that are not stored": session._unstored_bytes,
        "what waits for a commit": len(journal._records) + len(journal._writes) + len(journal._waiting),
        "readers": len(session.pins._pins),
        "deletions": len(store.listing._discarded),
    }
    return {what: much for what, much in found.items() if much}
