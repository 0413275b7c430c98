"""One window, from the outside: arrays in, answers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from sash_client.answers import Answer, WindowInfo, WriteResult
from sash_client.columns import Coded, to_coded, to_column
from sash_client.errors import InvalidArgument, SashClientError
from sash_client.times import TimeLike, to_lookback, to_tick, to_ticks
from sash_client.wire import bulk_requests, from_answer, from_info, from_write, spec_document, to_value
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

    def insert(
        self,
        time: TimeLike,
        value: float | None = None,
        *,
        fields: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> WriteResult:
        """Insert one entry.

        Args:
            time: ticks, or an instant.
            value: the value of a window with one float64 field.
            fields: a scalar for every field, by name, for any other window.
            key: where the window is keyed.
        """
        if (value is None) == (fields is None):
            raise InvalidArgument("give either a value or fields", field="value")
        request = pb.InsertRequest(window=self._name, key=_text(key), time=self._tick(time, "time"))
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
        lookbacks: Sequence[str | int | timedelta] = (),
        as_of: TimeLike | None = None,
    ) -> list[Answer]:
        """Answer over trailing lookbacks: `as_of - lookback < time <= as_of`, one answer each.

        Args:
            key: where the window is keyed.
            lookbacks: durations ("5m", timedelta) or ticks; none asks for everything that is in the window.
            as_of: ticks, or an instant; the time of the key's newest entry where None.
        """
        if isinstance(lookbacks, str):
            raise InvalidArgument("lookbacks is a list: ['5m', '1h']", field="lookbacks")
        asked = [to_lookback(item) for item in lookbacks]
        request = pb.QueryRequest(window=self._name, key=_text(key), lookbacks=asked)
        if as_of is not None:
            request.as_of = self._tick(as_of, "as_of")
        return [from_answer(answer) for answer in self._client._call("Query", request).answers]

    def range_query(self, start: TimeLike, end: TimeLike, *, key: str | None = None) -> Answer:
        """Answer over `start <= time <= end`, in ticks or instants."""
        request = pb.RangeQueryRequest(
            window=self._name, key=_text(key), start=self._tick(start, "start"), end=self._tick(end, "end")
        )
        return from_answer(self._client._call("RangeQuery", request))

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
    if key is not None and not isinstance(key, str):
        raise InvalidArgument(f"key {key!r:.80} is not a string", field="key")
    return key
