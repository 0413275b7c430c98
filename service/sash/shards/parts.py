"""Calls to several shards side by side, and which of their errors is told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from sash_engine.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SashError,
    Unavailable,
    Unsupported,
)

R = TypeVar("R")

_SEVERE: tuple[type[SashError], ...] = (
    PermissionDenied,
    NotFound,
    InvalidArgument,
    Unsupported,
    FailedPrecondition,
    SashError,
)


def worst(errors: Iterable[SashError]) -> SashError:
    """Return the error to tell: one that does not pass, before one that does."""
    found = list(errors)
    lasting = [error for error in found if not isinstance(error, Unavailable)]
    for kind in _SEVERE:
        for error in lasting:
            if isinstance(error, kind):
                return error
    return found[0]


async def together(calls: Mapping[int, Coroutine[Any, Any, R]]) -> tuple[dict[int, R], dict[int, SashError]]:
    """Make calls to several shards side by side; return the answers, and the errors, by shard.

    Raises:
        Exception: what is no `SashError`, once all calls have ended.
    """
    found = await asyncio.gather(*calls.values(), return_exceptions=True)
    answers: dict[int, R] = {}
    errors: dict[int, SashError] = {}
    for shard, answer in zip(calls, found, strict=True):
        if isinstance(answer, SashError):
            errors[shard] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[shard] = answer
    return answers, errors
