"""A window that the tier stores: its state, and how it is read back.

sealed blocks ──▶ block(w, 1), block(w, 2), …          in the background, when enough have gathered (blocks.py);
                                                       so are large partials
all the rest  ──▶ image(w, v, 0), image(w, v, 1), …    after so much journal (checkpoint.py)
                  pointer(w)                           says which image counts (manifest.py)

                  ┌──────────────┐
                  ▼              │
states         SERVING ───▶ SNAPSHOTTING      an image is taken: writers wait, readers go on
                  │ ▲
                  ├─┴─────▶ WRITING           a long write is applied in slices: everybody else waits
                  │
                  ├───▶ RECOVERING            a write failed half-way: the window answers nothing until it is read
                  │                           back from the tier, into a new object that takes its place
                  ├───▶ LOST                  something is damaged or not installed: the window answers nothing
                  ▼
               DELETED                        from any state: nothing more of it is written
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import xxhash

from sash.durability import formats as values
from sash.durability.images import image_reader
from sash.durability.images.backoff import Backoff
from sash.durability.images.blocks import BlockStore
from sash.durability.images.image_reader import forest_of
from sash.durability.images.manifest import Manifest, Remains
from sash.durability.journal.journal import anew
from sash.durability.journal.session import TierSession
from sash.durability.records.columns import batch_from
from sash.durability.records.shared_texts import coded_from, read_together
from sash.durability.window_lock import Admission, RestingClock, WindowLock
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, InvalidArgument, SashError, Unavailable
from sash_engine.forest import Forest
from sash_engine.forest.cold import Cold
from sash_engine.forest.image import ForestImage
from sash_engine.monoids import catalogue
from sash_engine.windows.batches.batch import AnyBatch
from sash_engine.windows.batches.ledger import Part
from sash_engine.windows.derived.views import View
from sash_engine.windows.spec.window import Durability, WindowSpec
from sash_engine.windows.window import Window

_PARTS_PER_TRIP = 16
_RETRY_AFTER_S = 1.0
_WRITTEN_FOR_EACH, _MORE = 8, 4
"""An entry out of order belongs into a stored block, which is then written again as a whole. If a store wrote more than
8 entries for each that had come, the next store waits until more have come, up to 4 times the usual number. A million
entries in random order over ten keys, in bulks of 10,000: 10,800 blocks are written, and 17,700 without this."""


class State(enum.Enum):
    """The state of a stored window; the module draws the transitions."""

    SERVING = "serving"
    SNAPSHOTTING = "snapshotting"
    WRITING = "writing"
    RECOVERING = "recovering"
    LOST = "lost"
    DELETED = "deleted"


_LEGAL = {
    State.SERVING: {State.SNAPSHOTTING, State.WRITING, State.RECOVERING, State.LOST, State.DELETED},
    State.SNAPSHOTTING: {State.SERVING, State.DELETED},
    State.WRITING: {State.SERVING, State.RECOVERING, State.DELETED},
    State.RECOVERING: {State.DELETED},
    State.LOST: {State.DELETED},
    State.DELETED: set[State](),
}
"""From each state, those that may follow it."""


class StoredWindow:
    """A window that the tier stores.

    Args:
        session: the tier.
        number: number of the window; no other window ever has it.
        spec: the spec of the window.
        durability: when its writes are answered.
        clock: tells wall time.
        max_keys, block: as for `Window`.

    Attributes: to be read only.
        window: the window itself, empty at first.
        manifest: which of its values the tier has.
        blocks: its stored blocks.
        state: what it does now.
        failure: why the window answers nothing; None while it does.
        losses: how often it was recovered because something was damaged.
        older: an earlier version created it, so its values may be of format 1.
        listed: the specs of the windows that are stored with it, as `meta` lists them; None if that is not known.
        logged_bytes: bytes of journal behind its image.
        checkpointing: an image of it is being taken or written.
        lock: long questions share it, writes exclude them.
        writable: an event that is cleared while an image is taken, or a long write is applied. Writers wait for it.
        admission: a lock that writers pass in order of arrival.
        backoff: when storing it is tried again after a failure.
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
        self.clock = RestingClock(clock)
        self.lock = WindowLock(self.clock)
        self.manifest = Manifest(number)
        self.blocks = BlockStore(session, self.manifest, spec.name, lambda: self.window.layout)
        self.window = Window(spec, max_keys, block, clock=self.clock, cold=self.cold)
        self.state = State.SERVING
        self.failure: SashError | None = None
        self.losses = 0
        self.older = False
        self.listed: Sequence[Mapping[str, Any]] | None = None
        self.logged_bytes = 0
        self.checkpointing = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.admission = Admission()
        self.backoff = Backoff()
        self._unstored_bytes = self._written_last = 0
        self._unknown = False  # it was lost, so the tier may have values of it that the manifest does not know
        self._deleted: Callable[[], None] | None = None
        self._documents: dict[str, tuple[WindowSpec, dict[str, Any]]] = {}
        self._unserved: list[Window | View] | None = None

    @property
    def cold(self) -> Cold:
        """The stored blocks, as the forests of the window see them."""
        return self.blocks.cold

    @property
    def through(self) -> int:
        """The last record that the image covers."""
        return self.manifest.image.through

    def document(self) -> dict[str, Any]:
        """The window's spec as a plain document."""
        return self._document_of(self.window.spec)

    def keep_document(self, document: Mapping[str, Any]) -> None:
        """List the window with this document: this service does not know everything in its spec."""
        self._documents[self.name] = self.window.spec, dict(document)

    def _document_of(self, spec: WindowSpec) -> dict[str, Any]:
        """A spec as a plain document. It is cached: each change of `meta` lists all windows."""
        known, document = self._documents.get(spec.name, (None, {}))
        if known is not spec:
            document = spec.document()
            self._documents[spec.name] = spec, document
        return document

    @property
    def derived(self) -> list[Window | View]:
        """The windows that are stored with it: those that it feeds, then the views of all. Each follows its source.

        Of a lost window they are empty, and made of what `meta` lists. What was read of the image is not enough: the
        journal may have had others.
        """
        if self._unserved is not None:
            return self._unserved
        return [*self.window.derived.fed, *self.window.views]

    def derived_documents(self) -> list[dict[str, Any]]:
        """The specs of `derived` as plain documents."""
        if self._unserved is not None and self.listed is not None:
            return [dict(document) for document in self.listed]
        return [self._document_of(window.spec) for window in self.derived]

    # ---------------------------------------------------------------- states

    def _become(self, state: State) -> None:
        if state not in _LEGAL[self.state]:
            raise AssertionError(f"window {self.name!r} is {self.state.value} and cannot become {state.value}")
        self.state = state

    @property
    def is_deleted(self) -> bool:
        """Whether nothing more of it is written."""
        return self.state is State.DELETED

    @property
    def is_lost(self) -> bool:
        """Whether it cannot be recovered until something is repaired and the service starts again."""
        return self.state is State.LOST

    def problem(self) -> SashError | None:
        """Why it answers nothing, as a new error; None while it does."""
        if self.failure is None:
            return None
        if self.is_lost or isinstance(self.failure, DataLoss):
            return anew(self.failure)
        return Unavailable(
            f"window {self.name!r} is being recovered: {self.failure.message}", retry_after_s=_RETRY_AFTER_S
        )

    def begin_snapshot(self) -> None:
        """Admit no writers: an image is being taken.

        The clock stands still. Otherwise a reader could evict by wall time between two steps of the image.
        """
        self._become(State.SNAPSHOTTING)
        self.checkpointing = True
        self.writable.clear()
        self.clock.rest()

    def end_snapshot(self) -> None:
        """Admit writers again."""
        if not self.is_deleted:
            self._become(State.SERVING)
        self.clock.go_on()
        self.writable.set()

    def begin_write(self) -> None:
        """Admit no other writer, and take no image: a write is applied in slices."""
        self._become(State.WRITING)
        self.writable.clear()

    def end_write(self) -> None:
        """Admit writers again, unless the write failed or the window was deleted."""
        if self.state is State.WRITING:
            self._become(State.SERVING)
        self.writable.set()

    def end_checkpoint(self) -> None:
        """Note that no image is being taken or written any more."""
        self.checkpointing = False
        self._tell_deleted()

    def fail(self, error: SashError) -> None:
        """Answer nothing until the window is recovered: a write failed half-way."""
        self._become(State.RECOVERING)
        self.failure = error

    def lose(self, error: SashError) -> None:
        """Answer nothing: the window cannot be recovered. The tier keeps what it has of it."""
        self._become(State.LOST)
        self._unknown = True
        self.failure = error
        if self.listed is not None:
            self._unserved = [_empty(spec_as_known(document), self.clock) for document in self.listed]
        self._count_stored()
        self.cold.forget()

    def delete(self, done: Callable[[], None]) -> None:
        """Write nothing more. `done` is called as soon as `remains` is final: when no image is being written."""
        self.close()
        self._deleted = done
        if not self.checkpointing:
            self._tell_deleted()

    def _tell_deleted(self) -> None:
        # It is told once, and forgotten: it refers to this window.
        deleted, self._deleted = self._deleted, None
        if deleted is not None:
            deleted()

    def close(self) -> None:
        """Write nothing more, and free what is in memory: another object takes its place, or none."""
        self._become(State.DELETED)
        self._count_stored()
        self.blocks.close()

    def inherit(self, failed: StoredWindow) -> None:
        """Go on in the place of a window that failed: its writers queue here."""
        self.losses = failed.losses + isinstance(failed.failure, DataLoss)
        self.admission = failed.admission

    # ---------------------------------------------------------------- journal and blocks

    def count_logged(self, size: int) -> None:
        """Count bytes of records that are in the journal, and neither in blocks nor in an image."""
        self.logged_bytes += size
        self._count_unstored(size)

    def take_logged(self) -> int:
        """Note that an image covers the journal so far; return how many bytes of it were counted."""
        logged_bytes, self.logged_bytes = self.logged_bytes, 0
        self._count_stored()
        return logged_bytes

    def _count_unstored(self, size: int) -> None:
        self._unstored_bytes += size
        self._session.count_unstored(size)

    def _count_stored(self) -> None:
        self._session.count_unstored(-self._unstored_bytes)
        self._unstored_bytes = 0

    def store(self, entries_min: int = 0) -> None:
        """Store the sealed blocks and large partials that the tier lacks, if they have at least so many entries.

        Raises:
            Unavailable, DataLoss: a block that is needed cannot be read.
            OutOfRoom: the tier has no space for them.
        """
        gathered = max(entries_min, min(self._written_last // _WRITTEN_FOR_EACH, _MORE * entries_min))
        if self.cold.dirty_entries >= gathered and self.cold.dirty:
            blocks = self.window.pending_blocks()
            self._written_last = sum(block.rows for block in blocks)
            self.blocks.save(blocks)
            self.blocks.flush()
            self._count_stored()

    def wants_checkpoint(self, journal_bytes: int) -> bool:
        """Whether enough was written since the last image, in relation to its size."""
        return not self.checkpointing and self.logged_bytes > max(journal_bytes, self.manifest.image.size // 2)

    @property
    def can_shrink(self) -> bool:
        """Whether the tier may have less of it after a checkpoint."""
        return bool(self.logged_bytes or self.manifest.has_garbage or self.cold.released)

    # ---------------------------------------------------------------- staged parts

    def read_together(self, parts: Sequence[Part]) -> list[AnyBatch]:
        """Return the entries of staged parts, in their order, with one dictionary. Any thread may call it."""
        return read_together(self._payloads(parts))

    def read_parts(self, parts: Sequence[Part]) -> Iterator[AnyBatch]:
        """Yield the entries of staged parts, in their order. Any thread may call it."""
        return (batch_from(payload, coded_from) for payload in self._payloads(parts))

    def _payloads(self, parts: Sequence[Part]) -> Iterator[Any]:
        """Yield what staged parts are read from, in their order."""
        for start in range(0, len(parts), _PARTS_PER_TRIP):
            some = parts[start : start + _PARTS_PER_TRIP]
            keys = [values.staged_key(self.number, part.number) for part in some]
            for part, key, data in zip(some, keys, self._session.tier.get_many(keys), strict=True):
                bound = self.manifest.part_is_bound(part.number)
                yield values.unseal("part", data, key, None, bound, self._session.store, self.manifest.owned)

    def drop_parts(self, parts: Sequence[Part]) -> None:
        """Delete staged parts once a checkpoint covers their commit. Until then recovery needs them."""
        self.manifest.add_garbage([values.staged_key(self.number, part.number) for part in parts])

    # ---------------------------------------------------------------- recovery and deletion

    def recover(self, older: bool = False, owned: bool = True) -> None:
        """Read the image that the pointer names, if there is one; raises DataLoss.

        Args:
            older: see the attribute.
            owned: as for `Manifest`.
        """
        self.older, self.manifest.owned = older, owned
        try:
            self._read()
        finally:
            self.manifest.collect_garbage(self._session)

    def _read(self) -> None:
        data = self._session.read("pointer", values.pointer_key(self.number), not self.older, self.manifest.owned)
        if data is None:
            raise DataLoss(f"the pointer to the image of window {self.name!r} is missing")
        self.manifest.read(data)
        if self.manifest.image.version:
            self._restore()

    def _restore(self) -> None:
        """Read the image."""
        stored, whole = self.manifest.image, xxhash.xxh3_64()
        bound = stored.checksum is not None
        keys = self.manifest.image_keys(stored.version, stored.parts)

        def read() -> Iterator[bytes | None]:
            for key in keys:
                (data,) = self._session.tier.get_many([key])
                whole.update(b"" if data is None else values.checksum(data))
                yield data

        called, parts = f"the image of window {self.name!r}", read()
        head_key = values.image_key(self.number, stored.version, 0)
        store, owned = self._session.store, self.manifest.owned
        head = values.unseal("head", next(parts), called, head_key, bound, store, owned)
        self.manifest.add_garbage(list(head["trash"]))
        ledger = image_reader.ledger_of(head["ledger"], called)
        self.window = image_reader.restore(
            parts,
            max_keys=self._max_keys,
            clock=self.clock,
            cold=self.cold,
            name=called,
            key=lambda i: values.image_key(self.number, stored.version, i + 1),
            bound=bound,
            store=store,
            owned=owned,
            forest=self._forest,
        )
        if bound and stored.checksum != whole.digest():
            raise DataLoss(f"{called} has parts that were written at different times")
        self.window.ledger = ledger

    def _forest(self, window: Window, made_of: ForestImage) -> Forest:
        """Make a forest of this window, of one that it feeds, or of a rollup, from its image."""
        return forest_of(window, made_of)

    def remains(self) -> Remains:
        """The values of the window that the tier has, or is about to have."""
        remains = self.manifest.remains(self.window.ledger.next_part)
        return remains.with_later(self._session, self.number) if self._unknown else remains


def spec_as_known(document: Mapping[str, Any]) -> WindowSpec:
    """A spec without aggregates that this service does not know, to list a window that is not served."""
    known = {name: each for name, each in document["aggregates"].items() if each["function"] in catalogue()}
    try:
        return WindowSpec.parse({**document, "aggregates": known})
    except InvalidArgument:
        least = {name: document[name] for name in ("name", "time_unit", "from", "of") if name in document}
        fields = {"value": "float64"}
        return WindowSpec.parse({**least, "fields": fields, "aggregates": {"entries": {"function": "count"}}})


def _empty(spec: WindowSpec, clock: Clock) -> Window | View:
    """A window of a spec, or a view, that has nothing and only shows that there is one."""
    if spec.of is None:
        return Window(spec, clock=clock)
    document = {name: value for name, value in spec.document().items() if name != "of"}
    return View(spec, Window(WindowSpec.parse(document), clock=clock))
