"""A producer: numbers its writes, gathers single entries into bulks, sends each until it is answered.

                    linger_s, entries or bytes            one in flight, sent with the same number until answered
    insert ─▶ [ open bulk ] ──sealed──▶ [ message ][ message ][ message ] ──▶ service
                    └────────── at most buffer_bytes, else insert waits ──┘
                                                                  a thread of its own ──▶ acknowledged, result

A message gets its number when it is sent, and the next one waits for the answer. So the numbers have no gap, and a
message that the service refuses leaves none. The service applies each number once, however often it is sent.

Some errors do not pass (the window is gone, a key is too long, a gap). They stop the sending. The next `insert`,
`flush` or `close` raises the error, once, with the entries that were not applied in its `unapplied`. These are the
caller's again, and the sending goes on with the entries behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from threading import Condition, Thread
from time import monotonic
from types import TracebackType
from typing import Any, Self, Unpack

import numpy as np

from sash_client.answers import WriteResult
from sash_client.calls.plans import may_pass, pauses_s
from sash_client.data.bulks import Bulk, Rows, bulk_of, from_bulk
from sash_client.data.times import TimeLike, to_tick
from sash_client.data.wire import from_write
from sash_client.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, SashClientError
from sash_client.windows.handle import Handle, parts_joined, spec_of
from sash_client.windows.keys import Key, text
from sash_client.windows.writes import natural, requests_of
from sash_proto.v1 import windows_pb2 as pb

_USED = "SEQUENCE_REUSED"


class Producer:
    """Sends entries to one window, each exactly once; get it from `Window.producer`. Threads may share it.

    Close it, or use it as a context manager: entries that are neither flushed nor closed are lost with the process.

    After a restart of the producing process, take a new name or a higher `epoch`, or go on from the last acknowledged
    number (`start`). With a higher epoch the service refuses what an earlier process of the same name still sends.

    With `start`, the service may have applied one message more than it could acknowledge. The first message then gets
    the number of that one, and raises `FailedPrecondition`. If it is answered "already applied" and has the same
    entries, all is well; if not, insert its `unapplied` again. If the service has applied less than `start`, the error
    of the gap has the next number in `limit`. Entries that are gathered by time do not fall into the same messages a
    second time. To resend exactly what was not acknowledged, call `bulk_insert` with bulks that are the same each time.

    Args:
        window: the window.
        name: the producer's name; only one process at a time may use it.
        epoch: a higher epoch takes the name over, and numbers its messages from 1 on.
        start: the last number that the service has acknowledged under this name and epoch; 0 if they are new.
        bulk_entries: entries to gather, at most, before they are sent.
        bulk_bytes: bytes to gather, at most, before they are sent.
        linger_s: seconds that an entry waits for others, at most; less while a call waits for it to be sent.
        buffer_bytes: bytes that may wait to be sent or answered; while there are more, `insert` waits.
        timeout_s: seconds that `insert`, `flush` and `close` wait, at most; None: until the service answers.

    Raises:
        NotFound: there is no such window.
    """

    def __init__(
        self,
        window: Handle,
        name: str,
        *,
        epoch: int = 0,
        start: int = 0,
        bulk_entries: int = 16_384,
        bulk_bytes: int = 4 * 2**20,
        linger_s: float = 0.02,
        buffer_bytes: int = 64 * 2**20,
        timeout_s: float | None = None,
    ) -> None:
        if start < 0 or linger_s < 0 or min(bulk_entries, bulk_bytes, buffer_bytes) < 1:
            raise InvalidArgument("start and linger_s cannot be negative; bulks and buffers must be positive")
        self._window = window
        self._name, self._epoch = text(name, "producer"), natural(epoch, "epoch")
        self._spec = spec_of(window)
        self._kinds = dict(sorted(self._spec.fields.items()))
        self._bulk_entries, self._bulk_bytes, self._buffer_bytes = bulk_entries, bulk_bytes, buffer_bytes
        self._linger_s, self._timeout_s = linger_s, timeout_s
        self._changed = Condition()
        # All below only under `_changed`.
        self._open = OpenBulk(self._kinds)
        self._messages: deque[pb.BulkInsertRequest] = deque()  # the first one is in flight
        self._message_bytes = 0
        self._hurried = 0  # callers that wait for entries to be sent; while there are any, nothing lingers
        self._first, self._acknowledged = start + 1, start
        self._result: WriteResult | None = None
        self._error: SashClientError | None = None
        self._closed = False
        self._thread = Thread(target=self._run, name=f"sash producer {name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Producer({self._window.name!r}, {self._name!r}, acknowledged={self.acknowledged})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(timeout_s=self._window._client.timeout_s if self._timeout_s is None else self._timeout_s)
        except SashClientError as mine:
            error.add_note(f"and the producer: {mine}")

    @property
    def acknowledged(self) -> int:
        """The last number that the service has answered: `start` for the next producer of this name."""
        with self._changed:
            return self._acknowledged

    @property
    def result(self) -> WriteResult:
        """The outcome of all entries that were answered so far."""
        with self._changed:
            return self._result or WriteResult()

    def insert(
        self,
        time: TimeLike,
        value: float | None = None,
        *,
        fields: Mapping[str, Any] | None = None,
        key: Key | None = None,
    ) -> None:
        """Take one entry, to be sent soon; arguments as in `Window.insert`.

        Raises:
            InvalidArgument: the entry does not fit the window.
            DeadlineExceeded: the buffer is full, and stays so.
            SashClientError: an earlier message failed. This entry is not taken, in any case.
        """
        self._inserted(time, value, fields, key)

    def _inserted(
        self,
        time: TimeLike,
        value: float | None,
        fields: Mapping[str, Any] | None,
        key: Key | None,
        waits: bool = True,
    ) -> bool:
        """Insert an entry, and return whether it was taken: without `waits` it is not if that would block."""
        self._window._client._check_process()
        row = checked_row(self._spec, self._kinds, time, value, fields, key)
        with self._changed:
            if not (waits or self._has_room()):
                return False
            self._make_room()
            self._open.take(row)
            if self._open.entries >= self._bulk_entries or self._open.bytes >= self._bulk_bytes:
                self._seal()
            elif self._open.entries == 1:
                self._changed.notify_all()  # the thread has to know when it is due
        return True

    def _at(self, key: Key | None) -> Producer:
        """The producer for entries of a key."""
        return self

    def bulk_insert(self, times: Any, columns: Any = None, **rows: Unpack[Rows]) -> None:
        """Take n entries, or a data frame, to be sent after those taken before; one bulk may be larger than the buffer.

        Arguments are those of `Window.bulk_insert`; raises as `insert`.
        """
        self._window._client._check_process()
        bulk = bulk_of(times, columns, **rows)
        self._take(list(requests_of(self._window, bulk, self._spec)))

    def _take(self, requests: list[pb.BulkInsertRequest]) -> None:
        """Take messages, to be sent after the entries taken before."""
        with self._changed:
            self._make_room()
            self._seal()
            self._queue(requests)

    def flush(self, timeout_s: float | None = None) -> WriteResult:
        """Send all entries taken so far and wait for the answers; return `result`.

        Args:
            timeout_s: seconds to wait, at most; the producer's if None.

        Raises:
            DeadlineExceeded: that took too long. The producer keeps the entries, and goes on sending them.
            SashClientError: a bulk failed; `unapplied` has its entries.
        """
        self._window._client._check_process()
        with self._changed:
            self._wait(lambda: not self._messages and not self._open.entries, timeout_s, "its entries were not applied")
            return self._result or WriteResult()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and end; closing twice does nothing.

        Raises:
            SashClientError: as `flush`. `unapplied` has all that was not applied, and nothing more is sent. It also has
                a message whose answer did not come in time, which may have been applied.
        """
        self._window._client._check_process()
        with self._changed:  # throughout, so that nothing is sent after the flush has failed
            if self._closed:
                return
            try:
                self.flush(timeout_s)
            except SashClientError as error:
                self._seal()
                error.unapplied += tuple(from_bulk(message) for message in self._messages)
                self._messages.clear()
                raise
            finally:
                self._closed = True
                self._changed.notify_all()

    # ---------------------------------------------------------------- with the lock held

    def _make_room(self) -> None:
        """Wait until there is room; raise an error that nobody has seen yet."""
        self._wait(self._has_room, None, "its buffer is full, and had no room")
        if self._closed:
            raise FailedPrecondition(f"producer {self._name!r} is closed")

    def _has_room(self) -> bool:
        return self._message_bytes + self._open.bytes < self._buffer_bytes

    def _wait(self, what: Callable[[], bool], timeout_s: float | None, otherwise: str) -> None:
        """Wait for a condition, an error or the end; raise the error."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s

        def is_over() -> bool:
            return self._error is not None or self._closed or what()

        if not is_over():
            self._hurried += 1  # send the open bulk, too
            self._changed.notify_all()
            try:
                if not self._changed.wait_for(is_over, limit_s):
                    raise DeadlineExceeded(f"producer {self._name!r}: {otherwise} within {limit_s:g} s")
            finally:
                self._hurried -= 1
        if self._error is not None:
            error, self._error = self._error, None
            self._changed.notify_all()  # the caller has seen it: go on
            raise error

    def _seal(self) -> None:
        """Make messages of the open bulk."""
        if self._open.entries:
            bulk, self._open = self._open.bulk(), OpenBulk(self._kinds)
            self._queue(requests_of(self._window, bulk, self._spec))

    def _queue(self, requests: Iterable[pb.BulkInsertRequest]) -> None:
        for request in requests:
            self._messages.append(request)
            self._message_bytes += request.ByteSize()
        self._changed.notify_all()

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        while (message := self._next()) is not None:
            size = message.ByteSize()
            message.producer, message.sequence, message.epoch = self._name, self.acknowledged + 1, self._epoch
            done = self._sent(message)
            with self._changed:
                if self._closed:
                    return  # close has handed the message back
                self._messages.popleft()
                self._message_bytes -= size
                if isinstance(done, WriteResult):
                    self._result = done if self._result is None else self._result + done
                else:
                    self._error = done
                # A used number: a producer of the same name used it, now or before a restart.
                if isinstance(done, WriteResult) or done.reason == _USED:
                    self._acknowledged = message.sequence
                self._changed.notify_all()

    def _next(self) -> pb.BulkInsertRequest | None:
        """Wait for the next message to send; None if the producer has ended."""
        with self._changed:
            while not self._closed:
                due_s = self._open.due_s(self._linger_s)
                if not self._messages and due_s is not None and (due_s <= 0 or self._hurried):
                    self._seal()
                if not self._messages:
                    self._changed.wait(due_s)
                elif self._error is not None:
                    self._changed.wait()  # until a caller has seen it
                else:
                    return self._messages[0]
        return None

    def _sent(self, message: pb.BulkInsertRequest) -> WriteResult | SashClientError:
        """Send a message until it is answered; return the answer."""
        client = self._window._client
        for attempt, pause_s in enumerate(pauses_s()):
            try:
                result = from_write(self._asked(message), 1)
            except SashClientError as error:
                if not may_pass(error) or client._is_closed:
                    return _blamed(error, message)
                with self._changed:
                    if self._changed.wait_for(lambda: self._closed, max(pause_s, error.retry_after_s or 0.0)):
                        return error
                continue
            resumed = message.sequence == self._first > 1
            if result.already_applied and (attempt == 0 or resumed):
                what, next_ = f"another message with number {message.sequence} was applied before", message.sequence + 1
                return _blamed(FailedPrecondition(what, reason=_USED, field="sequence", limit=str(next_)), message)
            return result
        raise AssertionError("pauses do not end")

    def _asked(self, message: pb.BulkInsertRequest) -> Any:
        """Send a message once, and return the answer."""
        return self._window._client._call("BulkInsert", message)


def _blamed(error: SashClientError, message: pb.BulkInsertRequest) -> SashClientError:
    """The error, naming the entries that it concerns."""
    bulk = from_bulk(message)
    error.unapplied = (bulk,)
    times = f", times {bulk.times.min()} to {bulk.times.max()}," if len(bulk) else ""
    error.message += (
        f" (producer {message.producer!r}, sequence {message.sequence}: its {len(bulk)} entries{times} are not applied)"
    )
    error.args = (error.message,)
    return error


Row = tuple[int, str | None, list[Any]]
"""An entry: its tick, its key, and its values by the names of the fields."""

_ENTRY_BYTES = 16
"""Bytes that an entry counts for, besides its values."""


class OpenBulk:
    """The bulk that is being gathered, as lists.

    Args:
        fields: the names of the window's fields.
    """

    def __init__(self, fields: Iterable[str]) -> None:
        self.entries, self.bytes = 0, 0
        self._since_s = 0.0
        self._times: list[int] = []
        self._keys: list[str] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in fields}

    def take(self, row: Row) -> None:
        """Take an entry that `checked_row` has checked."""
        tick, key, values = row
        if not self.entries:
            self._since_s = monotonic()
        self.entries += 1
        self.bytes += _ENTRY_BYTES + 8 * len(values) + len(key or "")
        self._times.append(tick)
        if key is not None:
            self._keys.append(key)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
            if isinstance(value, str):
                self.bytes += len(value)

    def due_s(self, linger_s: float) -> float | None:
        """Return the seconds until it is to be sent; None if it is empty."""
        return self._since_s + linger_s - monotonic() if self.entries else None

    def bulk(self) -> Bulk:
        """Return the entries."""
        return Bulk(np.array(self._times, "<i8"), self._columns, self._keys or None)


def checked_row(
    spec: pb.WindowSpec,
    kinds: Mapping[str, str],
    time: TimeLike,
    value: float | None,
    fields: Mapping[str, Any] | None,
    key: Key | None,
) -> Row:
    """Check an entry, so that one bad entry does not spoil a bulk.

    Args:
        spec: the window's spec.
        kinds: the types of its fields by name, in the order of the row's values.
        time, value, fields, key: as in `Window.insert`.

    Raises:
        InvalidArgument: the entry does not fit the window.
    """
    if (value is None) == (fields is None):
        raise InvalidArgument("give either a value or fields", field="value")
    if fields is None:
        if len(kinds) != 1:
            raise InvalidArgument(f"give every field, by name: {', '.join(kinds)}", field="value")
        fields = dict.fromkeys(kinds, value)
    for name in [*fields, *kinds]:
        if name not in kinds or (name not in fields and name not in spec.nullable):
            what = "is missing" if name in kinds else f"is none of {', '.join(kinds)}"
            raise InvalidArgument(f"field {name!r} {what}", field=name)
    if (key is not None) != spec.keyed:
        what = "needs a key" if spec.keyed else "takes no key"
        raise InvalidArgument(f"window {spec.name!r} {what}", field="key")
    values = [
        None if name in spec.nullable and fields.get(name) is None else _fitting(fields[name], kind, name)
        for name, kind in kinds.items()
    ]
    return to_tick(time, spec.time_unit or "us", "time"), _key(key, spec), values


def _key(key: Key | None, spec: pb.WindowSpec) -> str | None:
    if key is None:
        return None
    return parts_joined(key, spec) if isinstance(key, Mapping) else text(key)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "float64": (float, int, np.floating, np.integer),
    "int64": (int, np.integer),
    "bool": (bool, np.bool_),
    "string": (str,),
}


def _fitting(value: Any, kind: str, name: str) -> Any:
    """Return a value of a field; raises InvalidArgument if it has another type."""
    fits = isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
    if not fits:
        raise InvalidArgument(f"{name} is a {kind} field; {value!r:.80} is a {type(value).__name__}", field=name)
    if kind == "int64" and not -(2**63) <= value < 2**63:
        raise InvalidArgument(f"{name}: {value} is out of range", field=name, limit="-2^63 <= value < 2^63")
    if kind == "string" and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{name}: {value!r:.80} has no UTF-8", field=name) from None
    return float(value) if kind == "float64" else value
