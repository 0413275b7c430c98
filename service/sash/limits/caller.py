"""Who calls: whoever access control names, else the address that the call comes from."""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["address_of_peer", "caller", "caller_of"]

caller: ContextVar[str] = ContextVar("caller", default="")
"""Set by an edge for the task that serves the call."""


def caller_of() -> str:
    """Return who makes the call that is served."""
    return caller.get()


def address_of_peer(peer: str) -> str:
    """The address in what gRPC calls a peer, without its port.

    >>> address_of_peer("ipv4:10.0.0.7:53124"), address_of_peer("ipv6:%5B::1%5D:53124"), address_of_peer("unix:")
    ('10.0.0.7', '::1', 'unix')
    """
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "") or kind
