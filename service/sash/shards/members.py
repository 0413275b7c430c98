"""Processes as others see them: by which name this one is reached, and whether another one has ended."""

from __future__ import annotations

import functools
import socket

from sash.settings import Settings
from sash.shards.fair import Member
from sash.tiers.owner import Owner


def reached_by(settings: Settings) -> str:
    """The name by which other processes, and clients, reach this one."""
    if settings.address is not None:
        name = settings.address
    elif settings.host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    else:
        name = settings.host
    return f"[{name}]" if ":" in name else name


def listens_at(settings: Settings) -> str:
    """Where this process listens for others."""
    host = settings.host
    return f"{f'[{host}]' if ':' in host else host}:{settings.peer_port}"


def has_ended(member: Member) -> bool:
    """Whether a process of this machine has certainly ended."""
    owner = _owner(member.owner)
    return owner is not None and owner.gone()


@functools.lru_cache(1024)
def _owner(token: str) -> Owner | None:
    """Who it is; each process asks this of all others some times a second."""
    return Owner.parse(token.encode())
