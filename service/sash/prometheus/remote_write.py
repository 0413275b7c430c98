"""Prometheus' remote write 1.0: samples become entries of windows.

    POST …/write                                  the metric's name is window:field, the label `key` is the key
    POST …/write?window=w&field=v&key=instance    all samples go to one field, and another label is the key

A sample that is sent again has the same key and time, and the window keeps one entry of each: so it needs
`order.equal_times: first` (or `last`). Prometheus sends again what was answered with a status of 5xx, and drops what
was answered with one of 4xx. So everything that may go well later is 5xx.

Of the messages, only what is used is described. Protobuf's own parser, in C, reads them, a series at a time: 2 million
labels without anything are 4 MB, and held the event loop for 0.1 s.

    WriteRequest ─▶ timeseries ─▶ labels, samples (value, timestamp in ms), histograms

Source: prometheus.io/docs/specs/prw/remote_write_spec; Prometheus' prompb/types.proto.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import pack
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import cramjam
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from starlette.types import Receive, Scope

from sash.calls import unbroken
from sash.durability.records.commands import BulkInsert
from sash.limits.memory import MemoryBudget
from sash.plane import Plane
from sash.prometheus.names import KEY, written_key
from sash.prometheus.requests import UnsupportedMediaType, header, read_body
from sash.promql.errors import BadData
from sash.promql.values import NAME
from sash.rpc.parsing import LONG_BYTES, parsed
from sash.rpc.sizes import span, varint
from sash.shards.parts import together
from sash_engine.errors import (
    DataLoss,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SashError,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from sash_engine.steps import Steps
from sash_engine.windows.answers import WriteResult
from sash_engine.windows.batches.batch import Batch, Coded, check_key
from sash_engine.windows.spec.window import NANOSECONDS_PER_TICK, TICK_MAX, WindowSpec

W = TypeVar("W", bound=Hashable)

KIND = "application/x-protobuf"
_PER_STEP = 100
"""Series that one step looks at: 0.5 ms."""

_COPIES = 2
"""A decompressed body is in memory once, and each of its series once more while it is read."""

_PARSED = 28
"""A long series takes so many times its bytes at most: it may have labels without anything, which are 2 bytes long."""

_SAMPLE_BYTES = 120
"""What a sample takes on its way: a time, a value and a key, in lists and as columns."""

_PROBLEMS_MAX = 3
_LABELS_MAX = 200
_SERIES_MAX = 100_000
"""Of one request. Prometheus sends 2,000 unless it is told otherwise. An empty one takes two bytes and 2 µs."""
_SAMPLES_A_STEP = 1000
_STALE = pack("<Q", 0x7FF0000000000002)
"""Prometheus' NaN of a series that has ended. It is no sample."""

_AGAIN = (Unavailable, DataLoss)
"""Errors that may go away."""


@dataclass(frozen=True)
class Rules:
    """Which window and field samples go to, and which label is the key; by default the metric's name says so."""

    window: str | None = None
    field: str | None = None
    key: str = KEY

    @classmethod
    def of(cls, query_string: bytes) -> Rules:
        """Read them from a query string.

        Raises:
            BadData: one is unknown.
        """
        given = dict(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=10))
        for name in given:
            if name not in ("window", "field", "key"):
                raise BadData(f"parameter {name[:80]!r} is unknown; write takes window, field and key", field=name)
        if "field" in given and "window" not in given:
            raise BadData("parameter field needs window", field="window")
        return cls(given.get("window"), given.get("field"), given.get("key", KEY))


class Target(NamedTuple):
    """Where the samples of a metric go."""

    spec: WindowSpec
    field: str


