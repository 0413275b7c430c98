"""How many files the process may have open; a connection is one."""

from __future__ import annotations

import logging
import resource
import sys

FEW = 4096
"""With fewer, a service runs out of files before it runs out of places for calls."""

ASIDE = 96
"""So many are for monitors, whose connections come beyond the limits, and for the service itself at its start."""

_log = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise the limit to the hard one, say in the log where that is low, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:  # macOS has no such number as its hard limit
            _log.warning("RLIMIT_NOFILE stays at %d: %s", soft, error)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    if soft < FEW:
        _log.warning(
            "the process may have %d open files (RLIMIT_NOFILE): raise the hard limit to %d or more", soft, FEW
        )
    return soft


def connections_within(files: int) -> int:
    """How many connections of HTTP there may be, and how many of gRPC; a fifth of the files is for the tier."""
    return max(1, (files - ASIDE) * 2 // 5)
