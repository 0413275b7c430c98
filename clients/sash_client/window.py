"""One window, from the outside: arrays in, answers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sash_client.answers import Answer, Series, WindowInfo, WriteResult
from sash_client.columns import Coded, to_coded, to_column
from sash_client.errors import InvalidArgument, SashClientError
from sash_client.keys import AllKeys, set_keys, text
from sash_client.times import Duration, TimeLike, to_duration, to_tick, to_ticks
from sash_client.wire import (
    bulk_requests,
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
        return from_write(self._client._call("Insert", request))

    def bulk_insert(self, times: Any, columns: Any, *, keys: Any = None) -> WriteResult:
        """Insert n entries, in any order.

        A bulk larger than one message is sent as several, in order; each is applied whole or not at all. If one
        fails, the error's `applied` says what those before it have done.

        Args:
            times: n ticks or instants: int64, datetime64, a pandas Series or Index, an Arrow array.
            columns: n values for each field, by name; or n values alone where the window has one field. NumPy,
                pandas or Arrow, or a sequence.
            keys: n keys where the window is keyed; or one string, for all of them.

        Returns:
            what became of them, all messages together.
        """
        spec = self._spec()
        ticks = to_ticks(times, spec.time_unit or "us")
        sent = {name: to_column(values, spec.fields[name], name) for name, values in self._named(columns).items()}
        coded = self._keys(keys, len(ticks))
        for name, column in [*sent.items(), *([("key", coded)] if coded is not None else [])]:
            if len(column) != len(ticks):
                raise InvalidArgument(
                    f"column {name!r} has {len(column)} values where time has {len(ticks)}",
                    field=name,
                    limit=str(len(ticks)),
                )
        total = WriteResult()
        limits = {"entries_max": self._client.bulk_entries_max, "bytes_max": self._client.bulk_bytes_max}
        for request in bulk_requests(self._name, ticks, sent, coded, **limits):
            try:
                total += from_write(self._client._call("BulkInsert", request))
            except SashClientError as error:
                error.applied = total
                raise
        return total

    def bulk_evict(self, time: TimeLike, *, key: str | None = None) -> int:
        """Remove every entry with time <= `time`, of one key or of all; return how many."""
        request = pb.BulkEvictRequest(window=self._name, time=self._tick(time, "time"), key=_text(key))
        return int(self._client._call("BulkEvict", request).evicted)

    def query(
        self,
        *,
        key: str | None = None,
        keys: Sequence[str] | AllKeys | None = None,
        lookbacks: Sequence[Duration] = (),
        as_of: TimeLike | None = None,
        combine: bool = False,
    ) -> list[Answer]:
        """Answer over trailing lookbacks: `as_of - lookback < time <= as_of`, one answer each.

        Args:
            key: where the window is keyed.
            keys: several keys, or `ALL_KEYS`, instead of `key`: the answers of one after those of the other.
            lookbacks: durations ("5m", timedelta) or ticks; none asks for everything that is in the window.
            as_of: ticks, or an instant; where None, the time of the key's newest entry, or wall time if that is the
                window's clock.
            combine: with `keys`: one answer over the entries of all of them.

        Raises:
            Unsupported: `combine` where an aggregate depends on the order of entries.
        """
        request = pb.QueryRequest(window=self._name, lookbacks=_lookbacks(lookbacks), combine=combine)
        set_keys(request, key, keys)
        if as_of is not None:
            request.as_of = self._tick(as_of, "as_of")
        return [from_answer(answer) for answer in self._client._call("Query", request).answers]

    def range_query(
        self,
        start: TimeLike,
        end: TimeLike,
        *,
        key: str | None = None,
        keys: Sequence[str] | AllKeys | None = None,
    ) -> Answer:
        """Answer over `start <= time <= end`, in ticks or instants.

        Args:
            start, end: the first and the last time.
            key: where the window is keyed.
            keys: several keys, or `ALL_KEYS`, instead of `key`: one answer over the entries of all of them.

        Raises:
            Unsupported: `keys` where an aggregate depends on the order of entries.
        """
        request = pb.RangeQueryRequest(window=self._name, start=self._tick(start, "start"), end=self._tick(end, "end"))
        set_keys(request, key, keys)
        return from_answer(self._client._call("RangeQuery", request))

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

    def _named(self, columns: Any) -> Mapping[str, Any]:
        fields = self._spec().fields
        if not isinstance(columns, Mapping):
            if len(fields) != 1:
                raise InvalidArgument(
                    f"give a column for each field, by name: {', '.join(sorted(fields))}",
                    field="columns",
                )
            return {next(iter(fields)): columns}
        for name in [*columns, *fields]:
            if name not in fields:
                known = ", ".join(sorted(fields))
                raise InvalidArgument(f"window {self._name!r} has no field {name!r}; it has {known}", field=name)
            if name not in columns:
                raise InvalidArgument(f"field {name!r} is missing", field=name)
        return columns

    def _keys(self, keys: Any, n: int) -> Coded | None:
        if keys is None:
            return None
        if isinstance(keys, str):
            return Coded([keys], np.zeros(n, dtype="<u4"))
        return to_coded(keys, "key")


def _text(key: str | None) -> str | None:
    return None if key is None else text(key)


def _lookbacks(lookbacks: Sequence[Duration]) -> list[str]:
    if isinstance(lookbacks, str):
        raise InvalidArgument("lookbacks is a list: ['5m', '1h']", field="lookbacks")
    return [to_duration(item, "lookbacks") for item in lookbacks]
