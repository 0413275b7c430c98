"""Questions as plans: how each is asked, and how its answer is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack, cast

from sash_client.answers import Answer, page_of
from sash_client.calls.plans import Ask, AskStream, Plan
from sash_client.data.bulks import Bulk, bulk_of, by_key, from_bulk, pairs_of
from sash_client.data.features import Features, Gathered, beside, requests_of
from sash_client.data.libraries import eager, shown
from sash_client.data.tables import Series
from sash_client.data.times import Duration, TimeLike, to_duration
from sash_client.data.wire import answers_in, from_answer, from_series
from sash_client.errors import InvalidArgument
from sash_client.windows.handle import Handle, key_text, keys_texts, known, tick_of
from sash_client.windows.keys import (
    ALL_KEYS,
    AllKeys,
    Grouping,
    Key,
    Pairing,
    fill_aggregates,
    fill_grouping,
    fill_where,
    set_keys,
)
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.features import of_window
from sash_wire.meant import instead

Options = TypeVar("Options", bound=Mapping[str, Any])

_PAIR_ANSWERS = 65_536
"""Answers about pairs that one call asks for, over all lookbacks: about 2 MB with four aggregates."""


def query(
    window: Handle,
    *,
    key: Key | None = None,
    keys: Sequence[Key] | AllKeys | None = None,
    lookbacks: Sequence[Duration] = (),
    as_of: TimeLike | None = None,
    combine: bool = False,
    partials: bool = False,
    partial: str = "",
    known_at: int | None = None,
    **grouping: Unpack[Grouping],
) -> Plan[list[Answer]]:
    """Answer over trailing lookbacks: `as_of - lookback < time <= as_of`, one answer each.

    The answers are a list; `to_pandas`, `to_polars` and `to_arrow` of it return a table, see `Answers`.

    Args:
        key: the key, in a keyed window; where keys have parts also these, by name.
        keys: several keys, or `ALL_KEYS`, instead of `key`: the answers of one key after those of the other.
        lookbacks: durations ("5m", timedelta) or ticks; without any, one answer over the whole window.
        as_of: ticks, or an instant. If None, a lookback is `now - lookback < time`. Now is the key's high-water mark,
            the newest time that was ever inserted into it; with `combine` the newest mark of all the keys; or wall time
            if that is the window's clock.
        combine: with `keys`: one answer over the entries of all of them.
        partials: also answer with partials.
        partial: "allow": answer also if some shards are away; `missing_shards` of the answers says which.
        known_at: with `as_of` and `key`, of a window with `known`: `known_at` of an answer. Only what had been applied
            then counts: not entries that came later, but those that were retracted or corrected later.
        grouping: `where`, `by`, `top`, `n`, `order`, `having`, `limit`, `position` and `aggregates`, as
            `Grouping` describes them.
            With a limit, `next` of the answers is the position to go on at; None after the last ones.

    Raises:
        Unsupported: `combine` or `by`, if an aggregate depends on the order of entries.
    """
    request = yield from _question(window, key, keys, lookbacks, combine, partials, grouping)
    if as_of is not None:
        request.as_of = yield from tick_of(window, as_of, "as_of")
    if known_at is not None:
        if not -(2**63) <= known_at < 2**63:
            raise InvalidArgument(f"known_at {known_at} is out of range", field="known_at", limit="int64")
        request.known_at = known_at
    request.partial = partial
    message = yield Ask("Query", request)
    return _answers(message, partials)


def watch(
    window: Handle,
    *,
    key: Key | None = None,
    keys: Sequence[Key] | AllKeys | None = None,
    lookbacks: Sequence[Duration] = (),
    combine: bool = False,
    partials: bool = False,
    every_s: float = 1.0,
    **grouping: Unpack[Grouping],
) -> Plan[AskStream[list[Answer]]]:
    """Yield the answers of `query`, and again whenever they have changed, until the caller or the service stops.

    Args:
        key, keys, lookbacks, combine, partials, grouping: as in `query`.
        every_s: seconds between two looks.

    Raises:
        Unavailable: the service is gone, or shuts down.
    """
    query = yield from _question(window, key, keys, lookbacks, combine, partials, grouping)
    request = pb.WatchRequest(query=query, interval_ms=max(round(every_s * 1000), 1))
    return AskStream("Watch", request, partial(_answers, partials=partials), waits=True)


def range_query(
    window: Handle,
    start: TimeLike,
    end: TimeLike,
    *,
    key: Key | None = None,
    keys: Sequence[Key] | AllKeys | None = None,
    partials: bool = False,
    end_exclusive: bool = False,
    where: Any = None,
    partial: str = "",
    aggregates: str | Sequence[str] | None = None,
) -> Plan[Answer]:
    """Answer over `start <= time <= end`, in ticks or instants.

    Args:
        start, end: the first and the last time.
        key: the key, in a keyed window.
        keys: several keys, or `ALL_KEYS`, instead of `key`: one answer over the entries of all of them.
        partials: also answer with partials.
        end_exclusive: answer over `start <= time < end` instead, so that ranges that meet share no entry. The
            answer's `end` is the last tick that it includes.
        where: conditions on parts of keys, as of `query`: one answer over the entries of all keys that fit.
        partial: as in `query`.
        aggregates: names: only these aggregates are computed and answered; all if None or empty.

    Raises:
        Unsupported: `keys` or `where`, if an aggregate depends on the order of entries.
    """
    request = pb.RangeQueryRequest(window=window.name, partials=partials, end_exclusive=end_exclusive)
    yield from _fill_range(window, request, start, end, key, keys)
    fill_where(request, where)
    fill_aggregates(request, aggregates)
    request.partial = partial
    return from_answer((yield Ask("RangeQuery", request)), partials)


def range_groups(
    window: Handle,
    start: TimeLike,
    end: TimeLike,
    *,
    keys: Sequence[Key] | AllKeys | None = None,
    partials: bool = False,
    end_exclusive: bool = False,
    **grouping: Unpack[Grouping],
) -> Plan[list[Answer]]:
    """Answer as `range_query` for each group of keys, which `by` names.

    Args:
        start, end, partials, end_exclusive: as in `range_query`.
        keys: only keys among these.
        grouping: as in `query`; `by` is needed.

    Raises:
        Unsupported: an aggregate depends on the order of entries, and groups have several keys.
    """
    request = pb.RangeQueryRequest(window=window.name, partials=partials, end_exclusive=end_exclusive)
    yield from _fill_range(window, request, start, end, None, keys)
    fill_grouping(request, grouping)
    _check_by(request)
    message = yield Ask("RangeQuery", request)
    return page_of([from_answer(answer, partials) for answer in message.groups], message)


def series(
    window: Handle,
    start: TimeLike,
    end: TimeLike,
    *,
    step: Duration | None = None,
    width: Duration | None = None,
    gap: Duration | None = None,
    key: Key | None = None,
    keys: Sequence[Key] | AllKeys | None = None,
    where: Any = None,
    partial: str = "",
    aggregates: str | Sequence[str] | None = None,
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
        key, keys, where, partial, aggregates: as in `range_query`.

    Raises:
        Unsupported: `keys` or `where`, if an aggregate depends on the order of entries.
    """
    request = _buckets(window, step, width, gap)
    yield from _fill_range(window, request, start, end, key, keys)
    fill_where(request, where)
    fill_aggregates(request, aggregates)
    request.partial = partial
    message = yield Ask("Series", request)
    return from_series(message, (yield from known(window)).time_unit or "us", sessions=gap is not None)


