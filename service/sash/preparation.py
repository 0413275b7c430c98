"""What comes before a service: the settings as they are used, its memory, and the line that says that it serves.

The first of several processes needs no more than this, and starts the others at once. To import what they import would
take as long as they take.
"""

from __future__ import annotations

import logging
import os

from sash import logs
from sash.limits.files import raise_limit
from sash.limits.memory import SHARE, MemoryBudget, available_bytes
from sash.settings import Settings, misspelt

__all__ = ["budget", "prepared", "started"]

_log = logging.getLogger(__name__)


def budget(settings: Settings) -> MemoryBudget:
    """How much memory a service may use, and its parts."""
    limit = settings.memory_bytes or int(SHARE * available_bytes())
    unread, staged = settings.max_unread_bytes or limit // 4, settings.max_staged_bytes or limit // 2
    return MemoryBudget(
        limit, {"bodies": (unread, "SASH_MAX_UNREAD_BYTES"), "staged": (staged, "SASH_MAX_STAGED_BYTES")}
    )


def prepared(settings: Settings) -> Settings:
    """Begin to log, and return the settings with as many connections as there may be open files."""
    logs.begin(settings.log_level, settings.log_format)
    for said in misspelt(os.environ):
        _log.warning("%s", said)
    # Of the files, two fifths are for connections of HTTP and as many for those of gRPC. The tier has the others.
    connections = max(1, min(settings.max_connections, raise_limit() * 2 // 5))
    return settings.model_copy(update={"max_connections": connections})


def started(settings: Settings, grpc_port: int, rest_port: int) -> str:
    """The line that says that a service serves. Scripts wait for it, and read the ports from it."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.tls_cert is None else "https"
    return f"sash: gRPC on {host}:{grpc_port}, REST and page on {scheme}://{host}:{rest_port}/"
