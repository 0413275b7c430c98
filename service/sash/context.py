"""The call that is being served: one value that its edge makes, and that everything behind the edge may ask.

    edge ──▶ CALL.set(CallContext(…)) ──▶ admission: caller, name ──▶ plane, shards, the log and the audit log ask it

A task that a call starts is of that call, too. Work that no caller asked for has none.

A caller may choose the id (`X-Request-Id`; in gRPC the metadata `x-request-id`). It is written into logs and answers,
so only short ids of plain characters are taken over; for others the service makes one. Most calls never need their id:
the headers are read, or an id is made, when somebody asks for it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

HEADER = "x-request-id"

_TRACE = ("traceparent", "tracestate")
_PLAIN = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}")

Headers = Iterable[tuple[str | bytes, str | bytes]]


class CallContext:
    """One call.

    Args:
        headers: returns its headers, names in lower case; None where there are none.
        address: returns the address that it comes from.
        caller: as the attribute.
        shard: as the attribute.
        applied: as the attribute.

    Attributes:
        caller: who makes it, a `sash.access.caller.Caller`; None where nobody has been authenticated.
        name: who is charged for it: the caller's name, else an address. Its lease sets it.
        shard: the one shard that it is for; it has no answer for others, and forwards nothing. None: all of them.
        missing: where a question notes the shards that its answer lacks; None: it must lack none.
        applied: is called when the call's write is applied, and waits for nothing but the tier.
    """

    __slots__ = ("_address", "_headers", "_id", "_write", "applied", "caller", "missing", "name", "shard")

    def __init__(
        self,
        headers: Callable[[], Headers | None] = lambda: None,
        address: Callable[[], str] = lambda: "-",
        *,
        caller: Any = None,
        shard: int | None = None,
        applied: Callable[[], None] = lambda: None,
    ) -> None:
        self._headers = headers
        self._address = address
        self._id: str | None = None
        self._write: asyncio.Future[Any] | None = None
        self.caller = caller
        self.name = ""
        self.shard = shard
        self.missing: set[int] | None = None
        self.applied = applied

    @property
    def id(self) -> str:
        """The id that the caller chose; one that is made here if it chose none, or none that may be used."""
        if self._id is None:
            given = self.header(HEADER)
            self._id = given if given is not None and _PLAIN.fullmatch(given) else new_id()
        return self._id

    @property
    def address(self) -> str:
        """The address that the call comes from."""
        return self._address()

    def header(self, name: str) -> str | None:
        """Return a header; None where there is none, or more than one."""
        found = [_text(value) for each, value in self._headers() or () if _text(each) == name]
        return found[0] if len(found) == 1 else None

    def trace(self) -> dict[str, str]:
        """Return the headers of W3C Trace Context."""
        found = ((name, self.header(name)) for name in _TRACE)
        return {name: value for name, value in found if value is not None}

    # ------------------------------------------------ a write that goes on when whoever waited for it has gone
    #
    #     call    place, memory ── write ── cancelled ╴╴╴╴╴╴╴╴╴╴╴╴╴╴╴ place, memory given back
    #     write                    └────────────────────────────────── over
    #
    # Else a caller who sends bulks and calls them off has as many under way as it likes, and nobody counts them.

    def goes_on(self, write: asyncio.Future[Any]) -> None:
        """Note that a write of this call goes on when the call ends."""
        self._write = write

    @property
    def is_going_on(self) -> bool:
        """Whether a write of this call goes on."""
        return self._write is not None and not self._write.done()

    def when_over(self, end: Callable[[], None]) -> None:
        """Call something when the write that goes on is over."""
        assert self._write is not None
        self._write.add_done_callback(lambda _: end())


CALL: ContextVar[CallContext | None] = ContextVar("call", default=None)
"""The call that is being served; None in work that no caller asked for."""


def serving() -> CallContext:
    """Return the call that is being served. Work that no caller asked for becomes one here."""
    call = CALL.get()
    if call is None:
        call = CallContext()
        CALL.set(call)
    return call


def payer() -> str:
    """Return who is charged for what is done now; empty in work that no caller asked for."""
    call = CALL.get()
    return "" if call is None else call.name


def only_shard() -> int | None:
    """Return the one shard that the call is for; None: all of them."""
    call = CALL.get()
    return None if call is None else call.shard


def missing_shards() -> set[int] | None:
    """Return where a question notes the shards that its answer lacks; None: it must lack none."""
    call = CALL.get()
    return None if call is None else call.missing


def request_id() -> str:
    """Return the id of the call that is being served; a new one where none is."""
    call = CALL.get()
    return new_id() if call is None else call.id


def new_id() -> str:
    """Return a new id."""
    return os.urandom(16).hex()


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
