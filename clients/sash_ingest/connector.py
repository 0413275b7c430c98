"""The protocol of connectors: records in, batches with their origin out, and what has become of them.

    Ingest ── open(streams) ──▶ connector      connector ── begin(stream) ──▶ the number to go on behind
           ◀── poll() ─────────  Records       connector ── end(stream) ──▶   what is under way is finished
           ── applied(stream, number) ──▶      every window has all records up to this number
           ── seek(stream, number) ──▶         give what is behind this number again
           ── hold(stream, True) ──▶           give no more of it for now

1. A stream is a sequence of records with ascending numbers from 1 on, such as the partition of a topic with its offsets
   plus 1. Numbers may have gaps. The same number is the same record for ever.
2. Each stream is one producer of the windows, and a window remembers the last number that it has of it. So `begin` says
   where to go on; whatever else the source remembers is not needed.
3. A connector gives the records of a stream in order, from the one behind that number on. It leaves none out.
4. All methods are called from one thread. Where the service is away, `begin` waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class SourceError(Exception):
    """The source cannot go on: the message says why, and what to do."""


@dataclass(slots=True)
class Records:
    """Some records of one stream, in its order.

    Args:
        stream: its name; with the pipeline's, it is the producer's.
        numbers: of the records, ascending.
        values: their bytes; None for a record that has none.
        beside: columns that the source knows beside the values, such as ``kafka_time``; n values each.
    """

    stream: str
    numbers: list[int]
    values: list[bytes | None]
    beside: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def extend(self, later: Records) -> None:
        """Append later ones of the same stream."""
        self.numbers += later.numbers
        self.values += later.values
        for name, column in later.beside.items():
            self.beside[name] += column

    def part(self, start: int, stop: int | None = None) -> Records:
        """Return some of them, by their places."""
        beside = {name: column[start:stop] for name, column in self.beside.items()}
        return Records(self.stream, self.numbers[start:stop], self.values[start:stop], beside)


class Streams(Protocol):
    """What a connector says to who runs it."""

    def begin(self, stream: str) -> int:
        """Take a stream over, and return the number that all windows have it up to; 0 where it is new."""

    def end(self, stream: str, drain: bool = True) -> None:
        """Give a stream up; with `drain`, behind the write that is under way."""


class Connector(Protocol):
    """A source of records."""

    def open(self, streams: Streams) -> None:
        """Begin. `begin` may be called here, or in `poll`, whenever a stream appears."""

    def poll(self, timeout_s: float) -> Sequence[Records] | None:
        """Return what has come, waiting so long at most; None: there is no more."""

    def applied(self, stream: str, number: int) -> None:
        """Take note that every window has all records up to a number."""

    def seek(self, stream: str, number: int) -> None:
        """Go on behind a number: what was given since then is asked for again."""

    def hold(self, stream: str, held: bool) -> None:
        """Give no more of a stream, or go on."""

    def lag(self) -> Mapping[str, int]:
        """Return how many records of each stream are behind the last one that was applied, where that is known."""

    def origin(self, stream: str, number: int) -> Mapping[str, Any]:
        """Return what names a record for people, such as its topic, partition and offset."""

    def close(self) -> None:
        """End."""
