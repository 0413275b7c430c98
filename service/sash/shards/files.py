"""Exports of several shards as one file, and one file as imports of several shards.

    shard 0    header keys entries entries states end ─┐
    shard 1    header keys entries states end ─────────┼─▶ header keys keys entries entries entries states states end
    shard 2    header keys entries states end ─────────┘   (export.py: a file does not say how many shards there were)

The import goes the other way: each frame is split by the shard of its keys. So a file fits any number of shards.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sash.calls import each
from sash.durability.formats import seal, unseal
from sash.durability.images.export import FRAME_BYTES_MAX
from sash.durability.images.forms import batch_of, names_of, states_of
from sash.durability.records.columns import batch_to, columns_to
from sash.durability.records.splitting import owners, split
from sash.shard import Parts
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument
from sash_engine.monoids.base import Array
from sash_engine.windows.answers import LATER_COUNTS
from sash_engine.windows.batches.batch import AnyBatch, PartialBatch
from sash_engine.windows.batches.ledger import DIGEST_BYTES, MAX_SEQUENCE, LastWrite
from sash_engine.windows.known import kept_spec, removed_spec
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.placement import shards_of

_LENGTH = struct.Struct("<I")
_COUNTS = ("inserted", "late", "evicted", "duplicates", "ahead", "retracted", "corrected")


# ---------------------------------------------------------------- out


async def merged_file(files: Sequence[Parts[bytes]]) -> AsyncIterator[bytes]:
    """Yield the frames of one file from those of each shard's; each file is as of when it was begun."""
    readers = [_Records(each(file)) for file in files]
    headers = [await reader.take("header") for reader in readers]
    number = 0

    def framed(kind: str, content: Any) -> bytes:
        nonlocal number
        value = seal("export", [number, kind, content])
        number += 1
        return _LENGTH.pack(len(value)) + value

    yield framed("header", _merged_header([header for header in headers if header is not None]))
    for kind in ("keys", "entries", "removed", "states"):
        for reader in readers:
            while (content := await reader.take(kind)) is not None:
                yield framed(kind, content)
    totals = [await reader.take("end") for reader in readers]
    yield framed("end", {name: sum(total[name] for total in totals if total) for name in ("keys", "rows")})


