"""Plain documents and values to the messages of `sash.v1`, and answers back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.answers import (
    Admission,
    Answer,
    Counts,
    Limit,
    LimitAnswers,
    ServingProcess,
    ShardSize,
    Topology,
    WindowInfo,
    WriteResult,
)
from sash_client.data.bulks import from_partials
from sash_client.data.tables import Series
from sash_client.errors import InvalidArgument, refusing
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.specs import document_of, fill_aggregate, fill_spec
from sash_wire.values import fill_value, from_value


@refusing
def to_spec(spec: Mapping[str, Any] | str) -> pb.WindowSpec:
    """Return the message for a spec.

    Args:
        spec: the document, or its YAML (or JSON) text.

    Raises:
        InvalidArgument: what the message cannot carry: no mapping, an unknown key, a value of a wrong type. The
            service checks everything else.
    """
    message, document = pb.WindowSpec(), _loaded(spec, "spec")
    try:
        aggregates = to_aggregates(document.get("aggregates"))
        fill_spec(message, {name: document[name] for name in document if name != "aggregates"})
    except UnicodeEncodeError as error:
        raise _no_text("spec", error) from None
    for name, aggregate in aggregates.items():
        message.aggregates[name].CopyFrom(aggregate)
    return message


@refusing
def to_aggregates(aggregates: Mapping[str, Any] | str | None) -> dict[str, pb.AggregateSpec]:
    """Return messages for aggregates by name, which are a document or its YAML text; raises as `to_spec`."""
    messages = {}
    for name, aggregate in ({} if aggregates is None else _loaded(aggregates, "aggregates")).items():
        messages[str(name)] = pb.AggregateSpec()
        try:
            str(name).encode()
            fill_aggregate(messages[str(name)], aggregate, f"aggregates.{name}")
        except UnicodeEncodeError as error:
            raise _no_text("aggregates", error) from None
    return messages


@refusing
def fill_scalar(message: pb.Value, value: Any, path: str) -> None:
    """Write the value of a field into an empty message; raises InvalidArgument for a value of another type."""
    fill_value(message, value, path)


def _loaded(document: Any, path: str) -> Mapping[Any, Any]:
    if isinstance(document, str):
        from sash_wire.documents import read_yaml  # only texts need YAML, and it takes a twentieth of a client's start

        document = read_yaml(document, path)
    if not isinstance(document, Mapping):
        raise InvalidArgument(f"{path} is a mapping, not {document!r:.80}", field=path)
    return document


def _no_text(path: str, error: UnicodeEncodeError) -> InvalidArgument:
    return InvalidArgument(f"{path}: {error.object!r:.80} has no UTF-8: half a surrogate pair is in it", field=path)


def new_name(name: str | None) -> str:
    """Return the name that an import gives a window; "" keeps its own. Raises InvalidArgument for ""."""
    if name == "":
        raise InvalidArgument("name is empty; leave it out for the window's own", field="name")
    return name or ""


@refusing
def spec_document(message: pb.WindowSpec) -> dict[str, Any]:
    """Return a spec as a plain document, with the defaults of its policies; `to_spec` takes it back."""
    document = document_of(message)
    order = {"out_of_order": "allow", "late": "drop", "equal_times": "keep"}
    return (
        {"time_unit": "us", "fields": {}}
        | document
        | {"slide": {"clock": "event"} | document.get("slide", {}), "order": order | document.get("order", {})}
    )


def from_answer(message: pb.Answer, partials: bool = False) -> Answer:
    """Return an answer, with its partials if they were asked for."""
    return Answer(
        key=message.key if message.HasField("key") else None,
        start=message.start if message.HasField("start") else None,
        end=message.end if message.HasField("end") else None,
        entries=message.entries,
        aggregates={name: from_value(value) for name, value in sorted(message.aggregates.items())},
        lookback=message.lookback or None,
        partials={name: from_partials(parts) for name, parts in sorted(message.partials.items())} if partials else None,
        parts=dict(sorted(message.parts.items())) or None,
        missing_shards=tuple(message.missing_shards),
        known_at=message.known_at if message.HasField("known_at") else None,
    )


def from_write(message: Any, sequences: int = 0) -> WriteResult:
    """Return the result of a write that used `sequences` of its producer's numbers; its answer may lack some counts."""
    found = _shared(WriteResult, message)
    if "answers" in message.DESCRIPTOR.fields_by_name:
        found["answers"] = tuple(map(from_answer, message.answers))
    return WriteResult(**found, sequences=sequences)