@dataclass
class Columns:
    """The samples of a request that are for one window."""

    target: Target
    times: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    series: dict[str | None, Any] = field(default_factory=dict)
    """The labels of the series that has each key."""

    def own(self, key: str | None, metric: str, labels: Mapping[str, str]) -> None:
        """Note which series has a key; raises InvalidArgument if another one has it."""
        told = (metric, labels)
        if self.series.setdefault(key, told) != told:
            raise InvalidArgument(
                f"two series of metric {metric[:80]!r} have the key {key[:80] if key else ''!r} of window "
                f"{self.target.spec.name!r}; their other labels are not kept"
            )

    def append(self, time: int, value: float, key: str | None) -> None:
        """Add an entry; `key` is None where the window has no keys."""
        self.times.append(time)
        self.values.append(value)
        if key is not None:
            self.keys.append(key)

    def batch(self) -> Batch:
        spec, name = self.target
        values = np.array(self.values)
        keys = Coded.of(self.keys) if spec.keyed else None
        return Batch(np.array(self.times, np.int64), {name: values}, keys)


class RemoteWrite:
    """Takes samples.

    Args:
        plane: applies them.
        memory: where parsed requests are reserved.
        body_bytes_max: the largest body.
        entries_max: the most samples of a request.
    """

    def __init__(self, plane: Plane, memory: MemoryBudget, body_bytes_max: int, entries_max: int) -> None:
        self._plane = plane
        self._memory = memory
        self._bytes_max = body_bytes_max
        self._entries_max = entries_max

    async def write(self, scope: Scope, receive: Receive) -> None:
        """Take one request. What can be applied is applied, whatever else is wrong.

        Raises:
            BadData: some samples can never be applied; the others are.
            Unavailable: the same request may succeed later.
            UnsupportedMediaType: it is of another protocol.
        """
        _check_kind(scope)
        rules = Rules.of(scope["query_string"])
        body = await read_body(scope, receive, self._bytes_max)
        length = length_of(body)
        try:
            self._memory.need(_COPIES * length)
            problems = dict[str, None]()
            columns = await self._plane.parsed(self._sorted(body, rules, problems))
        except ResourceExhausted as error:
            raise Unavailable(error.message, limit=error.limit, retry_after_s=error.retry_after_s or 1) from None
        for refused in (await applied(self._plane, columns)).values():
            problems[refused.message] = None
        if problems:
            raise BadData(f"some samples were not taken: {told(list(problems))}")

    def _sorted(self, body: bytes, rules: Rules, problems: dict[str, None]) -> Steps[dict[str, Columns]]:
        """The samples by window."""
        found = dict[str, Columns]()
        targets = dict[str, Target | None]()
        samples = long_bytes = 0
        for number, data in enumerate(read_request(body)):
            if data is None or not number % _PER_STEP:
                yield
            if data is None:
                continue
            if len(data) > max(long_bytes, LONG_BYTES):
                self._memory.need(_PARSED * (len(data) - long_bytes))
                long_bytes = len(data)
            series = yield from read_series(data)
            samples += len(series.samples)
            self._memory.need(_SAMPLE_BYTES * len(series.samples))
            if samples > self._entries_max or number == _SERIES_MAX:
                raise TooLarge(
                    "too many samples or series in one request: make queue_config.max_samples_per_send smaller",
                    field="timeseries",
                    limit=f"{self._entries_max} samples, {_SERIES_MAX} series",
                )
            if len(series.labels) > _LABELS_MAX:
                problems[f"a series has {len(series.labels)} labels; {_LABELS_MAX} are taken"] = None
                continue
            labels = {label.name: label.value for label in series.labels}
            twice = len(labels) < len(series.labels)
            metric = labels.pop(NAME, "")
            if metric not in targets:
                try:
                    targets[metric] = self._target(metric, rules)
                except (Unauthenticated, PermissionDenied):
                    raise
                except SashError as error:
                    problems[error.message] = None
                    targets[metric] = None
            target = targets[metric]
            if target is None:
                continue
            columns = found.setdefault(target.spec.name, Columns(target))
            try:
                if twice:
                    raise InvalidArgument(f"a series of metric {metric[:80]!r} has a label twice")
                yield from self._take(columns, metric, labels, series, rules)
            except InvalidArgument as error:
                problems[error.message] = None
        return {name: each for name, each in found.items() if each.times}

    def _target(self, metric: str, rules: Rules) -> Target:
        """Where samples of a metric go.

        Raises:
            NotFound, InvalidArgument: nowhere.
        """
        window, colon, name = metric.partition(":")
        if rules.window is not None:
            window, name = rules.window, rules.field or ""
        elif not colon:
            raise NotFound(
                f"metric {metric[:80]!r} is no window:field; rename it by write_relabel_configs, or give the "
                "parameter window"
            )
        return target_of(self._plane, window, name)

    def _take(self, columns: Columns, metric: str, labels: dict[str, str], series: Any, rules: Rules) -> Steps[None]:
        spec = columns.target.spec
        if len(series.histograms):
            raise InvalidArgument(f"metric {metric[:80]!r} has native histograms, which windows do not take")
        key = None
        if spec.keyed:
            key = written_key(spec, labels, rules.key)
            check_key(key)
        columns.own(key, metric, labels)
        per_ms, far = 1_000_000 // NANOSECONDS_PER_TICK[spec.time_unit], None
        for number, sample in enumerate(series.samples, 1):
            if not number % _SAMPLES_A_STEP:
                yield
            value = sample.value
            if value != value and pack("<d", value) == _STALE:
                continue
            ticks = sample.timestamp * per_ms
            if not -TICK_MAX < ticks < TICK_MAX:
                far = sample.timestamp
                continue
            columns.append(ticks, value, key)
        if far is not None:
            raise InvalidArgument(f"timestamp {far} of metric {metric[:80]!r} is out of range")


