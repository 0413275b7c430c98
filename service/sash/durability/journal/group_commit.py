"""One commit of the journal: records and background writes, and the values that they put and delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sash.durability.journal.roots import End, Group, Start
from sash_engine.errors import OutOfRoom


@dataclass(slots=True)
class BackgroundWrite:
    """A write that nobody waits for.

    Args:
        puts: makes the values; called in the committer's thread.
        deletes: keys.
        size: about how many bytes.
        done: called on the loop once it is committed.
        refused: called on the loop instead if the tier has no space for it; None to try until it has.
        start: where the journal begins with this commit; None if it begins where it did.
    """

    puts: Callable[[], Mapping[bytes, bytes]] | None = None
    deletes: Sequence[bytes] = ()
    size: int = 0
    done: Callable[[], None] | None = None
    refused: Callable[[OutOfRoom], None] | None = None
    start: Start | None = None


@dataclass(slots=True)
class PendingRecord:
    """A record that is not committed yet; see `Journal.append`."""

    number: int
    appended_s: float
    window: int
    encode: Callable[[], Any]
    size: int
    puts: Callable[[], Mapping[bytes, bytes]] | None
    logged: bool
    trace: Any = None
    """OpenTelemetry's context of the call that wrote it; None while tracing is off."""


@dataclass(slots=True)
class GroupCommit:
    """One commit.

    Args:
        number: number of the group of records.
        records, writes: what it commits.
        start: the beginning of the journal once it is committed; None if that is not written again.
        end: its end.
    """

    number: int
    records: list[PendingRecord]
    writes: list[BackgroundWrite]
    start: Start | None
    end: End

    def encode(
        self, before: Mapping[int, int], last: int | None, store: bytes
    ) -> tuple[Mapping[bytes, bytes], Iterable[bytes]]:
        """Return values to put, and keys to delete. The committer's thread calls it.

        Args:
            before: by window, its last record before the group.
            last: number of the last record before the group.
            store: id of the store.
        """
        puts: dict[bytes, bytes] = {}
        deletes: dict[bytes, None] = {}
        logged = [record for record in self.records if record.logged]
        if logged:
            entries = [(record.number, record.window, record.encode()) for record in logged]
            windows = {record.window: before.get(record.window, 0) for record in logged}
            puts |= Group(self.number, entries, last, windows).puts(store)
        if self.start is not None:
            puts |= self.start.puts(store)
        if self.records or self.start is not None:
            puts |= self.end.puts(store)
        for record in self.records:
            puts.update(record.puts() if record.puts is not None else {})
        for write in self.writes:
            made = write.puts() if write.puts is not None else {}
            puts.update(made)
            # A commit has no order inside: for each key, only the last put or delete may be in it.
            for key in made:
                deletes.pop(key, None)
            for key in write.deletes:
                puts.pop(key, None)
                deletes[key] = None
        return puts, deletes

    def take_refusable(self) -> list[tuple[BackgroundWrite, Callable[[OutOfRoom], None]]]:
        """Remove the background writes that may be refused; return each with its `refused`."""
        refusable = [(write, write.refused) for write in self.writes if write.refused is not None]
        self.writes = [write for write in self.writes if write.refused is None]
        return refusable
