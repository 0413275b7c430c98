"""Messages of `sash.v1` to the plane's values and back. Columns are not copied on the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from sash import calls
from sash.rpc.bulks import fill_partials
from sash.rpc.grouping import grouped_of, where_of
from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps
from sash_engine.windows.answers import Admission, Answer, AnswerColumns, Counts, Page, Series, WindowInfo, WriteResult
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.questions import (
    ALL_KEYS,
    Comparison,
    KeyList,
    Limit,
    Question,
)
from sash_engine.windows.spec.window import WindowSpec
from sash_proto.v1 import windows_pb2 as pb
from sash_wire import specs
from sash_wire.columns import fill_answers, to_bytes
from sash_wire.key_parts import key_of_parts
from sash_wire.values import fill_value

M = TypeVar("M", bound=Message)
Q = TypeVar("Q", bound=Question[Any])

_key_of_parts = calls.refusing(key_of_parts)

# ---------------------------------------------------------------- requests


def required(request: Any, field: str) -> int:
    """Return an integer that must be set: proto3 reads a missing one as 0. Raises InvalidArgument."""
    if not request.HasField(field):
        raise InvalidArgument(f"{field} is missing", field=field)
    return getattr(request, field)  # type: ignore[no-any-return]


def question_of(kind: type[Q], request: Any) -> Q:
    """Return the question that a message asks: each field is the message's by the same name, where that has one.

    Raises:
        InvalidArgument: a field that has no default is not set; and as `_keys_of`.
    """
    found: dict[str, Any] = {}
    found["key"], found["keys"] = _keys_of(request)
    optional, others, read = _fields_of(cast("Any", kind), request.DESCRIPTOR)
    for name, needed in optional:
        if needed or request.HasField(name):
            found[name] = required(request, name)
    for name, taken in others:
        if value := getattr(request, name):
            found[name] = taken(value)
    for name, reads in read:
        found[name] = reads(request)
    return kind(**found)


@cache
def _fields_of(kind: Any, message: Descriptor) -> Any:
    """The fields of a question, but for its keys, that a message has: those that may be set, and whether they must be;
    the others, and what takes their values; and those that are read of more fields of the message.
    """
    read: dict[str, Any] = {"selection": grouped_of, "where": where_of}
    optional, others = [], []
    for field in fields(kind):
        sent = None if field.name in ("key", "keys", *read) else message.fields_by_name.get(field.name)
        if sent is not None and sent.has_presence:
            optional.append((field.name, field.default is MISSING))
        elif sent is not None:
            others.append((field.name, list if field.default == () else _same))
    return optional, others, [(field.name, read[field.name]) for field in fields(kind) if field.name in read]


def _same(value: Any) -> Any:
    return value


def _keys_of(request: Any) -> tuple[str | None, KeyList]:
    """Return the one key, and the several keys, that a request asks for; it has at most one of the two.

    Raises:
        InvalidArgument: more than one of `key`, `keys` and `all_keys` is set.
    """
    key = request.key if request.HasField("key") else None
    if not request.keys and not request.all_keys:
        return key, ()
    if key is not None or (request.keys and request.all_keys):
        field = "keys" if request.keys else "all_keys"
        raise InvalidArgument("give one of key, keys and all_keys", field=field)
    return None, list(request.keys) or ALL_KEYS


def origin_of(request: Any) -> Origin | None:
    """Return the producer of a write and its number, if it has them. An empty `producer` is none.

    Raises:
        InvalidArgument: as `calls.origin_of`.
    """
    sequence = request.sequence if request.HasField("sequence") else None
    after = request.after if request.HasField("after") else None
    return calls.origin_of(request.producer or None, sequence, request.epoch or None, after)


def entry_of(request: pb.InsertRequest | pb.AdmitRequest, spec: WindowSpec) -> Mapping[str, Any]:
    """Return the fields of one entry as Python scalars; None where a value is not set, and the field may be null.

    Raises:
        InvalidArgument: neither `value` nor `fields`, and a field may not be null; both of them; or a value that is
            not a scalar.
    """
    if request.HasField("value"):
        if request.fields:
            raise InvalidArgument("give either value or fields", field="value")
        if len(spec.fields) != 1:
            raise InvalidArgument(
                f"window {spec.name!r} has the fields {', '.join(spec.fields)}: give them in fields, not value",
                field="value",
            )
        return {next(iter(spec.fields)): request.value}
    nullable = spec.nullable or ()
    if not request.fields and len(nullable) < len(spec.fields):
        raise InvalidArgument("the entry has neither value nor fields", field="value")
    return {
        name: None if name in nullable and value.WhichOneof("kind") is None else _scalar(value, f"fields.{name}")
        for name, value in request.fields.items()
    }


def key_of(request: pb.InsertRequest | pb.AdmitRequest | pb.BulkEvictRequest, spec: WindowSpec) -> str | None:
    """Return the key of a write, which may be given by its parts.

    Raises:
        InvalidArgument: a part is missing or unknown, or there is a key, too.
    """
    key = request.key if request.HasField("key") else None
    if not request.parts:
        return key
    if key is not None:
        raise InvalidArgument("give either key or parts", field="parts")
    return _key_of_parts(request.parts, spec.parts, f"window {spec.name!r}")


def row_of(request: pb.AdmitRequest, spec: WindowSpec) -> Batch:
    """Return the one row of a write that decides; raises InvalidArgument as `entry_of` and `key_of`."""
    return Batch.of_row(spec, required(request, "time"), entry_of(request, spec), key_of(request, spec))


def check_alone(request: pb.AdmitRequest) -> None:
    """Check that a write that decides has several rows only; raises InvalidArgument."""
    given = [name for name in ("key", "time", "value") if request.HasField(name)]
    given += [name for name in ("fields", "parts") if getattr(request, name)]
    if given:
        raise InvalidArgument(f"give either entries or {given[0]}", field=given[0])
    entries = request.entries
    if entries.window not in ("", request.window):
        raise InvalidArgument("the entries are for another window than the request", field="entries.window")
    if origin_of(entries) is not None:
        raise InvalidArgument("the producer is that of the request: leave it out of entries", field="entries.producer")


def limits_of(request: pb.AdmitRequest) -> Sequence[Limit]:
    """Return the limits of a write that decides; the window checks them."""
    found = []
    for each in request.limits:
        if each.by and each.all_keys:
            raise InvalidArgument("give either by or all_keys", field="limits.all_keys")
        by = tuple(each.by) if each.by or each.all_keys else None
        value = each.integer if each.HasField("integer") else each.value
        found.append(Limit(each.aggregate, each.lookback, cast(Comparison, each.op or "<="), value, by))
    return tuple(found)


@calls.refusing
def document_of(message: pb.WindowSpec) -> dict[str, Any]:
    """Return a spec as the document that `WindowSpec.parse` validates, without what is not set."""
    return specs.document_of(message)


@calls.refusing
def aggregates_of(messages: Mapping[str, pb.AggregateSpec]) -> dict[str, Any]:
    """Return aggregates by name, as in the document that `WindowSpec.parse` validates."""
    return specs.aggregates_of(messages)


def _scalar(value: pb.Value, path: str) -> Any:
    kind = value.WhichOneof("kind")
    if kind not in ("float64", "int64", "string", "bool"):
        raise InvalidArgument(f"{path} must be a float64, int64, string or bool", field=path)
    return getattr(value, kind)


# ---------------------------------------------------------------- responses


def _writer(message: type[M], result: type[Any], but: Sequence[str] = ()) -> Callable[[Any], M]:
    """Return what makes a message of a result: the fields of both, by their names, but messages; None is unset."""
    single = {each.name for each in message.DESCRIPTOR.fields if each.message_type is None}
    names = [each.name for each in fields(result) if each.name in single.difference(but)]
    values = attrgetter(*names)
    return lambda found: message(**dict(zip(names, values(found), strict=True)))


_info = _writer(pb.WindowInfo, WindowInfo)
_counts = _writer(pb.Counts, Counts)
_written = _writer(pb.InsertResponse, WriteResult)
_admitted = _writer(pb.AdmitResponse, Admission, but=["retry_after"])
changed: Callable[[WriteResult], pb.ChangeResponse] = _writer(pb.ChangeResponse, WriteResult)
evicted: Callable[[WriteResult], pb.BulkEvictResponse] = _writer(pb.BulkEvictResponse, WriteResult)
punctuated: Callable[[WriteResult], pb.PunctuateResponse] = _writer(pb.PunctuateResponse, WriteResult)


def fill_answer(message: pb.Answer, answer: Answer) -> None:
    """Write an answer into an empty message."""
    if answer.key is not None:
        message.key = answer.key
    if answer.start is not None:
        message.start = answer.start
    if answer.end is not None:
        message.end = answer.end
    message.entries = answer.entries
    if answer.lookback is not None:
        message.lookback = answer.lookback
    aggregates = message.aggregates
    for name, value in answer.aggregates.items():
        fill_value(aggregates[name], value)
    if answer.parts is not None:
        message.parts.update(answer.parts)
    if answer.known_at is not None:
        message.known_at = answer.known_at
    for name, partial in (answer.partials or {}).items():
        fill_partials(message.partials[name], partial)


def fill_groups(message: pb.Answer, answers: Page[Answer]) -> None:
    """Write the answers of groups into an empty message."""
    for answer in answers:
        fill_answer(message.groups.add(), answer)
    if answers.position is not None:
        message.next = answers.position


def written(result: WriteResult) -> pb.InsertResponse:
    """Return the result of a write as a message."""
    message = _written(result)
    for answer in result.answers:
        fill_answer(message.answers.add(), answer)
    return message


def admitted(result: Admission) -> pb.AdmitResponse:
    """Return the result of a write that decides as a message."""
    message = _admitted(result)
    if result.refused:
        message.retry_after.extend([-1 if each is None else each for each in result.retry_after])
    for limit in result.limits:
        told = message.limits.add(holds=limit.holds)
        for answer, remaining in zip(limit.answers, limit.remaining, strict=True):
            fill_value(told.answers.add(), answer)
            fill_value(told.remaining.add(), remaining)
    return message


def fill_series(message: pb.SeriesResponse, series: Series) -> None:
    """Write a series into an empty message."""
    if series.key is not None:
        message.key = series.key
    message.time, message.width = to_bytes(series.times), series.width
    if series.last is not None:
        message.last = to_bytes(series.last)
    _fill_buckets(message, series)


def fill_series_groups(message: pb.SeriesResponse, groups: Page[Series]) -> None:
    """Write a series of each group into an empty message."""
    for series in groups:
        message.time, message.width = to_bytes(series.times), series.width
        part = message.groups.add()
        if series.key is not None:
            part.key = series.key
        _fill_buckets(part, series)
    if groups.position is not None:
        message.next = groups.position


def _fill_buckets(message: pb.SeriesResponse, series: Series) -> None:
    message.entries = to_bytes(series.entries)
    if series.parts is not None:
        message.parts.update(series.parts)
    for name, answers in series.aggregates.items():
        fill_answers(message.aggregates[name], answers)


def answers_at_steps(found: Sequence[AnswerColumns], missing: Iterable[int]) -> Steps[pb.AnswersAtResponse]:
    """Return the answers about pairs as a message, a column in a step, and the shards that they lack."""
    response = pb.AnswersAtResponse(missing_shards=missing)
    for each in found:
        message = response.answers.add()
        if each.entries.dtype.hasobject:
            there = each.entries != None  # noqa: E711  of each item
            message.valid = there.tobytes()
            message.entries = to_bytes(np.where(there, each.entries, 0).astype(np.int64))
        else:
            message.entries = to_bytes(each.entries)
        if each.lookback is not None:
            message.lookback = each.lookback
        for name, answers in each.aggregates.items():
            fill_answers(message.aggregates[name], answers)
            yield
    return response


def fill_window(message: pb.WindowInfo, window: WindowInfo) -> None:
    """Write the description of a window into an empty message."""
    specs.fill_spec(message.spec, window.spec.model_dump(by_alias=True))
    message.MergeFrom(_info(window))
    message.counts.MergeFrom(_counts(window.counts))
