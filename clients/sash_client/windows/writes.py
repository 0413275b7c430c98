"""Writes as plans: how each is asked, and how its answer is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, Unpack

import numpy as np

from sash_client.answers import Admission, LastWrite, Limit, Staged, WriteResult
from sash_client.calls.plans import Plan, Together, asked_again
from sash_client.calls.streams import Patience
from sash_client.data.bulks import Bulk, Columns, Rows, bulk_of, checked
from sash_client.data.libraries import shown
from sash_client.data.times import Duration, TimeLike
from sash_client.data.wire import fill_limit, fill_scalar, from_admission, from_write
from sash_client.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, SashClientError
from sash_client.windows.handle import Handle, key_text, known, tick_of
from sash_client.windows.keys import Key, text
from sash_client.windows.questions import to_lookbacks
from sash_proto.v1 import windows_pb2 as pb


def insert(
    window: Handle,
    time: TimeLike,
    value: float | None = None,
    *,
    fields: Mapping[str, Any] | None = None,
    key: Key | None = None,
    answer: bool = False,
    lookbacks: Sequence[Duration] = (),
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[WriteResult]:
    """Insert one entry; with `answer`, also answer.

    Args:
        time: ticks, or an instant.
        value: the value of a window with one float64 field.
        fields: in any other window: a scalar for every field, by name.
        key: the key, in a keyed window; where keys have parts also these, by name.
        answer: whether to answer as `query` does for the key, after the insert and the slide. The answers are in the
            result's `answers`.
        lookbacks: with `answer`: as in `query`.
        producer, sequence: the name of the producer, and the number of this write among all its writes to this window:
            1, 2, 3, … The service applies such a write once, however often it is sent. So while the service is away or
            its reply is lost, the client sends it again, for at most `timeout_s`. If it was applied before, the result
            says `already_applied`, and nothing changes. `Window.producer` counts for you.
        epoch: of the producer. The first write with a higher epoch takes the name over, and has number 1 again.

    Raises:
        FailedPrecondition: writes of the producer are missing before this one, or another write had its number; `limit`
            is the number that is next. Or a higher epoch, which is in `limit`, has taken the name over.
    """
    if (value is None) == (fields is None):
        raise InvalidArgument("give either a value or fields", field="value")
    tick = yield from tick_of(window, time, "time")
    request = pb.InsertRequest(window=window.name, key=(yield from key_text(window, key)), time=tick, answer=answer)
    if lookbacks:
        request.lookbacks.extend(to_lookbacks(lookbacks))
    _fill_entry(request, value, fields)
    return (yield from _sent(window, "Insert", [request], _Numbers(producer, sequence, epoch)))


def _fill_entry(
    request: pb.InsertRequest | pb.AdmitRequest, value: float | None, fields: Mapping[str, Any] | None
) -> None:
    if fields is None:
        try:
            request.value = value  # type: ignore[assignment]
        except TypeError:
            raise InvalidArgument(f"value {value!r:.80} is not a number", field="value") from None
    for name, item in (fields or {}).items():
        fill_scalar(request.fields[name], item, name)


def bulk_insert(
    window: Handle,
    times: Any,
    columns: Any = None,
    *,
    keys: Any = None,
    partials: Mapping[str, Any] | None = None,
    entries: Any = None,
    time: str | None = None,
    key: str | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
    after: int | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
) -> Plan[WriteResult]:
    """Insert n entries, in any order.

        window.bulk_insert(times, {"delay": delays, "carrier": carriers}, keys=airports)
        window.bulk_insert(frame)
        window.bulk_insert(frame, time="departure", key="airport")

    The client sends a bulk that is larger than one message as several, in order. Each is applied whole or not at all.
    If one fails, the error's `applied` says what those before it have done.

    Args:
        times: n ticks or instants: int64, datetime64, a column of pandas, Polars or Arrow. Or a frame with everything:
            a DataFrame of pandas or Polars, a LazyFrame, a Table of Arrow (see `Bulk.from_frame`), a dict of columns,
            or a list of dicts, one for each entry.
        columns: n values for each field, by name; or n values alone if the window has one field. NumPy, pandas,
            Polars, Arrow, or a sequence. No value may be missing, except NaN in a float64 field, which is a value.
        keys: n keys in a keyed window; or one string, for all entries. Where keys have parts also a mapping with n
            values of each part, or one string; they may also stand among the columns.
        partials: in the place of columns, for windows with a granularity: n partials of every aggregate, by name.
            Their parts are columns: a sequence of them in the order that the page Partials of the documentation lists,
            a mapping in that order, or the only one alone; a list of n `bytes` for sketches. Arrays must have the
            parts' own types.
        entries: with partials: n integers, how many entries each row stands for.
        time, key: with a frame: the columns that hold the times and the keys; by default "time" and "key".
        producer, sequence, epoch: as in `insert`. Every message has a number of its own, from `sequence` on. The
            result's `sequences` says how many were used (one, if the bulk fits one message). If a call fails, the same
            call again is safe: the same arrays are cut in the same places, if the client has the same limits.
        after: for numbers with gaps, such as offsets of a log: the number of the producer's write before this one, 0 if
            there is none. The numbers go on under a higher epoch. The bulk has to fit one message.
        progress: as of `answers_at`, about the entries.

    Returns:
        what became of the entries, all messages together.
    """
    spec = yield from known(window)
    bulk = checked(bulk_of(times, columns, keys, partials, entries, time, key), spec)
    # All shards note a producer's number, and one that may reject entries has to see all of a bulk.
    is_whole = producer is not None or "reject" in _policies(spec)
    parts = [(None, bulk)] if is_whole else (yield from _parts(window, bulk, spec))
    if after is not None:
        messages = list(messages_of(window, bulk))
        if len(messages) > 1:
            raise ResourceExhausted(f"{len(bulk.times)} entries do not fit one message", reason="TOO_LARGE")
        return (yield from _sent(window, "BulkInsert", messages, _Numbers(producer, sequence, epoch, after)))
    told, sent, rows = shown(progress, "entries"), [0] * len(parts), len(bulk.times)

    def telling(at: int, part: Columns) -> Iterator[pb.BulkInsertRequest]:
        for message in messages_of(window, part):
            yield message
            sent[at] += len(message.time) // 8
            told(sum(sent), rows)

    plans = [
        _sent(window, "BulkInsert", telling(at, part), _Numbers(producer, sequence, epoch), owner)
        for at, (owner, part) in enumerate(parts)
    ]
    if len(plans) == 1:
        return (yield from plans[0])
    done = yield Together(plans)
    errors = [each for each in done if isinstance(each, SashClientError)]
    total = reduce(add, [each.applied or WriteResult() if isinstance(each, SashClientError) else each for each in done])
    if errors:
        errors[0].applied = total
        raise errors[0]
    return total


def admit(
    window: Handle,
    time: TimeLike,
    value: float | None = None,
    *,
    limits: Sequence[Limit],
    fields: Mapping[str, Any] | None = None,
    key: Key | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[Admission]:
    """Insert one entry if all limits hold with it, and say so; nothing is written in between.

        if window.admit(now, fields={"tokens": 800}, key="acme|ada", limits=[Limit("tokens", "1d", 1_000_000)]):
            ...

    A limit holds if it does in every trailing lookback that has the entry and ends with it or with a later entry. So no
    lookback that ends with an entry passes a limit, in whatever order entries arrive, if all of them are written so.

    Args:
        time, value, fields, key: as in `insert`.
        limits: 1 to 16. Limits about groups of keys need a service of one shard.
        producer, sequence, epoch: as in `insert`. The same number has the same decision for ever.

    Raises:
        FailedPrecondition: as in `insert`; or a retry came after so many other writes of the producer that what was
            decided is not remembered.
    """
    if (value is None) == (fields is None):
        raise InvalidArgument("give either a value or fields", field="value")
    request = pb.AdmitRequest(
        window=window.name, key=(yield from key_text(window, key)), time=(yield from tick_of(window, time, "time"))
    )
    _fill_entry(request, value, fields)
    return (yield from _decided(window, request, limits, _Numbers(producer, sequence, epoch)))


def bulk_admit(
    window: Handle,
    times: Any,
    columns: Any = None,
    *,
    limits: Sequence[Limit],
    keys: Any = None,
    time: str | None = None,
    key: str | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[Admission]:
    """As `admit`, of n entries at once: they are decided in order of time, and those that go in count for the others.

    Args:
        times, columns, keys, time, key: as in `bulk_insert`. The bulk has to fit one message, and 65,536 entries.
        limits, producer, sequence, epoch: as in `admit`.
    """
    spec = yield from known(window)
    messages = list(messages_of(window, checked(bulk_of(times, columns, keys, None, None, time, key), spec)))
    if len(messages) > 1:
        raise ResourceExhausted("the entries do not fit one message, and are decided together", reason="TOO_LARGE")
    request = pb.AdmitRequest(window=window.name, entries=messages[0])
    return (yield from _decided(window, request, limits, _Numbers(producer, sequence, epoch)))


def _decided(window: Handle, request: pb.AdmitRequest, limits: Sequence[Limit], numbers: _Numbers) -> Plan[Admission]:
    for limit in limits:
        (lookback,) = to_lookbacks([limit.lookback])
        fill_limit(request.limits.add(), limit, lookback)
    numbered = numbers.give(request)
    done = yield from asked_again(window._client, "Admit", request, idempotent=numbered)
    return from_admission(done, int(numbered))


def last_write(window: Handle, producer: str) -> Plan[LastWrite]:
    """Return the number and the epoch of a producer's last write, as the window remembers them; nothing changes.

    While a write is under way in a service of several shards, the number may be that of any shard. A write behind a
    number that another shard does not have is refused, with `limit`.

    Args:
        producer: its name.
    """
    spec = yield from known(window)
    nothing = checked(bulk_of([], dict.fromkeys(spec.fields, ()), keys=[] if spec.keyed else None), spec)
    last = []
    # An epoch is refused with a higher one, a number behind a gap with the next one. The epoch comes first: a producer
    # that has one has a number, too.
    for epoch in (0, _LARGEST):
        numbers = _Numbers(producer, _LARGEST, epoch, _LARGEST - 1)
        try:
            yield from _sent(window, "BulkInsert", messages_of(window, nothing), numbers)
        except FailedPrecondition as error:
            if error.limit is None or error.field not in ("sequence", "epoch"):
                raise
            last.append((int(error.limit), error.field))
    (fence, field), (next_, _) = last
    return LastWrite(next_ - 1, fence if field == "epoch" else 0)


def bulk_evict(
    window: Handle,
    time: TimeLike | None = None,
    *,
    start: TimeLike | None = None,
    end: TimeLike | None = None,
    end_exclusive: bool = False,
    reset_mark: bool = False,
    key: Key | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[WriteResult]:
    """Remove every entry with time <= `time`, or with start <= time <= end; the result's `evicted` says how many.

        window.bulk_evict("2013-01-01T06:00Z")
        window.bulk_evict(start=17, end=17, key="JFK")

    Args:
        time: ticks, or an instant.
        start, end: in the place of `time`: a range, which may lie in the middle of the window.
        end_exclusive: with a range: leave the entries with time `end`.
        reset_mark: with a range: undo what its entries did to now. A key whose high-water mark is in the range goes on
            from its newest entry that is left, and takes again what its slide had evicted, if it is sent again.
        key: only entries of this key.
        producer, sequence, epoch: as in `insert`.
    """
    request = pb.BulkEvictRequest(
        window=window.name,
        key=(yield from key_text(window, key)),
        end_exclusive=end_exclusive,
        reset_mark=reset_mark,
    )
    for bound, given in (("time", time), ("start", start), ("end", end)):
        if given is not None:
            setattr(request, bound, (yield from tick_of(window, given, bound)))
    return (yield from _sent(window, "BulkEvict", [request], _Numbers(producer, sequence, epoch)))


def stage(
    window: Handle,
    times: Any,
    columns: Any = None,
    *,
    query: str,
    batch: int,
    **rows: Unpack[Rows],
) -> Plan[list[Staged]]:
    """Store a part of a batch in the service. Nobody sees it until `commit` names it; without a commit it expires.

    The client sends it again while the service is away. If that stores it twice, the part that no commit names expires.

    Args:
        times, columns, rows: as in `bulk_insert`.
        query: the name of the sender of batches, such as the id of a streaming query.
        batch: the batch's number, from 0 on.

    Returns:
        the names to commit, in order: several, if the part is larger than one message.
    """
    spec = yield from known(window)
    bulk = checked(bulk_of(times, columns, **rows), spec)
    parts = yield from _parts(window, bulk, spec)
    plans = [_staged(window, part, owner, text(query, "query"), natural(batch, "batch")) for owner, part in parts]
    if len(plans) == 1:
        return (yield from plans[0])
    found = []
    for each in (yield Together(plans)):
        if isinstance(each, SashClientError):
            raise each
        found += each
    return found


def commit(window: Handle, query: str, batch: int, stages: Iterable[Staged | str]) -> Plan[WriteResult]:
    """Apply staged parts, in this order, as one write. A batch that was committed before changes nothing.

    The client sends it again while the service is away.

    Args:
        query, batch: as in `stage`. Batches of a query are committed in increasing order.
        stages: what `stage` returned, of all parts that count; none is an empty batch.

    Raises:
        FailedPrecondition: a part has expired, was never staged, or belongs to another batch.
    """
    names = [text(each.stage if isinstance(each, Staged) else each, "stages") for each in stages]
    request = pb.CommitBatchRequest(
        window=window.name, query=text(query, "query"), batch=natural(batch, "batch"), stages=names
    )
    return from_write((yield from asked_again(window._client, "CommitBatch", request)))


def _parts(window: Handle, bulk: Columns, spec: pb.WindowSpec) -> Plan[list[tuple[int | None, Columns]]]:
    """The parts of a bulk that go to different processes, as `Owners.parts`; one part where there is no map."""
    owners = window._client._owners
    return [(None, bulk)] if owners is None else (yield from owners.parts(spec, bulk))


def _staged(window: Handle, bulk: Columns, owner: int | None, query: str, batch: int) -> Plan[list[Staged]]:
    """Stage the messages of a bulk, one after the other, at the owner of a shard."""
    found = []
    for request in messages_of(window, bulk):
        message = pb.StageBatchRequest(entries=request, query=query, batch=batch)
        kept = yield from asked_again(window._client, "StageBatch", message, owner=owner)
        found.append(Staged(kept.stage, kept.entries, kept.durability or "memory"))
    return found


def _policies(spec: pb.WindowSpec) -> list[str]:
    """What the window does with entries by what it has: not with those too far ahead, which each shard knows."""
    order = spec.order
    return [order.late, order.out_of_order, order.equal_times]


class BulkStream:
    """Bulks over one call: numbers and counts their messages, and gathers the answers of each bulk.

    Args:
        window, spec: the window and its spec.
        producer, sequence, epoch: as in `bulk_insert`.
        timeout_s: seconds that an answer may take.
    """

    def __init__(
        self,
        window: Handle,
        spec: pb.WindowSpec,
        producer: str | None,
        sequence: int | None,
        epoch: int,
        timeout_s: float,
    ) -> None:
        self._window, self._spec, self._producer = window, spec, producer
        self._numbers = _Numbers(producer, sequence, epoch)
        self._sent: deque[int] = deque()  # messages of each bulk; appended before its last one leaves
        self._answers = 0
        self._total: WriteResult | None = None
        self.patience = Patience(timeout_s, owed=False)

    def messages(self, bulk: Bulk) -> Iterator[pb.BulkInsertRequest]:
        """Yield the messages of a bulk, ready to send."""
        messages = list(requests_of(self._window, bulk, self._spec))
        self._sent.append(len(messages))
        for message in messages:
            self._numbers.give(message)
            self.patience.sent()
            yield message

    def answered(self, message: pb.InsertResponse) -> WriteResult | None:
        """Take the next answer; return what became of a bulk if it is the last one of that bulk."""
        self.patience.answered()
        result = from_write(message, int(self._producer is not None))
        self._total, self._answers = result if self._total is None else self._total + result, self._answers + 1
        if self._answers < self._sent[0]:
            return None
        self._sent.popleft()
        done, self._total, self._answers = self._total, None, 0
        return done

    def failed(self, error: SashClientError) -> SashClientError:
        """Return the error, with what was applied of the bulk that failed."""
        error.applied = self._total or WriteResult()
        return error


def requests_of(window: Handle, bulk: Bulk, spec: pb.WindowSpec) -> Iterator[pb.BulkInsertRequest]:
    """Yield a bulk as messages within the client's limits."""
    return messages_of(window, checked(bulk, spec))


