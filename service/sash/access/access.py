"""Who may do what: the one place that decides.

    edge    caller_of(credentials)  ──▶  tokens.py, jwt.py     401 where nobody is known
            caller_with(names)      ──▶  tokens.py             of a certificate, where there is no token
    plane   require(right, window)  ──▶  the caller of the call     403 where it has no such right

An edge authenticates a call before it reads a body. The plane authorizes every operation, whatever edge it comes from.
Without a source of callers, everybody may do everything, and nothing is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import Protocol

from sash.access.audit import Audit
from sash.access.caller import Caller, calling
from sash.access.rights import RIGHTS, Right
from sash_engine.clock import Clock
from sash_engine.errors import PermissionDenied, ResourceExhausted, SashError, Unauthenticated

TOKEN_BYTES_MAX = 8192
_KNOWN_MAX = 10_000
_REFUSALS = (Unauthenticated, PermissionDenied)


class Source(Protocol):
    """Knows tokens."""

    async def caller_of(self, token: bytes) -> Caller | None:
        """Who has this token; None if it is not of this source.

        Raises:
            Unauthenticated: it is of this source, and not valid.
        """

    async def refresh(self) -> None:
        """Look for new tokens; called about once a second."""


@dataclass
class Audited:
    """An entry of the audit log that is being made; whoever learns the window's name late sets it."""

    window: str | None


