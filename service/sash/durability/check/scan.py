"""Reads all values of a tier, one by one, to find the damaged ones."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from sash.durability import formats as values
from sash.durability.journal.roots import End, Meta
from sash.durability.records import commands as records
from sash.durability.records.columns import batch_from, columns_from
from sash.durability.tier import TierView
from sash_engine.errors import DataLoss
from sash_engine.windows.batches.ledger import Ledger

_KEYS_PER_TRIP = 64


class Scan:
    """Reads every value of a tier by itself.

    Args:
        view: the tier.
        store: id of the store; None if that does not matter.

    Attributes:
        values, size: how many values there are, and how many bytes they have.
        damages: by key, what is wrong with a value.
        whole: by window, the numbers of blocks and partials that are whole.
        unbound: by window, those of them that are of format 1.
        unowned: by window, those of them that name no store.
        rows: by window, how many rows the whole blocks have.
        groups: numbers of all groups.
        windows: numbers of all windows that have a pointer.
    """

    def __init__(self, view: TierView, store: bytes | None = None) -> None:
        self._store = store
        self.values = self.size = 0
        self.damages: dict[bytes, str] = {}
        self.whole: dict[int, set[int]] = {}
        self.unbound: dict[int, set[int]] = {}
        self.unowned: dict[int, set[int]] = {}
        self.rows: dict[int, int] = {}
        self.groups: list[int] = []
        self.windows: set[int] = set()
        keys = iter(list(view.keys()))
        while some := list(islice(keys, _KEYS_PER_TRIP)):
            for key, data in zip(some, view.get_many(some), strict=True):
                self._look(key, data)
        self.groups.sort()

    def _look(self, key: bytes, data: bytes | None) -> None:
        self.values += 1
        self.size += len(data or b"")
        name = values.name_of(key)
        if name is None:
            self.damages[key] = f"value {key.decode('ascii', 'backslashreplace')!r} is not one that Sash writes"
            return
        if name.kind == "journal":
            self.groups.append(name.number)
        elif name.kind == "pointer" and name.window is not None:
            self.windows.add(name.window)
        try:
            payload = values.unseal(name.kind, data, key, store=self._store)
            rows = _decoded(name.kind, payload, key)
        except DataLoss as error:
            self.damages[key] = error.message
            return
        if name.kind == "block" and name.window is not None:
            self.whole.setdefault(name.window, set()).add(name.number)
            self.rows[name.window] = self.rows.get(name.window, 0) + rows
            if not values.is_bound(data):
                self.unbound.setdefault(name.window, set()).add(name.number)
            if values.store_of(data) is None:
                self.unowned.setdefault(name.window, set()).add(name.number)


def _decoded(kind: str, payload: Any, key: bytes) -> int:
    """Decode a value. Return how many rows a block has, and 0 for other values. Raises DataLoss if that fails."""
    try:
        if kind == "block":
            return 0 if isinstance(payload, bytes) else len(columns_from(payload)[0])
        if kind == "part":
            batch_from(payload)
        elif kind == "head":
            Ledger.of(payload["ledger"])
        elif kind == "image":
            for record in payload[1]:
                values.unpack(record)
        elif kind == "journal":
            for number, _, fields in payload["records"] if isinstance(payload, Mapping) else payload:
                records.read(fields, f"record {number}")
        elif kind == "meta":
            Meta.of(payload)
        elif kind == "last":
            End.of(payload)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataLoss(f"value {key.decode('ascii')!r} cannot be read: {error!r}") from None
    return 0
