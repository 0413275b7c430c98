"""An image of a window: everything of it but the columns of its sealed blocks, as parts of a few MiB.

    window ── steps: copies, a few ms each ──▶ Image ── encode: later, in another thread ──▶ part 0, part 1, …
                                                                                        part 0, part 1, … ──▶ restore

    head      spec, sizes, counts, newest (the high-water mark), which partials are large
    keys      names, numbers, now, late_through, touched       in the order in which they were created
    small     entries of keys that share pages
    forest    one key's: where its head is, and its tail       blocks: ids, times, counts, partials
                                                               nodes: ids of large partials, of all levels
    unused    numbers that keys had once                       so that the next key gets the number it would have got
    end       how much there was of each

A part is a stored value that carries its number and some of these records, one after the other; of a key what it has
comes after its name. The restored window answers as the dumped one would have, and what is done to it afterwards has
the same effect; how rows lie in pages is nobody's to notice, and may differ.

The image is of one moment because nothing is written to the window from the first step to the last: whoever takes it
sees to that. The alternative, that a write first copies what it is about to change, lost: a bulk that touches every
key would be the whole dump in one piece again.

A step: O(`_KEYS` keys and their small entries), or O(`_FORESTS` forests and their blocks), copies only. Encode: the
same, a part at a time.  Memory: one copy of what is dumped, which goes as it is encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sash.durability.formats import columns_from, columns_to, pack, seal, unpack, unseal
from sash.durability.forms import Head, LedgerForm, check_names, checked
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, InvalidArgument, Unsupported
from sash_engine.forest import Forest, Layout
from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.forest.image import ForestImage
from sash_engine.monoids import First, Last, Max, Min, Monoid, Partials, Sum
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import Pane
from sash_engine.windows.ledger import Ledger
from sash_engine.windows.pages import Numbers
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.window import Window

__all__ = ["PART_BYTES", "Image", "dump", "ledger_of", "restore"]

PART_BYTES = 4 << 20
"""A part has no more, unless a single entry, key or block is larger."""

_KEYS = 4_096
"""Keys that one step copies: 2 ms at ten entries each, 4 ms at 64."""

_FORESTS = 64
"""Forests that one step copies: 2 ms where they have no more than a block."""

_BLOCKS = 1_024

P = ParamSpec("P")
T = TypeVar("T")

Save = Callable[[list[PendingBlock]], None]
"""Gives sealed blocks of a forest, and large partials, their ids, and has them stored before the image counts."""

PartKey = Callable[[int], bytes | None]
"""What a part of an image is stored under, by its number; None where that is nothing."""

MakeForest = Callable[[Layout, Cold, ForestImage], Forest]
"""Makes a forest of its image."""

_Records = Callable[[], Iterator[bytes]]
"""Makes records of what was copied; in any thread, and whatever becomes of the window meanwhile."""


def _no_key(number: int) -> None:
    return None


def dump(window: Window) -> Image:
    """Take an image of a window as it is now, at once; every sealed block of it is stored.

    Raises:
        Unsupported: the window runs on an algorithm that keeps no entries.
    """
    image = Image(window)
    for _ in image.steps():
        pass
    return image


def _all_are_saved(blocks: list[PendingBlock]) -> None:
    assert not blocks, f"{len(blocks)} blocks are not stored"


class Image:
    """An image of a window, taken by `steps`, then written by `encode`, once.

    Args:
        window: whose it is.
        save: stores what the image is to name and is not stored yet, right before it is copied.

    Raises:
        Unsupported: the window runs on an algorithm that keeps no entries.
    """

    def __init__(self, window: Window, save: Save = _all_are_saved) -> None:
        if window.spec.algorithm is not None:
            raise Unsupported(
                f"window {window.spec.name!r} runs on {window.spec.algorithm}, which keeps partials that nobody can "
                "store",
                field="algorithm",
            )
        self._window, self._save, self._layout = window, save, window.layout
        self._records: deque[_Records] = deque()
        self._totals = {"keys": 0, "unused": 0, "entries": 0, "forests": 0}
        self._stored: list[Array] = [np.empty(0, np.int64)]

    def steps(self) -> Iterator[None]:
        """Copy the window, some of it with each step; nothing may be written to it from the first to the last.

        Raises:
            Unavailable, DataLoss: a block that has to be read for it cannot be; the image comes to nothing.
        """
        window, keys = self._window, self._window.keys
        head = {
            "spec": window.spec.document(),
            "block": window.block,
            "pages": window.pages,
            "counts": window.counts.document(),
            "newest": window.mark,
            "large": [slot for slot, monoid in enumerate(self._layout.monoids) if monoid.external],
        }
        self._take(lambda: ["head", head])
        for names, numbers in keys.chunks(_KEYS):
            self._take_keys(names, numbers)
            yield
            stores = keys.with_own_stores(numbers)
            while some := list(islice(stores, _FORESTS)):
                for number, store in some:
                    yield from self._take_forest(number, store.forest)
                yield
        yield from self._take_unused()
        self._take(lambda: ["end", self._totals])

    def stored(self) -> Array:
        """The ids of all blocks and partials that it names, int64, in any order; once all steps were taken."""
        return np.concatenate(self._stored)

    def encode(self, key: PartKey = _no_key) -> Iterator[bytes]:
        """Write it, part by part, and let go of what is written.

        Args:
            key: what each part will be stored under, by number.
        """
        part: list[bytes] = []
        number = size = 0
        while self._records:
            for record in self._records.popleft()():
                if part and size + len(record) > PART_BYTES:
                    yield seal("image", [number, part], key(number))
                    part, number, size = [], number + 1, 0
                part.append(record)
                size += len(record) + 16
        yield seal("image", [number, part], key(number))

    # ---------------------------------------------------------------- copies, and the records that are made of them

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

    def _take_forest(self, number: int, forest: Forest) -> Iterator[None]:
        while forest.sweep():  # or the dump does it, whatever has left
            yield
        self._save(forest.unsaved())
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
    """Records over 0..n, of up to `step` each and less where they would be larger than a part."""
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


def restore(
    parts: Iterable[bytes | None],
    *,
    max_keys: int = 10_000_000,
    clock: Clock | None = None,
    cold: Cold | None = None,
    name: str = "the image",
    key: PartKey = _no_key,
    bound: bool = False,
    forest: MakeForest | None = None,
) -> Window:
    """The window whose image it is.

    Args:
        parts: as `Image.encode` gave them, in order; None where one is missing.
        max_keys, clock, cold: as for `Window`; `cold` loads the blocks that the image refers to.
        name: what to call the image in an error.
        key: what each part was found under, by number.
        bound: whether every part must say so itself, see `unseal`.
        forest: makes a forest of its image; None: as it was.

    Raises:
        DataLoss: parts are missing or damaged.
        FailedPrecondition: a newer version wrote them.
        InvalidArgument: the spec names an aggregate that is not installed.
    """
    reader, number = _Reader(max_keys, clock, cold, forest or Forest.restore), -1
    for number, data in enumerate(parts):
        called = f"part {number} of {name}"
        found, records = unseal("image", data, called, key(number), bound)
        if found != number:
            raise DataLoss(f"{called} is part {found} of some image")
        try:
            for record in records:
                reader.take(*unpack(record))
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataLoss(f"{called} does not go on from the one before: {error!r}") from error
    if reader.window is None or not reader.ended:
        raise DataLoss(f"{name} ends behind part {number}, before it is complete")
    return reader.window


def ledger_of(document: object, name: str) -> Ledger:
    """The ledger that is stored with the image `name`; raises DataLoss where it is none."""
    try:
        return _sound(checked, LedgerForm, document, "ledger").ledger()
    except ValueError as error:
        raise DataLoss(f"{name} has no ledger: {error}") from None


def _sound(check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `check` makes of something that is stored, and not sent: raises ValueError."""
    try:
        return check(*args, **kwargs)
    except InvalidArgument as error:
        raise ValueError(error.message) from None


