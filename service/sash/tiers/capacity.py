"""How a tier with a limit shares its room, so that a full one can still be emptied.

    0            16/20              19/20   20/20
    [ new entries  | making room …     | shrinking ]      fractions of the limit
    reserve = 0 ───┘     reserve = 1 ──┘

New entries stop first. What makes room (evictions, checkpoints, which delete what was evicted and shorten the journal)
may go on into the reserve. Only commits that leave no more in use than before may touch the rest: nothing overwrites
what is in use, so that even deleting needs some room.
"""

from __future__ import annotations

__all__ = ["ceiling"]


def ceiling(limit: int, reserve: float, floor: int = 0) -> int:
    """How many of `limit` bytes may be in use after a commit that grows.

    Args:
        limit: bytes.
        reserve: the share of the reserve that the commit may use, 0 to 1.
        floor: bytes that may be in use already, where the limit was higher once; the reserve begins behind them.
    """
    entries = limit * 16 // 20
    return int((max(entries, floor) if reserve else entries) + limit * 3 / 20 * reserve)
