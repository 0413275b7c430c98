"""Checks a tier that no server has: which values are damaged, and which windows that affects.

    all values ─▶ unsealed and decoded, one by one ─▶ which are whole                            scan.py

    meta ─▶ for each window pointer ─▶ image, without the blocks that are damaged                partial_window.py
         ─▶ the journal, applied to each window up to the first gap

A window is brought to the latest state that can be relied on. If blocks of it are damaged, it lacks their entries. If a
group of the journal is damaged that it may need, it is as it was before that group. If its pointer or its image is
damaged, it cannot be read.

If a value that all windows need is damaged, it is reconstructed: the list of windows from their images, the journal
from the groups that exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sash.durability import formats as values
from sash.durability.check.partial_window import PartialWindow
from sash.durability.check.scan import Scan
from sash.durability.images.stored_window import StoredWindow
from sash.durability.journal.roots import ROOTS, End, Group, Meta, Start, store_among
from sash.durability.journal.session import TierSession
from sash.durability.records import commands as records
from sash.durability.recovery.recovery import apply_again
from sash.durability.recovery.replay import Replay
from sash.durability.tier import ColdTier, TierView
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, InvalidArgument, SashError, Unavailable
from sash_engine.forest import BLOCK
from sash_engine.windows.batches.batch import PartialBatch
from sash_engine.windows.derived.views import View
from sash_engine.windows.spec.window import Durability, WindowSpec
from sash_engine.windows.window import Window

MAX_KEYS = 2**31
"""A window that is read may have so many keys, whatever the settings of its service were."""


@dataclass(slots=True)
class Damage:
    """A value that is damaged or missing.

    Args:
        key: its key.
        problem: what is wrong with it, with its name.
        window: name of the window that it belongs to; None if it belongs to none, or to all.
        entries: how many entries of the window are lost with it; None if that is not known.
        rollup: the parts of the rollup that it belongs to, which is made anew; None for another value.
    """

    key: bytes
    problem: str
    window: str | None = None
    entries: int | None = None
    rollup: Sequence[str] | None = None


@dataclass(slots=True)
class CheckedDerived:
    """The findings about a window that is stored with another one: a cascade or a view.

    Args:
        name, of: its name, and that of the window that feeds it, or whose entries it shows.
        is_view: whether it is a view.

    Attributes:
        entries: how many entries it has; None if it cannot be read.
        left_out: entries in values that are damaged or missing.
    """

    name: str
    of: str
    is_view: bool
    entries: int | None = None
    left_out: int = 0


@dataclass(slots=True)
class CheckedWindow:
    """The findings about a window.

    Args:
        number, name: of the window.

    Attributes:
        partial: the window in the latest state that can be relied on; None if it cannot be read.
        problem: why a server would not serve it; None if it would.
        left_out: entries in blocks and staged parts that are damaged or missing.
        writes, entries: how many later writes are left out, and about how many entries they have.
        unread: about how many further writes may have been in groups of the journal that cannot be read.
        stored: rows in whole blocks of a window that cannot be read, with those of all that is stored with it.
        derived: the windows that are stored with it.
    """

    number: int
    name: str
    partial: PartialWindow | None = None
    problem: str | None = None
    left_out: int = 0
    writes: int = 0
    entries: int = 0
    unread: int = 0
    stored: int = 0
    derived: list[CheckedDerived] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether it, and all that is stored with it, has lost nothing."""
        lacks = self.left_out or any(each.left_out or each.entries is None for each in self.derived)
        return self.partial is not None and self.problem is None and not lacks


