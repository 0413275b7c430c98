"""How the capacity of a tier is divided, so that a full tier can still be emptied.

    0            16/20              19/20   20/20
    [ new entries  | freeing space …   | shrinking ]      fractions of the limit
    reserve = 0 ───┘     reserve = 1 ──┘

New entries are refused first. Writes that free space may use the reserve: evictions, and checkpoints, which delete
evicted blocks and shorten the journal. Only commits that leave no more in use than before may use the rest: nothing
overwrites pages in use, so even deleting needs some space.
"""

from __future__ import annotations


def ceiling(limit: int, reserve: float, floor: int = 0) -> int:
    """How many of `limit` bytes may be in use after a commit that grows.

    Args:
        limit: bytes.
        reserve: the share of the reserve that the commit may use, 0 to 1.
        floor: bytes that are in use already, if the limit was higher once. The reserve begins behind them.
    """
    entries = limit * 16 // 20
    return int((max(entries, floor) if reserve else entries) + limit * 3 / 20 * reserve)
