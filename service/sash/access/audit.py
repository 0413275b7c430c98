"""The audit log: one line for each call that matters, on the logger `sash.audit`.

who=flights-admin operation=delete window=flights from=10.0.0.7:52114 outcome=ok request_id=9f2c…
who=- operation="GET /v1/windows" window=- from=10.0.0.9:40512 outcome=UNAUTHENTICATED \
    request_id=41aa…

Successes and failures are at level INFO, refusals at WARNING.
"""

from __future__ import annotations

import json
import logging
import re

from sash.access.caller import calling
from sash.access.quota import Bucket
from sash.context import CALL, request_id
from sash.runtime.logs import MEMBERS
from sash_engine.clock import Clock

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
        _write(logging.INFO, _parts(operation, window, outcome))

    def refused(self, operation: str, window: str | None, outcome: str) -> None:
        """Write that the caller was refused something."""
        if self._refusals.take(1, self._clock.monotonic_s()):
            self._unsaid += 1
            return
        parts = _parts(operation, window, outcome)
        if self._unsaid:
            parts["unlogged_refusals"] = self._unsaid
        self._unsaid = 0
        _write(logging.WARNING, parts)


def _parts(operation: str, window: str | None, outcome: str) -> dict[str, str | int]:
    caller, call = calling(), CALL.get()
    return {
        "who": "-" if caller is None else caller.name,
        "operation": operation,
        "window": "-" if window is None else window,
        "from": "-" if call is None else call.address,
        "outcome": outcome,
        "request_id": request_id(),
    }


def _write(level: int, parts: dict[str, str | int]) -> None:
    short = {name: value[:_CHARACTERS_MAX] if isinstance(value, str) else value for name, value in parts.items()}
    line = " ".join(f"{name}={_value(value)}" for name, value in short.items())
    _log.log(level, "%s", line, extra={MEMBERS: short})


def _value(value: str | int) -> str:
    # A caller chooses some of these: a line break or a quotation mark must not make a second entry of them.
    short = str(value)
    return short if _PLAIN.fullmatch(short) else json.dumps(short)
