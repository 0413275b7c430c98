"""The log: lines for people, or a JSON object a line for programs (`SASH_LOG_FORMAT=json`).

    2026-01-31 12:00:00,250 WARNING sash.audit: who=- operation="GET /v1/windows" … request_id=9f2c…
    {"time": "2026-01-31T12:00:00.250Z", "level": "warning", "logger": "sash.audit", "message": "…",
     "request_id": "9f2c…", "who": "-", "operation": "GET /v1/windows", …}

What is logged while a call is served has the id of its request. A record's `members` become members of the object.
"""

from __future__ import annotations

import json
import logging
import os
import select
from datetime import UTC, datetime
from typing import Literal

from sash.context import CALL

_log = logging.getLogger(__name__)

MEMBERS = "members"
"""The attribute of a record with what a line says, as a mapping: `_log.info(…, extra={MEMBERS: {…}})`."""

_STDERR = 2
_PATIENCE_MS = 100
"""A reader that is only slow gets this much time for its pipe, once: then records are lost until it reads again."""


class PlainLines(logging.Formatter):
    """A line for people. It ends with the id of the request, if there is one and the message has it not."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        """Format a record without its exception."""
        line = super().formatMessage(record)
        call = CALL.get()
        if call is None or "request_id" in getattr(record, MEMBERS, ()):
            return line
        return f"{line} request_id={call.id}"


class JsonLines(logging.Formatter):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        said: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        call = CALL.get()
        if call is not None:
            said["request_id"] = call.id
        said |= getattr(record, MEMBERS, {})
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)


class StderrHandler(logging.Handler):
    """Writes lines to standard error, and loses them where nobody reads it.

    A pipe that is full blocks who writes to it. A log that stands still must not stop the service, so a record is
    written when there is room for it. How many were lost is the first thing that a reader gets when it reads again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._room = select.poll()
        self._room.register(_STDERR, select.POLLOUT)
        self._unwritten = b""
        """The rest of a record that has begun: what a reader gets are whole lines."""
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it as lost."""
        try:
            if self._written() and self._lost:
                text = f"{self._lost} records of the log before this one were lost: nobody read it"
                lost = logging.LogRecord(_log.name, logging.WARNING, __file__, 0, text, (), None)
                self._unwritten, self._lost = self._line(lost), 0
            if self._written():
                self._unwritten = self._line(record)
                self._written()
            else:
                self._lost += 1
        except OSError:  # there is no reader any more
            self._unwritten = b""
            self._lost += 1
        except Exception:  # the record cannot be formatted
            self.handleError(record)

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="replace")

    def _written(self) -> bool:
        """Write what is left, and return whether that was all."""
        while self._unwritten:
            if not self._room.poll(0 if self._lost else _PATIENCE_MS):
                return False
            # A pipe with room takes this much without a wait.
            written = os.write(_STDERR, self._unwritten[: select.PIPE_BUF])
            self._unwritten = self._unwritten[written:]
        return True


def _of_us(record: logging.LogRecord) -> bool:
    """Whether gRPC logs something else than that a caller has gone before its answer."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != "ExecuteBatchError"


def begin(level: str, form: Literal["text", "json"]) -> None:
    """Write the log of this process to standard error."""
    handler = StderrHandler()
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("grpc._cython.cygrpc").addFilter(_of_us)
    # Their warnings are about requests and headers that are none. They need no token, and would fill the disk.
    for name in ("uvicorn", "opentelemetry.trace.propagation"):
        logging.getLogger(name).setLevel(logging.ERROR)