@dataclass(slots=True)
class Found:
    """The findings of a check.

    Attributes:
        values, size: how many values there are, and how many bytes they have.
        damages: damaged values, in the order of their keys.
        windows: the windows, in the order of their numbers.
        problems: what else is wrong.
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
    """Check a tier. The windows that it returns can be read as long as the view is open.

    Raises:
        FailedPrecondition: a newer version wrote the tier, or a server has changed something meanwhile.
        Unavailable: the tier cannot be reached.
    """
    scan = Scan(view, store_among(view.get_many(ROOTS)))
    windows = _Windows(view, clock, scan)
    damages = scan.damages | windows.damages
    found = Found(scan.values, scan.size, [], windows.checked, [*windows.problems, *view.problems()])
    names = {each.number: each.name for each in windows.checked}
    for key in sorted(damages):
        name = values.name_of(key)
        root = None if name is None or name.window is None else names.get(name.window)
        window, rollup = windows.owners.get(key, (root, None))
        found.damages.append(Damage(key, damages[key], window, windows.lost_entries.get(key), rollup))
    return found


class _Windows:
    """Reads the windows.

    Attributes:
        checked: the windows.
        damages: by key, values that are missing.
        lost_entries: by key, how many entries are lost with a value.
        owners: by key of a damaged block, the name of its window, and the parts of its rollup if it is of one.
        problems: what is wrong with the values that all windows need.
    """

    def __init__(self, view: TierView, clock: Clock, scan: Scan) -> None:
        self._scan, self._clock = scan, clock
        # What is looked through is only read: nothing needs more of a tier than a view has.
        self._session = TierSession(cast(ColdTier, view), cache_bytes=64 << 20, interval_s=1.0, clock=clock)
        self.damages: dict[bytes, str] = {}
        self.lost_entries: dict[bytes, int] = {}
        self.owners: dict[bytes, tuple[str, Sequence[str] | None]] = {}
        self.problems: list[str] = []
        meta, start, end = self._roots()
        self._meta = meta
        self.checked = [self._window(*each, each[0] < meta.bound, each[0] >= meta.owned) for each in meta.windows]
        self._broken: set[int] = set()
        self._replay(start, end)
        for each in self.checked:
            self._finish(each)

    # ---------------------------------------------------------------- what all windows need

    def _roots(self) -> tuple[Meta, Start, End]:
        """Read the values that all windows need; reconstruct those that are damaged."""
        roots = None
        try:
            roots = self._session.roots()
            if roots is None and self._scan.values:
                self.problems.append("values 'meta', 'journal' and 'journal/last' are missing")
        except DataLoss as error:
            if error.message not in self._scan.damages.values():
                self.problems.append(error.message)
        if not self._session.named:
            self._session.store = None  # nobody says which one it is
        if roots is None:
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
        """The windows that are listed, and those that are not listed but exist."""
        payload = self._read("meta", values.meta_key())
        bound = max(self._scan.windows, default=0) + 1
        meta = Meta((), 1, (), bound=bound, owned=bound) if payload is None else Meta.of(payload)
        known = {number for number, *_ in (*meta.windows, *meta.discarded)}
        windows = list(meta.windows)
        for number in sorted(self._scan.windows - known):
            document = self._document(number)
            if document is None:
                self.problems.append(f"name and aggregates of window {number} are not known")
            else:
                windows.append((number, document.get("durability") or "sync", document))
        return replace(meta, windows=windows)

    def _document(self, number: int) -> dict[str, Any] | None:
        """Read the spec of a window from its image; None if that fails."""
        first = next(self._image_records(number), None)
        return dict(first[1]["spec"]) if first is not None and first[0] == "head" else None

    def _image_records(self, number: int) -> Iterator[list[Any]]:
        """Read the records of a window's image, without the parts that are damaged or missing."""
        pointer = self._read("pointer", values.pointer_key(number))
        for i in range(1, 0 if pointer is None else pointer["parts"]):
            part = self._read("image", values.image_key(number, pointer["image"], i))
            for record in () if part is None else part[1]:
                yield values.unpack(record)

    def _derived_documents(self, number: int) -> Sequence[Mapping[str, Any]]:
        """The specs of the windows that are stored with one that cannot be read, as far as they are known."""
        listed = self._meta.derived_of(number)
        if listed is not None:
            return listed
        return [record[1] for record in self._image_records(number) if record[0] in ("cascade", "view")]

    def _journal(self) -> tuple[Start, End]:
        """Where the journal begins and ends."""
        groups = self._scan.groups
        pointer, last = self._read("pointer", values.journal_key()), self._read("last", values.last_group_key())
        if pointer is None:
            first = next((n for n in reversed(groups) if n - 1 not in groups), 1)
            start = Start(first, apart={number: None for number in groups if number < first}, bound=None, owned=None)
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

    def _window(
        self, number: int, durability: Durability, document: Mapping[str, Any], older: bool, owned: bool
    ) -> CheckedWindow:
        found = CheckedWindow(number, document["name"])
        try:
            spec = WindowSpec.parse(document)
            partial = PartialWindow(self._session, number, spec, durability, self._clock, MAX_KEYS, BLOCK)
            scan = self._scan
            partial.reads_only(*(each.get(number, set()) for each in (scan.whole, scan.unbound, scan.unowned)))
            partial.recover(older, owned)
            found.partial = partial
        except (DataLoss, InvalidArgument) as error:
            found.problem = error.message
        return found

    def _replay(self, start: Start, end: End) -> None:
        """Apply the journal to the windows, and count the writes that cannot be applied."""
        checked = {each.number: each for each in self.checked}

        def apply(partial: StoredWindow, record: int, fields: Sequence[Any]) -> None:
            try:
                apply_again(self._session, partial, record, fields)
            except Unavailable:
                raise
            except Exception as error:
                self._broken.add(partial.number)
                lose(partial, DataLoss(f"record {record} of the journal cannot be applied: {error}"))

        def lose(partial: StoredWindow, error: SashError) -> None:
            partial.lose(error)
            checked[partial.number].problem = error.message

        windows = [each.partial for each in self.checked if each.partial is not None]
        replay = Replay(windows, apply, lose)
        replay.begin(start.cut)
        staged: dict[str, int] = {}
        known, gaps, since = 0, list[tuple[int, int]](), list[int]()
        for number in sorted({*start.apart, *range(start.first, end.group + 1)}):
            key = values.group_key(number)
            (data,) = self._session.tier.get_many([key])
            store, owned = self._session.store, start.is_owned(number)
            group = Group.of(number, data, start.is_bound(number), start.apart.get(number), store, owned)
            if group.error is not None:
                self.damages[key] = group.error.message
                since.append(known)
            else:
                gaps += [(min(since), group.records[0][0] - 1 if group.after is None else group.after)] if since else []
                known, since = group.records[-1][0], []
            replay.take(group)
            for record, window, fields in group.records:
                each = checked.get(window)
                if each is not None and each.problem is not None and record > replay.at.get(window, 0):
                    each.writes += 1
                    each.entries += _entries_of(fields, staged)
        replay.finish(end.record)
        if since:
            gaps.append((min(since), known + 1 if end.record is None else end.record))
        for each in self.checked:
            if each.problem is not None:
                at = replay.at.get(each.number, 0)
                each.unread = sum(max(0, last - max(first, at)) for first, last in gaps)

    def _finish(self, found: CheckedWindow) -> None:
        """Note what a window lacks, and whether it can be read at all."""
        partial = found.partial
        if partial is None or found.number in self._broken:
            found.partial, found.stored = None, self._scan.rows.get(found.number, 0)
            found.derived = [_unreadable(document) for document in self._derived_documents(found.number)]
            return
        for _ in partial.staged():
            pass
        for number in partial.misplaced:
            key = values.block_key(found.number, number)
            self.damages[key] = f"value {key.decode()!r} is in the wrong place: it is older than what was written there"
        lacks: dict[str, int] = {}
        for window, name, rollup in _windows_of(partial):
            lacks.setdefault(name, partial.fed_less.get(window, 0))
            for number, entries in partial.blocks_left_out.get(window, {}).items():
                key = values.block_key(found.number, number)
                self.owners[key] = name, rollup
                self._lost(key, None if rollup is not None or not entries else entries)
                lacks[name] += entries if window in partial.window.family else 0
        for number, entries in partial.parts_left_out.items():
            self._lost(values.staged_key(found.number, number), entries)
        found.left_out = lacks[found.name] + sum(partial.parts_left_out.values())
        found.derived = self._derived(partial, lacks)

    def _derived(self, partial: PartialWindow, lacks: Mapping[str, int]) -> list[CheckedDerived]:
        """Return the findings about the windows that are stored with a window: exactly those that are listed.

        A window may be in a state before some came, and others went.
        """
        there: dict[str, Window | View] = {each.spec.name: each for each in partial.derived}
        listed = self._meta.derived_of(partial.number)
        found = []
        for document in [each.spec.document() for each in there.values()] if listed is None else listed:
            each = _unreadable(document)
            window = there.get(each.name)
            if window is not None and window.spec.feeds_on == (each.of,):
                each.entries, each.left_out = window.info().entries, lacks.get(each.name, 0)
            found.append(each)
        return found

    def _lost(self, key: bytes, entries: int | None) -> None:
        if entries is not None:
            self.lost_entries[key] = entries
        if key not in self._scan.damages:
            self.damages.setdefault(key, f"value {key.decode()!r} is missing")


def _windows_of(partial: PartialWindow) -> Iterator[tuple[Window, str, Sequence[str] | None]]:
    """All windows with blocks: each with the name of its window, and its parts if it is a rollup."""
    for window in partial.window.family:
        yield window, window.spec.name, None
        for rollup in window.derived.rollups:
            yield rollup.window, window.spec.name, sorted(rollup.parts)
        if window.removed is not None:
            yield window.removed, window.spec.name, None


def _unreadable(document: Mapping[str, Any]) -> CheckedDerived:
    of = document.get("of")
    return CheckedDerived(document["name"], of or document["from"]["window"], of is not None)


def _entries_of(fields: Sequence[Any], staged: dict[str, int]) -> int:
    """How many entries a write brought; `staged` has, by token, those of the parts so far."""
    operation = records.read(fields, "a record").operation
    match operation:
        case records.Insert():
            return 1
        case records.BulkInsert(batch) | records.Admit(batch):
            return int(batch.entries.sum()) if isinstance(batch, PartialBatch) else len(batch.times)
        case records.Stage():
            staged[operation.token] = operation.entries
        case records.Commit():
            return sum(staged.get(token, 0) for token in operation.tokens)
    return 0
