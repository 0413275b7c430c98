"""An image of a window: everything of it but the columns of its sealed blocks, as parts of a few MiB.

    window ── steps: copies, a few ms each ──▶ Image ── encode: later, in another thread ──▶ part 0, part 1, …
                                                                                        part 0, part 1, … ──▶ restore

    head      spec, sizes, counts, newest (the high-water mark), which partials are large
    view      the spec of one                                  its aggregates have partials below
    keys      names, numbers, now, late_through, touched       in the order in which they were created
    small     entries of keys that share pages
    forest    one key's: where its head is, and its tail       blocks: ids, times, counts, partials
                                                               nodes: ids of large partials, of all levels
    unused    numbers that keys had once                       so that the next key gets the number it would have got
    rollup    the number of one; then its own image            head, keys, small, …, end
    removed   what was removed, with `known`; then its own image
    cascade   the spec of one; then its own image
    end       how much there was of each

A part is a stored value with its number and some of these records. The entries of a key come after its name. The
restored window gives the same answers as the original one, and later writes have the same effect on it. Only the
position of rows in pages may differ.

The image is of one moment, because nobody writes to the window from the first step to the last; the caller ensures
that. We rejected copy-on-write: a bulk that touches every key would copy the whole window in one piece again.

A step: O(`_KEYS` keys and their small entries), or O(`_FORESTS` forests and their blocks), copies only. Encode: the
same, a part at a time.  Memory: one copy of the dump, which is freed as it is encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from sash.durability.formats import NO_STORE, pack, seal
from sash.durability.records.columns import columns_to
from sash_engine.forest import Forest
from sash_engine.forest.cold import PendingBlock
from sash_engine.forest.image import ForestImage
from sash_engine.monoids import Monoid, Partials
from sash_engine.monoids.base import Array
from sash_engine.windows.derived.views import View
from sash_engine.windows.keys.keys import NEVER
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.window import Window

PART_BYTES = 4 << 20
"""A part has no more bytes, unless a single entry, key or block is larger."""

_KEYS = 4_096
"""Keys that one step copies: 2 ms with ten entries each, 4 ms with 64."""

_FORESTS = 64
"""Forests that one step copies: 2 ms if each has at most one block."""

_BLOCKS = 1_024


Save = Callable[[list[PendingBlock]], None]
"""Numbers sealed blocks and large partials of a forest, and has them stored before the pointer to the image."""

PartKey = Callable[[int], bytes | None]
"""The key of a part of an image, by its number; None for a part that is stored under no key."""

_Records = Callable[[], Iterator[bytes]]
"""Makes records of copies, in any thread. The window may change meanwhile."""


def no_key(number: int) -> None:
    """The `PartKey` of parts that are stored under no key."""
    return


def reached(window: Window | View) -> dict[str, int]:
    """How far a window has come, as members of a document: what is final, and the newest arrival, where it has them."""
    return {
        "newest": window.mark,
        **({} if window.punctuated == NEVER else {"punctuated": window.punctuated}),
        **({} if isinstance(window, View) or window.known is None else {"arrivals": window.known.number}),
    }


def dump(window: Window) -> Image:
    """Take an image of a window at once. Every sealed block of it must be stored."""
    image = Image(window)
    for _ in image.steps():
        pass
    return image


def _all_are_saved(blocks: list[PendingBlock]) -> None:
    assert not blocks, f"{len(blocks)} blocks are not stored"


class Image:
    """An image of a window. `steps` takes it, then `encode` writes it, once.

    Args:
        window: the window.
        save: stores the blocks that the image names and that are not stored yet, right before it copies their numbers.
    """

    def __init__(self, window: Window, save: Save = _all_are_saved) -> None:
        self._window, self._save, self._layout = window, save, window.layout
        self._records: deque[_Records] = deque()
        self._totals = {"keys": 0, "unused": 0, "entries": 0, "forests": 0}
        self._stored: list[Array] = [np.empty(0, np.int64)]

    def steps(self) -> Iterator[None]:
        """Copy the window, a part with each step. Do not write to it from the first step to the last.

        Raises:
            Unavailable, DataLoss: a block that the image needs cannot be read. The image is of no use then.
        """
        window, keys = self._window, self._window.keys
        head = {
            "spec": window.spec.document(),
            "block": window.block,
            "pages": window.pages,
            "counts": window.counts.document(),
            **reached(window),
            "large": [slot for slot, monoid in enumerate(self._layout.monoids) if monoid.external],
        }
        self._take(lambda: ["head", head])
        for view in window.derived.views.values():
            self._take(partial(lambda document: ["view", document], view.spec.document()))
        for names, numbers in keys.chunks(_KEYS):
            self._take_keys(names, numbers)
            yield
            stores = keys.with_own_stores(numbers)
            while some := list(islice(stores, _FORESTS)):
                for number, store in some:
                    yield from self._take_forest(number, store)
                yield
        yield from self._take_unused()
        for number, rollup in enumerate(window.derived.rollups):
            yield from self._take_part(["rollup", number], rollup.window)
        if window.removed is not None:
            yield from self._take_part(["removed"], window.removed)
        for cascade in window.derived.cascades.values():
            yield from self._take_part(["cascade", cascade.window.spec.document()], cascade.window)
        self._take(lambda: ["end", self._totals])

    def stored(self) -> Array:
        """The numbers of all blocks and partials that it names, int64, in any order. Call it after the last step."""
        return np.concatenate(self._stored)

    def encode(self, key: PartKey = no_key, store: bytes = NO_STORE) -> Iterator[bytes]:
        """Write the image, part by part, and free what is written.

        Args:
            key: the key of each part, by its number.
            store: id of the store that they are written to.
        """
        part: list[bytes] = []
        number = size = 0
        while self._records:
            for record in self._records.popleft()():
                if part and size + len(record) > PART_BYTES:
                    yield seal("image", [number, part], key(number), store)
                    part, number, size = [], number + 1, 0
                part.append(record)
                size += len(record) + 16
        yield seal("image", [number, part], key(number), store)

    # ---------------------------------------------------------------- copies and their records

    def _take(self, make: Callable[[], list[Any]]) -> None:
        self._records.append(lambda: iter([pack(make())]))

    def _take_keys(self, names: list[str], numbers: Numbers) -> None:
        keys = self._window.keys
        columns = [numbers, keys.now[numbers], keys.late_through[numbers], keys.touched[numbers]]
        small, lengths, rows = keys.small(numbers)
        ends = np.concatenate(([0], np.cumsum(lengths)))
        self._totals["keys"] += len(names)
        self._totals["entries"] += int(ends[-1])

        def records() -> Iterator[bytes]:
            yield from _pieces(lambda a, b: ["keys", names[a:b], _cut(columns, a, b)], len(names))
            yield from _pieces(small_ones, len(small))

        def small_ones(a: int, b: int) -> list[Any]:
            cut = [column[ends[a] : ends[b]] for column in rows]
            return ["small", _cut([small, lengths], a, b), columns_to(self._layout.stored(cut))]

        self._records.append(records)

    def _take_unused(self) -> Iterator[None]:
        keys, first = self._window.keys, 0
        while len(unused := keys.unused(first, first + _KEYS)):
            first += len(unused)
            self._take(partial(lambda numbers: ["unused", columns_to([numbers])], unused))
            yield
        self._totals["unused"] = first

    def _take_part(self, called: list[Any], window: Window) -> Iterator[None]:
        """Take the image of a window that is a part of this one."""
        image = Image(window, self._save)
        self._take(lambda: called)
        yield from image.steps()
        self._records += image._records
        self._stored += image._stored

    def _take_forest(self, number: int, forest: Forest) -> Iterator[None]:
        while forest.sweep():  # otherwise the dump does it in one piece
            yield
        self._save(forest.pending_blocks())
        taken = forest.dump()
        self._totals["forests"] += 1
        self._stored += [taken.ids, *taken.nodes.values()]
        self._records.append(lambda: self._forest(number, taken))

    def _forest(self, number: int, forest: ForestImage) -> Iterator[bytes]:
        ends = [forest.head, forest.skip, forest.newest, forest.room, forest.done]
        ids = list(forest.nodes.values())
        nodes = len(ids[0]) if ids else 0
        sizes = [len(forest.ids), nodes]
        yield pack(["forest", number, sizes, ends, columns_to(self._layout.stored(forest.tail))])
        yield from _pieces(lambda a, b: ["nodes", _cut(ids, a, b)], nodes)

        def blocks(a: int, b: int) -> list[Any]:
            columns = (forest.ids, forest.first, forest.last, forest.counts)
            partials = [
                _partials_to(monoid, tuple(column[a:b] for column in slot))
                for monoid, slot in zip(self._layout.monoids, forest.partials, strict=True)
            ]
            return ["blocks", _cut(columns, a, b), partials]

        yield from _pieces(blocks, len(forest.ids), _BLOCKS)


def _cut(columns: Sequence[Array], a: int, b: int) -> list[Any]:
    return columns_to([column[a:b] for column in columns])


def _pieces(make: Callable[[int, int], list[Any]], n: int, step: int = 65_536) -> Iterator[bytes]:
    """Records over 0..n, with up to `step` rows each; fewer if a record would be larger than a part."""
    left = [(a, min(a + step, n)) for a in range(0, n, step)]
    left.reverse()
    while left:
        a, b = left.pop()
        record = pack(make(a, b))
        if len(record) > PART_BYTES // 2 and b - a > 1:
            middle = (a + b) // 2
            left += [(middle, b), (a, middle)]
        else:
            yield record


def _partials_to(monoid: Monoid, partials: Partials) -> list[Any]:
    """Encode n partials: columns of numbers as they are, others one by one with `Monoid.encode`."""
    if any(part.dtype.hasobject for part in partials):
        return [monoid.encode(partial) for partial in monoid.unpack(partials)]
    return columns_to(partials)
