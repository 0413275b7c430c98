"""The error of this package. Its users turn it into an error of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class WireError(ValueError):
    """A document, a value or a message that breaks the rules of its form.

    Args:
        message: one sentence that names what is wrong.
        field: path of the offending field, such as ``"aggregates.p95.q"``.
        limit: the bound that was passed, such as ``"64 MiB"``.
    """

    def __init__(self, message: str, *, field: str | None = None, limit: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.limit = limit


class TooLong(WireError):
    """A text is longer than `limit`."""


def raising(error: Callable[..., Exception]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of functions that call this package: its errors become `error`, with the same arguments."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except WireError as refused:
                raise error(refused.message, field=refused.field, limit=refused.limit) from None

        return wrapped

    return decorate