def series_groups(
    window: Handle,
    start: TimeLike,
    end: TimeLike,
    *,
    step: Duration,
    width: Duration | None = None,
    keys: Sequence[Key] | AllKeys | None = None,
    **grouping: Unpack[Grouping],
) -> Plan[list[Series]]:
    """Answer as `series` for each group of keys, which `by` names.

    Args:
        start, end, step, width: as in `series`.
        keys: only keys among these.
        grouping: as in `query`; `by` is needed. `top` and `having` compare the answer over all buckets.

    Raises:
        Unsupported: an aggregate depends on the order of entries, and groups have several keys.
    """
    request = _buckets(window, step, width)
    yield from _fill_range(window, request, start, end, None, keys)
    fill_grouping(request, grouping)
    _check_by(request)
    message = yield Ask("Series", request)
    unit = (yield from known(window)).time_unit or "us"
    return page_of([from_series(group, unit, message) for group in message.groups], message)


def _check_by(request: Any) -> None:
    if not request.by:
        raise InvalidArgument("say by which parts of keys to group", field="by")


def _buckets(
    window: Handle, step: Duration | None, width: Duration | None, gap: Duration | None = None
) -> pb.SeriesRequest:
    lengths = {"step": step, "width": width, "gap": gap}
    given: Any = {name: to_duration(each, name) for name, each in lengths.items() if each is not None}
    return pb.SeriesRequest(window=window.name, **given)


def _fill_range(
    window: Handle,
    request: Any,
    start: TimeLike,
    end: TimeLike,
    key: Key | None,
    keys: Sequence[Key] | AllKeys | None,
) -> Plan[None]:
    """Write into a request which times and keys it is about."""
    request.start = yield from tick_of(window, start, "start")
    request.end = yield from tick_of(window, end, "end")
    yield from _set_keys(window, request, key, keys)


