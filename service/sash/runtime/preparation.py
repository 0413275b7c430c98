"""The steps before a service starts: settings as they are used, memory, and the line that says that it serves.

The first of several processes needs no more than this, and starts the others at once. To import what they import would
take as long as they take.
"""

from __future__ import annotations

import logging
import os
import signal

from sash.limits.files import connections_within, raise_limit
from sash.limits.memory import SHARE, MemoryBudget, available_bytes
from sash.runtime import logs
from sash.settings import Settings, misspelt

_log = logging.getLogger(__name__)

RELOAD = signal.SIGHUP
"""Has a service read the files again that its settings name. It reads them each second anyway: it must not end it."""


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
    connections = min(settings.max_connections, connections_within(raise_limit()))
    return settings.model_copy(update={"max_connections": connections})


def started(settings: Settings, grpc_port: int, rest_port: int) -> str:
    """The line that says that a service serves. Scripts wait for it, and read the ports from it."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.tls_cert is None else "https"
    return f"sash: gRPC on {host}:{grpc_port}, REST and page on {scheme}://{host}:{rest_port}/"


def told_to_reload() -> None:
    """Say what a service that is told to reload its settings does."""
    _log.info(
        "told to reload: files of tokens, keys and certificates are read again within a second of a change; other "
        "settings need a new start"
    )
