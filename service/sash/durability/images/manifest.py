"""The manifest of a stored window: which of its values the tier has, and which of them nobody needs any more.

    pointer(w) ──▶ StoredImage      image parts, blocks that it names, staged parts, last record
                   after it         blocks and staged parts that were written later
                   garbage          values that only older images name

A checkpoint first stores the parts of an image, then the pointer to it. Only then it deletes the garbage. So a crash at
any point leaves everything that the pointer's image names. Images list the garbage that the tier may still have.
Blocks that were stored after the image belong to nobody after a crash: they are garbage, too. Numbers of blocks are
never used again.

The pointer exists from the window's first commit on, even before there is an image. So a missing pointer is a loss, and
no empty window. The pointer says which blocks are in use. So a window with a damaged image can be deleted without its
image, and deleting an old window need not try every number that it ever had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from sash.durability import formats as values
from sash.durability.journal.session import TierSession
from sash_engine.monoids.base import Array
from sash_engine.windows.batches.ledger import Ledger

_RANGES_MAX = 256
"""A pointer names blocks in at most so many ranges. Deleting a window tries no number in the gaps between them."""

Ranges = list[tuple[int, int]]
"""Ranges of numbers, each as first and stop."""


@dataclass(slots=True)
class Remains:
    """The values of a window that is being deleted, or imported: an entry of `discarded` in `meta`.

    Args:
        blocks: ranges that cover the blocks that may exist. No number behind the last range was ever used.
        staged: first and stop of the staged parts that may exist.
        image: version of the image that the pointer names.
        parts: how many parts it has.
        begun: the last version of which parts may exist.
        keys: keys of all other values.
    """

    blocks: Ranges = field(default_factory=lambda: [(1, 1)])
    staged: tuple[int, int] = (1, 1)
    image: int = 0
    parts: int = 0
    begun: int = 1
    keys: list[bytes] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Remains:
        """Read what `document` returned."""
        remains = cls(**document)
        if isinstance(remains.blocks, int):  # an earlier version wrote the first unused number
            remains.blocks = [(1, remains.blocks)]
        return remains

    def with_later(self, session: TierSession, number: int) -> Remains:
        """Add the values of window `number` that an earlier process wrote after it had listed these."""
        (*blocks, (first, stop)), (first_part, stop_part), keys = self.blocks, self.staged, list(self.keys)
        blocks.append((first, stop + len(session.existing(lambda i: values.block_key(number, stop + i)))))
        stop_part += len(session.existing(lambda i: values.staged_key(number, self.staged[1] + i)))
        for version in range(self.image + 1, self.begun + 1):
            keys += session.existing(lambda i, version=version: values.image_key(number, version, i))  # type: ignore[misc]
        return Remains(blocks, (first_part, stop_part), self.image, self.parts, self.begun, keys)

    def all_keys(self, number: int) -> Iterator[bytes]:
        """Iterate over the keys of all values of window `number`."""
        yield values.pointer_key(number)
        yield from _image_keys(number, self.image, self.parts)
        yield from self.keys
        yield from (values.staged_key(number, i) for i in range(*self.staged))
        yield from (values.block_key(number, i) for blocks in self.blocks for i in range(*blocks))


@dataclass(slots=True)
class Garbage:
    """Values to delete. Blocks are numbers, as there may be a million of them and each key takes 0.4 µs to make."""

    window: int
    keys: list[bytes]
    blocks: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys of all values."""
        yield from self.keys
        yield from (values.block_key(self.window, number) for number in self.blocks)


