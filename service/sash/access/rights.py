"""Which right each operation needs. A role has its own right and those below it: read < write < admin."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Right(IntEnum):
    """What a caller may do with a window; also the role of a token."""

    READ = 1
    WRITE = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()


RIGHTS: Mapping[str, Right] = {
    "list": Right.READ,
    "topology": Right.READ,
    "describe": Right.READ,
    "query": Right.READ,
    "range_query": Right.READ,
    "series": Right.READ,
    "range_groups": Right.READ,
    "series_groups": Right.READ,
    "entries": Right.READ,
    "answers_at": Right.READ,
    "export": Right.READ,
    "keys": Right.READ,
    "insert": Right.WRITE,
    "bulk_insert": Right.WRITE,
    "admit": Right.WRITE,
    "bulk_evict": Right.WRITE,
    "retract": Right.WRITE,
    "update": Right.WRITE,
    "punctuate": Right.WRITE,
    "stage": Right.WRITE,
    "commit": Right.WRITE,
    "create": Right.ADMIN,
    "delete": Right.ADMIN,
    "add_aggregates": Right.ADMIN,
    "restore": Right.ADMIN,
    "move": Right.ADMIN,
}
"""The right that each operation of the plane needs, by its name. An operation that is not here does not run."""
