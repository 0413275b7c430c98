"""One window in the tier: its sealed blocks, its images, and what is to be deleted of it.

    sealed blocks ──▶ block(w, 1), block(w, 2), …          in the background, when enough have gathered; so do
                                                           large partials of the forest's nodes, as bytes
    all the rest  ──▶ image(w, v, 0), image(w, v, 1), …    after so much journal
                      pointer(w) ──▶ v, and the last record that it covers

A checkpoint takes an image in steps, between which the loop runs, and stores the sealed blocks that it comes upon; then
the image, and then the pointer to it. Nothing is written to the window from the first step to the last: its writers
wait; its readers, and all others, go on. What only older images refer to (blocks that were evicted or changed, parts of
batches that were committed) is *trash*: it is deleted after the pointer is written, so a crash at any point finds all
that the image that counts refers to; images name the trash that the tier may still have. Blocks that were stored after
that image belong to nobody after a crash, and are trash, too; numbers are never used again.

The pointer is there from the window's first commit on, before there is an image. So one that is missing is a loss that
is noticed, and no empty window. It also says which numbers are in use, so that a window whose image is damaged can be
deleted without it, and one that is years old without a look at every number that it ever had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import xxhash

from sash.durability import formats as values
from sash.durability import image
from sash.durability.journal import GROUP_BYTES, BackgroundWrite
from sash.durability.session import STORING, TierSession
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, OutOfRoom, SashError
from sash_engine.forest import Forest, Layout
from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.forest.image import ForestImage
from sash_engine.monoids.base import Array
from sash_engine.windows.batch import Batch
from sash_engine.windows.ledger import Part
from sash_engine.windows.spec import Durability, WindowSpec
from sash_engine.windows.window import Window

__all__ = ["OperationClock", "Remains", "StoredWindow", "discard_all"]

_CHUNK = GROUP_BYTES // 2
_BLOCK_MORE = 1024  # bytes that a block takes in a tier beyond its columns, about
_PARTS_PER_TRIP = 16
_RANGES = 256
"""So many tell where the blocks are that a window had: deleting it tries no number in the gaps between them."""


class OperationClock:
    """Wall time that stands still while a write is applied, so that a recovery can apply it at the same time.

    Args:
        clock: the real one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.stopped: int | None = None

    def now_ns(self) -> int:
        return self._clock.now_ns() if self.stopped is None else self.stopped

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


Ranges = list[tuple[int, int]]
"""Numbers first..stop, of each."""