class _Reader:
    """Puts a window together, record by record; a record that is out of place is an error of any kind."""

    def __init__(self, max_keys: int, clock: Clock | None, cold: Cold | None, make: MakeForest) -> None:
        self._max_keys, self._clock, self._cold, self._make = max_keys, clock, cold, make
        self.window: Window | None = None
        self.ended = False
        self._found = {"keys": 0, "unused": 0, "entries": 0, "forests": 0}
        self._forest: _Pieces | None = None
        self._large: Sequence[int] | None = None
        self._takers: dict[str, Callable[..., None]] = {
            "keys": self._take_keys,
            "unused": self._take_unused,
            "small": self._take_small,
            "forest": self._take_forest,
            "nodes": self._take_nodes,
            "blocks": self._take_blocks,
            "end": self._take_end,
        }

    def take(self, kind: str, *fields: Any) -> None:
        """Read one record."""
        assert not self.ended, f"{kind} follows the end"
        if self.window is None:
            self.window = self._started(kind, *fields)
        else:
            assert (self._forest is not None) == (kind in ("blocks", "nodes")), f"{kind} is out of place"
            self._takers[kind](self.window, *fields)

    def _started(self, kind: str, head: dict[str, Any]) -> Window:
        assert kind == "head", f"an image begins with its head, not with {kind}"
        pages = head["pages"]
        window = Window(
            WindowSpec.parse(head["spec"]),
            self._max_keys,
            head["block"],
            None if pages is None else tuple(pages),
            self._clock,
            self._cold,
        )
        said = _sound(checked, Head, head, "head")
        window.resume(said.counts.counts(), said.newest)
        self._large = said.large
        if self._large is None:
            self._large = [slot for slot, monoid in enumerate(window.layout.monoids) if _was_large(monoid)]
        return window

    def _take_keys(self, window: Window, names: list[str], columns: list[Any]) -> None:
        _sound(check_names, names, "keys")
        numbers, now, late_through, touched = columns_from(columns)
        keys = window.keys
        keys.resume(names, numbers, np.empty(0, np.int64))
        keys.now[numbers], keys.late_through[numbers], keys.touched[numbers] = now, late_through, touched
        self._found["keys"] += len(names)

    def _take_unused(self, window: Window, columns: list[Any]) -> None:
        (unused,) = columns_from(columns)
        window.keys.resume([], np.empty(0, np.int64), unused)
        self._found["unused"] += len(unused)

    def _take_small(self, window: Window, keys: list[Any], columns: list[Any]) -> None:
        numbers, lengths = columns_from(keys)
        rows = window.layout.loaded(columns_from(columns))
        window.keys.bulk_insert_each(numbers, lengths, rows)
        self._found["entries"] += len(rows[0])

    def _take_forest(self, window: Window, number: int, sizes: list[int], ends: list[int], tail: list[Any]) -> None:
        assert self._large is not None, "the head comes first"
        rows = window.layout.loaded(columns_from(tail))
        self._forest = _Pieces(window.layout, self._large, number, sizes, ends, rows)
        self._found["forests"] += 1
        self._give(window)

    def _take_nodes(self, window: Window, ids: list[Any]) -> None:
        assert self._forest is not None
        self._forest.add_nodes(columns_from(ids))
        self._give(window)

    def _take_blocks(self, window: Window, columns: list[Any], partials: list[Any]) -> None:
        assert self._forest is not None
        slots = [_partials_from(monoid, slot) for monoid, slot in zip(window.layout.monoids, partials, strict=True)]
        self._forest.add(columns_from(columns), slots)
        self._give(window)

    def _give(self, window: Window) -> None:
        """Give the key its forest, once all blocks of it are there."""
        if self._forest is not None and self._forest.missing <= 0:
            assert self._cold is not None, "forests of an image need to load blocks"
            image = self._forest.image()
            window.keys.adopt(self._forest.number, self._make(window.layout, self._cold, image))
            self._forest = None

    def _take_end(self, window: Window, totals: dict[str, int]) -> None:
        assert totals == self._found, f"{self._found} were read, and {totals} written"
        self.ended = True