@dataclass(frozen=True, slots=True)
class StoredImage:
    """The fields of the pointer of a window.

    Args:
        version: version of the image; 0 if there is none yet.
        parts, size: how many parts the image has, and how many bytes.
        next_block: the first block number that was not given out when the image was taken.
        staged: the first staged part that the image needs, and the next number of a staged part.
        through: the last record of the journal that the image covers.
        blocks: ranges of the blocks that the image names.
        checksum: over the checksums of all parts; None in format 1.
    """

    version: int = 0
    parts: int = 0
    size: int = 0
    next_block: int = 1
    staged: tuple[int, int] = (1, 1)
    through: int = 0
    blocks: Ranges = field(default_factory=list)
    checksum: bytes | None = b""

    def document(self, bound: tuple[int, int | None]) -> dict[str, Any]:
        """Return it as plain values; `bound` as in `Manifest`."""
        return {
            "image": self.version,
            "parts": self.parts,
            "bytes": self.size,
            "bound": bound,
            "next_block": self.next_block,
            "staged": self.staged,
            "through": self.through,
            "blocks": self.blocks,
            "sum": self.checksum,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> StoredImage:
        """Read what `document` returned. Format 1 has no ranges of blocks and no checksum."""
        next_block = document["next_block"]
        first, stop = document["staged"]
        return cls(
            document["image"],
            document["parts"],
            document["bytes"],
            next_block,
            (first, stop),
            document["through"],
            [(a, b) for a, b in document.get("blocks", [(1, next_block)])],
            document.get("sum"),
        )


@dataclass(slots=True)
class ImageDraft:
    """An image that is being written.

    Args:
        version: its version.
        released: values that were released since the image before it.
        garbage: those, and the parts of the image before it. They are deleted once the pointer names this image.
        listed: all garbage that the tier may still have; the image lists it.
        ledger: the window's ledger at the time of the image.
        next_block, staged: see `StoredImage`.
    """

    version: int
    released: Garbage
    garbage: Garbage
    listed: list[Garbage]
    ledger: Ledger
    next_block: int
    staged: tuple[int, int]


class Manifest:
    """The values that the tier has of one window.

    Args:
        window: number of the window.

    Attributes:
        image: what the pointer says.
        next_block: the next number for a block.
        owned: all values name their store: no earlier version wrote any of them.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.image = StoredImage()
        self.next_block = 1
        self.owned = True
        self._version = 0  # of the last image that was begun
        self._bound_block = 1  # blocks from this number on are not of format 1; 0: any may be
        self._bound_part: int | None = 1  # the same of staged parts; None: any may be
        self._garbage: list[bytes] = []
        self._deleting: dict[int, Garbage] = {}  # garbage on its way out, by the version of the image that allowed it

    # ---------------------------------------------------------------- blocks and staged parts

    def take_block_number(self) -> int:
        """Return the number for a new block."""
        self.next_block += 1
        return self.next_block - 1

    def block_is_bound(self, block: int) -> bool:
        """Whether a block cannot be of format 1."""
        return 0 < self._bound_block <= block

    def part_is_bound(self, part: int) -> bool:
        """Whether a staged part cannot be of format 1."""
        return self._bound_part is not None and part >= self._bound_part

    def add_garbage(self, keys: list[bytes]) -> None:
        """Delete values once a checkpoint covers the write that no longer needs them. Until then recovery does."""
        self._garbage += keys

    @property
    def has_garbage(self) -> bool:
        """Whether the next checkpoint deletes something."""
        return bool(self._garbage)

    # ---------------------------------------------------------------- images

    def start_after(self, record: int) -> None:
        """Note that no record up to this one belongs to the window, which is new."""
        self.image = replace(self.image, through=record)

    def begin_image(self, released: list[int], ledger: Ledger) -> ImageDraft:
        """Begin a new image.

        Args:
            released: blocks that were released since the last image.
            ledger: a copy of the window's ledger.
        """
        old = self.image
        gone = Garbage(self.window, self._garbage, released)
        garbage = Garbage(self.window, gone.keys + _image_keys(self.window, old.version, old.parts), released)
        self._garbage = []
        self._version += 1
        self._bound_part = ledger.next_part if self._bound_part is None else self._bound_part
        staged = ledger.first_part, ledger.next_part
        listed = [*self._deleting.values(), garbage]
        return ImageDraft(self._version, gone, garbage, listed, ledger, self.next_block, staged)

    def publish(self, draft: ImageDraft, image: StoredImage, session: TierSession) -> None:
        """Take over an image whose pointer is stored, and delete the garbage in the background."""
        self.image = image
        self._deleting[draft.version] = draft.garbage

        def deleted() -> None:
            del self._deleting[draft.version]

        session.discard(self.window, draft.garbage, deleted)

    def withdraw(self, draft: ImageDraft) -> None:
        """Forget an image that was given up, and of which nothing is left in the tier."""
        self._version -= 1
        self._garbage += draft.released

    def abandon(self, draft: ImageDraft, parts: int) -> None:
        """Treat an image as garbage, of which so many parts are written: the window is being deleted."""
        self._garbage += [*draft.released, *self.image_keys(draft.version, parts)]

    def image_keys(self, version: int, parts: int) -> list[bytes]:
        """The keys of the parts of an image."""
        return _image_keys(self.window, version, parts)

    def pointer(self, image: StoredImage, store: bytes) -> Mapping[bytes, bytes]:
        """The pointer to an image, by its key; `store` is the id of the store."""
        key = values.pointer_key(self.window)
        return {key: values.seal("pointer", image.document((self._bound_block, self._bound_part)), key, store)}

    # ---------------------------------------------------------------- recovery and deletion

    def read(self, document: Mapping[str, Any]) -> None:
        """Take over what the pointer in the tier says."""
        self.image = StoredImage.of(document)
        self._version = self.image.version
        self.next_block = self.image.next_block
        self._bound_block, self._bound_part = (0, None) if self.image.checksum is None else document["bound"]

    def collect_garbage(self, session: TierSession) -> None:
        """Find what was written after the image. A crash left it, and nobody needs it."""
        blocks = session.existing(lambda i: values.block_key(self.window, self.next_block + i))
        self.next_block += len(blocks)
        self._bound_block = self._bound_block or self.next_block
        self._garbage += blocks
        # Of each image that was begun, the one before it was begun, too, and not deleted.
        while parts := session.existing(lambda i: values.image_key(self.window, self._version + 1, i)):
            self._version += 1
            self._garbage += parts

    def remains(self, next_part: int) -> Remains:
        """The values to delete with the window.

        Args:
            next_part: the ledger's next number of a staged part.
        """
        image = self.image
        blocks = [*image.blocks, (image.next_block, self.next_block)]
        staged = image.staged[0], max(image.staged[1], next_part)
        keys = [key for garbage in self._deleting.values() for key in garbage]
        return Remains(blocks, staged, image.version, image.parts, self._version + 1, keys + self._garbage)


def ranges_of(numbers: Array) -> Ranges:
    """Cover n >= 0 numbers, int64, with up to `_RANGES_MAX` ranges; the widest gaps stay uncovered.

    >>> import numpy as np
    >>> ranges_of(np.array([7, 1, 2, 8]))
    [(1, 3), (7, 9)]
    """
    if not len(numbers):
        return []
    numbers = np.sort(numbers)
    gaps = np.diff(numbers)
    cuts = np.flatnonzero(gaps > 1)
    if len(cuts) >= _RANGES_MAX:
        cuts = np.sort(cuts[np.argsort(gaps[cuts])[1 - _RANGES_MAX :]])
    first, stop = numbers[np.append(0, cuts + 1)], numbers[np.append(cuts, -1)] + 1
    return list(zip(first.tolist(), stop.tolist(), strict=True))


def _image_keys(window: int, version: int, parts: int) -> list[bytes]:
    return [values.image_key(window, version, i) for i in range(parts)]