def _merged_header(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts = {name: sum(header["counts"].get(name, 0) for header in headers) for name in _COUNTS}
    counts = {name: count for name, count in counts.items() if count or name not in LATER_COUNTS}
    final = [header["punctuated"] for header in headers if "punctuated" in header]
    known = [header["arrivals"] for header in headers if "arrivals" in header]
    if known and len(known) < len(headers):
        raise FailedPrecondition("a shard runs on an earlier version, which exports no arrivals: wait until none does")
    return {
        **({"arrivals": max(known)} if known else {}),
        **({"punctuated": min(final)} if len(final) == len(headers) else {}),
        "spec": headers[0]["spec"],
        "counts": counts,
        "newest": max(header["newest"] for header in headers),
        "extra": {"ledger": _merged_ledger([header["extra"]["ledger"] for header in headers], headers[0]["spec"])},
    }


def _merged_ledger(ledgers: Sequence[Mapping[str, Any]], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The highest number of each writer, and the digests that all shards agree on: those of whole writes.

    Where shards have different numbers of a producer, no number says what was applied: it numbers its writes for each
    shard, or has a write under way. Then its epoch is over, so that none of its writes is taken for another one.
    """
    found: dict[str, list[tuple[int, int, int]]] = {}
    digests: dict[str, tuple[bytes, bytes]] = {}
    queries: dict[str, list[int]] = {}
    for ledger in ledgers:
        fences = ledger.get("fences", {})
        for name, (number, at_ns) in ledger["producers"].items():
            epoch, first, recent = fences.get(name, (0, b"", b""))
            found.setdefault(name, []).append((epoch, number, at_ns))
            known = digests.get(name, (first, recent))
            digests[name] = (first if first == known[0] else b"", _common_end(recent, known[1]))
        for name, (number, at_ns) in ledger["queries"].items():
            queries[name] = max(queries.get(name, [0, 0]), [number, at_ns])
    producers = {name: max(writes) for name, writes in found.items()}
    for name, writes in found.items():
        everywhere = len(writes) == len(ledgers) or not spec.get("keyed")
        if not everywhere or len({write[:2] for write in writes}) > 1:
            producers[name] = (min(producers[name][0] + 1, MAX_SEQUENCE), 0, producers[name][2])
            digests[name] = (b"", b"")
    return {
        "producers": {name: [number, at_ns] for name, (_, number, at_ns) in producers.items()},
        "queries": queries,
        "decided": {
            name: decided
            for name, (epoch, number, at_ns) in producers.items()
            if (decided := _merged_decisions(ledgers, name, LastWrite(number, at_ns, epoch, *digests[name])))
        },
        "fences": {
            name: [epoch, *digests[name]]
            for name, (epoch, _, _) in producers.items()
            if epoch or digests[name] != (b"", b"")
        },
        "next_part": 1,
        "parts": {},
    }


def _merged_decisions(ledgers: Sequence[Mapping[str, Any]], name: str, agreed: LastWrite) -> list[tuple[int, bytes]]:
    """What all shards that know a producer remember of what its writes decided: each has the bits of its own rows."""
    every = [dict(ledger.get("decided", {}).get(name, ())) for ledger in ledgers if name in ledger["producers"]]
    merged = []
    for number in every[0]:
        bits = [decided.get(number, b"") for decided in every]
        if agreed.digest(number) and len({len(each) for each in bits}) == 1:
            rows = np.bitwise_or.reduce([np.frombuffer(each, np.uint8) for each in bits])
            merged.append((number, rows.tobytes()))
    return merged


def _common_end(some: bytes, others: bytes) -> bytes:
    """The digests at the end of both."""
    end = 0
    while end < min(len(some), len(others)):
        longer = end + DIGEST_BYTES
        if some[-longer:] != others[-longer:]:
            break
        end = longer
    return some[len(some) - end :]


class _Records:
    """The records of one file, in order."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._left = bytearray()
        self._next: tuple[str, Any] | None = None

    async def take(self, kind: str) -> Any:
        """The content of the next record; None if it is of another kind."""
        if self._next is None:
            _, *record = unseal("export", await self._frame(), "a part of an export")
            self._next = (record[0], record[1])
        if self._next[0] != kind:
            return None
        (_, content), self._next = self._next, None
        return content

    async def _frame(self) -> bytes:
        left = self._left
        while len(left) < _LENGTH.size or len(left) < _LENGTH.size + _LENGTH.unpack_from(left)[0]:
            part = await anext(self._parts, None)
            if part is None:
                raise DataLoss("the export of a shard is cut short")
            left += part
        end = _LENGTH.size + _LENGTH.unpack_from(left)[0]
        frame = bytes(left[_LENGTH.size : end])
        del left[:end]
        return frame


# ---------------------------------------------------------------- in


async def with_spec(parts: AsyncIterator[bytes], name: str | None) -> tuple[WindowSpec, AsyncIterator[bytes]]:
    """Return the spec of the window in a file, and all parts of the file; raises as `Splitter` does."""
    reader, read = Splitter(1, name), list[bytes]()
    async for part in parts:
        read.append(part)
        for _ in reader.feed(part):
            break
        if reader.spec is not None:
            break
    if reader.spec is None:
        reader.check_end()
    assert reader.spec is not None, "a file with an end has a spec"

    async def again() -> AsyncIterator[bytes]:
        for part in read:
            yield part
        async for part in parts:
            yield part

    return reader.spec, again()


class Splitter:
    """Splits one file, fed in pieces of any size, into a file for each shard.

    Every shard gets the spec, the high-water mark and the ledger. Shard 0 gets the counts of entries that are gone.

    Args:
        shards: how many there are.
        name: the name that the window gets; None: its own.

    Attributes:
        spec: of the window, once the header was read.
    """

    def __init__(self, shards: int, name: str | None) -> None:
        self._shards, self._name = shards, name
        self._left = bytearray()
        self._frames = 0
        self._numbers = [0] * shards
        self._of: list[Array] = []  # the shards of the keys, in their order
        self._states = 0  # states that were read
        self._expected = 0.0  # entries that were not read yet
        self._keys = np.zeros(shards, np.int64)
        self._rows = np.zeros(shards, np.int64)
        self.spec: WindowSpec | None = None
        self.ended = False

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Read the next piece; yield a shard and its next frame, for each that this makes.

        Raises:
            InvalidArgument: it is no export, or a damaged one.
        """
        left = self._left
        left += data
        while len(left) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(left)
            called = f"frame {self._frames} of the export"
            if not self._frames and not bytes(left[_LENGTH.size :][:4]).startswith(b"SASH"[: len(left) - 4]):
                raise InvalidArgument("this is not an exported window", field="body")
            if length > FRAME_BYTES_MAX:
                raise InvalidArgument(f"{called} is damaged: it says that it has {length} bytes", field="body")
            if len(left) < _LENGTH.size + length:
                return
            value = bytes(left[_LENGTH.size : _LENGTH.size + length])
            del left[: _LENGTH.size + length]
            yield from self._take(value, called)
            self._frames += 1

    def check_end(self) -> None:
        """Raise InvalidArgument if the file is cut short."""
        if self._left or not self.ended:
            began = self._frames or self._left
            cut = f"the export is cut short in frame {self._frames} of the export"
            raise InvalidArgument(cut if began else "the export is empty", field="body")

    def _take(self, value: bytes, called: str) -> Iterator[tuple[int, bytes]]:
        try:
            number, kind, content = unseal("export", value, called)
            if number != self._frames or self.ended or (self.spec is None) != (kind == "header"):
                raise InvalidArgument(f"it was written as frame {number}, {kind}", field="body")
            taker = {
                "header": self._header,
                "keys": self._take_keys,
                "entries": self._take_entries,
                "removed": self._take_removed,
                "states": self._take_states,
                "end": self._end,
            }[kind]
            yield from taker(content)
        except DataLoss as error:
            raise InvalidArgument(error.message, field="body") from None
        except InvalidArgument as error:
            raise InvalidArgument(f"{called}: {error.message}", field=error.field, limit=error.limit) from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise InvalidArgument(f"{called} is not what an export has there: {error!r}"[:500], field="body") from error

    def _framed(self, shard: int, kind: str, content: Any) -> tuple[int, bytes]:
        value = seal("export", [self._numbers[shard], kind, content])
        self._numbers[shard] += 1
        return shard, _LENGTH.pack(len(value)) + value

    def _header(self, content: Any) -> Iterator[tuple[int, bytes]]:
        document = dict(content)
        name = {} if self._name is None else {"name": self._name}
        self.spec = WindowSpec.parse({**document["spec"], **name})
        if self._shards > 1:
            ledger = _merged_ledger([document["extra"]["ledger"]], document["spec"])
            document["extra"] = {**document["extra"], "ledger": ledger}
        gone = dict(document["counts"])
        left = gone["evicted"] + gone.get("retracted", 0)
        self._expected = float(gone["inserted"] - left)
        gone["inserted"] = left
        for shard in range(self._shards):
            counts = gone if shard == 0 else dict.fromkeys(gone, 0)
            yield self._framed(shard, "header", {**document, "counts": counts, "uncounted": True})

    @property
    def _window(self) -> WindowSpec:
        assert self.spec is not None, "the header is the first frame"
        return self.spec

    def _take_keys(self, content: Any) -> Iterator[tuple[int, bytes]]:
        names = names_of(content, "keys", keyed=self._window.keyed)
        of = shards_of(self._window.name, names, self._shards)
        self._of.append(of)
        self._keys += np.bincount(of, minlength=self._shards)
        for shard in np.unique(of).tolist():
            yield self._framed(shard, "keys", [names[i] for i in np.flatnonzero(of == shard).tolist()])

    def _take_entries(self, content: Any) -> Iterator[tuple[int, bytes]]:
        spec = self._window
        batch = batch_of(content, kept_spec(spec), "entries")
        batch.checked(kept_spec(spec))
        entries = float(batch.entries.sum(dtype=np.float64)) if isinstance(batch, PartialBatch) else len(batch.times)
        self._expected -= entries
        if self._expected < 0:
            raise InvalidArgument("there are more entries than the counts say", field="header.counts")
        yield from self._split("entries", batch)

    def _take_removed(self, content: Any) -> Iterator[tuple[int, bytes]]:
        yield from self._split("removed", batch_of(content, removed_spec(self._window), "removed"))

    def _split(self, kind: str, batch: AnyBatch) -> Iterator[tuple[int, bytes]]:
        name = self._window.name
        alone = int(shards_of(name, [""], self._shards)[0])
        parts = {alone: batch} if batch.keys is None else split(batch, owners(name, batch, self._shards))
        for shard, part in parts.items():
            self._rows[shard] += len(part.times)
            yield self._framed(shard, kind, batch_to(part))

    def _take_states(self, content: Any) -> Iterator[tuple[int, bytes]]:
        columns = states_of(content, "states")
        every = np.concatenate(self._of)
        of = every[self._states : self._states + len(columns[0])]
        self._states += len(columns[0])
        for shard in np.unique(of).tolist():
            yield self._framed(shard, "states", columns_to([column[of == shard] for column in columns]))

    def _end(self, content: Any) -> Iterator[tuple[int, bytes]]:
        found = (int(self._keys.sum()), int(self._rows.sum()))
        if (content["keys"], content["rows"]) != found:
            raise InvalidArgument(f"{content} was written, {found} read", field="end")
        if self._expected:
            raise InvalidArgument("entries are missing that were counted", field="header.counts")
        self.ended = True
        for shard in reversed(range(self._shards)):
            totals = {"keys": int(self._keys[shard]), "rows": int(self._rows[shard])}
            yield self._framed(shard, "end", totals)
