"""The audit log: one line for each call that matters, on the logger `sash.audit`.

who=flights-admin operation=delete window=flights from=10.0.0.7:52114 outcome=ok
who=- operation="GET /v1/windows" window=- from=10.0.0.9:40512 outcome=UNAUTHENTICATED

Successes and failures are at level INFO, refusals at WARNING.
"""

from __future__ import annotations

import json
import logging
import re

from sash.access.caller import CALLER, PEER
from sash.access.quota import Bucket
from sash_engine.clock import Clock

__all__ = ["Audit"]

_REFUSALS_A_SECOND = 100
_CHARACTERS_MAX = 200
_PLAIN = re.compile(r"[\w.:@/*\[\]%-]+", re.ASCII)

_log = logging.getLogger("sash.audit")


class Audit:
    """Writes the audit log.

    Refusals cost a caller nothing, so somebody without a token could fill the disk with them. Those beyond a hundred a
    second are counted instead, and the next line says how many there were.

    Args:
        clock: limits the refusals.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals = Bucket(_REFUSALS_A_SECOND, clock.monotonic_s())
        self._unsaid = 0

    def note(self, operation: str, window: str | None, outcome: str) -> None:
        """Write that the caller did something."""
        _log.info("%s", _line(operation, window, outcome))

    def refused(self, operation: str, window: str | None, outcome: str) -> None:
        """Write that the caller was refused something."""
        if self._refusals.take(1, self._clock.monotonic_s()):
            self._unsaid += 1
            return
        more = f" unlogged_refusals={self._unsaid}" if self._unsaid else ""
        self._unsaid = 0
        _log.warning("%s%s", _line(operation, window, outcome), more)


def _line(operation: str, window: str | None, outcome: str) -> str:
    caller = CALLER.get()
    parts = {
        "who": "-" if caller is None else caller.name,
        "operation": operation,
        "window": "-" if window is None else window,
        "from": PEER.get()(),
        "outcome": outcome,
    }
    return " ".join(f"{name}={_value(text)}" for name, text in parts.items())


def _value(text: str) -> str:
    # A caller chooses some of these: a line break or a quotation mark must not make a second entry of them.
    short = text[:_CHARACTERS_MAX]
    return short if _PLAIN.fullmatch(short) else json.dumps(short)
