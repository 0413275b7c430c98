"""Calls to several shards side by side, and which of their errors is told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Iterable, Mapping
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

K = TypeVar("K", bound=Hashable)
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


async def together(calls: Mapping[K, Coroutine[Any, Any, R]]) -> tuple[dict[K, R], dict[K, SashError]]:
    """Make calls side by side, as to several shards; return the answers, and the errors, by what each call is for.

    Raises:
        Exception: what is no `SashError`, once all calls have ended.
    """
    found = await asyncio.gather(*calls.values(), return_exceptions=True)
    answers: dict[K, R] = {}
    errors: dict[K, SashError] = {}
    for name, answer in zip(calls, found, strict=True):
        if isinstance(answer, SashError):
            errors[name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[name] = answer
    return answers, errors