def entries(
    window: Handle,
    start: TimeLike | None = None,
    end: TimeLike | None = None,
    *,
    key: Key | None = None,
    keys: Sequence[Key] | AllKeys | None = None,
    end_exclusive: bool = False,
    where: Any = None,
    limit: int | None = None,
    reverse: bool = False,
    known: str = "",
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
        where: conditions on parts of keys, as of `query`.
        limit: at most so many entries.
        reverse: in the other order: the newest of a key first. With `limit`, the newest.
        known: of one key of a window with `known`. "kept": the column `arrival!` has the number of each entry's
            arrival. "removed": in place of the entries, what was retracted or corrected. `arrival!` and `removed!` say
            from when to when it counted, and `placed!` is the number of its first version.

    Raises:
        Unsupported: `known`, and the window does not keep what was known when.
    """
    request = pb.EntriesRequest(
        window=window.name, end_exclusive=end_exclusive, limit=limit, reverse=reverse, known=known
    )
    if start is not None:
        request.start = yield from tick_of(window, start, "start")
    if end is not None:
        request.end = yield from tick_of(window, end, "end")
    everything = key is None and keys is None and (yield from _is_keyed(window))
    yield from _set_keys(window, request, key, ALL_KEYS if everything else keys)
    fill_where(request, where)
    return AskStream("Entries", request, from_bulk)


def _is_keyed(window: Handle) -> Plan[bool]:
    return (yield from known(window)).keyed


def answers_at(
    window: Handle,
    pairs: Any,
    *,
    keys: Any = None,
    time: str | None = None,
    key: str | None = None,
    lookbacks: Sequence[Duration] = (),
    where: Any = None,
    aggregates: str | Sequence[str] | None = None,
    partial: str = "",
    known_at: Any = None,
    progress: bool | Callable[[int, int], None] | None = None,
) -> Plan[Any]:
    """Answer about many pairs of a key and a time: of each what `query` answers as of that time, to the last bit.

        training = window.answers_at(frame, key="card", time="paid", lookbacks=["1m", "1h", "1d"])
        features = window.answers_at(times, keys=cards, lookbacks=["1h"])

    The pairs travel in bulks, each of them a call of its own that is made again while the service is away.

    Args:
        pairs: a DataFrame of pandas or Polars, a LazyFrame, a Table of Arrow; or n times: int64, datetime64, a column.
        keys: with times: n keys, or one for all; where keys have parts a mapping with n values of each.
        time, key: with a frame: the columns that hold the times and the keys; by default "time" and "key", or, where
            keys have parts, those by the names of the parts.
        lookbacks: as in `query`; there are columns for each. Without any, over everything up to the times.
        where: conditions on parts of keys, as of `query`: a pair whose key does not meet them has no entries.
        aggregates: names: only these aggregates are computed and answered; all if None or empty.
        partial: "allow": answer also if some shards are away. The pairs of their keys then have no values, also not for
            "entries"; `missing_shards` of `Features` says which shards.
        known_at: of a window with `known`: with a frame the column that holds `known_at` of earlier answers, with times
            n of them, or one for all. Each pair is answered from what had been applied then, as of `query`.
        progress: True shows a bar of tqdm, or lines on stderr where it is not installed. Or a function, called after
            each bulk with how many pairs are answered, and how many there are.

    Returns:
        the frame with a column for each aggregate and lookback, see `Features`; of times the `Features` alone.
    """
    asked: Pairing = {"keys": keys, "key": key, "lookbacks": lookbacks, "where": where, "aggregates": aggregates}
    asked["partial"], asked["known_at"] = partial, known_at
    pairs = eager(pairs)
    return beside(pairs, (yield from _features(window, pairs, time, shown(progress, "pairs"), asked)))


def answers_of(
    client: Any,
    pairs: Any,
    windows: Sequence[str] | Mapping[str, Pairing],
    *,
    time: str | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    **asked: Unpack[Pairing],
) -> Plan[Any]:
    """Answer as `Window.answers_at` of several windows at once: a set of features.

        features = sash.answers_at(frame, ["cards", "devices"], time="paid", key="card", lookbacks=["1h"])
        features = sash.answers_at(frame, {"cards": {"key": "card"}, "shops": {"key": "shop"}}, time="paid")

    The columns have the names of their windows before their own: "cards_sum_1h". One window is asked after the
    other, as of the times of the pairs.

    Args:
        pairs, time: as of `Window.answers_at`.
        windows: their names; or a mapping from a name to options of that window alone.
        progress: as of `Window.answers_at`, about the pairs of all windows.
        asked: options of all windows: `keys`, `key`, `lookbacks`, `where`, `aggregates`, `partial` and
            `known_at` of `Window.answers_at`.

    Raises:
        InvalidArgument: there is no such option, or columns of two windows would have one name.
    """
    pairs, told = eager(pairs), shown(progress, "pairs")
    columns, missing = dict[str, Any](), set[int]()
    named = options_of(windows, asked, Pairing.__annotations__)
    for i, (name, options) in enumerate(named.items()):
        found = yield from _features(Handle(client, name), pairs, time, _of_all(told, i, len(named)), options)
        missing.update(found.missing_shards)
        for column, values in found.columns.items():
            prefixed = of_window(name, column)
            if prefixed in columns:
                raise InvalidArgument(f"two windows have columns {prefixed!r}: ask about them apart", field="windows")
            columns[prefixed] = values
    return beside(pairs, Features(columns, tuple(sorted(missing))))


answers_of.__name__ = "answers_at"  # of a client


def options_of(
    windows: Sequence[str] | Mapping[str, Options], asked: Options, known: Collection[str]
) -> dict[str, Options]:
    """Return the options of a question to each window: its own before those of all.

    Args:
        known: the options that there are.

    Raises:
        InvalidArgument: there is no window, or no such option.
    """
    if isinstance(windows, str) or not windows:
        raise InvalidArgument("windows is a list of names, or a mapping from names to options", field="windows")
    own: Mapping[str, Any] = windows if isinstance(windows, Mapping) else {name: {} for name in windows}
    for option in [*asked, *(option for options in own.values() for option in options)]:
        if option not in known:
            raise InvalidArgument(
                f"no option {option!r} of a window{instead(option, known, 'there are')}", field=option
            )
    return {name: cast("Options", {**asked, **options}) for name, options in own.items()}


def _of_all(told: Callable[[int, int], None], at: int, count: int) -> Callable[[int, int], None]:
    """Tell of the pairs of one window among those of all windows."""
    return lambda done, pairs: told(at * pairs + done, count * pairs)


def _features(
    window: Handle, pairs: Any, time: str | None, told: Callable[[int, int], None], asked: Pairing
) -> Plan[Features]:
    """Ask bulk after bulk: one is in memory at a time, beside the answers."""
    spec = yield from known(window)
    bulk = bulk_of(pairs, None, asked.get("keys"), time=time, key=asked.get("key"))
    if not spec.keyed and asked.get("key") is None and asked.get("keys") is None:
        bulk = replace(bulk, keys=None)  # a frame may have a column "key" for something else
    columns = pairs_of(bulk, spec, asked.get("known_at"))
    lookbacks = list(dict.fromkeys(to_lookbacks(asked.get("lookbacks", ()))))
    question = pb.AnswersAtRequest(window=window.name, lookbacks=lookbacks, partial=asked.get("partial", ""))
    fill_where(question, asked.get("where"))
    fill_aggregates(question, asked.get("aggregates"))
    found, done = Gathered(sorted(spec.aggregates), answers_in), 0
    most = max(_PAIR_ANSWERS // max(len(lookbacks), 1), 1)
    # A bulk of few keys is answered about in half the time, and has fewer names.
    columns, order = by_key(columns) if len(columns.times) > most else (columns, None)
    for request in requests_of(columns, question, most):
        found.add((yield Ask("AnswersAt", request)))
        done += len(request.time) // 8
        told(done, len(columns.times))
    return found.features(order)


def _question(
    window: Handle,
    key: Key | None,
    keys: Sequence[Key] | AllKeys | None,
    lookbacks: Sequence[Duration],
    combine: bool,
    partials: bool,
    grouping: Grouping,
) -> Plan[pb.QueryRequest]:
    texts = to_lookbacks(lookbacks)
    request = pb.QueryRequest(window=window.name, lookbacks=texts, combine=combine, partials=partials)
    yield from _set_keys(window, request, key, keys)
    fill_grouping(request, grouping)
    return request


def _set_keys(window: Handle, request: Any, key: Key | None, keys: Sequence[Key] | AllKeys | None) -> Plan[None]:
    one = yield from key_text(window, key)
    set_keys(request, one, (yield from keys_texts(window, keys)))


def _answers(message: pb.QueryResponse, partials: bool) -> list[Answer]:
    return page_of([from_answer(answer, partials) for answer in message.answers], message)


def to_lookbacks(lookbacks: Sequence[Duration]) -> list[str]:
    """Return lookbacks as they travel; raises InvalidArgument."""
    if isinstance(lookbacks, str):
        raise InvalidArgument("lookbacks is a list: ['5m', '1h']", field="lookbacks")
    return [to_duration(item, "lookbacks") for item in lookbacks]
