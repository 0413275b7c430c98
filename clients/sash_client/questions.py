"""Questions as plans: how each is asked, and how its answer is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sash_client.answers import Answer, Bulk, Series
from sash_client.bulks import from_bulk
from sash_client.errors import InvalidArgument
from sash_client.handle import Handle, known, tick_of
from sash_client.keys import ALL_KEYS, AllKeys, set_keys
from sash_client.plans import Ask, AskStream, Plan
from sash_client.times import Duration, TimeLike, to_duration
from sash_client.wire import from_answer, from_series
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["entries", "query", "range_query", "series", "to_lookbacks", "watch"]


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

    The answers are a list; `to_pandas`, `to_polars` and `to_arrow` of it return a table, see `Answers`.

    Args:
        key: the key, in a keyed window.
        keys: several keys, or `ALL_KEYS`, instead of `key`: the answers of one key after those of the other.
        lookbacks: durations ("5m", timedelta) or ticks; without any, one answer over the whole window.
        as_of: ticks, or an instant. If None, a lookback is `now - lookback < time`. Now is the key's high-water mark,
            the newest time that was ever inserted into it; with `combine` the newest mark of all the keys; or wall time
            if that is the window's clock.
        combine: with `keys`: one answer over the entries of all of them.
        partials: also answer with partials.

    Raises:
        Unsupported: `combine`, if an aggregate depends on the order of entries.
    """
    request = _question(window, key, keys, lookbacks, combine, partials)
    if as_of is not None:
        request.as_of = yield from tick_of(window, as_of, "as_of")
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
    """Yield the answers of `query`, and again whenever they have changed, until the caller or the service stops.

    Args:
        key, keys, lookbacks, combine, partials: as in `query`.
        every_s: seconds between two looks.

    Raises:
        Unavailable: the service is gone, or shuts down.
    """
    query = _question(window, key, keys, lookbacks, combine, partials)
    request = pb.WatchRequest(query=query, interval_ms=max(round(every_s * 1000), 1))
    yield from ()  # a plan is a generator; this one asks for nothing before
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
        key: the key, in a keyed window.
        keys: several keys, or `ALL_KEYS`, instead of `key`: one answer over the entries of all of them.
        partials: also answer with partials.
        end_exclusive: answer over `start <= time < end` instead, so that ranges that meet share no entry. The
            answer's `end` is the last tick that it includes.

    Raises:
        Unsupported: `keys`, if an aggregate depends on the order of entries.
    """
    first = yield from tick_of(window, start, "start")
    last = yield from tick_of(window, end, "end")
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
    step: Duration | None = None,
    width: Duration | None = None,
    gap: Duration | None = None,
    key: str | None = None,
    keys: Sequence[str] | AllKeys | None = None,
) -> Plan[Series]:
    """Answer over the buckets `t <= time < t + width` for t = start, start + step, … < end.

    The answers are arrays; `to_pandas`, `to_polars` and `to_arrow` return a table, see `Series`.

    Args:
        start: where the first bucket starts: ticks, or an instant.
        end: every bucket starts before it.
        step: from one bucket's start to the next: a duration ("1s", timedelta) or ticks.
        width: how long a bucket is; `step` if None. If it is larger than `step`, buckets overlap.
        gap: in the place of `step`: buckets are sessions of one key. A session ends where no entry follows within the
            gap. `times` and `last` of the result say where each begins and ends.
        key, keys: as in `range_query`.

    Raises:
        Unsupported: `keys`, if an aggregate depends on the order of entries.
    """
    first = yield from tick_of(window, start, "start")
    last = yield from tick_of(window, end, "end")
    request = pb.SeriesRequest(
        window=window.name,
        start=first,
        end=last,
        step="" if step is None else to_duration(step, "step"),
        width="" if width is None else to_duration(width, "width"),
        gap="" if gap is None else to_duration(gap, "gap"),
    )
    set_keys(request, key, keys)
    message = yield Ask("Series", request)
    return from_series(message, (yield from known(window)).time_unit or "us")


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

        frame = window.entries().to_pandas()

    `to_pandas`, `to_polars` and `to_arrow` of what it returns give all entries as one table, see `Entries`.

    Args:
        start, end: ticks or instants; None: no bound.
        key, keys: one key, or several; without either, all keys.
        end_exclusive: as in `range_query`; without `end` it changes nothing.

    Raises:
        Unsupported: the window's algorithm keeps no values.
    """
    request = pb.EntriesRequest(window=window.name, end_exclusive=end_exclusive)
    if start is not None:
        request.start = yield from tick_of(window, start, "start")
    if end is not None:
        request.end = yield from tick_of(window, end, "end")
    everything = key is None and keys is None and (yield from known(window)).keyed
    set_keys(request, key, ALL_KEYS if everything else keys)
    return AskStream("Entries", request, from_bulk)


def _question(
    window: Handle,
    key: str | None,
    keys: Sequence[str] | AllKeys | None,
    lookbacks: Sequence[Duration],
    combine: bool,
    partials: bool,
) -> pb.QueryRequest:
    texts = to_lookbacks(lookbacks)
    request = pb.QueryRequest(window=window.name, lookbacks=texts, combine=combine, partials=partials)
    set_keys(request, key, keys)
    return request


def _answers(message: pb.QueryResponse, partials: bool) -> list[Answer]:
    return [from_answer(answer, partials) for answer in message.answers]


def to_lookbacks(lookbacks: Sequence[Duration]) -> list[str]:
    """Return lookbacks as they travel; raises InvalidArgument."""
    if isinstance(lookbacks, str):
        raise InvalidArgument("lookbacks is a list: ['5m', '1h']", field="lookbacks")
    return [to_duration(item, "lookbacks") for item in lookbacks]
