"""Looking through all that a tier has while no server has it: what is damaged, and whom that concerns.

    all values ─▶ unsealed and decoded, one by one ─▶ which are whole

    meta ─▶ for each window pointer ─▶ image, without the blocks that are not whole
         ─▶ the journal, to each window as far as nothing is missing

A window is brought to the latest state that can be relied on. Where blocks of it are damaged it is without their
entries. Where a group of the journal is damaged that it may need, it is as it was before that group. Where its pointer
or its image is damaged nothing can be read.

What all windows need is made up where it is damaged: the windows from their images, the journal from the groups that
there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from sash.durability import formats as values
from sash.durability import records
from sash.durability.recovery import apply_again
from sash.durability.replay import Replay
from sash.durability.roots import End, Group, Meta, Start
from sash.durability.session import TierSession
from sash.durability.stored_window import StoredWindow
from sash.durability.tier import TierView
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, InvalidArgument, SashError, Unavailable
from sash_engine.forest import BLOCK, Forest, Layout
from sash_engine.forest.cold import Cold
from sash_engine.forest.image import ForestImage
from sash_engine.windows.batch import Batch
from sash_engine.windows.ledger import Ledger, Part
from sash_engine.windows.spec import Durability, WindowSpec

__all__ = ["Damage", "Found", "CheckedWindow", "PartialWindow", "check"]

_KEYS_PER_TRIP = 64
_MAX_KEYS = 2**31


@dataclass(slots=True)
class Damage:
    """A value that is damaged or missing.

    Args:
        key: its key.
        problem: what is wrong with it; names it.
        window: the window that it belongs to; None where that is none, or all.
        entries: of the window, how many are lost with it; None where that is not known.
    """

    key: bytes
    problem: str
    window: str | None = None
    entries: int | None = None


@dataclass(slots=True)
class CheckedWindow:
    """A window, as far as it can be read.

    Args:
        number, name: the window's.

    Attributes:
        partial: the window at the latest moment that can be relied on; None where nothing can be read.
        problem: why a server would not serve it; None where it would.
        left_out: entries in blocks and staged parts that are damaged or missing.
        writes, entries: how many writes behind that moment are left out, and about how many entries they brought.
        stored: rows in whole blocks of a window that cannot be read.
    """

    number: int
    name: str
    partial: PartialWindow | None = None
    problem: str | None = None
    left_out: int = 0
    writes: int = 0
    entries: int = 0
    stored: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing of it is lost."""
        return self.partial is not None and self.problem is None and not self.left_out


