"""Reads an image of a window, as image.py writes it: part by part, record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sash.durability.formats import unpack, unseal
from sash.durability.images.forms import Head, LedgerForm, check_names, checked
from sash.durability.images.image import PartKey, no_key
from sash.durability.records.columns import columns_from
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, InvalidArgument
from sash_engine.forest import Forest, Layout
from sash_engine.forest.cold import Cold
from sash_engine.forest.image import ForestImage
from sash_engine.monoids import First, Last, Max, Min, Monoid, Partials, Sum
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import Pane
from sash_engine.windows.batches.ledger import Ledger
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

P = ParamSpec("P")
T = TypeVar("T")

MakeForest = Callable[[Window, ForestImage], Forest]
"""Makes a forest of a window from its image."""


def forest_of(window: Window, image: ForestImage) -> Forest:
    """Make a forest of a window from its image."""
    assert window.cold is not None, "forests of an image need to load blocks"
    return Forest.restore(window.layout, window.cold, image)


def restore(
    parts: Iterable[bytes | None],
    *,
    max_keys: int = 10_000_000,
    clock: Clock | None = None,
    cold: Cold | None = None,
    name: str = "the image",
    key: PartKey = no_key,
    bound: bool = False,
    store: bytes | None = None,
    owned: bool = False,
    forest: MakeForest = forest_of,
) -> Window:
    """Restore a window from its image.

    Args:
        parts: as `Image.encode` made them, in order; None for a missing one.
        max_keys, clock, cold: as for `Window`; `cold` loads the blocks that the image names.
        name: name of the image, for errors.
        key: the key of each part, by its number.
        bound, store, owned: which parts are refused, see `unseal`.
        forest: makes a forest from its image.

    Raises:
        DataLoss: parts are missing or damaged.
        FailedPrecondition: a newer version wrote them.
        InvalidArgument: the spec names an aggregate that is not installed.
    """
    reader, number = _Reader(max_keys, clock, cold, forest), -1
    for number, data in enumerate(parts):
        called = f"part {number} of {name}"
        found, records = unseal("image", data, called, key(number), bound, store, owned)
        if found != number:
            raise DataLoss(f"{called} is part {found} of an image")
        try:
            for record in records:
                reader.take(*unpack(record))
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataLoss(f"{called} does not go on from the one before: {error!r}") from error
    if reader.window is None or not reader.ended:
        raise DataLoss(f"{name} ends behind part {number}, before it is complete")
    return reader.window


def ledger_of(document: object, name: str) -> Ledger:
    """Read the ledger that is stored with the image `name`; raises DataLoss if it is wrong."""
    try:
        return _sound(checked, LedgerForm, document, "ledger").ledger()
    except ValueError as error:
        raise DataLoss(f"{name} has no ledger: {error}") from None


def _sound(check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a check of user input for a stored value: an error is a ValueError then."""
    try:
        return check(*args, **kwargs)
    except InvalidArgument as error:
        raise ValueError(error.message) from None


class _Reader:
    """Builds a window, record by record. A record in the wrong place raises an error of any kind.

    Args:
        empty: the window, without entries; None: the head says which one.
    """

    def __init__(
        self,
        max_keys: int,
        clock: Clock | None,
        cold: Cold | None,
        make: MakeForest,
        empty: Window | None = None,
    ) -> None:
        self._max_keys, self._clock, self._cold, self._make = max_keys, clock, cold, make
        self._empty = empty
        self.window: Window | None = None
        self._parts: list[_Reader] = []
        self._rollups = self._removed = 0
        self.ended = False
        self._found = {"keys": 0, "unused": 0, "entries": 0, "forests": 0}
        self._forest: _Pieces | None = None
        self._large: Sequence[int] | None = None
        self._takers: dict[str, Callable[..., None]] = {
            "view": self._take_derived,
            "keys": self._take_keys,
            "unused": self._take_unused,
            "small": self._take_small,
            "forest": self._take_forest,
            "nodes": self._take_nodes,
            "blocks": self._take_blocks,
            "rollup": self._take_rollup,
            "removed": self._take_removed,
            "cascade": self._take_derived,
            "end": self._take_end,
        }

    def take(self, kind: str, *fields: Any) -> None:
        """Read one record."""
        assert not self.ended, f"{kind} follows the end"
        if self._parts and not self._parts[-1].ended:
            self._parts[-1].take(kind, *fields)
        elif self.window is None:
            self.window = self._started(kind, *fields)
        else:
            assert (self._forest is not None) == (kind in ("blocks", "nodes")), f"{kind} is out of place"
            self._takers[kind](self.window, *fields)

    def _started(self, kind: str, head: dict[str, Any]) -> Window:
        assert kind == "head", f"an image begins with its head, not with {kind}"
        window = self._empty or self._made(head)
        said = _sound(checked, Head, head, "head")
        window.resume(said.counts.counts(), said.newest, said.punctuated, said.arrivals)
        self._large = said.large
        if self._large is None:
            self._large = [slot for slot, monoid in enumerate(window.layout.monoids) if _was_large(monoid)]
        return window

    def _made(self, head: dict[str, Any]) -> Window:
        pages = head["pages"]
        return Window(
            WindowSpec.parse(head["spec"]),
            self._max_keys,
            head["block"],
            None if pages is None else tuple(pages),
            self._clock,
            self._cold,
        )

    def _take_rollup(self, window: Window, number: int) -> None:
        assert number == self._rollups, f"rollup {number} is out of place"
        self._begin_part(window.derived.rollups[number].window)
        self._rollups += 1

    def _take_removed(self, window: Window) -> None:
        assert window.removed is not None, "the window keeps nothing that was removed"
        assert not self._removed, "what was removed comes once"
        self._begin_part(window.removed)
        self._removed += 1

    def _take_derived(self, window: Window, document: dict[str, Any]) -> None:
        derived = window.derive(WindowSpec.parse(document))
        if isinstance(derived, Window):
            self._begin_part(derived)
        else:
            assert not self._found["keys"], "views come before all that has partials"

    def _begin_part(self, empty: Window) -> None:
        self._parts.append(_Reader(self._max_keys, self._clock, self._cold, self._make, empty))

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
        """Give the key its forest, once all of its blocks are read."""
        if self._forest is not None and self._forest.missing <= 0:
            window.keys.adopt(self._forest.number, self._make(window, self._forest.image()))
            self._forest = None

    def _take_end(self, window: Window, totals: dict[str, int]) -> None:
        assert totals == self._found, f"{self._found} were read, and {totals} written"
        assert self._rollups == len(window.derived.rollups), f"{self._rollups} rollups were read"
        assert self._removed == (window.removed is not None), "what was removed is missing"
        self.ended = True


class _Pieces:
    """The image of one forest, as far as it is read."""

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
        """The image, once it is complete."""
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


def _partials_from(monoid: Monoid, payload: list[Any]) -> Partials:
    if payload and isinstance(payload[0], bytes):
        return monoid.pack([monoid.restore(partial) for partial in payload])
    return tuple(columns_from(payload))


def _was_large(monoid: Monoid) -> bool:
    """Whether an aggregate counts as large in an image that does not say so. Its version decided by the dtypes."""
    inner = monoid.inner if isinstance(monoid, Pane) else monoid
    return monoid.dtypes == (np.dtype(object),) and not isinstance(inner, First | Last | Max | Min | Sum)