class Access:
    """Authenticates calls, authorizes operations, and writes the audit log.

    Args:
        clock: measures quotas, and tells whether tokens have expired.
        sources: who knows tokens. If there are none, everybody may do everything.
        certified: finds callers by the names in their certificates; None where certificates have no rights.
    """

    def __init__(
        self,
        clock: Clock,
        sources: Sequence[Source] = (),
        certified: Callable[[Sequence[str]], Caller | None] | None = None,
    ) -> None:
        self._clock = clock
        self._sources = sources
        self._certified = certified
        self.is_on = bool(sources)
        """Whether a call needs a token."""
        self.audit = Audit(self._clock)
        self._known: dict[bytes, Caller] = {}
        """Callers by the SHA-256 of their credentials, which were valid once."""

    async def refresh(self) -> None:
        """Look for new tokens; to be called about once a second."""
        for source in self._sources:
            await source.refresh()

    async def caller_of(self, credentials: Sequence[bytes]) -> Caller:
        """Say who makes a call, and charge its quota of calls.

        Args:
            credentials: the values of the headers `authorization`.

        Raises:
            Unauthenticated: there is no valid token.
            ResourceExhausted: the quota is used up.
            Unavailable: the keys that it is to be checked with cannot be fetched.
        """
        caller = self.known(credentials)
        if caller is not None:
            return self.charge_call(caller)
        token = _token_of(credentials)
        for source in self._sources:
            caller = await source.caller_of(token)
            if caller is not None:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.pop(next(iter(self._known)))
                self._known[_digest(credentials)] = caller
                return self.charge_call(caller)
        raise Unauthenticated("the token is unknown", field="authorization")

    def known(self, credentials: Sequence[bytes]) -> Caller | None:
        """Who makes a call, where its token was valid before, and still is; arguments as `caller_of`."""
        caller = self._known.get(_digest(credentials))
        return caller if caller is not None and caller.is_current() else None

    def asks_for_certificate(self, credentials: Sequence[object]) -> bool:
        """Whether `caller_with` says who makes a call, and not `caller_of`: it has no token."""
        return self._certified is not None and not credentials

    def caller_with(self, names: Sequence[str]) -> Caller:
        """Say who makes a call without a token, by the names in its certificate; raises as `caller_of`."""
        caller = None if self._certified is None else self._certified(names)
        if caller is None:
            named = f"the certificate of {names[0][:80]!r} has no rights" if names else "there is no certificate"
            raise Unauthenticated(f"{named}, and the header authorization is missing: {_HOW}", field="authorization")
        return self.charge_call(caller)

    def charge_call(self, caller: Caller) -> Caller:
        """Charge a caller's quota of calls; raises as `caller_of`."""
        self._check_current(caller)
        if caller.calls is not None:
            wait_s = caller.calls.take(1, self._clock.monotonic_s())
            if wait_s:
                raise _over_quota(caller, "calls", caller.calls.rate, wait_s)
        return caller

    def require(self, operation: str, window: str | None) -> None:
        """Check that the caller of this call may do an operation.

        The answer does not depend on whether there is such a window.

        Args:
            operation: a name in `RIGHTS`.
            window: the window's name; None: the operation as such, whichever the window.

        Raises:
            Unauthenticated: the caller is not known, or no longer.
            PermissionDenied: it has no such right.
        """
        if self.is_on and not self.allows(RIGHTS[operation], window):
            self._require(operation, RIGHTS[operation], window)

    def admit(self, what: str, right: Right, window: str | None) -> None:
        """Check a right before it is known which operation it is for; `what` is for the audit log. As `require`."""
        if self.is_on:
            self._require(what, right, window)

    def allows(self, right: Right, window: str | None) -> bool:
        """Whether the caller of this call has a right, and that is quick to see; False where `admit` must tell."""
        caller = calling()
        return (
            caller is not None
            and caller.role >= right
            and (window is None or caller.sees_every_window or caller.sees(window))
            and caller.expires_s == inf
            and caller.is_current()
        )

    def sees(self, window: str) -> bool:
        """Whether the caller of this call may know that there is such a window."""
        if not self.is_on:
            return True
        caller = calling()
        return caller is not None and caller.sees(window)

    @property
    def sees_every_window(self) -> bool:
        """Whether the caller of this call may know of all windows."""
        caller = calling()
        return not self.is_on or (caller is not None and caller.sees_every_window)

    def require_every_window(self, operation: str) -> None:
        """Check that the caller may read all windows, for what shows the names of all; raises as `require`."""
        if self.is_on:
            self._require(operation, Right.READ, None)
            if not self.sees_every_window:
                raise self._denied(operation, Right.READ, "*")

    @property
    def is_admin(self) -> bool:
        """Whether a token with the role `admin` makes this call."""
        caller = calling()
        return self.is_on and caller is not None and caller.role is Right.ADMIN

    def charge(self, entries: int) -> None:
        """Charge entries to the caller's quota; raises ResourceExhausted if it is used up."""
        if not self.is_on:
            return
        caller = calling()
        if caller is not None and caller.entries is not None:
            wait_s = caller.entries.take(entries, self._clock.monotonic_s())
            if wait_s:
                raise _over_quota(caller, "entries", caller.entries.rate, wait_s)

    def audit_entry(self, operation: str, error: SashError) -> None:
        """Write to the audit log that a call was refused before it named a window."""
        if isinstance(error, Unauthenticated):
            self.audit.refused(operation, None, error.reason())

    @contextmanager
    def audited(self, operation: str, window: str | None) -> Iterator[Audited]:
        """Write to the audit log how an operation ended. Refusals are written where they are raised."""
        entry = Audited(window)
        try:
            yield entry
        except _REFUSALS:
            raise
        except Exception as error:
            outcome = error.reason() if isinstance(error, SashError) else "INTERNAL"
            self.audit.note(operation, entry.window, outcome)
            raise
        self.audit.note(operation, entry.window, "ok")

    def _require(self, operation: str, right: Right, window: str | None) -> None:
        caller = calling()
        if caller is None:
            raise Unauthenticated("the call has no token", field="authorization")
        self._check_current(caller)
        if caller.role < right or (window is not None and not caller.sees(window)):
            raise self._denied(operation, right, window)

    def _denied(self, operation: str, right: Right, window: str | None) -> PermissionDenied:
        self.audit.refused(operation, window, PermissionDenied.reason())
        caller = calling()
        who = "the caller" if caller is None else f"{caller.name!r}"
        what = "any window" if window is None else f"window {window[:140]!r}"
        return PermissionDenied(f"{who} has no right {str(right)!r} on {what}", field="window")

    def _check_current(self, caller: Caller) -> None:
        if not caller.is_current():
            raise Unauthenticated("the token is no longer accepted", field="authorization")
        if caller.expires_s != inf and self._clock.now_ns() >= caller.expires_s * 1e9:
            raise Unauthenticated("the token has expired", field="authorization")


_HOW = "send Authorization: Bearer TOKEN (curl -H 'Authorization: Bearer TOKEN')"


def _digest(credentials: Sequence[bytes]) -> bytes:
    # A token is found by its digest, as in a file of tokens, so how long it takes tells nothing about known ones.
    return sha256(credentials[0]).digest() if len(credentials) == 1 else b""


def _token_of(credentials: Sequence[bytes]) -> bytes:
    if len(credentials) != 1:
        wrong = "is there more than once" if credentials else "is missing"
        raise Unauthenticated(f"the header authorization {wrong}: {_HOW}", field="authorization")
    scheme, _, token = credentials[0].strip().partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token or b" " in token:
        raise Unauthenticated(f"the header authorization has no token: {_HOW}", field="authorization")
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthenticated("the token is too long", field="authorization", limit=f"{TOKEN_BYTES_MAX} bytes")
    return token


def _over_quota(caller: Caller, what: str, rate: float, wait_s: float) -> ResourceExhausted:
    return ResourceExhausted(
        f"{caller.name!r} has used up its quota of {what}", limit=f"{rate:g} {what} a second", retry_after_s=wait_s
    )
