"""The answers about the rows of a DataFrame, beside them: a point-in-time join with windows.

    rows ──▶ Arrow batches ──▶ blocks ──▶ answers_at of the client ──▶ the rows, and columns of answers
             of a partition    of rows_per_call rows, one in memory

The driver looks at the windows and asks about no pair, so that an option that does not fit is refused there, and the
types of all columns are known before a task runs. Rows stay in their partitions, and in their order. A task that runs
again asks again: the answers are those of that moment, and differ only if entries of the past have come since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sash_client import Client, InvalidArgument
from sash_client.data.features import named_beside
from sash_client.data.times import Duration
from sash_client.windows.questions import options_of, to_lookbacks
from sash_spark.login import Login
from sash_spark.reading.answer_columns import AnswerColumn
from sash_spark.reading.question import aggregates_of
from sash_spark.writing.keys import check_keys, fitted_parts, key_values
from sash_spark.writing.paths import find, flat
from sash_spark.writing.route import check_time, gathered
from sash_wire.features import feature, of_aggregate, of_window

_Paths = Mapping[str, tuple[str, ...]]
_ENTRIES = AnswerColumn("entries", pa.int64())


class Joining(TypedDict, total=False):
    """The options of one window among several; `answers_at` describes them."""

    key: str | None
    parts: Mapping[str, str] | None
    lookbacks: Sequence[Duration]
    where: Any
    aggregates: str | Sequence[str] | None
    known_at: str | None


def answers_at(
    frame: DataFrame,
    target: str,
    *,
    window: str | None = None,
    windows: Sequence[str] | Mapping[str, Joining] | None = None,
    time: str,
    key: str | None = None,
    parts: Mapping[str, str] | None = None,
    lookbacks: Sequence[Duration] = (),
    where: Any = None,
    aggregates: str | Sequence[str] | None = None,
    known_at: str | None = None,
    rows_per_call: int = 65_536,
    timeout_s: float = 60.0,
    login: Login | None = None,
) -> DataFrame:
    """Put beside each row what `Window.query` answers about its key as of its time: the rows of a training set.

    Args:
        frame: a table or a stream, with a key and a time in a row.
        target: host and port of the gRPC edge, as the executors reach it.
        window: the name of a window that exists.
        windows: several windows in place of one: their names; or a mapping from a name to options of that window alone,
            among key, parts, lookbacks, where, aggregates and known_at. Columns of answers have the window's name
            before their own: `cards_sum_1h`.
        time: the column with the times: timestamps, or integers (ticks).
        key: the column with the key, for a keyed window: strings, or integers.
        parts: columns for the parts of keys, for a window with `keys`: part -> column. Other parts are columns of their
            own name.
        lookbacks: durations ("5m", timedelta) or ticks: there are columns for each. Without any, the answers are over
            everything up to the time.
        where: conditions on parts of keys: a row whose key does not meet them has no entries.
        aggregates: names: only these aggregates are computed and answered; all where omitted.
        known_at: of a window with `known`: the column with `known_at` of earlier answers, integers. Each row is
            answered from what had been applied then.
        rows_per_call: rows that a task has in memory at a time, with their answers.
        timeout_s: seconds that one call may take, retries included.
        login: the credentials for the service: token and TLS.

    Returns:
        the columns of the frame; then for each lookback `entries_1h`, and a column for each aggregate: `sum_1h`.
        Without lookbacks they are `entries` and `sum`. Where the frame has such a column, it is `aggregates.sum_1h`.
        Answers have the types of their aggregates; null is no answer.

    Raises:
        InvalidArgument: a column or an option that does not fit the windows. In a task: a time, a key or a known_at
            that is null.
        NotFound: there is no such window.
    """
    if rows_per_call < 1:
        raise InvalidArgument("rows_per_call must be positive", field="rows_per_call")
    if (window is None) == (windows is None):
        raise InvalidArgument("give either window or windows", field="window")
    windows = [window] if window is not None else windows or ()
    common: Joining = {"key": key, "parts": parts, "lookbacks": lookbacks, "where": where, "aggregates": aggregates}
    common["known_at"] = known_at
    named = options_of(windows, common, Joining.__annotations__)
    login = login or Login()
    with login.client(target, timeout_s) as client:
        asked = [_Asked.of(client, frame.schema, name, time, options) for name, options in named.items()]
    found = [(one, column) for one in asked for column in one.answers]
    names = [of_window(one.window, column) if window is None else column for one, column in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"two windows have columns {name!r}: ask about them apart", field="windows")
    beside = named_beside(names, frame.columns, str.lower)
    types = [(beside[name], one.answers[column].type) for name, (one, column) in zip(names, found, strict=True)]
    schema = StructType([*frame.schema.fields, *from_arrow_schema(pa.schema(types)).fields])
    return frame.mapInArrow(_joined(asked, login, target, timeout_s, rows_per_call, schema.names), schema)


def _joined(
    asked: Sequence[_Asked], login: Login, target: str, timeout_s: float, rows: int, names: list[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Answers about the rows of a task, block by block."""

    def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with login.client(target, timeout_s) as client:
            for table in gathered(batches, rows):
                for block in table.combine_chunks().to_batches():
                    columns = [column for one in asked for column in one.columns(client, block)]
                    yield pa.RecordBatch.from_arrays([*block.columns, *columns], names=names)

    return joined