@dataclass(slots=True)
class Found:
    """What there is.

    Attributes:
        values, size: how many values, and how many bytes they have.
        damages: in the order of their keys.
        windows: in the order of their numbers.
        problems: what is wrong beside that.
    """

    values: int = 0
    size: int = 0
    damages: list[Damage] = field(default_factory=list)
    windows: list[CheckedWindow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages and not self.problems and all(window.whole for window in self.windows)


def check(view: TierView, clock: Clock) -> Found:
    """Look through all that a tier has; what is left of its windows can be read as long as the view is open.

    Raises:
        FailedPrecondition: a newer version wrote it; or a server has changed something meanwhile.
        Unavailable: the tier cannot be reached.
    """
    scan = _Scan(view)
    windows = _Windows(view, clock, scan)
    damages = scan.damages | windows.damages
    found = Found(scan.values, scan.size, [], windows.readable, [*windows.problems, *view.problems()])
    names = {each.number: each.name for each in windows.readable}
    for key in sorted(damages):
        name = values.name_of(key)
        window = None if name is None or name.window is None else names.get(name.window)
        found.damages.append(Damage(key, damages[key], window, windows.lost_entries.get(key)))
    return found


class _Scan:
    """Reads every value by itself.

    Attributes:
        damages: by key, what is wrong with a value.
        whole: by window, the ids of blocks and partials that are whole.
        unbound: by window, those of them that are of format 1.
        rows: by window, how many rows the whole blocks have.
        groups: numbers of all groups.
        windows: numbers of all windows with a pointer.
    """

    def __init__(self, view: TierView) -> None:
        self.values = self.size = 0
        self.damages: dict[bytes, str] = {}
        self.whole: dict[int, set[int]] = {}
        self.unbound: dict[int, set[int]] = {}
        self.rows: dict[int, int] = {}
        self.groups: list[int] = []
        self.windows: set[int] = set()
        keys = iter(list(view.keys()))
        while some := list(islice(keys, _KEYS_PER_TRIP)):
            for key, data in zip(some, view.get_many(some), strict=True):
                self._look(key, data)
        self.groups.sort()

    def _look(self, key: bytes, data: bytes | None) -> None:
        self.values += 1
        self.size += len(data or b"")
        name = values.name_of(key)
        if name is None:
            self.damages[key] = f"value {key.decode('ascii', 'backslashreplace')!r} is none of those that Sash writes"
            return
        if name.kind == "journal":
            self.groups.append(name.number)
        elif name.kind == "pointer" and name.window is not None:
            self.windows.add(name.window)
        try:
            payload = values.unseal(name.kind, data, key)
            rows = _decoded(name.kind, payload, key)
        except DataLoss as error:
            self.damages[key] = error.message
            return
        if name.kind == "block" and name.window is not None:
            self.whole.setdefault(name.window, set()).add(name.number)
            self.rows[name.window] = self.rows.get(name.window, 0) + rows
            if not values.is_bound(data):
                self.unbound.setdefault(name.window, set()).add(name.number)


def _decoded(kind: str, payload: Any, key: bytes) -> int:
    """See that what a value has can be made use of; of a block, how many rows that are."""
    try:
        if kind == "block":
            return 0 if isinstance(payload, bytes) else len(values.columns_from(payload)[0])
        if kind == "part":
            values.batch_from(payload)
        elif kind == "head":
            Ledger.of(payload["ledger"])
        elif kind == "image":
            for record in payload[1]:
                values.unpack(record)
        elif kind == "journal":
            for number, _, fields in payload["records"] if isinstance(payload, Mapping) else payload:
                records.read(fields, f"record {number}")
        elif kind == "meta":
            Meta.of(payload)
        elif kind == "last":
            End.of(payload)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataLoss(f"value {key.decode('ascii')!r} cannot be read: {error!r}") from None
    return 0


class PartialWindow(StoredWindow):
    """A window that is read without what is damaged of it.

    Attributes:
        there: ids of the blocks and partials that are whole.
        unbound: those of them that are of format 1.
        blocks_left_out: entries by block that it is without; in the order in which they were come upon.
        parts_left_out: the same by staged part.
    """

    there: set[int]
    unbound: set[int]
    blocks_left_out: dict[int, int]
    parts_left_out: dict[int, int]

    @property
    def misplaced(self) -> set[int]:
        """Blocks of format 1 where there can be none."""
        first = self._bound_block
        return {number for number in self.unbound if 0 < first <= number}

    def recover(self, older: bool = False) -> None:
        """As `StoredWindow.recover`; the counts are those of a window from which damaged blocks were evicted."""
        super().recover(older)
        counts, keys = self.window.counts, self.window.keys
        counts.evicted = counts.inserted - int(keys.entries_each(keys.numbers()).sum())

    def _forest(self, layout: Layout, cold: Cold, made_of: ForestImage) -> Forest:
        entries = layout.entries_of(made_of.counts, made_of.partials)
        image, lacks, refolded = made_of.only(self.there - self.misplaced)
        numbers = made_of.ids[lacks].tolist()
        self.blocks_left_out |= dict(zip(numbers, np.asarray(entries[lacks], np.int64).tolist(), strict=True))
        forest = super()._forest(layout, cold, image)
        forest.refold(refolded)
        return forest

    def read_parts(self, parts: Sequence[Part]) -> list[Batch]:
        """As `StoredWindow.read_parts`, without those that are damaged or missing."""
        found = []
        for part in parts:
            try:
                found += super().read_parts([part])
            except DataLoss:
                self.parts_left_out[part.number] = part.entries
        return found

    def staged(self) -> Iterator[tuple[str, Part, Batch]]:
        """The staged parts that nobody has committed, by token, with their entries."""
        for token, part in self.window.ledger.parts.items():
            for batch in self.read_parts([part]):
                yield token, part, batch


class _Windows:
    """Reads the windows.

    Attributes:
        readable: the windows.
        damages: by key, values that are missing.
        lost_entries: by key, how many entries are lost with a value.
        problems: what is wrong with what all windows need.
    """

    def __init__(self, view: TierView, clock: Clock, scan: _Scan) -> None:
        self._scan, self._clock = scan, clock
        self._session = TierSession(_ReadOnly(view), cache_bytes=64 << 20, interval_s=1.0, clock=clock)
        self.damages: dict[bytes, str] = {}
        self.lost_entries: dict[bytes, int] = {}
        self.problems: list[str] = []
        meta, start, end = self._roots()
        self.readable = [self._window(*each, each[0] < meta.bound) for each in meta.windows]
        self._broken: set[int] = set()
        self._replay(start, end)
        for each in self.readable:
            self._finish(each)

    # ---------------------------------------------------------------- what all windows need

    def _roots(self) -> tuple[Meta, Start, End]:
        """What all windows need, made up where it is damaged."""
        try:
            roots = self._session.roots()
        except DataLoss as error:
            if error.message not in self._scan.damages.values():
                self.problems.append(error.message)
            return self._listed(), *self._journal()
        if roots is None:
            if self._scan.values:
                self.problems.append("values 'meta', 'journal' and 'journal/last' are missing")
            return self._listed(), *self._journal()
        meta, start, end = roots
        newest = max(self._scan.groups, default=0)
        if end.record is None:  # format 1 may have gone on behind it
            return meta, start, replace(end, group=max(end.group, newest))
        if end.group < newest:
            self.problems.append("value 'journal/last' is out of date: the journal goes on behind the group in it")
            return meta, start, End(newest, None)
        return roots

    def _listed(self) -> Meta:
        """The windows that are listed, and those that are not but are there."""
        payload = self._read("meta", values.meta_key())
        bound = max(self._scan.windows, default=0) + 1
        meta = Meta((), 1, (), bound=bound) if payload is None else Meta.of(payload)
        known = {number for number, *_ in (*meta.windows, *meta.discarded)}
        windows = list(meta.windows)
        for number in sorted(self._scan.windows - known):
            document = self._document(number)
            if document is None:
                self.problems.append(f"what window {number} is called and has is not known")
            else:
                windows.append((number, document.get("durability") or "sync", document))
        return Meta(windows, meta.next_window, meta.discarded, meta.record, meta.bound)

    def _document(self, number: int) -> dict[str, Any] | None:
        """The spec of a window, from its image."""
        pointer = self._read("pointer", values.pointer_key(number))
        if pointer is None or not pointer["image"]:
            return None
        part = self._read("image", values.image_key(number, pointer["image"], 1))
        if part is None:
            return None
        _, head = values.unpack(part[1][0])
        return dict(head["spec"])

    def _journal(self) -> tuple[Start, End]:
        """Where the journal begins and ends."""
        groups = self._scan.groups
        pointer, last = self._read("pointer", values.journal_key()), self._read("last", values.last_group_key())
        if pointer is None:
            first = next((n for n in reversed(groups) if n - 1 not in groups), 1)
            start = Start(first, apart={number: None for number in groups if number < first}, bound=None)
        else:
            start = Start.of(pointer)
        newest = max([start.first - 1, *groups])
        end = End(newest, None) if last is None else End.of(last)
        return start, end if end.group >= newest else End(newest, None)

    def _read(self, kind: str, key: bytes) -> Any:
        try:
            return self._session.read(kind, key)
        except DataLoss:
            return None

    # ---------------------------------------------------------------- windows

    def _window(self, number: int, durability: Durability, document: Mapping[str, Any], older: bool) -> CheckedWindow:
        found = CheckedWindow(number, document["name"])
        try:
            spec = WindowSpec.parse(document)
            partial = PartialWindow(self._session, number, spec, durability, self._clock, _MAX_KEYS, BLOCK)
            partial.there = self._scan.whole.get(number, set())
            partial.unbound = self._scan.unbound.get(number, set())
            partial.blocks_left_out, partial.parts_left_out = {}, {}
            partial.recover(older)
            found.partial = partial
        except (DataLoss, InvalidArgument) as error:
            found.problem = error.message
        return found

    def _replay(self, start: Start, end: End) -> None:
        """Apply the journal to the windows, and count what cannot be."""
        readable = {each.number: each for each in self.readable}

        def apply(partial: StoredWindow, record: int, fields: Sequence[Any]) -> None:
            try:
                apply_again(self._session, partial, record, fields)
            except Unavailable:
                raise
            except Exception as error:
                self._broken.add(partial.number)
                lose(partial, DataLoss(f"record {record} of the journal cannot be applied: {error}"))

        def lose(partial: StoredWindow, error: SashError) -> None:
            partial.failure = error
            readable[partial.number].problem = error.message

        windows = [each.partial for each in self.readable if each.partial is not None]
        replay = Replay(windows, apply, lose)
        replay.begin(start.cut)
        staged: dict[str, int] = {}
        for number in sorted({*start.apart, *range(start.first, end.group + 1)}):
            key = values.group_key(number)
            (data,) = self._session.tier.get_many([key])
            group = Group.of(number, data, start.is_bound(number), start.apart.get(number))
            if group.error is not None:
                self.damages[key] = group.error.message
            replay.take(group)
            for record, window, fields in group.records:
                each = readable.get(window)
                if each is not None and each.problem is not None and record > replay.at.get(window, 0):
                    each.writes += 1
                    each.entries += _entries_of(fields, staged)
        replay.finish(end.record)

    def _finish(self, found: CheckedWindow) -> None:
        """Note what a window lacks, and whether it can be read at all."""
        partial = found.partial
        if partial is None or found.number in self._broken:
            found.partial, found.stored = None, self._scan.rows.get(found.number, 0)
            return
        for _ in partial.staged():
            pass
        for number in partial.misplaced:
            key = values.block_key(found.number, number)
            self.damages[key] = f"value {key.decode()!r} is in the wrong place: it is older than what was written there"
        for number, entries in partial.blocks_left_out.items():
            self._lost(values.block_key(found.number, number), entries)
        for number, entries in partial.parts_left_out.items():
            self._lost(values.staged_key(found.number, number), entries)
        found.left_out = sum(partial.blocks_left_out.values()) + sum(partial.parts_left_out.values())

    def _lost(self, key: bytes, entries: int) -> None:
        self.lost_entries[key] = entries
        if key not in self._scan.damages:
            self.damages.setdefault(key, f"value {key.decode()!r} is missing")


def _entries_of(fields: Sequence[Any], staged: dict[str, int]) -> int:
    """How many entries a write brought; `staged` has, by token, those of the parts so far."""
    operation = records.read(fields, "a record").operation
    match operation:
        case records.Insert():
            return 1
        case records.BulkInsert(batch):
            return len(batch.times) if batch.entries is None else int(batch.entries.sum())
        case records.Stage():
            staged[operation.token] = operation.entries
        case records.Commit():
            return sum(staged.get(token, 0) for token in operation.tokens)
    return 0


class _ReadOnly:
    """A `ColdTier` on a view; nothing can be committed."""

    healthy = True
    used_bytes = limit_bytes = None

    def __init__(self, view: TierView) -> None:
        self._view, self.name = view, view.name

    def acquire(self) -> None:
        """The view is open."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `TierView`."""
        return self._view.get_many(keys)

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        """Nothing needs any."""

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """Nobody may."""
        raise AssertionError("what is looked through is not changed")

    def close(self) -> None:
        """Whoever opened the view closes it."""
