"""Runs a connector: records are decoded, mapped, judged and written once, with one write of a stream at a time.

    poll ──▶ waiting records of each stream ──▶ a thread: decode ─▶ rows of window 1, 2, … ─▶ write (after, number]
                 └── too many: the stream is held                        └─▶ dead letters first     └─▶ applied

A write says after which number it comes (`Window.bulk_insert`, `after`). The window refuses it where that is not the
last number that it has of the stream. So no crash, rebalance or second process leaves a record out or writes it twice:

    refused with                what has happened                                what is done
    field after, limit 150      the window has a part: another process wrote     cut at 150; each part is sent
    field sequence, limit 101   it lacks what is before: a shard had less        the connector goes back behind 100
    PRODUCER_FENCED             another process has taken the stream over        its records are dropped; later, `begin`
    may pass, no room           the service is away, or full                     the same write again, until it answers
    too large, a wrong row      one record does not fit                          halved, until the record is found
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Lock
from typing import Any, TypeVar

import numpy as np

from sash_client import FailedPrecondition, InvalidArgument, ResourceExhausted, SashClientError
from sash_client.calls.plans import may_pass, pauses_s
from sash_ingest.connector import Connector, Records, SourceError
from sash_ingest.dead_letters import DeadLetters, Letter
from sash_ingest.decode import Decoded, Form, Reject
from sash_ingest.meters import Meters
from sash_ingest.target import Rows, Target

T = TypeVar("T")

_POLL_S = 0.02
_LINE_S = 10.0
_BYTES_MAX = 8 * 2**20
"""Of the values of one write. As columns they take less."""
_FENCED_S = 5.0
"""A process that was fenced takes the stream back after so long, if its source still gives it: see `_fenced`."""
_HELD = 4
"""A stream is held while so many writes of it wait."""
_REVOKED_S = 3.0
"""A stream that goes to another process is given up after so long, also where its write is not answered."""
_DRAIN_S = 20.0
"""A process that is asked to stop waits so long for the service."""


class RejectedError(Exception):
    """A record does not fit, and there is no place for such records."""

    def __init__(self, letter: Letter) -> None:
        where = ", ".join(f"{name} {value}" for name, value in letter.origin.items())
        what = " ".join(part for part in (letter.field, letter.reason) if part)
        super().__init__(f"{where}: {what}" + (f" (window {letter.window})" if letter.window else ""))
        self.letter = letter


class _RewindError(Exception):
    """A window lacks records behind this number."""

    def __init__(self, number: int) -> None:
        self.number = number


class _FencedError(Exception):
    """Another process has taken the stream over."""


class _AbandonedError(Exception):
    """Nobody waits for this write any more."""


@dataclass(slots=True)
class _At:
    """How far a window has a stream: the last number, and the epoch of this process."""

    target: Target
    number: int
    epoch: int


@dataclass(slots=True)
class _Stream:
    """A stream that this process has."""

    name: str
    producer: str
    at: list[_At]
    waiting: Records
    under_way: Future[None] | None = None
    held: bool = False
    back_s: float | None = None
    abandoned: Event = field(default_factory=Event)

    @property
    def number(self) -> int:
        """The number that all windows have."""
        return min(each.number for each in self.at)


class Ingest:
    """Runs a connector. It is the connector's `Streams`.

    Args:
        name: the pipeline's: producers are called by it and the stream, ``flights/topic/3``.
        targets: the windows.
        form: what a record is.
        letters: where records go that do not fit; None: the first one ends it.
        meters: count what is done.
        say: takes lines for people.
        records_per_write: of one stream, at most.
        threads: writes that may be under way at once, of different streams.
    """

    def __init__(
        self,
        name: str,
        targets: Sequence[Target],
        form: Form,
        letters: DeadLetters | None,
        meters: Meters | None = None,
        say: Callable[[str], None] = print,
        records_per_write: int = 16_384,
        threads: int = 4,
    ) -> None:
        self._name, self._targets, self._form = name, targets, form
        self._letters, self.meters, self._say = letters, meters or Meters(name), say
        self._most = records_per_write
        self._streams: dict[str, _Stream] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sash data ingest")
        self._stopping, self._letters_lock = Event(), Lock()
        self._connector: Connector | None = None
        self._line_s = time.monotonic()

    def stop(self) -> None:
        """Make `run` finish what it has read, and return; a signal handler may call it."""
        self._stopping.set()

    def run(self, connector: Connector) -> None:
        """Run until the connector has no more, or `stop`.

        Raises:
            RejectedError: a record does not fit, and there is no place for it.
            SourceError: the source cannot go on.
            SashClientError: the service refuses what no waiting changes.
        """
        self._connector = connector
        try:
            connector.open(self)
            while not self._stopping.is_set() and (found := connector.poll(_POLL_S)) is not None:
                for records in found:
                    self._take(records)
                self._step()
            self._drain()
        except _AbandonedError:
            pass  # it was stopped while it waited for the service
        finally:
            for stream in self._streams.values():
                stream.abandoned.set()
            self._pool.shutdown()
            connector.close()
            if self._letters is not None:
                self._letters.close()

    # ---------------------------------------------------------------- what connectors call

    def begin(self, stream: str) -> int:
        producer = f"{self._name}/{stream}"
        made = _Stream(stream, producer, [], Records(stream, [], []))
        for target in self._targets:
            made.at.append(self._located(made, target))
        self._streams[stream] = made
        return made.number

    def _located(self, stream: _Stream, target: Target) -> _At:
        """Ask a window how far it has a stream."""
        window = target.window
        last = self._asked(stream, lambda: window.last_write(stream.producer), self._stopping)
        if last.epoch and not last.number:
            raise SourceError(
                f"window {window.name!r} does not know how far it has {stream.producer!r}: it comes from an export of "
                "several shards that was made in the middle of a write. Take another name for the pipeline, and "
                "another window"
            )
        return _At(target, last.number, last.epoch + 1)

    def end(self, stream: str, drain: bool = True) -> None:
        found = self._streams.get(stream)
        if found is None:
            return
        if drain and found.under_way is not None and wait([found.under_way], _REVOKED_S).done:
            self._finish(found)
        found.abandoned.set()
        self._streams.pop(stream, None)

    # ---------------------------------------------------------------- the loop

    def _take(self, records: Records) -> None:
        self.meters.read(len(records))
        stream = self._streams.get(records.stream)
        if stream is None or stream.back_s is not None:
            return
        if not stream.waiting.numbers:
            stream.waiting = records
        else:
            stream.waiting.extend(records)

    def _step(self) -> None:
        for stream in list(self._streams.values()):
            if stream.under_way is not None and stream.under_way.done():
                self._finish(stream)
            if stream.back_s is not None and time.monotonic() >= stream.back_s:
                self._again(stream)
            if stream.waiting.numbers and stream.under_way is None:
                count = self._count(stream.waiting)
                stream.under_way = self._pool.submit(self._deliver, stream, stream.waiting.part(0, count))
                stream.waiting = stream.waiting.part(count)
            waiting = len(stream.waiting)
            if stream.held is not (waiting > (_HELD * self._most if not stream.held else self._most)):
                stream.held = not stream.held
                self._source.hold(stream.name, stream.held)
        if time.monotonic() >= self._line_s + _LINE_S:
            self._show()

    def _show(self) -> None:
        self._line_s = time.monotonic()
        self.meters.lag(self._source.lag())
        self._say(self.meters.line())

    def _count(self, waiting: Records) -> int:
        """How many records the next write has."""
        count = min(len(waiting), self._most)
        while count > 1 and sum(len(value or b"") for value in waiting.values[:count]) > _BYTES_MAX:
            count //= 2
        return count

    def _finish(self, stream: _Stream) -> None:
        """Take note of the end of a write."""
        assert stream.under_way is not None
        under_way, stream.under_way = stream.under_way, None
        try:
            under_way.result()
        except _RewindError as error:
            self._back_to(stream, error.number)
        except _FencedError:
            self._fenced(stream)
        except _AbandonedError:
            pass
        else:
            self._source.applied(stream.name, stream.number)

    def _back_to(self, stream: _Stream, number: int) -> None:
        stream.waiting = Records(stream.name, [], [])
        for at in stream.at:
            at.number = min(at.number, number)
        self._source.seek(stream.name, number)

    def _fenced(self, stream: _Stream) -> None:
        """Drop what another process writes now. A source that has moved the stream there says so before long."""
        self._say(f"{stream.producer}: another process has taken it over")
        stream.waiting, stream.back_s = Records(stream.name, [], []), time.monotonic() + _FENCED_S

    def _again(self, stream: _Stream) -> None:
        """Take a stream back, which the source still gives to this process."""
        stream.back_s = None
        stream.at = [self._located(stream, at.target) for at in stream.at]
        self._source.seek(stream.name, stream.number)
        self._source.applied(stream.name, stream.number)  # by the other process

    def _drain(self) -> None:
        """Write what was read."""
        end_s = time.monotonic() + _DRAIN_S
        while any(s.under_way is not None or s.waiting.numbers for s in self._streams.values()):
            if self._stopping.is_set() and time.monotonic() >= end_s:
                self._say("stopped while the service is away: what was read is read again at the next start")
                return
            self._step()
            time.sleep(0.005)

    @property
    def _source(self) -> Connector:
        assert self._connector is not None
        return self._connector

    # ---------------------------------------------------------------- in a thread

    def _deliver(self, stream: _Stream, records: Records) -> None:
        """Write records to all windows that do not have them."""
        decoded: dict[Any, Decoded] = {}
        told = set[int]()  # records that are wrong for every window
        last = records.numbers[-1]
        for at in stream.at:
            skip = bisect_right(records.numbers, at.number)
            fresh = records.part(skip)
            form = (at.target.wanted, skip)
            if form not in decoded:
                decode = partial(self._form.decode, fresh.values, at.target.wanted)
                decoded[form] = self._asked(stream, decode, stream.abandoned)  # a registry may be away
            wrong = [each for each in decoded[form].rejects if each.row + skip not in told]
            self._reject(stream, fresh, None, [each for each in wrong if each.field is None])
            told.update(each.row + skip for each in wrong if each.field is None)
            rows, rejects = at.target.rows(fresh, decoded[form])
            rejects += [each for each in wrong if each.field is not None]
            self._reject(stream, fresh, at.target.window.name, rejects)
            self._write(stream, at, fresh, rows, last)

    def _write(self, stream: _Stream, at: _At, records: Records, rows: Rows, last: int) -> None:
        """Write rows as what is behind the window's last number, up to `last`; in parts where it has to be."""
        parts = [(rows, last)]
        while parts:
            rows, last = parts.pop()
            if last <= at.number:
                continue
            try:
                write = partial(at.target.write, rows, stream.producer, last, at.epoch, at.number)
                result = self._asked(stream, write, stream.abandoned)
            except FailedPrecondition as error:
                if error.reason == "PRODUCER_FENCED":
                    raise _FencedError from None
                if error.field == "sequence" and error.limit is not None:
                    raise _RewindError(int(error.limit) - 1) from None
                if error.field == "after" and error.limit is not None:
                    cut = int(np.searchsorted(rows.numbers, int(error.limit), side="right"))
                    parts += [(rows.part(cut, len(rows)), last), (rows.part(0, cut), int(error.limit))]
                    continue
                if error.field is None:
                    raise
                parts += self._halved(stream, at, records, rows, last, error)
            except (InvalidArgument, ResourceExhausted) as error:
                parts += self._halved(stream, at, records, rows, last, error)
            else:
                at.number = last
                self.meters.write(at.target.window.name, result)

    def _halved(
        self, stream: _Stream, at: _At, records: Records, rows: Rows, last: int, error: SashClientError
    ) -> list[tuple[Rows, int]]:
        """Return the halves of a write that was refused; of one record, nothing but its number."""
        if len(rows) > 1:
            half = len(rows) // 2
            return [(rows.part(half, len(rows)), last), (rows.part(0, half), int(rows.numbers[half - 1]))]
        if not len(rows):
            raise error
        if at.target.has_changed():
            raise error  # it is not the record that is wrong
        place = bisect_right(records.numbers, int(rows.numbers[0])) - 1
        self._reject(stream, records, at.target.window.name, [Reject(place, error.field, error.message)])
        return [(rows.part(0, 0), last)]

    def _reject(self, stream: _Stream, records: Records, window: str | None, rejects: Sequence[Reject]) -> None:
        """Put records aside; raises RejectedError where there is no place for them."""
        if not rejects:
            return
        letters = [
            Letter(self._source.origin(stream.name, records.numbers[row]), window, name, reason, records.values[row])
            for row, name, reason in rejects
        ]
        if self._letters is None:
            raise RejectedError(letters[0])
        with self._letters_lock:
            self._letters.put(letters)
        self.meters.reject(window, len(letters))

    def _asked(self, stream: _Stream, call: Callable[[], T], unless: Event) -> T:
        """Call until it is answered, unless nobody wants the answer any more."""
        for pause_s in pauses_s():
            try:
                found = call()
            except SashClientError as error:
                if not _waits(error):
                    raise
                why = error.message
                pause_s = max(pause_s, error.retry_after_s or 0.0)
            else:
                if self.meters.trouble(stream.name, None):
                    self._say(f"{stream.producer}: waits no more")
                return found
            if self.meters.trouble(stream.name, why):
                self._say(f"{stream.producer}: waiting: {why}")
            if unless.wait(pause_s):
                self.meters.trouble(stream.name, None)
                raise _AbandonedError
        raise AssertionError("pauses do not end")


def _waits(error: SashClientError) -> bool:
    """Whether the same call may be answered later: the service is away, or has no room now."""
    full = isinstance(error, ResourceExhausted) and error.reason != "TOO_LARGE"
    return may_pass(error) or full
