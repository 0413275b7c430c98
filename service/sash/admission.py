"""Lets calls in: the one order in which it is decided about calls of gRPC, Connect, REST and PromQL.

    head       host ─▶ origin ─▶ identity ─▶ quota of calls     HTTP: `sash.rest.guards`; `Admission.identify`
    path       right on the window, where the head names it     HTTP: `Admission.require`
    message    a place is free? ─▶ memory ─▶ turn ─▶ place      `Lease`
    operation  right on the window, quota of entries            the plane, for all of them
    end        place and memory are given back                  `Lease.close`

What comes first costs least. Nobody has memory before it is known who calls, and a call has its place only while it is
worked on. A write may go on when its caller has gone: until it is over, its place and its memory are its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sash.access.access import Access
from sash.access.rights import Right
from sash.calls import going
from sash.context import serving
from sash.limits.memory import MemoryBudget, mine
from sash.limits.places import Places
from sash.limits.turns import Turns
from sash_engine.errors import SashError


class Admission:
    """Lets the calls of one edge in.

    Args:
        access: who may call.
        memory: where messages and answers are reserved.
        turns: who goes first when the service is busy.
        places: how many calls may be in progress.
        closing: is set when the service is about to end, and refuses new calls from then on; None: they go on.
    """

    def __init__(
        self,
        access: Access,
        memory: MemoryBudget,
        turns: Turns,
        places: Places,
        closing: asyncio.Event | None = None,
    ) -> None:
        self._access = access
        self.asks_who_calls = access.is_on
        """Whether a call needs a token or a certificate."""
        self.memory = memory
        self.turns = turns
        self.places = places
        self.closing = closing

    def goes_by_certificate(self, credentials: Sequence[object]) -> bool:
        """Whether the client's certificate says who makes a call; arguments as `identify`."""
        return self._access.asks_for_certificate(credentials)

    async def identify(self, credentials: Sequence[bytes], names: Sequence[str] = ()) -> None:
        """Find out who makes a call, and charge its quota of calls.

        Args:
            credentials: the values of the headers `authorization`.
            names: those in the client's certificate, where `goes_by_certificate`.

        Raises:
            Unauthenticated: nobody knows the caller.
            ResourceExhausted: the quota is used up.
            Unavailable: the keys that the token is to be checked with cannot be fetched.
        """
        access = self._access
        if not access.is_on:
            return
        if access.asks_for_certificate(credentials):
            serving().caller = access.caller_with(names)
        else:
            serving().caller = await access.caller_of(credentials)

    def require_every_window(self, what: str) -> None:
        """Check that the caller may see all windows; raises as `Access.require_every_window`."""
        self._access.require_every_window(what)

    def refused(self, what: str, error: SashError) -> None:
        """Note in the audit log that a call was refused before it is known which window it is for."""
        self._access.audit_entry(what, error)

    def require(self, what: str, right: Right, window: str | None) -> None:
        """Check a right of the caller on a window before the body of its call is read; raises as `Access.require`."""
        access = self._access
        if access.is_on and not access.allows(right, window):
            access.admit(what, right, window)


class Lease:
    """What one call has whose caller has been identified; a context in which it has a place.

    Args:
        admission: that lets it in.
        address: that the call comes from. It stands for a caller whom nobody knows.

    Attributes:
        name: of the caller.
        memory: what the call has reserved.
    """

    __slots__ = ("_admission", "_call", "_has_place", "memory", "name")

    def __init__(self, admission: Admission, address: str) -> None:
        self._admission = admission
        self._has_place = False
        self._call = call = serving()
        self.name = call.name = name = address if call.caller is None else call.caller.name
        self.memory = admission.memory.reservation(name)

    def check(self) -> None:
        """Raise `Unavailable` where the call has no place now: before its message is read."""
        admission = self._admission
        if admission.closing is not None and admission.closing.is_set():
            raise going(unchanged=True)
        admission.places.check(self.name)

    def must_wait(self, size: int, parsed_bytes: int = 0, reads: bool = False) -> bool:
        """Whether the call must wait for its `turn`; else it has been charged for it.

        Args:
            size: of the message, or what is announced of it.
            parsed_bytes: what it takes when it is parsed: reserved first, as the message waits.
            reads: whether the call is a question.

        Raises:
            ResourceExhausted, TooLarge: there is no memory for it.
        """
        if parsed_bytes:
            (mine() or self.memory).take(parsed_bytes)  # a message of a stream has a reservation of its own
        return self._admission.turns.pays(self.name, size, reads)

    async def turn(self, size: int, reads: bool = False) -> None:
        """Wait for the call's turn, and charge the caller; arguments as `must_wait`."""
        await self._admission.turns.turn(self.name, size, reads)

    def enter(self) -> None:
        """Take a place; raises `Unavailable` where there is none."""
        admission = self._admission
        if admission.closing is not None and admission.closing.is_set():
            raise going(unchanged=True)
        admission.places.enter(self.name)
        self._has_place = True

    def leave(self) -> None:
        """Give the place back, if the call has one."""
        if self._has_place:
            self._has_place = False
            self._admission.places.leave(self.name)

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.worked()

    def worked(self) -> None:
        """Give the place back, as nobody works on the call any more: now, or when its write is over."""
        if self._call.is_going_on:
            self._call.when_over(self.leave)
        else:
            self.leave()

    def close(self) -> None:
        """Give everything back: now, or when the call's write is over."""
        if self._call.is_going_on:
            self._call.when_over(self.close)
        else:
            self.leave()
            self.memory.release()