def target_of(plane: Plane, window: str, name: str = "") -> Target:
    """Where samples for a window go, each of which has one value and may be sent again.

    Args:
        name: of the field; empty: the only one.

    Raises:
        NotFound, InvalidArgument, PermissionDenied, Unauthenticated: they do not go there.
    """
    spec = plane.spec(window, "bulk_insert")
    if len(spec.fields) != 1:
        raise InvalidArgument(f"window {window!r} has several fields, and a sample has one value")
    ((only, kind),) = spec.fields.items()
    if (name or only) != only:
        raise InvalidArgument(f"window {window!r} has no field {name[:80]!r}; it has {only}")
    if kind != "float64":
        raise InvalidArgument(f"field {only!r} of window {window!r} is {kind}, and samples are float64")
    if spec.time_unit not in ("ms", "us", "ns"):
        raise InvalidArgument(f"window {window!r} counts in {spec.time_unit!r}, and samples in milliseconds")
    if spec.order.equal_times not in ("first", "last"):
        raise InvalidArgument(
            f"window {window!r} would have samples twice that are sent again; give it order.equal_times: first"
        )
    return Target(spec, only)


def told(problems: Sequence[str]) -> str:
    """The first of some problems, and how many more there are."""
    more = f"; and {len(problems) - _PROBLEMS_MAX} more" if len(problems) > _PROBLEMS_MAX else ""
    return "; ".join(problems[:_PROBLEMS_MAX]) + more


async def applied(plane: Plane, columns: Mapping[str, Columns]) -> dict[str, SashError]:
    """Write samples to all windows at once, so that one commit has them all; return why windows refuse theirs for ever.

    Raises:
        Unavailable, DataLoss: as `written`.
    """
    _, refused = await written({name: plane.write(name, BulkInsert(each.batch())) for name, each in columns.items()})
    return refused


async def written(
    writes: Mapping[W, Coroutine[Any, Any, WriteResult]],
) -> tuple[dict[W, WriteResult], dict[W, SashError]]:
    """Make writes at once; return what became of them, and why others are refused for ever.

    Raises:
        Unavailable: the same request may succeed later; what was applied is then not applied again.
        DataLoss: likewise, and a part of a window is damaged.
    """
    done, refused = await together({name: unbroken(write) for name, write in writes.items()})
    for error in reversed(refused.values()):
        if isinstance(error, ResourceExhausted):  # Prometheus drops what is answered with 429
            raise Unavailable(error.message, limit=error.limit, retry_after_s=error.retry_after_s or 1)
        if isinstance(error, _AGAIN):
            raise error
    return done, refused


