"""Makes what the settings ask for."""

from __future__ import annotations

from sash.access.access import Access, Source
from sash.access.tokens import Tokens
from sash.settings import Settings
from sash_engine.clock import Clock

__all__ = ["access_of"]


def access_of(settings: Settings, clock: Clock) -> Access:
    """Make the access control of a service.

    Raises:
        InvalidArgument: a file that a setting names cannot be read, or is wrong.
    """
    sources: list[Source] = []
    if settings.tokens is not None:
        sources.append(Tokens(settings.tokens, clock))
    return Access(clock, sources)
