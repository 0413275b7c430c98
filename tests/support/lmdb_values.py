"""The values of a data directory that no service has: read, and changed behind everybody's back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import lmdb

from sash.durability import formats as values
from sash.tiers.lmdb import VALUES, LmdbTier


def change(path: Path, changes: Mapping[bytes, bytes | None]) -> None:
    """Change values; None deletes one."""
    tier = LmdbTier(path)
    tier.acquire()
    puts = {key: value for key, value in changes.items() if value is not None}
    tier.commit(puts, [key for key, value in changes.items() if value is None])
    tier.close()


def stored(path: Path) -> dict[bytes, bytes]:
    """All values by their keys."""
    with lmdb.open(str(path), max_dbs=1, readonly=True, lock=False) as env:
        named = env.open_db(VALUES, create=False)
        with env.begin(named) as view:
            return {bytes(key): bytes(value) for key, value in view.cursor() if values.name_of(key) is not None}
