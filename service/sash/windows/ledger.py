"""What a window remembers of its writers, so that nothing is applied twice.

    producers    "sensor-7": 41                     the highest sequence that was applied: 41 again is a retry, 43 a gap
    batches      "query-a": 12                      the last batch of a query that was committed
    parts        token: (query, batch, entries)     staged and invisible, until a commit names them or they expire

A producer numbers its writes 1, 2, 3, … to each window. A batch is staged in parts, by tasks that may be retried or run
twice; the commit names the parts that count, once, and drops the others. Everything here changes only with the writes
themselves, by the time that they say, so that a replay of the same writes remembers the same; what is only checked
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sash.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from sash.windows.batch import Batch, Origin

__all__ = ["Ledger", "Part", "check_origin"]

MAX_NAME_BYTES = 200
MAX_SEQUENCE = 2**63 - 1
MAX_WRITERS = 100_000
"""Producers, and queries, that a window remembers."""

MAX_PARTS = 100_000
FORGET_AFTER_NS = 7 * 86_400 * 10**9
"""A writer that was silent for so long may be forgotten, where there are too many."""

PART_EXPIRES_NS = 3_600 * 10**9
"""A new part is kept for an hour: longer than any micro-batch takes, retries included. Its record says until when."""


@dataclass(frozen=True, slots=True)
class Part:
    """A staged part: where it is stored, what batch it belongs to, and its entries where no tier has them."""

    number: int
    query: str
    batch: int
    entries: int
    expires_ns: int
    held: Batch | None = None


class Ledger:
    """Producers, committed batches and staged parts of one window.

    >>> ledger = Ledger()
    >>> ledger.applied(Origin("sensor-7", 1))
    False
    >>> ledger.note(Origin("sensor-7", 1), now_ns=0)
    >>> ledger.applied(Origin("sensor-7", 1))
    True
    """

    def __init__(self) -> None:
        self._producers: dict[str, tuple[int, int]] = {}  # name -> highest number, when that was
        self._queries: dict[str, tuple[int, int]] = {}
        self.parts: dict[str, Part] = {}
        """By token."""
        self.next_part = 1

    # ---------------------------------------------------------------- producers

    def applied(self, origin: Origin) -> bool:
        """Whether a producer's write was applied already; False where it is the next one.

        Raises:
            InvalidArgument: no name, or no number.
            FailedPrecondition: writes are missing before it.
        """
        check_origin(origin)
        last, _ = self._producers.get(origin.producer, (0, 0))
        if origin.sequence > last + 1:
            raise FailedPrecondition(
                f"producer {origin.producer!r} sends {origin.sequence}, and the window has its writes up to {last}: "
                f"the next one is {last + 1}",
                field="sequence",
                limit=str(last + 1),
            )
        return origin.sequence <= last

    def check_room(self, origin: Origin, now_ns: int) -> None:
        """Check that a producer can be remembered; nothing changes.

        Raises:
            ResourceExhausted: there are too many, none of which was silent for long.
        """
        _check_room(self._producers, origin.producer, now_ns, "producer")

    def note(self, origin: Origin, now_ns: int) -> None:
        """Remember that a write was applied; where there are too many writers, those that were silent for long go."""
        _make_room(self._producers, origin.producer, now_ns)
        self._producers[origin.producer] = origin.sequence, now_ns

    # ---------------------------------------------------------------- batches and their parts

    def committed(self, query: str, batch: int) -> bool:
        """Whether a batch, or a later one of its query, was committed already.

        Raises:
            InvalidArgument: no name, or no number.
        """
        _check_name(query, "query")
        if not 0 <= batch <= MAX_SEQUENCE:
            raise InvalidArgument(f"batch {batch} is out of range", field="batch", limit="0 to 2^63 - 1")
        last, _ = self._queries.get(query, (-1, 0))
        return batch <= last

    def check_stage(self, query: str, batch: int) -> None:
        """Check that a part of a batch may be staged.

        Raises:
            FailedPrecondition: the batch is committed.
            ResourceExhausted: there are too many parts.
        """
        if self.committed(query, batch):
            raise FailedPrecondition(f"batch {batch} of query {query!r} is committed already", field="batch")
        if len(self.parts) >= MAX_PARTS:
            raise ResourceExhausted(
                f"{len(self.parts)} parts are staged and not committed", field="batch", limit=f"{MAX_PARTS} parts"
            )

    def stage(self, token: str, query: str, batch: int, entries: int, expires_ns: int, held: Batch | None) -> Part:
        """Remember a part."""
        part = Part(self.next_part, query, batch, entries, expires_ns, held)
        self.parts[token] = part
        self.next_part += 1
        return part

    def named(self, query: str, batch: int, tokens: Sequence[str]) -> list[Part]:
        """The parts that a commit names, in its order.

        Raises:
            InvalidArgument: one is named twice.
            FailedPrecondition: one is not there, or is of another batch.
        """
        if len(set(tokens)) < len(tokens):
            raise InvalidArgument("a part is named twice", field="stages")
        found = []
        for token in tokens:
            part = self.parts.get(token)
            if part is None:
                raise FailedPrecondition(f"no part {token[:80]!r} is staged; it may have expired", field="stages")
            if (part.query, part.batch) != (query, batch):
                raise FailedPrecondition(
                    f"part {token[:80]!r} is of batch {part.batch} of query {part.query!r}", field="stages"
                )
            found.append(part)
        return found

    def check_commit(self, query: str, now_ns: int) -> None:
        """Check that a query can be remembered; nothing changes. Raises as `check_room`."""
        _check_room(self._queries, query, now_ns, "query")

    def commit(self, query: str, batch: int, now_ns: int) -> list[Part]:
        """Remember that a batch was committed; return its parts, and those of earlier ones, which are dropped."""
        _make_room(self._queries, query, now_ns)
        self._queries[query] = batch, now_ns
        return self.drop([token for token, part in self.parts.items() if part.query == query and part.batch <= batch])

    def expired(self, now_ns: int) -> list[str]:
        """Return the tokens of the parts that nobody committed in time; none before the oldest part expires."""
        if not any(part.expires_ns <= now_ns for part in islice(self.parts.values(), 1)):
            return []
        return [token for token, part in self.parts.items() if part.expires_ns <= now_ns]

    def drop(self, tokens: Sequence[str]) -> list[Part]:
        """Forget parts; return them. Raises KeyError where one is not there."""
        return [self.parts.pop(token) for token in tokens]

    # ---------------------------------------------------------------- as a document

    def copy(self) -> Ledger:
        """It as it is now: a millisecond for a hundred thousand of each kind, where a document takes fifty."""
        ledger = Ledger()
        ledger._producers, ledger._queries = dict(self._producers), dict(self._queries)
        ledger.parts, ledger.next_part = dict(self.parts), self.next_part
        return ledger

    @property
    def first_part(self) -> int:
        """The number of the oldest part; `next_part` where there is none."""
        return next((part.number for part in self.parts.values()), self.next_part)  # they are in order of arrival

    def document(self, parts: bool = True) -> dict[str, Any]:
        """All of it as plain values, without the entries that are held; without `parts` as an export carries it."""
        return {
            "producers": {name: list(last) for name, last in self._producers.items()},
            "queries": {name: list(last) for name, last in self._queries.items()},
            "next_part": self.next_part,
            "parts": {
                token: [part.number, part.query, part.batch, part.entries, part.expires_ns]
                for token, part in (self.parts.items() if parts else ())
            },
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Ledger:
        """The opposite of `document`."""
        ledger = cls()
        ledger._producers = {name: (number, at) for name, (number, at) in document["producers"].items()}
        ledger._queries = {name: (number, at) for name, (number, at) in document["queries"].items()}
        ledger.next_part = document["next_part"]
        ledger.parts = {token: Part(*fields) for token, fields in document["parts"].items()}
        return ledger


def check_origin(origin: Origin) -> None:
    """Raise InvalidArgument for a producer without a name, or a sequence that is none."""
    _check_name(origin.producer, "producer")
    if not 1 <= origin.sequence <= MAX_SEQUENCE:
        raise InvalidArgument(f"sequence {origin.sequence} is out of range", field="sequence", limit="1 to 2^63 - 1")


def _check_name(name: str, field: str) -> None:
    if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        raise InvalidArgument(f"{field} {name[:80]!r} is no name", field=field, limit=f"1 to {MAX_NAME_BYTES} bytes")


def _check_room(writers: dict[str, tuple[int, int]], name: str, now_ns: int, field: str) -> None:
    if _full(writers, name) and not any(at < now_ns - FORGET_AFTER_NS for _, at in writers.values()):
        raise ResourceExhausted(
            f"the window remembers {len(writers)} of them, and none was silent for a week",
            field=field,
            limit=str(MAX_WRITERS),
        )


def _make_room(writers: dict[str, tuple[int, int]], name: str, now_ns: int) -> None:
    if _full(writers, name):
        for silent in [other for other, (_, at) in writers.items() if at < now_ns - FORGET_AFTER_NS]:
            del writers[silent]


def _full(writers: Mapping[str, tuple[int, int]], name: str) -> bool:
    return name not in writers and len(writers) >= MAX_WRITERS
