"""Answers beside the rows of a table: the columns of a training set.

pairs      key   time        lookbacks 1h, 1d      frame     key   time   entries_1h  sum_1h  entries_1d  sum_1d
           JFK   t1        ───────────────────▶              JFK   t1         12        80.5      310      2,115.0
           LGA   t2                                          LGA   t2          0         0.0       17         93.5
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.data.bulks import Columns, is_frame, keyed_times
from sash_client.data.libraries import is_pandas, is_polars
from sash_client.data.tables import Table, Tabular, Values
from sash_client.errors import InvalidArgument
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.features import feature, of_aggregate

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Features(Tabular):
    """Answers about n pairs of a key and a time, in the order of the pairs.

    As a table it has the columns "entries" and one for each aggregate by its name; with lookbacks, these for each
    lookback: "entries_1h", "sum_1h". An aggregate with the name "entries" is in `aggregates.entries`.

    Args:
        columns: arrays (n,) by these names: float64 or int64, masked (`numpy.ma`) if some pairs have no answer.
            Answers that are no numbers have the dtype object, with None for no answer.
        missing_shards: with `partial`: the shards that are away. Of their pairs no column has a value, also not
            "entries".
    """

    columns: dict[str, Array]
    missing_shards: Sequence[int] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def _table(self) -> Table:
        return {name: Values.of(column) for name, column in self.columns.items()}


class Gathered:
    """The columns of answers, one bulk's after the other's. It keeps columns of numbers, and no message.

    Args:
        names: of the aggregates, in their order.
        read: converts the column of a message.
    """

    def __init__(self, names: Sequence[str], read: Callable[[pb.SeriesColumn], Array]) -> None:
        self._names = names
        self._read = read
        self._parts: dict[str, list[Array]] = {}
        self._missing = set[int]()

    def add(self, bulk: pb.AnswersAtResponse) -> None:
        """Take the answers of a bulk."""
        self._missing.update(bulk.missing_shards)
        for found in bulk.answers:
            lookback = found.lookback or None
            entries: Array = np.frombuffer(found.entries, "<i8")
            if found.valid:
                entries = np.ma.MaskedArray(entries, np.frombuffer(found.valid, np.uint8) == 0)
            self._part(feature("entries", lookback), entries)
            for name in self._names:
                if name in found.aggregates:
                    self._part(feature(of_aggregate(name), lookback), self._read(found.aggregates[name]))

    def features(self, order: npt.NDArray[np.intp] | None = None) -> Features:
        """Return the columns; the parts of each go when it is whole.

        Args:
            order: which row each pair was that was asked about; None: they were asked about in their order.
        """
        columns = {name: _joined(self._parts.pop(name)) for name in list(self._parts)}
        if order is not None:
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            columns.update((name, columns[name][back]) for name in list(columns))
        return Features(columns, tuple(sorted(self._missing)))

    def _part(self, name: str, values: Array) -> None:
        self._parts.setdefault(name, []).append(values)


def requests_of(pairs: Columns, asked: pb.AnswersAtRequest, most: int) -> Iterator[pb.AnswersAtRequest]:
    """Yield a question for each bulk of at most `most` pairs; each is made when it is its turn."""
    for start in range(0, max(len(pairs.times), 1), most):
        request = pb.AnswersAtRequest()
        request.CopyFrom(asked)
        keyed_times(request, pairs, start, start + most)
        yield request


def named_beside(names: Iterable[str], taken: Iterable[str], same: Callable[[str], str] = str) -> dict[str, str]:
    """Return what columns of answers are called beside those of a frame: `aggregates.NAME` where the name is taken.

    Args:
        same: maps names that cannot stand beside each other to one.

    Raises:
        InvalidArgument: two columns would have one name.
    """
    seen = set(map(same, taken))
    found = {name: f"aggregates.{name}" if same(name) in seen else name for name in names}
    for name in found.values():
        if same(name) in seen:
            raise InvalidArgument(f"two columns would have the name {name!r}: rename that of the frame", field=name)
        seen.add(same(name))
    return found


def beside(frame: Any, features: Features) -> Any:
    """The rows of a frame with their answers, in a frame of the same library; `features` where it is no frame."""
    if not is_frame(frame):
        return features
    taken = map(str, getattr(frame, "column_names", frame.columns))
    names = named_beside(features.columns, taken)
    found = Features({names[name]: column for name, column in features.columns.items()})
    if is_pandas(frame):
        whole = frame.copy(deep=False)
        for name, column in found.to_pandas().items():
            whole[name] = column.array
        return whole
    if is_polars(frame):
        return frame.with_columns(found.to_polars().get_columns())
    table = found.to_arrow()
    for name in table.column_names:
        column = table[name]
        # A record batch has one array for each column, a table has chunks.
        frame = frame.append_column(name, column if hasattr(frame, "to_batches") else column.combine_chunks())
    return frame


def _joined(parts: Sequence[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    kinds = {part.dtype for part in parts}
    if len(kinds) == 1:
        masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
        return np.ma.concatenate(parts) if masked else np.concatenate(parts)  # type: ignore[no-untyped-call]
    out = np.empty(sum(map(len, parts)), object)
    at = 0
    for part in parts:
        for item in part.tolist():
            out[at] = item
            at += 1
    return out
