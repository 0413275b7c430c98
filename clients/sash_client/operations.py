"""The operations of a window as plans: how each is asked, and how its answer is read.

The methods of `Window` and `aio.AsyncWindow` are these functions, performed by their clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from typing import Any

import numpy as np

from sash_client.answers import Answer, Bulk, Series, Staged, WindowInfo, WriteResult
from sash_client.bulks import checked, from_bulk
from sash_client.calls import Patience
from sash_client.connection import Connection
from sash_client.errors import InvalidArgument, SashClientError
from sash_client.keys import ALL_KEYS, AllKeys, set_keys, text
from sash_client.plans import Ask, AskStream, Plan, asked_again
from sash_client.times import Duration, TimeLike, to_duration, to_tick
from sash_client.wire import fill_scalar, from_answer, from_info, from_series, from_write, to_aggregates
from sash_proto.v1 import windows_pb2 as pb

__all__ = [
    "BulkStream",
    "Handle",
    "add_aggregates",
    "bulk_evict",
    "bulk_insert",
    "commit",
    "describe",
    "entries",
    "insert",
    "keys",
    "known",
    "query",
    "range_query",
    "requests_of",
    "series",
    "stage",
    "watch",
]

_PAGE_KEYS = 10_000


class Handle:
    """What is known here of one named window: whose it is, its name, and its spec once that was needed.

    Args:
        client: the connection.
        name: the window's name.
        spec: its spec, where it is known already.
    """

    def __init__(self, client: Connection, name: str, spec: pb.WindowSpec | None = None) -> None:
        self._client = client
        self._name = name
        self._message = spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    @property
    def name(self) -> str:
        """The window's name."""
        return self._name


def describe(window: Handle) -> Plan[WindowInfo]:
    """Show the window as it is now."""
    message = yield Ask("GetWindow", pb.GetWindowRequest(name=window.name))
    window._message = message.spec
    return from_info(message)


def add_aggregates(window: Handle, aggregates: Mapping[str, Any] | str) -> Plan[WindowInfo]:
    """Add aggregates, computed from the entries that are there; one that is there already is left as it is.

    Args:
        aggregates: by name, as in a spec: ``{"p95": {"function": "quantile", "q": 0.95}}``; or its YAML text.

    Raises:
        InvalidArgument: names the offending part in `field`.
        AlreadyExists: the window has an aggregate of that name with another definition.
    """
    request = pb.AddAggregatesRequest(window=window.name, aggregates=to_aggregates(aggregates))
    message = yield Ask("AddAggregates", request)
    window._message = message.spec
    return from_info(message)


def keys(window: Handle, prefix: str = "", *, limit: int | None = 1000) -> Plan[list[str]]:
    """Return the keys that have entries and start with `prefix`, in the order of their first entries.

    They are fetched page by page, so that a service with millions of them has time for others; a key that is there
    throughout is listed once.

    Args:
        prefix: what they start with.
        limit: as many at most; None: all there are.
    """
    found: list[str] = []
    position: int | None = 0
    while position is not None:
        most = _PAGE_KEYS if limit is None else min(limit - len(found), _PAGE_KEYS)
        request = pb.ListKeysRequest(window=window.name, prefix=text(prefix, "prefix"), limit=most, position=position)
        page = yield Ask("ListKeys", request)
        found += page.keys
        position = page.next if page.HasField("next") and len(found) != limit else None
    return found


