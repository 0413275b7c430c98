"""The ledger: the last writes of producers and queries, so that nothing is applied twice.

    producers    "sensor-7": 41, epoch 2, digests   the highest sequence that was applied: 41 again is a retry, 43 a gap
    batches      "query-a": 12                      the last batch of a query that was committed
    parts        token: (query, batch, entries)     staged and invisible, until a commit names them or they expire

A producer numbers its writes to each window 1, 2, 3, … A used number with the same data is a retry. With other data it
comes from a second client of the same name, and is refused. That is noticed while the digest of the number is
remembered: the ledger keeps the digests of a producer's last writes and of its first one.

    sequence    1   2   3   …   38  39  40  41   42   43
    digest      ▪               ▪   ▪   ▪   ▪
                first           recent           next a gap

A write with a higher epoch takes the name over: its numbers begin with 1 again, and lower epochs are refused from then
on.

Numbers may also have gaps, as offsets of a log do. Such a write says `after` which number it comes. It is applied if
that is the producer's last one, and was applied if its own number is not above the last one. In between, the window has
a part of what it carries, and refuses it. These numbers stand for their data, so no digest is asked, and they go on
under a higher epoch.

    last        150                    sequence 150, after 100   applied before
                                       sequence 170, after 150   the next one
                                       sequence 170, after 100   refused: send what is behind 150
                                       sequence 170, after 160   a gap

Of a write that decides (`Admission`), the ledger also keeps what it decided, a bit for each row, so that a retry is
answered as the write was:

    sequence    38     39     40     41
    decided     1      -      01101  0          39 was another kind of write

A batch is staged in parts, by tasks that may be retried or run twice. The commit names the parts that count and
drops the others. A later commit of the same batch changes nothing, whatever parts it names: a query that starts again
stages its batch again, so that its parts have other tokens.

The ledger changes only with writes, by the time that they carry, so that a replay of the same writes gives the same
ledger. Checks change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from sash_engine.errors import FailedPrecondition, InvalidArgument, ProducerFenced, ResourceExhausted, SequenceReused
from sash_engine.windows.batches.batch import AnyBatch, Origin

MAX_NAME_BYTES = 200
DIGEST_BYTES = 4
"""Of each digest. Of 2^32 writes with a used number and other data, one is taken for a retry."""
MAX_SEQUENCE = 2**63 - 1
MAX_WRITERS = 100_000
"""So many producers, and so many queries, a window remembers."""

DIGESTS_MAX = 128
"""So many last digests of each producer are kept. A stream has up to 64 writes that are not answered yet; as many
answers may be on their way when it breaks."""

DIGESTS_MIN = 16
DIGESTS_ALL = 1 << 20
"""With more than 8,192 producers, each has its share of so many digests, but at least `DIGESTS_MIN`. With 100,000
producers that write all the time this adds 15 MB to the 23 MB that the ledger takes in memory, and 9 MB to the 3 MB of
its image; 15 MB at most, if each wrote everything before the next one came."""

DECIDED_BYTES = 4_096
"""So many bytes of decisions of each producer are kept, and those of the last write, whatever they take: 8 KiB at most.
The decision about one row is one byte."""

MAX_PARTS = 100_000
FORGET_AFTER_NS = 7 * 86_400 * 10**9
"""A producer or query that was silent for so long may be forgotten when there are too many."""

PART_EXPIRES_NS = 3_600 * 10**9
"""A new part is kept for an hour: longer than a micro-batch takes with its retries. Its record has the time."""


@dataclass(frozen=True, slots=True)
class Part:
    """A staged part: where it is stored, what batch it belongs to, and its entries where no tier has them."""

    number: int
    query: str
    batch: int
    entries: int
    expires_ns: int
    held: AnyBatch | None = None


class LastWrite(NamedTuple):
    """The last write of a producer, or the last batch of a query; a query has the first two only.

    Args:
        number: of the write or batch.
        at_ns: when it was applied.
        epoch: that the number belongs to.
        first: the digest of number 1 in this epoch; empty where it is not known.
        recent: the digests of the last writes, one after the other.
        decided: the last writes that decided: the number, and a bit for each row, set where it went in.
    """

    number: int
    at_ns: int
    epoch: int = 0
    first: bytes = b""
    recent: bytes = b""
    decided: tuple[tuple[int, bytes], ...] = ()

    def digest(self, sequence: int) -> bytes:
        """The digest of a write that was applied; empty where it is not known."""
        end = len(self.recent) - DIGEST_BYTES * (self.number - sequence)
        if end > 0:
            return self.recent[end - DIGEST_BYTES : end]
        return self.first if sequence == 1 else b""

    def after(self, origin: Origin, now_ns: int, digests: int, decided: bytes | None) -> LastWrite:
        """Return the state after the next write, with at most so many digests and decisions."""
        digest = origin.digest or b""
        follows = origin.sequence in (1, self.number + 1)  # behind a gap, no earlier digest has a place
        recent = (self.recent if follows else b"") + digest if digest else b""  # those of an earlier epoch have none
        first = digest if origin.sequence == 1 else self.first
        recent, earlier = recent[-DIGEST_BYTES * digests :], self.decided if origin.epoch == self.epoch else ()
        return LastWrite(origin.sequence, now_ns, origin.epoch, first, recent, _kept(earlier, origin, digests, decided))


def _kept(
    earlier: tuple[tuple[int, bytes], ...], origin: Origin, most: int, decided: bytes | None
) -> tuple[tuple[int, bytes], ...]:
    """The decisions that are kept: at most so many, in at most `DECIDED_BYTES`, and always that of the last write."""
    kept = earlier if decided is None else (*earlier, (origin.sequence, decided))
    if len(kept) > most:
        kept = kept[-most:]
    while len(kept) > 1 and sum([len(bits) for _, bits in kept]) > DECIDED_BYTES:
        kept = kept[1:]
    return kept


_UNKNOWN = LastWrite(0, 0)


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
        self._producers: dict[str, LastWrite] = {}
        self._queries: dict[str, LastWrite] = {}
        self.parts: dict[str, Part] = {}
        """By token."""
        self.next_part = 1

    # ---------------------------------------------------------------- producers

    def applied(self, origin: Origin) -> bool:
        """Whether a producer's write was applied already; False where it is the next one.

        Raises:
            InvalidArgument: no name, no number, or no epoch.
            ProducerFenced: a higher epoch has taken the name over.
            SequenceReused: another write with this number was applied.
            FailedPrecondition: writes are missing before it.
        """
        check_origin(origin)
        name, sequence, epoch = origin.producer, origin.sequence, origin.epoch
        known = self._producers.get(name, _UNKNOWN)
        if epoch < known.epoch:
            raise ProducerFenced(
                f"producer {name!r} sends with epoch {epoch}, and epoch {known.epoch} has taken the name over",
                field="epoch",
                limit=str(known.epoch),
            )
        last = known.number if epoch == known.epoch or origin.after is not None else 0
        if origin.after is not None and sequence <= last:
            return True
        if origin.after is not None and origin.after < last:
            raise FailedPrecondition(
                f"producer {name!r} sends what is after {origin.after} up to {sequence}, and the window has its writes "
                f"up to {last}: send what is behind that",
                field="after",
                limit=str(last),
            )
        if origin.after == last:
            return False
        if sequence > last + 1:  # or, with `after`, behind a gap
            raise FailedPrecondition(
                f"producer {name!r} sends {sequence}, and the window has its writes up to {last}"
                f"{f' of epoch {epoch}' if epoch else ''}: the next one is {last + 1}",
                field="sequence",
                limit=str(last + 1),
            )
        if sequence == last + 1:
            return False
        digest = known.digest(sequence)
        if digest and origin.digest and digest != origin.digest:
            raise SequenceReused(
                f"producer {name!r} has sent {sequence} before, with other data: it was not applied again. Two clients "
                f"may use the same name. The next number is {last + 1}",
                field="sequence",
                limit=str(last + 1),
            )
        return True

    def check_room(self, origin: Origin, now_ns: int) -> None:
        """Check that a producer can be remembered; nothing changes.

        Raises:
            ResourceExhausted: there are too many, none of which was silent for long.
        """
        _check_room(self._producers, origin.producer, now_ns, "producer")

    def decided(self, origin: Origin) -> bytes | None:
        """What a write decided that `applied` says was applied, a bit for each row; None where that is not known."""
        known = self._producers.get(origin.producer, _UNKNOWN)
        return dict(known.decided).get(origin.sequence)

    def note(self, origin: Origin, now_ns: int, decided: bytes | None = None) -> None:
        """Remember that a write was applied, and what it decided; None: it decided nothing.

        If there are too many producers, those silent for long are forgotten.
        """
        producers, name = self._producers, origin.producer
        _make_room(producers, name, now_ns)
        digests = min(DIGESTS_MAX, max(DIGESTS_MIN, DIGESTS_ALL // max(len(producers), 1)))
        producers[name] = producers.get(name, _UNKNOWN).after(origin, now_ns, digests, decided)

    # ---------------------------------------------------------------- batches and their parts

    def committed(self, query: str, batch: int) -> bool:
        """Whether a batch, or a later one of its query, was committed already, with any parts.

        Raises:
            InvalidArgument: no name, or no number.
        """
        _check_name(query, "query")
        if not 0 <= batch <= MAX_SEQUENCE:
            raise InvalidArgument(f"batch {batch} is out of range", field="batch", limit="0 to 2^63 - 1")
        return query in self._queries and batch <= self._queries[query].number

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

    def stage(self, token: str, query: str, batch: int, entries: int, expires_ns: int, held: AnyBatch | None) -> Part:
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
        self._queries[query] = LastWrite(batch, now_ns)
        return self.drop([token for token, part in self.parts.items() if part.query == query and part.batch <= batch])

    def expired(self, now_ns: int) -> list[str]:
        """Return the tokens of the parts that were not committed in time; none before the oldest part expires."""
        if not any(part.expires_ns <= now_ns for part in islice(self.parts.values(), 1)):
            return []
        return [token for token, part in self.parts.items() if part.expires_ns <= now_ns]

    def drop(self, tokens: Sequence[str]) -> list[Part]:
        """Forget parts; return them. Raises KeyError where one is not there."""
        return [self.parts.pop(token) for token in tokens]

    # ---------------------------------------------------------------- as a document

    def copy(self) -> Ledger:
        """Return a copy: 1 ms for a hundred thousand of each kind, where a document takes 50 ms."""
        ledger = Ledger()
        ledger._producers, ledger._queries = dict(self._producers), dict(self._queries)
        ledger.parts, ledger.next_part = dict(self.parts), self.next_part
        return ledger

    @property
    def first_part(self) -> int:
        """The number of the oldest part; `next_part` where there is none."""
        return next((part.number for part in self.parts.values()), self.next_part)  # they are in order of arrival

    def document(self, parts: bool = True) -> dict[str, Any]:
        """Return plain values, without the entries of parts; without `parts`, as an export carries it."""
        return {
            "producers": {name: [producer.number, producer.at_ns] for name, producer in self._producers.items()},
            "queries": {name: [query.number, query.at_ns] for name, query in self._queries.items()},
            "fences": {
                name: [producer.epoch, producer.first, producer.recent]
                for name, producer in self._producers.items()
                if producer[2:5] != _UNKNOWN[2:5]
            },
            "decided": {
                name: [list(each) for each in producer.decided]
                for name, producer in self._producers.items()
                if producer.decided
            },
            "next_part": self.next_part,
            "parts": {
                token: [part.number, part.query, part.batch, part.entries, part.expires_ns]
                for token, part in (self.parts.items() if parts else ())
            },
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Ledger:
        """The opposite of `document`; earlier versions wrote neither fences nor decisions."""
        ledger = cls()
        fences, decided = document.get("fences", {}), document.get("decided", {})
        ledger._producers = {
            name: LastWrite(number, at, *fences.get(name, ()))._replace(
                decided=tuple([(sequence, bits) for sequence, bits in decided.get(name, ())])
            )
            for name, (number, at) in document["producers"].items()
        }
        ledger._queries = {name: LastWrite(number, at) for name, (number, at) in document["queries"].items()}
        ledger.next_part = document["next_part"]
        ledger.parts = {token: Part(*fields) for token, fields in document["parts"].items()}
        return ledger


def check_origin(origin: Origin) -> None:
    """Raise InvalidArgument for a producer without a name, or a sequence or epoch out of range."""
    _check_name(origin.producer, "producer")
    if not 1 <= origin.sequence <= MAX_SEQUENCE:
        raise InvalidArgument(f"sequence {origin.sequence} is out of range", field="sequence", limit="1 to 2^63 - 1")
    if not 0 <= origin.epoch <= MAX_SEQUENCE:
        raise InvalidArgument(f"epoch {origin.epoch} is out of range", field="epoch", limit="0 to 2^63 - 1")
    if origin.after is not None and not 0 <= origin.after < origin.sequence:
        raise InvalidArgument(
            f"after {origin.after} is not below sequence {origin.sequence}", field="after", limit="0 to sequence - 1"
        )


def _check_name(name: str, field: str) -> None:
    if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        raise InvalidArgument(f"{field} {name[:80]!r} is no name", field=field, limit=f"1 to {MAX_NAME_BYTES} bytes")


def _check_room(writers: Mapping[str, LastWrite], name: str, now_ns: int, field: str) -> None:
    if _full(writers, name) and not any(writer.at_ns < now_ns - FORGET_AFTER_NS for writer in writers.values()):
        raise ResourceExhausted(
            f"the window remembers {len(writers)} of them, and none was silent for a week",
            field=field,
            limit=str(MAX_WRITERS),
        )


def _make_room(writers: dict[str, LastWrite], name: str, now_ns: int) -> None:
    if _full(writers, name):
        for silent in [other for other, writer in writers.items() if writer.at_ns < now_ns - FORGET_AFTER_NS]:
            del writers[silent]


def _full(writers: Mapping[str, LastWrite], name: str) -> bool:
    return name not in writers and len(writers) >= MAX_WRITERS
