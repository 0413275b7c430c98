"""Calls that are refused, and what their errors say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sash_client
from sash_engine.errors import InvalidArgument, SashError


def refused(
    call: Callable[..., Any],
    *arguments: Any,
    error: type[SashError] = InvalidArgument,
    match: str | None = None,
    **named: Any,
) -> SashError:
    """Make a call that is refused; return its error."""
    with pytest.raises(error, match=match) as caught:
        call(*arguments, **named)
    return caught.value


def refusal(call: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[str | None, str | None]:
    """Make a call that is refused, as `refused`; return the field and the limit that its error names."""
    told = refused(call, *arguments, **named)
    return told.field, told.limit


def field_of(call: Callable[..., Any], *arguments: Any, match: str | None = None, **named: Any) -> str | None:
    """Make a call that the client refuses as wrong; return the field that its error names."""
    with pytest.raises(sash_client.InvalidArgument, match=match) as caught:
        call(*arguments, **named)
    return caught.value.field
