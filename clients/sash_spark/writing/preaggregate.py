"""Pre-aggregation: tasks of Spark fold the rows of a micro-batch into panes, and panes travel instead of rows.

    rows      key  time   delay            panes   key  time   entries  partials
              JFK  10:03    4.0                    JFK  10:00     2     sum 6.0   variance (2, 3.0, 2.0)   …
              JFK  10:07    2.0     ──▶            EWR  10:10     1     sum 9.0   variance (1, 9.0, 0.0)   …
              EWR  10:12    9.0
                                    granularity 10m

A pane folds the rows of one key and one granule of the window's `granularity`. The engine makes panes in the tasks as
the window does, so a window can have any aggregate, and the packages of plug-ins must be on the executors. A task folds
its own rows, `rows_per_call` at a time. A pane whose rows are divided by them, or by tasks, travels in as many parts,
and the window folds these.

The answers are those of a window that is fed with the rows. Floats differ by the order in which they are added up,
quantiles and frequent items are within the error of their sketches. Spark does not keep the order of rows. So where the
order matters (`first`, `last`, ties of `arg_max` and of `m4`, `collect`), all rows of a key go into one task, by their
times, and rows of equal times by their values. Without keys that is a single task.

A row without a time, a key or a value fails the micro-batch, with and without pre-aggregation.

Cost: less for the network and the service, more for Spark, which sorts the rows of a task.

Source: Gray et al., "Data cube", ICDE 1996, for the aggregates that combine; panes as in the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from sash_client import InvalidArgument
from sash_client.data.columns import to_column
from sash_client.data.times import to_ticks
from sash_spark.writing.keys import key_values
from sash_wire.rows import Columns

if TYPE_CHECKING:
    from sash_engine.windows.spec.window import WindowSpec

_READ = ("name", "time_unit", "granularity", "fields", "aggregates")
"""What panes depend on in a spec."""


def check_preaggregation(spec: Mapping[str, Any]) -> WindowSpec:
    """Return the spec of a window as the engine has it; panes know nothing of its keys.

    Raises:
        InvalidArgument: the window has no granularity or fields that may be null, or an aggregate of a package that is
            not installed here.
    """
    from sash_engine.windows.spec.window import WindowSpec

    if not spec.get("granularity"):
        raise InvalidArgument(
            f"window {spec['name']!r} has no granularity: it keeps entries and takes no panes", field="granularity"
        )
    if spec.get("nullable"):
        raise InvalidArgument(
            f"window {spec['name']!r} has fields that may be null, and panes have no nulls: write rows instead",
            field="nullable",
        )
    with _translated():
        return WindowSpec.parse({name: spec[name] for name in _READ if name in spec})


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the engine's errors as the client's."""
    from sash_engine.errors import SashError

    try:
        yield
    except SashError as error:
        raise InvalidArgument(error.message, field=error.field, limit=error.limit) from None


def prepared(
    rows: DataFrame, document: Mapping[str, Any], time: str, keys: Sequence[str], fields: Mapping[str, str]
) -> DataFrame:
    """Return rows as tasks fold them: by key and time; where an order matters by their values, a key in one task.

    Args:
        rows: with these columns.
        document: the window's spec.
        time, keys, fields: the columns of a window.
    """
    spec = check_preaggregation(document)
    for name, column in fields.items():
        if isinstance(rows.schema[column].dataType, DecimalType):
            rows = rows.withColumn(column, F.col(column).cast("double" if spec.fields[name] == "float64" else "bigint"))
    ordered = not all(monoid.commutative for monoid, _ in spec.monoids().values())
    if ordered:
        rows = rows.repartition(*keys) if keys else rows.repartition(1)
    # By key and time in any case, so that the rows of a pane come together, and few panes are divided.
    return rows.sortWithinPartitions(*dict.fromkeys([*keys, time, *(fields.values() if ordered else ())]))


def panes_of(document: Mapping[str, Any], table: pa.Table, columns: Columns) -> tuple[Any, Any, dict[str, Any]]:
    """Fold n >= 1 rows that the window takes.

    Args:
        document: the window's spec.
        table: the rows; those of one pane in their order of arrival.
        columns: the columns of the window in it.

    Returns:
        the times, the keys and the other arguments of `Window.stage`.
    """
    from sash_engine.windows.batches.batch import Batch, PartialBatch
    from sash_engine.windows.batches.panes import Panes, batch_of

    spec = check_preaggregation(document)
    panes, n = Panes(spec), table.num_rows
    ticks = to_ticks(table[columns.time], columns.unit, columns.time)
    fields = {name: to_column(table[columns.fields[name]], kind, name) for name, kind in spec.fields.items()}
    with _translated():
        rows = panes.rows(*Batch(ticks, fields).checked(spec), partials=False)
    names = [columns.key] if columns.key else columns.parts.values()
    codes = [table[name].combine_chunks().dictionary_encode().indices.to_numpy() for name in names]
    order = np.lexsort((rows[0], *codes))
    is_first = np.arange(n) == 0
    for each in codes:
        is_first[1:] |= np.diff(each[order]) != 0
    firsts = np.flatnonzero(is_first)
    lengths, folded = panes.folded([row[order] for row in rows], np.diff(firsts, append=n), partials=False)
    batch = batch_of(panes.layout, spec, folded, None)
    assert isinstance(batch, PartialBatch)
    keys = key_values(table.take(pa.array(np.repeat(order[firsts], lengths))), columns.key, columns.parts)
    return batch.times, keys, {"partials": dict(batch.partials), "entries": batch.entries}
