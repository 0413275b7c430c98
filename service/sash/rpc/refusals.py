"""What `sash_wire` refuses, as an error of the service."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from sash_engine.errors import InvalidArgument
from sash_wire.errors import WireError

__all__ = ["refusing"]

P = ParamSpec("P")
R = TypeVar("R")


def refusing(read: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that reads messages: what `sash_wire` refuses becomes an `InvalidArgument`."""

    @wraps(read)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return read(*args, **kwargs)
        except WireError as error:
            raise InvalidArgument(error.message, field=error.field, limit=error.limit) from None

    return wrapped