def _check_kind(scope: Scope) -> None:
    """Refuse other protocols, and later versions of this one."""
    kind, _, parameters = header(scope, b"content-type").partition(";")
    if kind.strip().lower() != KIND or parameters.replace(" ", "").lower() not in ("", "proto=prometheus.writerequest"):
        given = header(scope, b"content-type")[:80]
        raise UnsupportedMediaType(f"Content-Type {given!r} is not taken; send {KIND}", field="Content-Type")
    if (encoding := header(scope, b"content-encoding")).lower() != "snappy":
        raise UnsupportedMediaType(
            f"Content-Encoding {encoding[:80]!r} is not taken; send snappy", field="Content-Encoding"
        )


# ---------------------------------------------------------------- messages

DECOMPRESSED_BYTES_MAX = 4 << 20
"""Some 15,000 samples, each with its labels."""

_PACKAGE = "sash.prometheus"


def _described() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="sash/prometheus/remote.proto", package=_PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    fields: dict[str, list[tuple[str, int, int, str]]] = {
        "Label": [("name", 1, kinds.TYPE_STRING, ""), ("value", 2, kinds.TYPE_STRING, "")],
        "Sample": [("value", 1, kinds.TYPE_DOUBLE, ""), ("timestamp", 2, kinds.TYPE_INT64, "")],
        "TimeSeries": [
            ("labels", 1, kinds.TYPE_MESSAGE, "Label"),
            ("samples", 2, kinds.TYPE_MESSAGE, "Sample"),
            ("histograms", 4, kinds.TYPE_BYTES, ""),
        ],
        "WriteRequest": [("timeseries", 1, kinds.TYPE_MESSAGE, "TimeSeries")],
    }
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for member, number, kind, of in members:
            many = of or member == "histograms"
            message.field.add(
                name=member,
                number=number,
                type=kind,
                label=kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL,
                type_name=f".{_PACKAGE}.{of}" if of else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _KINDS]


_KINDS = ("WriteRequest", "TimeSeries")
WriteRequest, TimeSeries = _described()
_OTHERS_A_STEP = 2000
_SERIES_TAG = 1 << 3 | 2
"""Of the field `timeseries`."""


def length_of(body: bytes) -> int:
    """How many bytes a compressed body is going to have.

    Raises:
        BadData: it is not compressed by snappy.
        TooLarge: they are too many.
    """
    try:
        length = cramjam.snappy.decompress_raw_len(body) if body else -1
    except cramjam.DecompressionError as error:
        raise _not_snappy(str(error)) from None
    if length < 0:
        raise _not_snappy("it is empty")
    if length > DECOMPRESSED_BYTES_MAX:
        raise TooLarge(
            f"the body has {length} bytes when it is decompressed; {DECOMPRESSED_BYTES_MAX} are allowed: make "
            "queue_config.max_samples_per_send smaller",
            field="body",
            limit=f"{DECOMPRESSED_BYTES_MAX} bytes",
        )
    return int(length)


def read_request(body: bytes) -> Iterator[bytes | None]:
    """Decompress a body whose length is known to be allowed; yield each of its series, which `read_series` parses.

    Beside series, a request may have metadata, which nobody reads. After many of these there is None.

    Raises:
        BadData: it is not compressed by snappy, or no WriteRequest.
    """
    try:
        data = bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise _not_snappy(str(error)) from None
    return _series(data)


def _series(data: bytes) -> Iterator[bytes | None]:
    at = others = 0
    while at < len(data):
        tag, at = varint(data, at)
        start, at = span(data, at, tag & 7)
        if not 0 <= at <= len(data):
            raise _no_request()
        if tag == _SERIES_TAG:
            yield data[start:at]
        elif not tag >> 3:
            raise _no_request()
        else:
            others += 1
            if not others % _OTHERS_A_STEP:
                yield None


def read_series(data: bytes) -> Steps[Any]:
    """Parse a series, in steps where it is long. A series of labels without anything takes 28 times its length.

    Raises:
        BadData: it is none.
    """
    try:
        if len(data) <= LONG_BYTES:
            return TimeSeries.FromString(data)
        return (yield from parsed(TimeSeries, data))
    except DecodeError:
        raise _no_request() from None


def _no_request() -> BadData:
    return BadData("the body is no WriteRequest of remote write 1.0", field="body")


def _not_snappy(why: str) -> BadData:
    return BadData(f"the body is not compressed by snappy: {why[:200]}", field="body")