def from_admission(message: pb.AdmitResponse, sequences: int = 0) -> Admission:
    """Return the result of a write that decides."""
    found = _shared(Admission, message)
    found["admitted"] = tuple(message.admitted)
    after = tuple(None if each < 0 else each for each in message.retry_after)
    found["retry_after"] = () if message.already_applied else after or (None,) * len(message.admitted)
    found["limits"] = tuple(
        LimitAnswers(tuple(map(from_value, each.answers)), tuple(map(from_value, each.remaining)), tuple(each.holds))
        for each in message.limits
    )
    return Admission(**found, sequences=sequences)


def _shared(kind: Any, message: Any) -> dict[str, Any]:
    """The fields of a result that a message has by the same names, without those that are messages."""
    found = {name: getattr(message, name) for name in _names(kind, message.DESCRIPTOR)}
    return found | {"durability": message.durability or "memory"}


@cache
def _names(kind: Any, message: Any) -> list[str]:
    return [each.name for each in message.fields if each.name in kind.__annotations__ and each.message_type is None]


@refusing
def fill_limit(message: pb.Limit, limit: Limit, lookback: str) -> None:
    """Write a limit into an empty message; raises InvalidArgument for what the message cannot carry."""
    try:
        message.aggregate, message.lookback, message.op = limit.aggregate, lookback, limit.op
        if isinstance(limit.value, int):
            message.integer = limit.value
        else:
            message.value = limit.value
        if limit.by is not None:
            message.by.extend([limit.by] if isinstance(limit.by, str) else limit.by)
            message.all_keys = not message.by
    except (TypeError, ValueError, AttributeError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"{limit!r:.120} is no limit: {error}", field="limits") from None


def from_series(
    message: pb.SeriesResponse, time_unit: str, whole: pb.SeriesResponse | None = None, sessions: bool = False
) -> Series:
    """Return a series; `whole` has the times and the width of one of a group. There may be no sessions in it."""
    whole = message if whole is None else whole
    return Series(
        key=message.key if message.HasField("key") else None,
        times=np.frombuffer(whole.time, "<i8"),
        width=whole.width,
        entries=np.frombuffer(message.entries, "<i8"),
        aggregates={name: answers_in(column) for name, column in sorted(message.aggregates.items())},
        time_unit=time_unit,
        parts=dict(sorted(message.parts.items())) or None,
        last=np.frombuffer(message.last, "<i8") if sessions else None,
        missing_shards=tuple(message.missing_shards),
    )


def answers_in(column: pb.SeriesColumn) -> npt.NDArray[Any]:
    """Return n answers of one aggregate."""
    if column.HasField("values"):
        answers = np.empty(len(column.values.items), object)
        # One by one: an assignment of the list would make rows of answers that are lists.
        for i, item in enumerate(column.values.items):
            answers[i] = from_value(item)
        return answers
    numbers: npt.NDArray[Any] = np.frombuffer(column.float64, "<f8")
    if column.int64:
        numbers = np.frombuffer(column.int64, "<i8")
    if not column.valid:
        return numbers
    missing = np.frombuffer(column.valid, np.uint8) == 0
    if numbers.dtype.kind == "f":
        numbers = np.where(missing, np.nan, numbers)
    return np.ma.MaskedArray(numbers, missing)


_OPTIONAL = ("oldest", "newest", "problem", "punctuated", "evicted_through", "high_water_mark")
"""Fields of a window's description that may be missing."""


def from_info(message: pb.WindowInfo) -> WindowInfo:
    """Return a window's description."""
    return WindowInfo(
        name=message.spec.name,
        spec=spec_document(message.spec),
        entries=message.entries,
        keys=message.keys,
        counts=Counts(**{each.name: getattr(message.counts, each.name) for each in fields(Counts)}),
        durability=message.durability or "memory",
        **{name: getattr(message, name) if message.HasField(name) else None for name in _OPTIONAL},
    )


def from_topology(response: pb.Topology) -> Topology:
    """Return the processes of a service and the shards of each."""
    processes = [
        ServingProcess(
            process.number,
            process.up,
            process.grpc_port,
            list(process.shards),
            process.address,
            [ShardSize(size.shard, size.entries, size.pending_bytes) for size in process.sizes],
        )
        for process in response.processes
    ]
    return Topology(response.shards, processes)
