"""One window in the tier: its sealed blocks, its images, and what is to be deleted of it.

    sealed blocks ──▶ block(w, 1), block(w, 2), …          in the background, when enough have gathered
    all the rest  ──▶ image(w, v, 0), image(w, v, 1), …    after so much journal
                      pointer(w) ──▶ v, and the last record that it covers

A checkpoint stores all sealed blocks, then an image as of one moment, then the pointer to it. What only older images
refer to (blocks that were evicted or changed, parts of batches that were committed) is *trash*: it is deleted after
the pointer is written, so a crash at any point finds all that the image that counts refers to. Blocks that were stored
after that image belong to nobody after a crash, and are trash, too; numbers are never used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sash.clock import Clock
from sash.errors import DataLoss, SashError
from sash.forest.cold import Cold, Unsaved
from sash.monoids.base import Array
from sash.windows import image, values
from sash.windows.backing import Backing
from sash.windows.batch import Batch
from sash.windows.journal import GROUP_BYTES, Job
from sash.windows.ledger import Ledger, Part
from sash.windows.spec import Durability, WindowSpec
from sash.windows.window import Window

__all__ = ["Kept", "OperationClock", "discard_all"]

_CHUNK = GROUP_BYTES // 2
_PARTS_PER_TRIP = 16


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


class Kept:
    """A window that the tier keeps.

    Args:
        backing: the tier.
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
        deleted: what it has under way comes to nothing.
    """

    def __init__(
        self,
        backing: Backing,
        number: int,
        spec: WindowSpec,
        durability: Durability,
        clock: Clock,
        max_keys: int,
        block: int,
    ) -> None:
        self._backing = backing
        self._max_keys = max_keys
        self.number, self.name, self.durability = number, spec.name, durability
        self.clock = OperationClock(clock)
        self.cold = Cold(self._load, backing.cache)
        self.window = Window(spec, max_keys, block, clock=self.clock, cold=self.cold)
        self.through = 0
        self.logged_bytes = 0
        self.doubt: SashError | None = None
        self.deleted = False
        self.checkpointing = False
        self._next_block = 1
        self._version = 0  # of the last image that was begun
        self._image = 0  # the version that counts, 0 where there is none yet
        self._image_parts = 0
        self._image_bytes = 0
        self._trash: list[bytes] = []

    # ---------------------------------------------------------------- blocks

    def _load(self, numbers: Sequence[int]) -> list[list[Array]]:
        """The columns of stored blocks, in one round trip."""
        found = self._backing.tier.get_many([values.block_key(self.number, number) for number in numbers])
        blocks = []
        for number, data in zip(numbers, found, strict=True):
            what = f"block {number} of window {self.name!r}"
            try:
                blocks.append(self.window.layout.loaded(values.columns_from(values.unseal("block", data, what))))
            except DataLoss as error:
                self._backing.lost(what, error)
                raise
        return blocks

    def store(self, least: int = 0) -> None:
        """Store the sealed blocks that the tier lacks, where they have `least` entries and more."""
        if self.cold.dirty_entries < max(least, 1):
            return
        chunk: list[Unsaved] = []
        size = 0
        for block in self.window.unsaved():
            block.stored = self._next_block
            self._next_block += 1
            chunk.append(block)
            size += sum(column.nbytes for column in block.columns)
            if size >= _CHUNK:
                self._store_chunk(chunk, size)
                chunk, size = [], 0
        if chunk:
            self._store_chunk(chunk, size)

    def _store_chunk(self, blocks: Sequence[Unsaved], size: int) -> None:
        numbered = [(block, block.stored or 0) for block in blocks]
        layout = self.window.layout

        def puts() -> Mapping[bytes, bytes]:
            return {
                values.block_key(self.number, number): values.seal(
                    "block", values.columns_to(layout.stored(block.columns))
                )
                for block, number in numbered
            }

        def landed() -> None:
            self.cold.landed(numbered)
            self._backing.cache.trim()

        self._backing.journal.background(Job(puts, size=size, done=landed))

    # ---------------------------------------------------------------- checkpoints

    def wants_checkpoint(self, journal_bytes: int) -> bool:
        """Whether so much was written since the last image that another one pays."""
        return not self.checkpointing and self.logged_bytes > max(journal_bytes, self._image_bytes // 2)

    def checkpoint(self, then: Callable[[], None]) -> None:
        """Write an image of the window as it is now, in the background; then delete what only older ones refer to.

        Args:
            then: called when the image counts.
        """
        backing = self._backing
        self.checkpointing = True
        self.logged_bytes = 0
        self.store()
        through = backing.journal.last
        taken = image.dump(self.window)
        # Right after the dump, which releases what was evicted before it.
        trash = self._trash + [values.block_key(self.number, number) for number in self.cold.take_released()]
        trash += self._image_keys(self._image, self._image_parts)
        self._trash = []
        self._version += 1
        version = self._version
        head = {"ledger": self.window.ledger.document(), "next_block": self._next_block, "trash": trash}
        chunks = _chunks(values.seal("head", head), taken.encode())
        written = [0, 0]  # parts, bytes
        last: list[bool] = []

        def some() -> Mapping[bytes, bytes]:
            """The next parts; in the committer's thread."""
            parts = next(chunks, None)
            if parts is None:
                last.append(True)
                return {}
            puts = {values.image_key(self.number, version, written[0] + i): part for i, part in enumerate(parts)}
            written[0] += len(parts)
            written[1] += sum(map(len, parts))
            return puts

        def go_on() -> None:
            if self.deleted:
                backing.discard(self._image_keys(version, written[0]))
            elif not last:
                backing.journal.background(Job(_once(some), size=_CHUNK, done=go_on))
            else:
                pointer = {"image": version, "parts": written[0], "bytes": written[1], "through": through}
                puts = {values.pointer_key(self.number): values.seal("pointer", pointer)}
                backing.journal.background(Job(lambda: puts, size=100, done=done))

        def done() -> None:
            if self.deleted:
                backing.discard([*self._image_keys(version, written[0]), values.pointer_key(self.number)])
                return
            self._image, self._image_parts, self._image_bytes = version, *written
            self.through, self.checkpointing = through, False
            backing.discard(trash)
            then()

        go_on()

    def _image_keys(self, version: int, parts: int) -> list[bytes]:
        return [values.image_key(self.number, version, i) for i in range(parts)]

    # ---------------------------------------------------------------- staged parts

    def read_parts(self, parts: Sequence[Part]) -> list[Batch]:
        """The entries of staged parts, in their order. Any thread may call it."""
        batches = []
        for start in range(0, len(parts), _PARTS_PER_TRIP):
            keys = [values.staged_key(self.number, part.number) for part in parts[start : start + _PARTS_PER_TRIP]]
            for key, data in zip(keys, self._backing.tier.get_many(keys), strict=True):
                batches.append(values.batch_from(values.unseal("part", data, key)))
        return batches

    def drop_parts(self, parts: Sequence[Part]) -> None:
        """Nobody needs these any more once a checkpoint covers their commit; until then a recovery does."""
        self._trash.extend(values.staged_key(self.number, part.number) for part in parts)

    # ---------------------------------------------------------------- recovery and deletion

    def recover(self) -> None:
        """Read the image that counts, if there is one; raises DataLoss."""
        pointer = self._backing.read("pointer", values.pointer_key(self.number))
        if pointer is not None:
            parts = self._read_image(pointer["image"], pointer["parts"])
            head = values.unseal("head", next(parts), f"the image of window {self.name!r}")
            self.window = image.restore(parts, max_keys=self._max_keys, clock=self.clock, cold=self.cold)
            self.window.ledger = Ledger.of(head["ledger"])
            self._next_block, self._trash = head["next_block"], list(head["trash"])
            self._image = self._version = pointer["image"]
            self._image_parts, self._image_bytes = pointer["parts"], pointer["bytes"]
            self.through = pointer["through"]
        # What was written after it, in order, and belongs to nobody now.
        blocks = self._backing.run(lambda i: values.block_key(self.number, self._next_block + i))
        parts_begun = self._backing.run(lambda i: values.image_key(self.number, self._image + 1, i))
        self._next_block += len(blocks)
        self._version += bool(parts_begun)
        self._trash += [*blocks, *parts_begun]

    def _read_image(self, version: int, parts: int) -> Iterator[bytes | None]:
        for key in self._image_keys(version, parts):
            yield from self._backing.tier.get_many([key])

    def give_up(self) -> list[int]:
        """Let what is under way come to nothing; what `discard_all` needs to delete all there is in the tier."""
        self.deleted = True
        self.cold.forget()
        self._backing.discard(self._trash)
        return [self._next_block, self._image, self._image_parts, self.window.ledger.next_part]


def discard_all(backing: Backing, number: int, left: Sequence[int], done: Callable[[], None]) -> None:
    """Delete all values of a window that was given up, in the background; `done` is called after that."""
    next_block, version, parts, next_part = left
    backing.discard(
        [
            values.pointer_key(number),
            *(values.image_key(number, version, i) for i in range(parts)),
            *(values.staged_key(number, i) for i in range(1, next_part)),
            *(values.block_key(number, i) for i in range(1, next_block)),
        ],
        done,
    )


def _chunks(head: bytes, parts: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Parts in lists of some MiB, the head first."""
    chunk, size = [head], len(head)
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
