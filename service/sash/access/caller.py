"""Who makes a call: a value that admission finds, and that the plane asks.

edge ──▶ Admission.identify: call.caller = Caller ──▶ plane ──▶ Access.require(right, window)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from math import inf

from sash.access.quota import Bucket
from sash.access.rights import Right
from sash.context import CALL


class Caller:
    """Somebody with a token. All calls with one token share one caller.

    Args:
        name: what the audit log calls it.
        role: the highest right that it has.
        windows: patterns of the names of the windows that it may see: `*`, `?` and `[…]`, as in file names.
        expires_s: when its token expires, in seconds since the Unix epoch.
        is_current: whether its token is still accepted; asked at each use, so that streams end when a token goes.

    `calls` and `entries` are its quotas; None where there is none.
    """

    def __init__(
        self,
        name: str,
        role: Right,
        windows: Sequence[str],
        *,
        expires_s: float = inf,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_current = is_current
        self.calls: Bucket | None = None
        self.entries: Bucket | None = None
        self.allow(name, role, windows, expires_s)

    def allow(self, name: str, role: Right, windows: Sequence[str], expires_s: float) -> None:
        """Set what it may do. Streams that are open go by it from their next message on."""
        self.name = name
        self.role = role
        self.expires_s = expires_s
        self.sees_every_window = "*" in windows
        self._windows = [re.compile(translate(pattern)) for pattern in windows]

    def sees(self, window: str) -> bool:
        """Whether one of the patterns matches the name of a window."""
        return self.sees_every_window or any(pattern.match(window) for pattern in self._windows)


def calling() -> Caller | None:
    """Return who makes the call that is served; None where nobody has been authenticated."""
    call = CALL.get()
    return None if call is None else call.caller