def messages_of(window: Handle, columns: Columns) -> Iterator[pb.BulkInsertRequest]:
    """Yield the columns of a bulk as messages within the client's limits."""
    client = window._client
    return columns.requests(window.name, entries_max=client.bulk_entries_max, bytes_max=client.bulk_bytes_max)


def natural(number: Any, field: str) -> int:
    """Return an integer from 0 to 2^63 - 1; raises InvalidArgument for anything else."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < 2**63:
        raise InvalidArgument(f"{field}: {number!r:.80} is not a number from 0 on", field=field, limit="0 to 2^63 - 1")
    return int(number)


def retract(
    window: Handle,
    times: Any = None,
    identities: Any = None,
    *,
    ids: Any = None,
    keys: Any = None,
    key: Key | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[WriteResult]:
    """Remove single entries, named by time, identity and key. Entries that are not there are counted as `missing`.

        window.retract([17], ["order 4711"], keys="JFK")
        window.retract(ids=["order 4711", "order 4712"], key="JFK")

    The window's spec names the field that is the `identity`. Each row removes the first entry of its key and time that
    has this identity. The call can be repeated: then all are missing.

    Without times, each row removes the newest entry of its key that has the identity. The service reads the entries of
    the key from the newest on to find it, so give the times where you know them.

    Args:
        times: n times of the entries: ticks, or instants; None where they are not known.
        identities: n values of the identity.
        ids: the same, by name.
        keys: n keys in a keyed window; or one string, for all entries.
        key: one key for all entries, in the place of `keys`.
        producer, sequence, epoch: as in `bulk_insert`.
    """
    if (identities is None) == (ids is None):
        raise InvalidArgument("give the identities, once: identities, or ids", field="ids")
    if key is not None and keys is not None:
        raise InvalidArgument("give either keys, or one key for all entries", field="key")
    spec = yield from known(window)
    if not spec.identity:
        raise InvalidArgument(f"window {spec.name!r} has no identity: its spec names none", field="identity")
    fields = pb.WindowSpec()
    fields.CopyFrom(spec)
    fields.fields.clear()
    fields.fields[spec.identity] = spec.fields[spec.identity]
    named = Bulk(times, {spec.identity: identities if ids is None else ids}, keys if key is None else key)
    messages = _requests(window, named, fields, spec.identity)
    return (yield from _sent(window, "Retract", messages, _Numbers(producer, sequence, epoch)))


def update(
    window: Handle,
    times: Any = None,
    columns: Any = None,
    *,
    keys: Any = None,
    time: str | None = None,
    key: str | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[WriteResult]:
    """Give single entries other values. Time, key and identity name them; `missing` counts those that are not there.

        window.update([17], {"order_id": ["order 4711"], "price": [9.5]}, keys="JFK")
        window.update(columns={"order_id": ["order 4711"], "price": [9.5]}, keys="JFK")

    An entry stays in its place. To move one to another time or key, retract it and insert it again. Without times, the
    newest entry of the key that has the identity is corrected, as in `retract`.

    Args:
        times, columns, keys, time, key: as in `bulk_insert`; columns have every field. `times` may be None, and a frame
            may have no column of times.
        producer, sequence, epoch: as in `bulk_insert`.
    """
    spec = yield from known(window)
    bulk = bulk_of(times, columns, keys, None, None, time, key, timeless=True)
    messages = _requests(window, bulk, spec, spec.identity)
    return (yield from _sent(window, "Update", messages, _Numbers(producer, sequence, epoch)))


def punctuate(window: Handle, time: TimeLike) -> Plan[WriteResult]:
    """Say that entries up to a time are final, in a window with `slide.until`; `evicted` says how many left.

        window.punctuate("2013-01-01T06:00Z")

    Entries with time <= `time` that come later are late. An older time than the last one changes nothing. The client
    sends the call again while the service is away.
    """
    request = pb.PunctuateRequest(window=window.name, time=(yield from tick_of(window, time, "time")))
    return from_write((yield from asked_again(window._client, "Punctuate", request)))


def _requests(window: Handle, bulk: Bulk, spec: pb.WindowSpec, identity: str) -> Iterator[pb.BulkInsertRequest]:
    """Yield the messages of rows that name entries, by their identity and perhaps their times."""
    if bulk.times is not None:
        return requests_of(window, bulk, spec)
    named = bulk.columns.get(identity) if isinstance(bulk.columns, Mapping) else bulk.columns
    if not isinstance(named, Sized) or isinstance(named, str | bytes):
        field = identity or "identity"
        raise InvalidArgument(f"{field}: give a column with the identity of each entry", field=field)
    return map(_without_times, requests_of(window, replace(bulk, times=np.zeros(len(named), np.int64)), spec))


def _without_times(request: pb.BulkInsertRequest) -> pb.BulkInsertRequest:
    request.ClearField("time")
    return request


_IN_PARTS = frozenset({"BulkInsert", "Retract", "Update"})
"""Calls that may be several messages: an error says what those before it have done."""


class _Numbers:
    """The numbers that a producer gives to the messages of a call, one after the other; none without a producer."""

    def __init__(self, producer: str | None, sequence: int | None, epoch: int, after: int | None = None) -> None:
        self._producer, self._epoch, self._after = producer, epoch, after
        self._next = None if sequence is None else natural(sequence, "sequence")

    def give(self, request: Any) -> bool:
        """Write the next number into a request; return whether there is one."""
        if (self._producer is None) != (self._next is None):
            raise InvalidArgument("give both a producer and a sequence, or neither", field="sequence")
        if self._producer is None or self._next is None:
            if self._epoch:
                raise InvalidArgument("an epoch needs a producer and a sequence", field="epoch")
            if self._after is not None:
                raise InvalidArgument("after needs a producer and a sequence", field="after")
            return False
        request.producer = text(self._producer, "producer")
        request.sequence, request.epoch = natural(self._next, "sequence"), natural(self._epoch, "epoch")
        if self._after is not None:
            request.after = natural(self._after, "after")
        self._next += 1
        return True


def _sent(
    window: Handle,
    method: str,
    messages: Iterable[Any],
    numbers: _Numbers,
    owner: int | None = None,
) -> Plan[WriteResult]:
    """Send the messages of one call, one after the other, and add up their results.

    A message is sent again while the service is away, if a producer has numbered it or nothing was changed.

    Args:
        owner: the shard whose owner gets them.
    """
    total: WriteResult | None = None
    for request in messages:
        numbered = numbers.give(request)
        try:
            done = yield from asked_again(window._client, method, request, owner=owner, idempotent=numbered)
        except SashClientError as error:
            if method in _IN_PARTS:
                error.applied = total or WriteResult()
            raise
        result = from_write(done, int(numbered))
        total = result if total is None else total + result
    assert total is not None  # an empty bulk is a message, too
    return total


_LARGEST = 2**63 - 1
