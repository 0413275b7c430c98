"""Arrow IPC streams to the plane's columns, and a series as such a stream.

Numbers are not copied on the way in where a stream has one batch. Integers and floats of other widths, and
timestamps, are converted where nothing is lost, and refused otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sash.errors import InvalidArgument, TooLarge, Unsupported
from sash.monoids.base import Array, FieldType
from sash.windows.answers import Series
from sash.windows.batch import Batch, Coded
from sash.windows.spec import WindowSpec

__all__ = ["batch_of", "stream_of"]

_TYPES = {"float64": pa.float64(), "int64": pa.int64(), "bool": pa.bool_()}


def batch_of(body: bytes, spec: WindowSpec, entries_max: int) -> Batch:
    """The columns of a stream: ``time``, ``key`` where keyed, and each field by its name.

    ``time`` is integers (ticks) or timestamps (converted to the window's unit); strings may be dictionary-coded.

    Raises:
        InvalidArgument: no such stream, or names the column that is wrong.
        TooLarge: more than `entries_max` entries.
    """
    table = _table(body, entries_max)
    names = table.column_names
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"there are two columns {name!r}", field=name)
        if table[name].null_count:
            raise InvalidArgument(f"column {name!r} has {table[name].null_count} nulls", field=name)
    if "time" not in names:
        raise InvalidArgument("time is missing", field="time")
    columns: dict[str, npt.NDArray[Any] | Coded] = {}
    for name in names:
        if name in ("time", "key"):
            continue
        if name not in spec.fields:
            known = ", ".join(spec.fields)
            raise InvalidArgument(f"window {spec.name!r} has no field {name!r}; it has {known}", field=name)
        columns[name] = _column(table[name], spec.fields[name], name)
    keys = _strings(table["key"], "key") if "key" in names else None
    return Batch(_times(table["time"], spec), columns, keys)


def stream_of(series: Series) -> bytes:
    """A series as a stream of one batch: ``time``, ``entries``, and ``aggregates.NAME`` for each aggregate.

    Where there is no answer is a null.

    Raises:
        Unsupported: answers of an aggregate have no common type in Arrow, as integers of more than 64 bits.
    """
    columns = {"time": pa.array(series.times), "entries": pa.array(series.entries)}
    columns |= {f"aggregates.{name}": _answers(answers, name) for name, answers in series.aggregates.items()}
    metadata = {"width": str(series.width)} | ({} if series.key is None else {"key": series.key})
    table = pa.table(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _answers(answers: Array, name: str) -> Any:
    if answers.dtype.kind != "O":
        return pa.array(answers)
    try:
        return pa.array(answers.tolist())
    except (pa.ArrowException, OverflowError) as error:
        raise Unsupported(
            f"aggregate {name!r} has answers that are no Arrow column ({error}); ask for JSON",
            field=f"aggregates.{name}",
        ) from None


def _table(body: bytes, entries_max: int) -> Any:
    batches, entries = [], 0
    try:
        for message in pa.ipc.MessageReader.open_stream(body):
            if message.type in ("record batch", "dictionary") and _is_compressed(message):
                raise InvalidArgument("compressed Arrow buffers are not taken; send them as they are", field="body")
        with pa.ipc.open_stream(body) as reader:
            for batch in reader:
                entries += batch.num_rows
                if entries > entries_max:
                    text = f"a write of {entries} entries or more is too large"
                    raise TooLarge(text, field="time", limit=f"{entries_max} entries")
                batches.append(batch)
            table = pa.Table.from_batches(batches, reader.schema)
        # Whoever sends the stream also chose its offsets and codes; reading through bad ones is no error but a crash.
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"the body is no Arrow IPC stream: {error}", field="body") from None
    return table


def _is_compressed(message: Any) -> bool:
    """Whether a batch's buffers are compressed, in which case a small body may stand for any amount of memory.

    pyarrow does not tell before it has unpacked them, so this looks into the flatbuffer, which pyarrow has
    verified: the root is a Message, its slot 2 the header; a DictionaryBatch has its RecordBatch in slot 1; a
    RecordBatch has its compression in slot 3, if any.

    Source: format/Message.fbs of Apache Arrow, and the binary format of FlatBuffers.
    """
    data = message.metadata.to_pybytes()
    batch = _table_at(data, _uint32(data, 0), 2)
    if message.type == "dictionary" and batch is not None:
        batch = _table_at(data, batch, 1)
    return batch is not None and _table_at(data, batch, 3) is not None


def _table_at(data: bytes, table: int, slot: int) -> int | None:
    """Where the table in a slot of another one starts; None where the slot is empty."""
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    size, at = _uint16(data, vtable), 4 + 2 * slot
    offset = _uint16(data, vtable + at) if at < size else 0
    return None if offset == 0 else table + offset + _uint32(data, table + offset)


def _uint16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _uint32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _times(column: Any, spec: WindowSpec) -> npt.NDArray[np.int64]:
    if pa.types.is_timestamp(column.type):
        if spec.time_unit == "none":
            raise InvalidArgument("time is a timestamp, but the window counts logical ticks", field="time")
        unit = pa.timestamp(spec.time_unit, column.type.tz)
        return _numbers(_cast(_cast(column, unit, "time"), pa.int64(), "time"))
    if not pa.types.is_integer(column.type):
        raise InvalidArgument(f"time must be integers or timestamps, not {column.type}", field="time")
    return _numbers(_cast(column, pa.int64(), "time"))


def _column(column: Any, kind: FieldType, name: str) -> npt.NDArray[Any] | Coded:
    if kind == "string":
        return _strings(column, name)
    found, is_number = column.type, pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    fits = {"float64": is_number, "int64": pa.types.is_integer(found), "bool": pa.types.is_boolean(found)}
    if not fits[kind]:
        raise InvalidArgument(f"field {name!r} is a {kind}, not a {found}", field=name)
    return _numbers(_cast(column, _TYPES[kind], name))


def _strings(column: Any, name: str) -> Coded:
    found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(found) or pa.types.is_large_string(found)):
        raise InvalidArgument(f"column {name!r} must be strings, not {found}", field=name)
    if pa.types.is_dictionary(column.type) and column.num_chunks == 1:
        dictionary = column.chunk(0).dictionary.to_pylist()
        if None not in dictionary and len(set(dictionary)) == len(dictionary):
            return Coded(dictionary, column.chunk(0).indices.to_numpy(zero_copy_only=False))
    # Plain strings, a dictionary per batch, or one with a string twice or a null in it.
    whole = pc.dictionary_encode(_cast(column, pa.large_string(), name)).combine_chunks()
    if whole.null_count:
        raise InvalidArgument(f"column {name!r} has {whole.null_count} nulls", field=name)
    return Coded(whole.dictionary.to_pylist(), whole.indices.to_numpy(zero_copy_only=False))


def _cast(column: Any, kind: Any, name: str) -> Any:
    if column.type == kind:
        return column
    try:
        return pc.cast(column, kind)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"column {name!r}: {error}", field=name) from None


def _numbers(column: Any) -> npt.NDArray[Any]:
    return column.combine_chunks().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