def insert(
    window: Handle,
    time: TimeLike,
    value: float | None = None,
    *,
    fields: Mapping[str, Any] | None = None,
    key: str | None = None,
    answer: bool = False,
    lookbacks: Sequence[Duration] = (),
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[WriteResult]:
    """Insert one entry, and answer where asked to.

    Args:
        time: ticks, or an instant.
        value: the value of a window with one float64 field.
        fields: a scalar for every field, by name, for any other window.
        key: where the window is keyed.
        answer: whether to answer as `query` does for the key, after the insert and the slide; the result's
            `answers` has it.
        lookbacks: with `answer`: as in `query`.
        producer, sequence: the name of who writes, and the number of this write among all those of that producer to
            this window: 1, 2, 3, … A write with them is applied once, however often it is sent; so it is sent
            again for as long as the client's `timeout_s` while the service is away or its reply is lost. One that
            was applied already is answered so (`already_applied`) and changes nothing. `producer` keeps count.
        epoch: which life of the producer it is. The first write with a higher epoch takes the name over, and has number
            1 again.

    Raises:
        FailedPrecondition: writes of the producer are missing before this one, or another write had its number; `limit`
            is the number that is next. Or a higher epoch, which is in `limit`, has taken the name over.
    """
    if (value is None) == (fields is None):
        raise InvalidArgument("give either a value or fields", field="value")
    tick = yield from _tick(window, time, "time")
    request = pb.InsertRequest(window=window.name, key=_text(key), time=tick, answer=answer)
    if lookbacks:
        request.lookbacks.extend(_lookbacks(lookbacks))
    if fields is None:
        try:
            request.value = value  # type: ignore[assignment]
        except TypeError:
            raise InvalidArgument(f"value {value!r:.80} is not a number", field="value") from None
    for name, item in (fields or {}).items():
        fill_scalar(request.fields[name], item, name)
    numbered = _number(request, producer, sequence, epoch)
    return from_write((yield from _write(window, "Insert", request, numbered)), int(numbered))


def bulk_insert(
    window: Handle,
    times: Any,
    columns: Any = None,
    *,
    keys: Any = None,
    partials: Mapping[str, Any] | None = None,
    entries: Any = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[WriteResult]:
    """Insert n entries, in any order.

    A bulk larger than one message is sent as several, in order; each is applied whole or not at all. If one
    fails, the error's `applied` says what those before it have done.

    Args:
        times: n ticks or instants: int64, datetime64, a pandas Series or Index, an Arrow array.
        columns: n values for each field, by name; or n values alone where the window has one field. NumPy,
            pandas or Arrow, or a sequence.
        keys: n keys where the window is keyed; or one string, for all of them.
        partials: in the place of columns, for windows with a granularity: n partials of every aggregate, by name.
            Their parts are columns: a sequence of them in the order that the page Partials of the documentation lists,
            a mapping in that order, or the only one alone; a list of n `bytes` for sketches. Arrays must have the
            parts' own types.
        entries: with partials: n integers, how many entries each row stands for.
        producer, sequence, epoch: as in `insert`. Every message has a number of its own, from `sequence` on; the
            result's `sequences` says how many were used (one, where the bulk fits one message). Where it fails, the
            same call again is safe: with the same arrays and a client of the same limits it is cut in the same places.

    Returns:
        what became of them, all messages together.
    """
    total: WriteResult | None = None
    numbers = _numbers(sequence)
    spec = yield from known(window)
    for request in requests_of(window, Bulk(times, columns, keys, partials, entries), spec):
        numbered = _number(request, producer, next(numbers), epoch)
        try:
            answer = yield from _write(window, "BulkInsert", request, numbered)
        except SashClientError as error:
            error.applied = total or WriteResult()
            raise
        result = from_write(answer, int(numbered))
        total = result if total is None else total + result
    assert total is not None  # an empty bulk is a message, too
    return total


def bulk_evict(
    window: Handle,
    time: TimeLike,
    *,
    key: str | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[WriteResult]:
    """Remove every entry with time <= `time`, of one key or of all; the result's `evicted` says how many.

    `producer`, `sequence` and `epoch` are as in `insert`.
    """
    tick = yield from _tick(window, time, "time")
    request = pb.BulkEvictRequest(window=window.name, time=tick, key=_text(key))
    numbered = _number(request, producer, sequence, epoch)
    done = yield from _write(window, "BulkEvict", request, numbered)
    return WriteResult(
        evicted=done.evicted,
        already_applied=done.already_applied,
        durability=done.durability or "memory",
        sequences=int(numbered),
    )


def stage(
    window: Handle,
    times: Any,
    columns: Any = None,
    *,
    keys: Any = None,
    partials: Mapping[str, Any] | None = None,
    entries: Any = None,
    query: str,
    batch: int,
) -> Plan[list[Staged]]:
    """Have the service keep a part of a batch, invisible until `commit` names it; or it expires.

    It is sent again while the service is away; a part that was kept twice expires where no commit names it.

    Args:
        times, columns, keys, partials, entries: as in `bulk_insert`.
        query: who makes batches, such as the id of a streaming query.
        batch: the batch's number, from 0 on.

    Returns:
        what it is kept as, in order: several, where the part is larger than one message.
    """
    found = []
    spec = yield from known(window)
    for request in requests_of(window, Bulk(times, columns, keys, partials, entries), spec):
        message = pb.StageBatchRequest(entries=request, query=text(query, "query"), batch=_natural(batch, "batch"))
        kept = yield from asked_again(window._client, "StageBatch", message)
        found.append(Staged(kept.stage, kept.entries, kept.durability or "memory"))
    return found


def commit(window: Handle, query: str, batch: int, stages: Iterable[Staged | str]) -> Plan[WriteResult]:
    """Apply staged parts, in this order, as one write; a batch that was committed already changes nothing.

    It is sent again while the service is away.

    Args:
        query, batch: as in `stage`; batches of a query are committed in increasing order.
        stages: what `stage` returned, of all parts that count; none is an empty batch.

    Raises:
        FailedPrecondition: a part is not there (any more), or belongs to another batch.
    """
    names = [text(each.stage if isinstance(each, Staged) else each, "stages") for each in stages]
    request = pb.CommitBatchRequest(
        window=window.name, query=text(query, "query"), batch=_natural(batch, "batch"), stages=names
    )
    return from_write((yield from asked_again(window._client, "CommitBatch", request)))


def entries(
    window: Handle,
    start: TimeLike | None = None,
    end: TimeLike | None = None,
    *,
    key: str | None = None,
    keys: Sequence[str] | AllKeys | None = None,
    end_exclusive: bool = False,
) -> Plan[AskStream[Bulk]]:
    """Yield the entries with `start <= time <= end` as of now, by key and time, as bulks of bounded size.

        for bulk in window.entries():
            other.bulk_insert(bulk.times, bulk.columns, keys=bulk.keys)

    Args:
        start, end: ticks or instants; None: no bound.
        key, keys: one key, or several; where neither is given, all there are.
        end_exclusive: as in `range_query`; without `end` it changes nothing.

    Raises:
        Unsupported: the window's algorithm keeps no values.
    """
    request = pb.EntriesRequest(window=window.name, end_exclusive=end_exclusive)
    if start is not None:
        request.start = yield from _tick(window, start, "start")
    if end is not None:
        request.end = yield from _tick(window, end, "end")
    everything = key is None and keys is None and (yield from known(window)).keyed
    set_keys(request, key, ALL_KEYS if everything else keys)
    return AskStream("Entries", request, from_bulk)


def query(
    window: Handle,
    *,
    key: str | None = None,
    keys: Sequence[str] | AllKeys | None = None,
    lookbacks: Sequence[Duration] = (),
    as_of: TimeLike | None = None,
    combine: bool = False,
    partials: bool = False,
) -> Plan[list[Answer]]:
    """Answer over trailing lookbacks: `as_of - lookback < time <= as_of`, one answer each.

    Args:
        key: where the window is keyed.
        keys: several keys, or `ALL_KEYS`, instead of `key`: the answers of one after those of the other.
        lookbacks: durations ("5m", timedelta) or ticks; none asks for everything that is in the window.
        as_of: ticks, or an instant. Where None, a lookback is `now - lookback < time`, and now is the key's high-water
            mark, the newest time ever inserted into it; with `combine` that of all the keys asked for; or wall time if
            that is the window's clock.
        combine: with `keys`: one answer over the entries of all of them.
        partials: answer with partials, too.

    Raises:
        Unsupported: `combine` where an aggregate depends on the order of entries.
    """
    request = _question(window, key, keys, lookbacks, combine, partials)
    if as_of is not None:
        request.as_of = yield from _tick(window, as_of, "as_of")
    message = yield Ask("Query", request)
    return _answers(message, partials)


def watch(
    window: Handle,
    *,
    key: str | None = None,
    keys: Sequence[str] | AllKeys | None = None,
    lookbacks: Sequence[Duration] = (),
    combine: bool = False,
    partials: bool = False,
    every_s: float = 1.0,
) -> Plan[AskStream[list[Answer]]]:
    """Yield the answers of `query`, and again whenever they have changed, until the caller stops or the service.

    Args:
        key, keys, lookbacks, combine, partials: as in `query`.
        every_s: seconds between two looks.

    Raises:
        Unavailable: the service is gone, or goes.
    """
    query = _question(window, key, keys, lookbacks, combine, partials)
    request = pb.WatchRequest(query=query, interval_ms=max(round(every_s * 1000), 1))
    yield from ()  # nothing has to be asked before
    return AskStream("Watch", request, partial(_answers, partials=partials), waits=True)


def range_query(
    window: Handle,
    start: TimeLike,
    end: TimeLike,
    *,
    key: str | None = None,
    keys: Sequence[str] | AllKeys | None = None,
    partials: bool = False,
    end_exclusive: bool = False,
) -> Plan[Answer]:
    """Answer over `start <= time <= end`, in ticks or instants.

    Args:
        start, end: the first and the last time.
        key: where the window is keyed.
        keys: several keys, or `ALL_KEYS`, instead of `key`: one answer over the entries of all of them.
        partials: answer with partials, too.
        end_exclusive: answer over `start <= time < end` instead, so that ranges that meet share no entry. The
            answer's `end` is the last tick that it includes.

    Raises:
        Unsupported: `keys` where an aggregate depends on the order of entries.
    """
    first = yield from _tick(window, start, "start")
    last = yield from _tick(window, end, "end")
    request = pb.RangeQueryRequest(
        window=window.name, start=first, end=last, partials=partials, end_exclusive=end_exclusive
    )
    set_keys(request, key, keys)
    return from_answer((yield Ask("RangeQuery", request)), partials)


def series(
    window: Handle,
    start: TimeLike,
    end: TimeLike,
    *,
    step: Duration,
    width: Duration | None = None,
    key: str | None = None,
    keys: Sequence[str] | AllKeys | None = None,
) -> Plan[Series]:
    """Answer over the buckets `t <= time < t + width` for t = start, start + step, … < end.

    Args:
        start, end: where the first bucket starts, and what all of them start before: ticks or instants.
        step: from one bucket's start to the next: a duration ("1s", timedelta) or ticks.
        width: how long a bucket is; `step` where None. Where it is larger, buckets overlap.
        key, keys: as in `range_query`.

    Raises:
        Unsupported: `keys` where an aggregate depends on the order of entries.
    """
    first = yield from _tick(window, start, "start")
    last = yield from _tick(window, end, "end")
    request = pb.SeriesRequest(
        window=window.name,
        start=first,
        end=last,
        step=to_duration(step, "step"),
        width="" if width is None else to_duration(width, "width"),
    )
    set_keys(request, key, keys)
    message = yield Ask("Series", request)
    return from_series(message, (yield from known(window)).time_unit or "us")


class BulkStream:
    """Bulks over one call: numbers and counts their messages, and gathers the answers of each bulk.

    Args:
        window, spec: where to.
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
        self._window, self._spec, self._producer, self._epoch = window, spec, producer, epoch
        self._numbers = _numbers(sequence)
        self._sent: deque[int] = deque()  # messages of each bulk; appended before its last one leaves
        self._answers = 0
        self._total: WriteResult | None = None
        self.patience = Patience(timeout_s, owed=False)

    def messages(self, bulk: Bulk) -> Iterator[pb.BulkInsertRequest]:
        """Yield the messages of a bulk, each as it is to be sent."""
        messages = list(requests_of(self._window, bulk, self._spec))
        self._sent.append(len(messages))
        for message in messages:
            _number(message, self._producer, next(self._numbers), self._epoch)
            self.patience.sent()
            yield message

    def answered(self, message: pb.InsertResponse) -> WriteResult | None:
        """Take the next answer; return what became of a bulk, where it is its last one."""
        self.patience.answered()
        result = from_write(message, int(self._producer is not None))
        self._total, self._answers = result if self._total is None else self._total + result, self._answers + 1
        if self._answers < self._sent[0]:
            return None
        self._sent.popleft()
        done, self._total, self._answers = self._total, None, 0
        return done

    def failed(self, error: SashClientError) -> SashClientError:
        """The error, with what was applied of the bulk that failed."""
        error.applied = self._total or WriteResult()
        return error


def known(window: Handle) -> Plan[pb.WindowSpec]:
    """Return the window's spec, which is fetched once."""
    if window._message is None:
        yield from describe(window)
    assert window._message is not None
    return window._message


def requests_of(window: Handle, bulk: Bulk, spec: pb.WindowSpec) -> Iterator[pb.BulkInsertRequest]:
    """Yield a bulk as messages within the client's limits."""
    client = window._client
    return checked(bulk, spec).requests(
        window.name, entries_max=client.bulk_entries_max, bytes_max=client.bulk_bytes_max
    )


def _tick(window: Handle, time: TimeLike, field: str) -> Plan[int]:
    # Ticks need no spec, which saves the first call of a producer that inserts single entries.
    ticks = isinstance(time, int | np.integer)
    unit = "none" if ticks else (yield from known(window)).time_unit or "us"
    return to_tick(time, unit, field)


def _write(window: Handle, method: str, request: Any, numbered: bool) -> Plan[Any]:
    if numbered:
        return (yield from asked_again(window._client, method, request))
    return (yield Ask(method, request))


def _question(
    window: Handle,
    key: str | None,
    keys: Sequence[str] | AllKeys | None,
    lookbacks: Sequence[Duration],
    combine: bool,
    partials: bool,
) -> pb.QueryRequest:
    texts = _lookbacks(lookbacks)
    request = pb.QueryRequest(window=window.name, lookbacks=texts, combine=combine, partials=partials)
    set_keys(request, key, keys)
    return request


def _answers(message: pb.QueryResponse, partials: bool) -> list[Answer]:
    return [from_answer(answer, partials) for answer in message.answers]


def _text(key: str | None) -> str | None:
    return None if key is None else text(key)


def _numbers(sequence: int | None) -> Iterator[int | None]:
    """The numbers of a bulk's messages; None without end where it has none."""
    return repeat(None) if sequence is None else count(_natural(sequence, "sequence"))


def _number(request: Any, producer: str | None, sequence: int | None, epoch: int) -> bool:
    """Write a producer's number into a request; return whether it has one."""
    if (producer is None) != (sequence is None):
        raise InvalidArgument("a producer has a sequence, and a sequence a producer: give both", field="sequence")
    if producer is None:
        if epoch:
            raise InvalidArgument("an epoch is a producer's: give a producer and a sequence, too", field="epoch")
        return False
    request.producer = text(producer, "producer")
    request.sequence, request.epoch = _natural(sequence, "sequence"), _natural(epoch, "epoch")
    return True


def _natural(number: Any, field: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < 2**63:
        raise InvalidArgument(f"{field}: {number!r:.80} is not a number from 0 on", field=field, limit="0 to 2^63 - 1")
    return int(number)


def _lookbacks(lookbacks: Sequence[Duration]) -> list[str]:
    if isinstance(lookbacks, str):
        raise InvalidArgument("lookbacks is a list: ['5m', '1h']", field="lookbacks")
    return [to_duration(item, "lookbacks") for item in lookbacks]