@dataclass(slots=True)
class Remains:
    """What the tier has of a window that is to be deleted.

    Args:
        blocks: ranges that cover the numbers of those that may be there; behind the last one none was ever given.
        staged: the first number that may be there, and the first that was never given to one.
        image: the version that counts.
        parts: how many it has.
        begun: the last version of which something may be there.
        keys: what there is beside these.
    """

    blocks: Ranges = field(default_factory=lambda: [(1, 1)])
    staged: tuple[int, int] = (1, 1)
    image: int = 0
    parts: int = 0
    begun: int = 1
    keys: list[bytes] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """It as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Remains:
        """The opposite of `document`."""
        remains = cls(**document)
        if isinstance(remains.blocks, int):  # as it was once: the first number that was never given
            remains.blocks = [(1, remains.blocks)]
        return remains

    def found(self, session: TierSession, number: int) -> Remains:
        """It with what was written of window `number` after it was noted, by a service that is no more."""
        (*blocks, (begin, end)), (first, last), keys = self.blocks, self.staged, list(self.keys)
        blocks.append((begin, end + len(session.existing(lambda i: values.block_key(number, end + i)))))
        last += len(session.existing(lambda i: values.staged_key(number, self.staged[1] + i)))
        for version in range(self.image + 1, self.begun + 1):
            keys += session.existing(lambda i, version=version: values.image_key(number, version, i))  # type: ignore[misc]
        return Remains(blocks, (first, last), self.image, self.parts, self.begun, keys)


@dataclass(slots=True)
class _Trash:
    """Keys to delete; those of blocks as numbers, as there may be a million, and each key takes 0.4 µs to make."""

    window: int
    keys: list[bytes]
    blocks: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[bytes]:
        yield from self.keys
        yield from (values.block_key(self.window, number) for number in self.blocks)


class StoredWindow:
    """A window that the tier keeps.

    Args:
        session: the tier.
        number: the window's; never another's.
        spec: as the window is, or was, created with.
        durability: what its writes are given.
        clock: tells wall time.
        max_keys, block: as of the window.

    Attributes:
        window: what is kept; an empty one at first.
        through: the last record that the image covers.
        logged_bytes: how much journal there is behind it.
        doubt: why the window answers nothing at the moment; None where it does.
        lost: it cannot be recovered as things are, and answers nothing until they are put right and the service starts.
        losses: how often it was recovered because something was damaged.
        resting: storing failed a moment ago; so many times `tidy` is called before it is tried again.
        pause: how long it rests the next time.
        older: an older version created it, so that values of format 1 may be there.
        deleted: what it has under way comes to nothing.
        checkpointing: an image of it is taken, or written.
        still: cleared while one is taken: until it is set again, nothing may be written to the window.
        admission: who writes passes it in order of arrival.
    """

    def __init__(
        self,
        session: TierSession,
        number: int,
        spec: WindowSpec,
        durability: Durability,
        clock: Clock,
        max_keys: int,
        block: int,
    ) -> None:
        self._session = session
        self._max_keys = max_keys
        self.number, self.name, self.durability = number, spec.name, durability
        self.clock = OperationClock(clock)
        self.cold = Cold(self._load, session.cache)
        self.window = Window(spec, max_keys, block, clock=self.clock, cold=self.cold)
        self.through = 0
        self.logged_bytes = 0
        self.failure: SashError | None = None
        self.lost = False
        self.losses = 0
        self.resting = 0
        self.pause = 1
        self.older = False
        self.deleted = False
        self.checkpointing = False
        self.still = asyncio.Event()
        self.still.set()
        self.admission = asyncio.Lock()
        self._next_block = 1
        self._version = 0  # of the last image that was begun
        self._image = 0  # the version that counts, 0 where there is none yet
        self._image_parts = 0
        self._image_bytes = 0
        self._unstored_bytes = 0
        self._image_blocks: Ranges = []  # what the image names, and the first number that was given after it
        self._image_next = 1
        self._unwritten: list[PendingBlock] = []  # they have numbers, and are yet to be handed to the journal
        self._unwritten_bytes = 0
        self._trash: list[bytes] = []
        self._leaving: dict[int, _Trash] = {}  # trash on its way out, by the version of the image that allowed it
        self._staged = 1, 1  # the first part that the image needs, and its ledger's next
        self._bound_block = 1  # blocks from this number on are not of format 1; 0: any may be
        self._bound_part: int | None = 1  # nor are staged parts; None: any may be
        self._sum: bytes | None = None  # over the checksums of the image's parts; None in format 1
        self._gone: Callable[[], None] | None = None
        self._documented: WindowSpec | None = None
        self._document: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """The window's spec as a plain document; made once, as all windows are listed whenever one comes or goes."""
        if self._documented is not self.window.spec:
            self._documented = self.window.spec
            self._document = self._documented.document()
        return self._document

    def keep_document(self, document: Mapping[str, Any]) -> None:
        """List the window with this document, of whose spec not all is known here."""
        self._documented, self._document = self.window.spec, dict(document)

    # ---------------------------------------------------------------- blocks

    def _load(self, numbers: Sequence[int]) -> list[list[Array]]:
        """The columns of stored blocks, in one round trip."""
        found = self._session.tier.get_many([values.block_key(self.number, number) for number in numbers])
        blocks = []
        for number, data in zip(numbers, found, strict=True):
            what = f"block {number} of window {self.name!r}"
            key = values.block_key(self.number, number)
            try:
                payload = values.unseal("block", data, what, key, 0 < self._bound_block <= number)
                blocks.append(values.sealed_from(payload, self.window.layout))
            except DataLoss as error:
                self._session.report_damage(what, error)
                raise
        return blocks

    def add_unstored(self, size: int) -> None:
        """So many bytes of records were written that are neither in blocks nor in an image yet, and will be."""
        self._unstored_bytes += size
        self._session.count_unstored(size)

    def clear_unstored(self) -> None:
        """They are, or never will be."""
        self._session.count_unstored(-self._unstored_bytes)
        self._unstored_bytes = 0

    def store(self, least: int = 0) -> None:
        """Store the sealed blocks that the tier lacks, and large partials, where they have `least` entries and more."""
        if self.cold.dirty_entries >= least and self.cold.dirty:
            self._save(self.window.unsaved())
            self._flush()
            self.clear_unstored()

    def _save(self, blocks: Sequence[PendingBlock]) -> None:
        """Give blocks their numbers, and store them by some MiB; the last ones with `_flush`.

        Raises:
            OutOfRoom: the tier has no room for them, and they are as they were.
        """
        if not blocks:
            return
        size = sum(block.nbytes + _BLOCK_MORE for block in blocks)
        self._session.check_room(self._unwritten_bytes + size, STORING)
        for block in blocks:
            block.stored = self._next_block
            self._next_block += 1
            self._unwritten.append(block)
            self._unwritten_bytes += block.nbytes
            if self._unwritten_bytes >= _CHUNK:
                self._flush()

    def _flush(self) -> None:
        blocks, size = self._unwritten, self._unwritten_bytes
        self._unwritten, self._unwritten_bytes = [], 0
        if blocks and not self.deleted:
            self._store_chunk(blocks, size)

    def _store_chunk(self, blocks: Sequence[PendingBlock], size: int) -> None:
        numbered = [(block, block.stored or 0) for block in blocks]
        layout = self.window.layout

        def puts() -> Mapping[bytes, bytes]:
            made = {}
            for block, number in numbered:
                key = values.block_key(self.number, number)
                made[key] = values.seal("block", values.sealed_to(block, layout), key)
            return made

        def landed() -> None:
            self.cold.landed(numbered)
            self._session.cache.trim()

        self._session.journal.background(BackgroundWrite(puts, size=size, done=landed))

    # ---------------------------------------------------------------- checkpoints

    def wants_checkpoint(self, journal_bytes: int) -> bool:
        """Whether so much was written since the last image that another one pays."""
        return not self.checkpointing and self.logged_bytes > max(journal_bytes, self._image_bytes // 2)

    @property
    def can_shrink(self) -> bool:
        """Whether after a checkpoint the tier might have less of it."""
        return bool(self.logged_bytes or self._trash or self.cold.released)

    def checkpoint(self, then: Callable[[], None], refused: Callable[[OutOfRoom], None]) -> Generator[None]:
        """Take an image of the window, some of it with each step, and have it written in the background.

        Nothing may be written to the window from the first step to the last, which is what `still` says. Once the image
        counts, what only older ones refer to is deleted. An iterator that is closed, or fails, has done nothing.

        Args:
            then: called when the image counts.
            refused: called when it was given up while it was written, as the tier has no room for it.

        Raises:
            Unavailable, DataLoss: a block that has to be read for it cannot be.
            OutOfRoom: the tier has no room for blocks that it is to name.
        """
        self.checkpointing = True
        self.still.clear()
        # On wall time a question evicts, too. With the clock at rest nothing is left to evict for who asks meanwhile.
        self.clock.stopped = self.clock.now_ns()
        try:
            self.window.slide()
            taken = image.Image(self.window, self._save)
            yield from taken.steps()
            self._flush()
            self._write(taken, then, refused)
        except BaseException:
            self.checkpointing = False
            self._flush()
            if self._gone is not None:
                self._gone()
            raise
        finally:
            self.clock.stopped = None
            self.still.set()

    def _write(self, taken: image.Image, then: Callable[[], None], refused: Callable[[OutOfRoom], None]) -> None:
        """Write an image that was taken just now, and then the pointer to it."""
        session = self._session
        through = session.journal.last
        logged_bytes, self.logged_bytes = self.logged_bytes, 0
        self.clear_unstored()
        # Right after the last step: what was evicted is released by then, and nothing that the image names.
        gone = _Trash(self.number, self._trash, self.cold.take_released())
        trash = _Trash(self.number, gone.keys + self._image_keys(self._image, self._image_parts), gone.blocks)
        self._trash = []
        self._version += 1
        version = self._version
        ledger = self.window.ledger.copy()
        staged = ledger.first_part, ledger.next_part
        next_block = self._next_block
        self._bound_part = ledger.next_part if self._bound_part is None else self._bound_part
        all_trash = [*self._leaving.values(), trash]
        written = [0, 0]  # parts, bytes
        blocks: Ranges = []
        last: list[bool] = []
        whole = xxhash.xxh3_64()

        def parts() -> Iterator[bytes]:
            named = taken.stored()
            keys = [key for each in all_trash for key in each]
            written[1] -= sum(map(len, keys))  # or much trash puts the next image off, which then has more
            head = values.image_key(self.number, version, 0)
            yield values.seal("head", {"ledger": ledger.document(), "trash": keys}, head)
            yield from taken.encode(lambda i: values.image_key(self.number, version, i + 1))
            blocks.extend(ranges_of(named))

        chunks = _chunks(parts())

        def some() -> Mapping[bytes, bytes]:
            """The next parts; in the committer's thread."""
            made = next(chunks, None)
            if made is None:
                last.append(True)
                return {}
            session.tier.check_room(sum(map(len, made)), STORING)
            puts = {values.image_key(self.number, version, written[0] + i): part for i, part in enumerate(made)}
            for part in made:
                whole.update(values.checksum(part))
            written[0] += len(made)
            written[1] += sum(map(len, made))
            return puts

        def go_on() -> None:
            if self.deleted:
                self._taken_back([*gone, *self._image_keys(version, written[0])])
            elif not last:
                session.journal.background(BackgroundWrite(_once(some), size=_CHUNK, done=go_on, refused=give_up))
            else:
                numbers = {"next_block": next_block, "staged": staged, "through": through, "blocks": blocks}
                puts = self._pointer({**numbers, "sum": whole.digest()}, version, *written)
                session.journal.background(BackgroundWrite(lambda: puts, size=100, done=done))

        def done() -> None:
            if self.deleted:
                self._taken_back([*gone, *self._image_keys(version, written[0])])
                return
            self._image, self._image_parts, self._image_bytes = version, *written
            self._image_blocks, self._image_next = blocks, next_block
            self._staged = staged
            self.through, self.checkpointing = through, False
            self._leaving[version] = trash
            session.discard(self.number, trash, remains)
            then()

        def give_up(error: OutOfRoom) -> None:
            session.discard(self.number, self._image_keys(version, written[0]), lambda: given_up(error))

        def given_up(error: OutOfRoom) -> None:
            """Nothing of the image is left: it is as if it had not begun."""
            if self.deleted:
                self._taken_back([*gone])
                return
            self._version -= 1
            self._trash += gone
            self.logged_bytes += logged_bytes
            self.add_unstored(logged_bytes)
            self.checkpointing = False
            refused(error)

        def remains() -> None:
            del self._leaving[version]

        go_on()

    def _taken_back(self, trash: Sequence[bytes]) -> None:
        """The window was deleted while it wrote an image."""
        self.checkpointing = False
        self._trash += trash
        if self._gone is not None:
            self._gone()

    def first_pointer(self) -> Mapping[bytes, bytes]:
        """What is written of a new window: that there is no image of it yet, and no record that it needs."""
        numbers = {"next_block": 1, "staged": [1, 1], "through": self.through, "blocks": [], "sum": b""}
        return self._pointer(numbers, 0, 0, 0)

    def _pointer(self, numbers: Mapping[str, Any], version: int, parts: int, size: int) -> Mapping[bytes, bytes]:
        bound = self._bound_block, self._bound_part
        pointer = {"image": version, "parts": parts, "bytes": size, "bound": bound, **numbers}
        key = values.pointer_key(self.number)
        return {key: values.seal("pointer", pointer, key)}

    def _image_keys(self, version: int, parts: int) -> list[bytes]:
        return [values.image_key(self.number, version, i) for i in range(parts)]

    # ---------------------------------------------------------------- staged parts

    def read_parts(self, parts: Sequence[Part]) -> list[Batch]:
        """The entries of staged parts, in their order. Any thread may call it."""
        batches = []
        for start in range(0, len(parts), _PARTS_PER_TRIP):
            some = parts[start : start + _PARTS_PER_TRIP]
            keys = [values.staged_key(self.number, part.number) for part in some]
            for part, key, data in zip(some, keys, self._session.tier.get_many(keys), strict=True):
                bound = self._bound_part is not None and part.number >= self._bound_part
                batches.append(values.batch_from(values.unseal("part", data, key, bound=bound)))
        return batches

    def drop_parts(self, parts: Sequence[Part]) -> None:
        """Nobody needs these any more once a checkpoint covers their commit; until then a recovery does."""
        self._trash.extend(values.staged_key(self.number, part.number) for part in parts)

    # ---------------------------------------------------------------- recovery and deletion

    def recover(self, older: bool = False) -> None:
        """Read the image that counts, if there is one; raises DataLoss. See the attribute for `older`."""
        self.older = older
        try:
            self._read()
        finally:
            # What was written after it, in order, and belongs to nobody now.
            self._trash += self._found_blocks() + self._found_images()

    def _read(self) -> None:
        data = self._session.read("pointer", values.pointer_key(self.number), not self.older)
        if data is None:
            raise DataLoss(f"the pointer to the image of window {self.name!r} is missing")
        self._image = self._version = data["image"]
        self._image_parts, self._image_bytes = data["parts"], data["bytes"]
        self._next_block, self._staged, self.through = data["next_block"], tuple(data["staged"]), data["through"]
        self._image_next = self._next_block
        self._image_blocks = [(a, b) for a, b in data.get("blocks", [(1, self._next_block)])]
        self._sum = data.get("sum")
        self._bound_block, self._bound_part = (0, None) if self._sum is None else data["bound"]
        if self._image:
            self._restore()

    def _restore(self) -> None:
        """Read the image."""
        version, bound, whole = self._image, self._sum is not None, xxhash.xxh3_64()

        def read() -> Iterator[bytes | None]:
            for key in self._image_keys(version, self._image_parts):
                (data,) = self._session.tier.get_many([key])
                whole.update(b"" if data is None else values.checksum(data))
                yield data

        called, parts = f"the image of window {self.name!r}", read()
        head = values.unseal("head", next(parts), called, values.image_key(self.number, version, 0), bound)
        self._trash = list(head["trash"])
        ledger = image.ledger_of(head["ledger"], called)
        self.window = image.restore(
            parts,
            max_keys=self._max_keys,
            clock=self.clock,
            cold=self.cold,
            name=called,
            key=lambda i: values.image_key(self.number, version, i + 1),
            bound=bound,
            forest=self._forest,
        )
        if self._sum is not None and self._sum != whole.digest():
            raise DataLoss(f"{called} has parts that were written at different times")
        self.window.ledger = ledger

    def _forest(self, layout: Layout, cold: Cold, made_of: ForestImage) -> Forest:
        """Make a forest of what the image has of it."""
        return Forest.restore(layout, cold, made_of)

    def _found_blocks(self) -> list[bytes]:
        found = self._session.existing(lambda i: values.block_key(self.number, self._next_block + i))
        self._next_block += len(found)
        self._bound_block = self._bound_block or self._next_block
        return found

    def _found_images(self) -> list[bytes]:
        """Parts of images that were begun; of each that was, the one before it was begun, too, and not deleted."""
        found = []
        while begun := self._session.existing(lambda i: values.image_key(self.number, self._version + 1, i)):
            self._version += 1
            found += begun
        return found

    def give_up(self, then: Callable[[], None]) -> None:
        """Let what is under way come to nothing; `then` is called as soon as `left` says all there will ever be."""
        self.deleted = True
        self.clear_unstored()
        self.cold.forget()
        self._gone = then
        if not self.checkpointing:
            then()

    def remains(self) -> Remains:
        """What the tier has of it, or is going to have."""
        leaving = [key for trash in self._leaving.values() for key in trash]
        first, last = self._staged[0], max(self._staged[1], self.window.ledger.next_part)
        blocks = [*self._image_blocks, (self._image_next, self._next_block)]
        remains = Remains(
            blocks, (first, last), self._image, self._image_parts, self._version + 1, leaving + self._trash
        )
        return remains.found(self._session, self.number) if self.lost else remains


def discard_all(session: TierSession, number: int, remains: Remains, done: Callable[[], None]) -> None:
    """Delete all values of a window that was given up, in the background; `done` is called after that."""

    def keys() -> Iterator[bytes]:
        yield values.pointer_key(number)
        yield from (values.image_key(number, remains.image, i) for i in range(remains.parts))
        yield from remains.keys
        yield from (values.staged_key(number, i) for i in range(*remains.staged))
        yield from (values.block_key(number, i) for blocks in remains.blocks for i in range(*blocks))

    session.discard(number, keys(), done)


def ranges_of(numbers: Array) -> Ranges:
    """Up to `_RANGES` ranges that cover all of some numbers, int64 (n,), n >= 0: apart where the gaps are widest.

    >>> import numpy as np
    >>> ranges_of(np.array([7, 1, 2, 8]))
    [(1, 3), (7, 9)]
    """
    if not len(numbers):
        return []
    numbers = np.sort(numbers)
    gaps = np.diff(numbers)
    cuts = np.flatnonzero(gaps > 1)
    if len(cuts) >= _RANGES:
        cuts = np.sort(cuts[np.argsort(gaps[cuts])[1 - _RANGES :]])
    first, stop = numbers[np.append(0, cuts + 1)], numbers[np.append(cuts, -1)] + 1
    return list(zip(first.tolist(), stop.tolist(), strict=True))


def _chunks(parts: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Parts in lists of some MiB."""
    chunk: list[bytes] = []
    size = 0
    for part in parts:
        chunk.append(part)
        size += len(part)
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _once(make: Callable[[], Mapping[bytes, bytes]]) -> Callable[[], Mapping[bytes, bytes]]:
    """`make`, called once and remembered: a commit that fails is tried again with the same values."""
    made: list[Mapping[bytes, bytes]] = []

    def again() -> Mapping[bytes, bytes]:
        if not made:
            made.append(make())
        return made[0]

    return again
