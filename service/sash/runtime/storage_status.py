"""What the metrics say of a storage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StorageStatus:
    """The state of a storage, for metrics."""

    tier: str
    error: str | None
    used_bytes: int | None
    limit_bytes: int | None
    pending_bytes: int
    commits: int
    records: int
    journal_groups: int
    checkpoints: int
    cache_bytes: int
    cache_hits: int
    cache_misses: int
    damaged: int
