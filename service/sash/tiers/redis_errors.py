"""Errors of Redis, in words for the user of a tier; the keys of a prefix."""

from __future__ import annotations

import re
import ssl

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    DataError,
    InvalidResponse,
    NoPermissionError,
)

from sash_engine.errors import InvalidArgument, OutOfRoom, SashError, Unavailable

_RETRY_AFTER_S = 1.0


def keys_of(prefix: str) -> tuple[bytes, bytes, bytes]:
    """The keys of the fence and of the owner, and the beginning of the keys of values."""
    fence, owner, stem = (f"{{{prefix}}}:{end}".encode() for end in ("fence", "owner", "k:"))
    return fence, owner, stem


def text_of(error: Exception) -> str:
    """What an error says."""
    code = getattr(error, "status_code", None)
    return f"{code} {error}" if code else str(error) or type(error).__name__


def says(error: Exception, *codes: str) -> bool:
    """Whether the server answered with one of these codes. Older servers put it behind the name of the script."""
    return any(re.search(rf"(^|-){code}\b", text_of(error)) for code in codes)


def not_acquired(error: Exception) -> SashError:
    """The error of a tier for one that came while it was opened."""
    wrong = isinstance(
        error, AuthenticationError | AuthorizationError | NoPermissionError | InvalidResponse | DataError
    )
    tls = isinstance(error.__context__, ssl.SSLError)
    if wrong or tls or says(error, "WRONGTYPE") or re.search("DB index|unknown command", str(error), re.IGNORECASE):
        return InvalidArgument(f"Sash cannot use this Redis: {text_of(error)}", field="url")
    if says(error, "OOM"):
        return OutOfRoom(f"Redis is full: {text_of(error)}", limit="maxmemory")
    return Unavailable(f"Redis cannot be reached: {text_of(error)}", retry_after_s=_RETRY_AFTER_S)
