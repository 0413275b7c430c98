"""A change feed: each row says whether its entry is inserted, updated or deleted. For windows with an `identity`.

    op      time  id   v            what the micro-batch does to an entry
    insert  10    a    1   ──╮
    update  10    a    2   ──┴─▶    insert (10, a, 2)       staged, and committed with the others
    delete  11    b        ────▶    retract (11, b)       ╮ to the driver, and from there to the window,
    update  12    c    5   ────▶    update  (12, c, 5)    ╯ numbered: producer = query, epoch = batch + 1

A task joins the changes of one entry into one, so that their order does not matter any more: its first operation says
whether the entry was there before, and its last one what becomes of it. Therefore all changes of an entry must be in
one partition, in order. A task holds all of its rows in memory, and the driver holds all updates and deletions.

Exactly once: the driver sorts updates and deletions, so that a micro-batch that comes again sends the same writes, with
the same numbers. The window applies each of them once, and none of an earlier micro-batch after a later one. The driver
sends them before it commits the batch, so that a committed batch has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sash_client import InvalidArgument, WriteResult
from sash_spark.writing.bad_rows import good_rows
from sash_spark.writing.keys import key_values
from sash_wire.rows import Columns

INSERT, UPDATE, DELETE, NOTHING = range(4)
OPERATIONS: Mapping[str, int] = {
    **dict.fromkeys(("insert", "i", "c", "r"), INSERT),
    **dict.fromkeys(("update", "u", "update_postimage"), UPDATE),
    **dict.fromkeys(("delete", "d"), DELETE),
    "update_preimage": NOTHING,
}
"""What the operation column may say, in any case: words, and those of Debezium and of Delta Lake."""

_OP, _ROW, _CODE = "sash.op", "sash.row", "sash.code"
"""Columns beside those of the rows, which have the names that users gave."""


class Changes:
    """The net changes of a task.

    Attributes:
        inserts: the rows to insert, a table.
        others: updates and deletions, as an Arrow stream of rows with a column `op`; empty without any.
        changed: how many rows `others` has.
        bad: rows that were dropped because the window would refuse them.
        merged: rows that became part of another one, or of nothing.
    """

    def __init__(self, inserts: Any, others: Any, bad: int, merged: int) -> None:
        self.inserts, self.bad, self.merged, self.changed = inserts, bad, merged, others.num_rows
        self.others = _to_bytes(others) if others.num_rows else b""


def net_changes(table: Any, op: str, identity: str, columns: Columns, drops_bad_rows: bool) -> Changes:
    """Join the changes of each entry of a task into one.

    Args:
        table: all rows of the task, in order.
        op: the column with the operation.
        identity: the field that is the window's identity.
        columns: the columns of the window. Rows to delete need time, key and identity only.
        drops_bad_rows: whether to drop rows that the window would refuse; else they are an error.

    Raises:
        InvalidArgument: a row is bad, or says an unknown operation.
    """
    arrived = table.num_rows
    codes = _codes(table, op, drops_bad_rows)
    table = table.append_column(_ROW, pa.array(np.arange(arrived))).append_column(_CODE, pa.array(codes, pa.int8()))
    fields = {identity: columns.fields[identity]}
    named = Columns(columns.time, columns.key, columns.parts, fields, columns.unit, columns.nullable)
    good, bad = [], int(np.count_nonzero(codes < 0))
    for wanted, checked in (((INSERT, UPDATE), columns), ((DELETE,), named)):
        some = table.filter(pa.array(np.isin(codes, wanted)))
        kept, refusal = good_rows(some, checked)
        if refusal is not None and not drops_bad_rows:
            raise refusal
        bad += some.num_rows - kept.num_rows
        good.append(kept)
    rows = pa.concat_tables(good).sort_by(_ROW).combine_chunks()
    code, entry = rows[_CODE].to_numpy(), _entries(rows, named)
    _, first = np.unique(entry, return_index=True)
    last = len(entry) - 1 - np.unique(entry[::-1], return_index=True)[1]
    is_new, came_or_left = code[first] == INSERT, np.full(len(first), -1)  # its last row that inserts or deletes
    np.maximum.at(came_or_left, entry[code != UPDATE], np.flatnonzero(code != UPDATE))
    is_inserted = (came_or_left >= 0) & (code[came_or_left] == INSERT)
    has_left = (came_or_left >= 0) & ~is_inserted
    inserts = rows.take(pa.array(np.sort(last[is_inserted]))).drop_columns([_ROW, _CODE])
    # An entry that was there and is inserted again is deleted first.
    changed = ~is_new
    net = np.where(has_left | is_inserted, DELETE, UPDATE)[changed]
    others = rows.take(pa.array(last[changed])).select(columns.all()).append_column(_OP, pa.array(net, pa.int8()))
    return Changes(inserts, others, bad, arrived - bad - inserts.num_rows - others.num_rows)


def _codes(table: Any, op: str, drops_bad_rows: bool) -> Any:
    """The operation of each row; -1 where it is none."""
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(table[op].cast(pa.string())))
    found = pc.index_in(texts, pa.array(list(OPERATIONS)))
    known = np.array([*OPERATIONS.values(), -1])
    codes = known[pc.fill_null(found, len(OPERATIONS)).to_numpy()]
    if not drops_bad_rows and (wrong := np.flatnonzero(codes < 0)).size:
        raise InvalidArgument(
            f"{wrong.size} of {len(codes)} rows have no operation: column {op!r} is "
            f"{table[op][int(wrong[0])].as_py()!r:.80}. Filter such rows, or leave them out: bad_rows='drop'",
            field=op,
            limit="insert, update or delete",
        )
    return codes


def _entries(rows: Any, named: Columns) -> Any:
    """The number of each row's entry, from 0."""
    entry = np.zeros(rows.num_rows, np.int64)
    for column in named.all():
        values = rows[column].combine_chunks().dictionary_encode()
        _, entry = np.unique(entry * len(values.dictionary) + values.indices.to_numpy(), return_inverse=True)
    return entry


def apply_changes(
    window: Any, columns: Columns, identity: str, query: str, batch: int, changes: Sequence[bytes]
) -> WriteResult:
    """Send the updates and deletions of a batch, numbered; nothing happens where they were sent before.

    Args:
        window: the window, of the client.
        columns: its columns in the tables.
        identity: the field that is its identity.
        query, batch: name the writes.
        changes: `Changes.others` of the tasks.
    """
    tables = [pa.ipc.open_stream(each).read_all() for each in changes if each]
    result = WriteResult()
    if not tables:
        return result
    entry = [columns.time, *([columns.key] if columns.key else columns.parts.values()), columns.fields[identity]]
    rows = pa.concat_tables(tables).sort_by([(column, "ascending") for column in entry])
    number = 1
    for code in (UPDATE, DELETE):
        some = rows.filter(pc.equal(rows[_OP], code)).combine_chunks()
        if not some.num_rows:
            continue
        keys = key_values(some, columns.key, columns.parts)
        numbers = {"producer": query, "sequence": number, "epoch": batch + 1}
        if code == UPDATE:
            fields = {name: some[column] for name, column in columns.fields.items()}
            done = window.update(some[columns.time], fields, keys=keys, **numbers)
        else:
            done = window.retract(some[columns.time], some[columns.fields[identity]], keys=keys, **numbers)
        number, result = number + done.sequences, result + done
    return result


def _to_bytes(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