@dataclass(frozen=True)
class _Asked:
    """What is asked of one window; pickled to the executors.

    Args:
        window: its name.
        paths: the columns that are read -> where the rows have them.
        time, key, parts, known_at: these columns.
        question: the other arguments of `Window.answers_at`.
        answers: name of a column of `Features` -> how it becomes an Arrow column.
    """

    window: str
    paths: _Paths
    time: str
    key: str | None
    parts: Mapping[str, str]
    known_at: str | None
    question: Mapping[str, Any]
    answers: Mapping[str, AnswerColumn]

    @classmethod
    def of(cls, client: Client, schema: StructType, window: str, time: str, options: Joining) -> _Asked:
        """Check the options against the window and the rows."""
        spec = client.window(window).describe().spec
        key = options["key"]
        parts = fitted_parts(spec, window, key, options["parts"])
        keys = [key] if key is not None else list(parts.values())
        known_at = options["known_at"]
        paths = {name: find(schema, name)[0] for name in [time, *keys, *([] if known_at is None else [known_at])]}
        for name, (first, *_) in paths.items():
            if schema.names.count(first) > 1:
                raise InvalidArgument(f"the frame has two columns {first!r}", field=name)
        check_time(schema, time, spec["time_unit"], window)
        check_keys(schema, keys)
        lookbacks = list(dict.fromkeys(to_lookbacks(options["lookbacks"])))
        chosen = sorted(aggregates_of(window, spec["aggregates"], options["aggregates"]))
        question = {"lookbacks": lookbacks, "where": options["where"], "aggregates": chosen}
        nothing: Any = None if not spec["keyed"] else {name: [] for name in parts} or []
        known: Any = None if known_at is None else []
        client.window(window).answers_at(
            [], keys=nothing, known_at=known, **question
        )  # the service checks what remains
        answers: dict[str, AnswerColumn] = {}
        every: Sequence[str | None] = lookbacks or [None]
        for lookback in every:
            answers[feature("entries", lookback)] = _ENTRIES
            for name in chosen:
                column = AnswerColumn.of(name, spec["aggregates"][name], spec["fields"])
                answers[feature(of_aggregate(name), lookback)] = column
        return cls(window, paths, time, key, parts, known_at, question, answers)

    def columns(self, client: Client, block: pa.RecordBatch) -> list[Any]:
        """Return the answers about the rows of a block."""
        rows = flat(block, self.paths)
        keys = key_values(rows, self.key, self.parts)
        known = None if self.known_at is None else rows[self.known_at]
        found = client.window(self.window).answers_at(rows[self.time], keys=keys, known_at=known, **self.question)
        return [column.array(found.columns[name]) for name, column in self.answers.items()]
