"""One window, from the outside: arrays in, answers out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from sash_client.answers import Answer, Bulk, Series, Staged, WindowInfo, WriteResult
from sash_client.bulks import checked, from_bulk
from sash_client.calls import Feed
from sash_client.errors import InvalidArgument, SashClientError
from sash_client.keys import ALL_KEYS, AllKeys, set_keys, text
from sash_client.producer import Producer
from sash_client.times import Duration, TimeLike, to_duration, to_tick
from sash_client.wire import (
    from_answer,
    from_info,
    from_series,
    from_write,
    spec_document,
    to_aggregates,
    to_value,
)
from sash_proto.v1 import windows_pb2 as pb

if TYPE_CHECKING:
    from sash_client.client import Client

__all__ = ["Window"]


class Window:
    """A handle on one named window; get it from `Client.window` or `Client.create_window`.

    It is cheap and holds no data. The window's spec, which says how times and values travel, is fetched once,
    when a call first needs it.

    Every method raises a `SashClientError`; `InvalidArgument` also before anything is sent.
    """

    def __init__(self, client: Client, name: str, spec: pb.WindowSpec | None = None) -> None:
        self._client = client
        self._name = name
        self._message = spec

    def __repr__(self) -> str:
        return f"Window({self._name!r})"

    @property
    def name(self) -> str:
        """The window's name."""
        return self._name

    @property
    def spec(self) -> Mapping[str, Any]:
        """The window's spec as a plain document."""
        return spec_document(self._spec())

    def describe(self) -> WindowInfo:
        """Show the window as it is now."""
        message = self._client._call("GetWindow", pb.GetWindowRequest(name=self._name))
        self._message = message.spec
        return from_info(message)

    def add_aggregates(self, aggregates: Mapping[str, Any] | str) -> WindowInfo:
        """Add aggregates, computed from the entries that are there; one that is there already is left as it is.

        Args:
            aggregates: by name, as in a spec: ``{"p95": {"function": "quantile", "q": 0.95}}``; or its YAML text.

        Raises:
            InvalidArgument: names the offending part in `field`.
            AlreadyExists: the window has an aggregate of that name with another definition.
        """
        request = pb.AddAggregatesRequest(window=self._name, aggregates=to_aggregates(aggregates))
        message = self._client._call("AddAggregates", request)
        self._message = message.spec
        return from_info(message)

    def keys(self, prefix: str = "", *, limit: int = 1000) -> list[str]:
        """Return up to `limit` keys that start with `prefix`, in the order of their first entries."""
        request = pb.ListKeysRequest(window=self._name, prefix=text(prefix, "prefix"), limit=limit)
        return list(self._client._call("ListKeys", request).keys)

    def insert(
        self,
        time: TimeLike,
        value: float | None = None,
        *,
        fields: Mapping[str, Any] | None = None,
        key: str | None = None,
        answer: bool = False,
        lookbacks: Sequence[Duration] = (),
        producer: str | None = None,
        sequence: int | None = None,
    ) -> WriteResult:
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

        Raises:
            FailedPrecondition: writes of the producer are missing before this one; `limit` is the number that is next.
        """
        if (value is None) == (fields is None):
            raise InvalidArgument("give either a value or fields", field="value")
        request = pb.InsertRequest(window=self._name, key=_text(key), time=self._tick(time, "time"), answer=answer)
        if lookbacks:
            request.lookbacks.extend(_lookbacks(lookbacks))
        if fields is None:
            try:
                request.value = value  # type: ignore[assignment]
            except TypeError:
                raise InvalidArgument(f"value {value!r:.80} is not a number", field="value") from None
        for name, item in (fields or {}).items():
            request.fields[name].CopyFrom(to_value(item, name))
        numbered = _number(request, producer, sequence)
        return from_write(self._caller(numbered)("Insert", request), int(numbered))

    def bulk_insert(
        self,
        times: Any,
        columns: Any = None,
        *,
        keys: Any = None,
        partials: Mapping[str, Any] | None = None,
        entries: Any = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> WriteResult:
        """Insert n entries, in any order.

        A bulk larger than one message is sent as several, in order; each is applied whole or not at all. If one
        fails, the error's `applied` says what those before it have done.

        Args:
            times: n ticks or instants: int64, datetime64, a pandas Series or Index, an Arrow array.
            columns: n values for each field, by name; or n values alone where the window has one field. NumPy,
                pandas or Arrow, or a sequence.
            keys: n keys where the window is keyed; or one string, for all of them.
            partials: in the place of columns, for windows with a granularity: n partials of every aggregate, by name.
                Their parts are columns: a sequence of them in the order that the README lists, a mapping in that
                order, or the only one alone; a list of n `bytes` for sketches. Arrays must have the parts' own types.
            entries: with partials: n integers, how many entries each row stands for.
            producer, sequence: as in `insert`. Every message has a number of its own, from `sequence` on; the result's
                `sequences` says how many were used (one, where the bulk fits one message). Where it fails, the same
                call again is safe: with the same arrays and a client of the same limits it is cut in the same places.

        Returns:
            what became of them, all messages together.
        """
        total: WriteResult | None = None
        numbers = _numbers(sequence)
        for request in self._requests(Bulk(times, columns, keys, partials, entries)):
            numbered = _number(request, producer, next(numbers))
            try:
                result = from_write(self._caller(numbered)("BulkInsert", request), int(numbered))
            except SashClientError as error:
                error.applied = total or WriteResult()
                raise
            total = result if total is None else total + result
        assert total is not None  # an empty bulk is a message, too
        return total

    def insert_stream(
        self, bulks: Iterable[Bulk], *, producer: str | None = None, sequence: int | None = None
    ) -> Iterator[WriteResult]:
        """Insert bulk after bulk over one call, without waiting for an answer in between; yield one for each, in order.

        The first error ends it: what was yielded before is applied, the error's `applied` says what was applied of the
        bulk that failed, and nothing after it is. It is never sent again by itself.

        Args:
            bulks: any number of them; they are taken as the service takes them, in another thread.
            producer, sequence: as in `bulk_insert`: messages are numbered from `sequence` on over all bulks, so that
                what was not answered can be sent again.
        """
        numbers = _numbers(sequence)
        sent: deque[int] = deque()  # messages of each bulk; appended before its last one leaves

        def requests() -> Iterator[Any]:
            for bulk in bulks:
                messages = list(self._requests(bulk))
                sent.append(len(messages))
                for message in messages:
                    _number(message, producer, next(numbers))
                    yield message

        answers = self._client._stream("InsertStream", Feed(requests()))
        total, answered = None, 0
        try:
            for answer in answers:
                result = from_write(answer, int(producer is not None))
                total, answered = result if total is None else total + result, answered + 1
                if answered == sent[0]:
                    sent.popleft()
                    done, total, answered = total, None, 0
                    yield done
        except SashClientError as error:
            error.applied = total or WriteResult()
            raise

    def bulk_evict(
        self, time: TimeLike, *, key: str | None = None, producer: str | None = None, sequence: int | None = None
    ) -> WriteResult:
        """Remove every entry with time <= `time`, of one key or of all; the result's `evicted` says how many.

        `producer` and `sequence` are as in `insert`.
        """
        request = pb.BulkEvictRequest(window=self._name, time=self._tick(time, "time"), key=_text(key))
        numbered = _number(request, producer, sequence)
        done = self._caller(numbered)("BulkEvict", request)
        return WriteResult(
            evicted=done.evicted,
            already_applied=done.already_applied,
            durability=done.durability or "memory",
            sequences=int(numbered),
        )

    def producer(self, name: str, **options: Any) -> Producer:
        """Return a producer of this window, which numbers writes, gathers single entries into bulks and sends them.

        Args:
            name: the producer's name: one at a time may use it.
            options: see `Producer`.
        """
        return Producer(self, name, **options)

    def stage(
        self,
        times: Any,
        columns: Any = None,
        *,
        keys: Any = None,
        partials: Mapping[str, Any] | None = None,
        entries: Any = None,
        query: str,
        batch: int,
    ) -> list[Staged]:
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
        for request in self._requests(Bulk(times, columns, keys, partials, entries)):
            message = pb.StageBatchRequest(entries=request, query=text(query, "query"), batch=_natural(batch, "batch"))
            kept = self._client._call_again("StageBatch", message)
            found.append(Staged(kept.stage, kept.entries, kept.durability or "memory"))
        return found

    def commit(self, query: str, batch: int, stages: Iterable[Staged | str]) -> WriteResult:
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
            window=self._name, query=text(query, "query"), batch=_natural(batch, "batch"), stages=names
        )
        return from_write(self._client._call_again("CommitBatch", request))

    def entries(
        self,
        start: TimeLike | None = None,
        end: TimeLike | None = None,
        *,
        key: str | None = None,
        keys: Sequence[str] | AllKeys | None = None,
    ) -> Iterator[Bulk]:
        """Yield the entries with `start <= time <= end` as of now, by key and time, as bulks of bounded size.

            for bulk in window.entries():
                other.bulk_insert(bulk.times, bulk.columns, keys=bulk.keys)

        Args:
            start, end: ticks or instants; None: no bound.
            key, keys: one key, or several; where neither is given, all there are.

        Raises:
            Unsupported: the window's algorithm keeps no values.
        """
        request = pb.EntriesRequest(window=self._name)
        if start is not None:
            request.start = self._tick(start, "start")
        if end is not None:
            request.end = self._tick(end, "end")
        set_keys(request, key, ALL_KEYS if key is None and keys is None and self._spec().keyed else keys)
        for message in self._client._stream("Entries", request):
            yield from_bulk(message)

    def query(
        self,
        *,
        key: str | None = None,
        keys: Sequence[str] | AllKeys | None = None,
        lookbacks: Sequence[Duration] = (),
        as_of: TimeLike | None = None,
        combine: bool = False,
        partials: bool = False,
    ) -> list[Answer]:
        """Answer over trailing lookbacks: `as_of - lookback < time <= as_of`, one answer each.

        Args:
            key: where the window is keyed.
            keys: several keys, or `ALL_KEYS`, instead of `key`: the answers of one after those of the other.
            lookbacks: durations ("5m", timedelta) or ticks; none asks for everything that is in the window.
            as_of: ticks, or an instant; where None, the time of the key's newest entry, or wall time if that is the
                window's clock.
            combine: with `keys`: one answer over the entries of all of them.
            partials: answer with partials, too.

        Raises:
            Unsupported: `combine` where an aggregate depends on the order of entries.
        """
        request = self._query(key, keys, lookbacks, combine, partials)
        if as_of is not None:
            request.as_of = self._tick(as_of, "as_of")
        return [from_answer(answer, partials) for answer in self._client._call("Query", request).answers]

    def watch(
        self,
        *,
        key: str | None = None,
        keys: Sequence[str] | AllKeys | None = None,
        lookbacks: Sequence[Duration] = (),
        combine: bool = False,
        partials: bool = False,
        every_s: float = 1.0,
    ) -> Iterator[list[Answer]]:
        """Yield the answers of `query`, and again whenever they have changed, until the caller stops or the service.

        Args:
            key, keys, lookbacks, combine, partials: as in `query`.
            every_s: seconds between two looks.

        Raises:
            Unavailable: the service is gone, or goes.
        """
        query = self._query(key, keys, lookbacks, combine, partials)
        request = pb.WatchRequest(query=query, interval_ms=max(round(every_s * 1000), 1))
        for message in self._client._stream("Watch", request, waits=True):
            yield [from_answer(answer, partials) for answer in message.answers]

    def range_query(
        self,
        start: TimeLike,
        end: TimeLike,
        *,
        key: str | None = None,
        keys: Sequence[str] | AllKeys | None = None,
        partials: bool = False,
    ) -> Answer:
        """Answer over `start <= time <= end`, in ticks or instants.

        Args:
            start, end: the first and the last time.
            key: where the window is keyed.
            keys: several keys, or `ALL_KEYS`, instead of `key`: one answer over the entries of all of them.
            partials: answer with partials, too.

        Raises:
            Unsupported: `keys` where an aggregate depends on the order of entries.
        """
        first, last = self._tick(start, "start"), self._tick(end, "end")
        request = pb.RangeQueryRequest(window=self._name, start=first, end=last, partials=partials)
        set_keys(request, key, keys)
        return from_answer(self._client._call("RangeQuery", request), partials)

    def series(
        self,
        start: TimeLike,
        end: TimeLike,
        *,
        step: Duration,
        width: Duration | None = None,
        key: str | None = None,
        keys: Sequence[str] | AllKeys | None = None,
    ) -> Series:
        """Answer over the buckets `t <= time < t + width` for t = start, start + step, … < end.

        Args:
            start, end: where the first bucket starts, and what all of them start before: ticks or instants.
            step: from one bucket's start to the next: a duration ("1s", timedelta) or ticks.
            width: how long a bucket is; `step` where None. Where it is larger, buckets overlap.
            key, keys: as in `range_query`.

        Raises:
            Unsupported: `keys` where an aggregate depends on the order of entries.
        """
        request = pb.SeriesRequest(
            window=self._name,
            start=self._tick(start, "start"),
            end=self._tick(end, "end"),
            step=to_duration(step, "step"),
            width="" if width is None else to_duration(width, "width"),
        )
        set_keys(request, key, keys)
        return from_series(self._client._call("Series", request), self._spec().time_unit or "us")

    def _spec(self) -> pb.WindowSpec:
        if self._message is None:
            self.describe()
        assert self._message is not None
        return self._message

    def _tick(self, time: TimeLike, field: str) -> int:
        # Ticks need no spec, which saves the first call of a producer that inserts single entries.
        unit = "none" if isinstance(time, int | np.integer) else self._spec().time_unit or "us"
        return to_tick(time, unit, field)

    def _requests(self, bulk: Bulk) -> Iterator[pb.BulkInsertRequest]:
        limits = {"entries_max": self._client.bulk_entries_max, "bytes_max": self._client.bulk_bytes_max}
        return checked(bulk, self._spec()).requests(self._name, **limits)

    def _query(
        self,
        key: str | None,
        keys: Sequence[str] | AllKeys | None,
        lookbacks: Sequence[Duration],
        combine: bool,
        partials: bool,
    ) -> pb.QueryRequest:
        texts = _lookbacks(lookbacks)
        request = pb.QueryRequest(window=self._name, lookbacks=texts, combine=combine, partials=partials)
        set_keys(request, key, keys)
        return request

    def _caller(self, numbered: bool) -> Callable[[str, Any], Any]:
        return self._client._call_again if numbered else self._client._call


def _text(key: str | None) -> str | None:
    return None if key is None else text(key)


def _numbers(sequence: int | None) -> Iterator[int | None]:
    """The numbers of a bulk's messages; None without end where it has none."""
    return repeat(None) if sequence is None else count(_natural(sequence, "sequence"))


def _number(request: Any, producer: str | None, sequence: int | None) -> bool:
    """Write a producer's number into a request; return whether it has one."""
    if (producer is None) != (sequence is None):
        raise InvalidArgument("a producer has a sequence, and a sequence a producer: give both", field="sequence")
    if producer is None:
        return False
    request.producer = text(producer, "producer")
    request.sequence = _natural(sequence, "sequence")
    return True


def _natural(number: Any, field: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < 2**63:
        raise InvalidArgument(f"{field}: {number!r:.80} is not a number from 0 on", field=field, limit="0 to 2^63 - 1")
    return int(number)


def _lookbacks(lookbacks: Sequence[Duration]) -> list[str]:
    if isinstance(lookbacks, str):
        raise InvalidArgument("lookbacks is a list: ['5m', '1h']", field="lookbacks")
    return [to_duration(item, "lookbacks") for item in lookbacks]