class _Pieces:
    """The image of one forest, as far as it was read."""

    def __init__(
        self,
        layout: Layout,
        large: Sequence[int],
        number: int,
        sizes: list[int],
        ends: list[int],
        tail: list[Array],
    ) -> None:
        self.number = number
        self._large = large
        blocks, nodes = sizes
        self.missing = blocks + nodes
        self._ends, self._tail = ends, tail
        self._columns: list[list[Array]] = []
        self._partials: list[list[Partials]] = []
        self._nodes: list[list[Array]] = []
        if not blocks:
            self.add([np.empty(0, np.int64)] * 4, [monoid.pack([]) for monoid in layout.monoids])

    def add(self, columns: list[Array], partials: list[Partials]) -> None:
        self.missing -= len(columns[0])
        self._columns.append(columns)
        self._partials.append(partials)

    def add_nodes(self, ids: list[Array]) -> None:
        self.missing -= len(ids[0])
        self._nodes.append(ids)

    def image(self) -> ForestImage:
        """It as a whole."""
        head, skip, newest, room, done = self._ends
        columns, partials = self._columns[0], self._partials[0]
        if len(self._columns) > 1:
            columns = [np.concatenate(parts) for parts in zip(*self._columns, strict=True)]
            partials = [
                tuple([np.concatenate(parts) for parts in zip(*slot, strict=True)])
                for slot in zip(*self._partials, strict=True)
            ]
        ids, first, last, counts = columns
        nodes = [np.concatenate(ids) for ids in zip(*self._nodes, strict=True)]
        return ForestImage(
            head=head,
            skip=skip,
            newest=newest,
            ids=ids,
            first=first,
            last=last,
            counts=counts,
            partials=partials,
            tail=self._tail,
            room=room,
            done=done,
            nodes=dict(zip(self._large, nodes, strict=True)) if nodes else {},
        )


def _partials_to(monoid: Monoid, partials: Partials) -> list[Any]:
    """n partials: columns of numbers as they are, others one by one in the form that `Monoid.encode` gives them."""
    if any(part.dtype.hasobject for part in partials):
        return [monoid.encode(partial) for partial in monoid.unpack(partials)]
    return columns_to(partials)


def _partials_from(monoid: Monoid, payload: list[Any]) -> Partials:
    if payload and isinstance(payload[0], bytes):
        return monoid.pack([monoid.restore(partial) for partial in payload])
    return tuple(columns_from(payload))


def _was_large(monoid: Monoid) -> bool:
    """Whether an aggregate is large to images that do not say which are: those of versions that went by its dtypes."""
    inner = monoid.inner if isinstance(monoid, Pane) else monoid
    return monoid.dtypes == (np.dtype(object),) and not isinstance(inner, First | Last | Max | Min | Sum)
