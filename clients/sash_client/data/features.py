"""Answers beside the rows of a table: the columns of a training set.

pairs      key   time        lookbacks 1h, 1d      frame     key   time   entries_1h  sum_1h  entries_1d  sum_1d
           JFK   t1        ───────────────────▶              JFK   t1         12        80.5      310      2,115.0
           LGA   t2                                          LGA   t2          0         0.0       17         93.5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.data.bulks import Columns, is_frame, keyed_times
from sash_client.data.libraries import is_pandas, is_polars
from sash_client.data.tables import Table, Tabular, Values
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.features import feature, of_aggregate

__all__ = ["Features", "beside", "features_of", "requests_of"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Features(Tabular):
    """Answers about n pairs of a key and a time, in the order of the pairs.

    As a table it has the columns "entries" and one for each aggregate by its name; with lookbacks, these for each
    lookback: "entries_1h", "sum_1h". An aggregate with the name "entries" is in `aggregates.entries`.

    Args:
        columns: arrays (n,) by these names: float64 or int64, masked (`numpy.ma`) if some pairs have no answer.
            Answers that are no numbers have the dtype object, with None for no answer.
    """

    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def _table(self) -> Table:
        return {name: Values.of(column) for name, column in self.columns.items()}


def requests_of(pairs: Columns, asked: pb.AnswersAtRequest, most: int) -> list[pb.AnswersAtRequest]:
    """A question for each bulk of at most `most` pairs."""
    found = []
    for start in range(0, max(len(pairs.times), 1), most):
        request = pb.AnswersAtRequest()
        request.CopyFrom(asked)
        keyed_times(request, pairs, start, start + most)
        found.append(request)
    return found


def features_of(names: Sequence[str], parts: Sequence[pb.AnswersAtResponse], read: Any) -> Features:
    """The columns of all answers, one bulk's after the other's.

    Args:
        names: of the aggregates, in their order.
        read: converts the column of a message.
    """
    columns: dict[str, Array] = {}
    for i, first in enumerate(parts[0].answers):
        lookback = first.lookback or None
        entries = [np.frombuffer(part.answers[i].entries, "<i8") for part in parts]
        columns[feature("entries", lookback)] = np.concatenate(entries)
        for name in names:
            if name in first.aggregates:
                each = [read(part.answers[i].aggregates[name]) for part in parts if part.answers[i].entries]
                columns[feature(of_aggregate(name), lookback)] = _joined(each or [read(first.aggregates[name])])
    return Features(columns)


def beside(frame: Any, features: Features) -> Any:
    """The rows of a frame with their answers, in a frame of the same library; `features` where it is no frame."""
    if not is_frame(frame):
        return features
    taken = set(map(str, getattr(frame, "column_names", frame.columns)))
    found = Features({f"aggregates.{n}" if n in taken else n: column for n, column in features.columns.items()})
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
