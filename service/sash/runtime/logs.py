"""The log: lines for people, or a JSON object a line for programs (`SASH_LOG_FORMAT=json`).

    2026-01-31 12:00:00,250 WARNING sash.audit: who=- operation="GET /v1/windows" … request_id=9f2c…
    {"time": "2026-01-31T12:00:00.250Z", "level": "warning", "logger": "sash.audit", "message": "…",
     "request_id": "9f2c…", "who": "-", "operation": "GET /v1/windows", …}

What is logged while a call is served has the id of its request. A record's `members` become members of the object.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal

from sash.context import CALL

__all__ = ["MEMBERS", "JsonLines", "PlainLines", "begin"]

MEMBERS = "members"
"""The attribute of a record with what a line says, as a mapping: `_log.info(…, extra={MEMBERS: {…}})`."""


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


def begin(level: str, form: Literal["text", "json"]) -> None:
    """Write the log of this process to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # Their warnings are about requests and headers that are none. They need no token, and would fill the disk.
    for name in ("uvicorn", "opentelemetry.trace.propagation"):
        logging.getLogger(name).setLevel(logging.ERROR)
