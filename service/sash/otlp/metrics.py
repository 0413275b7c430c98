"""OTLP metrics: points become entries of windows, as samples of remote write do.

    gauge                       the value, at its time
    sum, delta                  the value, at its time: sum it
    sum, cumulative             the count, at its time, and a 0 where it started: ask for its increase or its rate
    sum, cumulative, up or down the value, as of a gauge
    histograms, delta           partials of a window with a granularity: `histograms`
    summaries                   rejected
    exemplars                   ignored

    count        3    7         2    9        the process was started anew at the second S
              S────T────T    S────T────T
    entries   0  3    7      0  2    9        increase: 3 + 4 + 2 + 7, also where the first count were 8

A cumulative count is a difference only between two points, and these may come to two processes, or before and after a
restart. So nothing is subtracted here: the window keeps the counts, and the fold of `increase` subtracts. The 0 says
where a count began, which the counts alone do not say when the new one is larger than the old one was.

A point that is sent again has the same key and time, and its start the same 0. The window keeps one entry of each key
and time (`order.equal_times`), so a repeated export changes nothing.

A window with a granularity keeps no times. There each series is a producer, and the time of a point the epoch of its
write: a repeated one was applied, and an older one is refused. So the points of a series have to come in order.

Source: opentelemetry.io/docs/specs/otel/metrics/data-model, opentelemetry.io/docs/specs/otlp.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

import numpy as np
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    DESCRIPTOR,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags

from sash.calls import refusing
from sash.context import serving
from sash.durability.records.commands import BulkInsert
from sash.limits.memory import MemoryBudget
from sash.otlp.histograms import KINDS, Maker, makers_of, partials_of
from sash.plane import Plane
from sash.prometheus.names import KEY
from sash.prometheus.remote_write import Columns, Target, applied, target_of, told, written
from sash.rpc.methods import Method
from sash.runtime.metrics import Metrics
from sash_engine.errors import (
    InvalidArgument,
    PermissionDenied,
    ProducerFenced,
    SashError,
    SequenceReused,
    TooLarge,
)
from sash_engine.steps import Steps
from sash_engine.windows.batches.batch import Coded, Origin, PartialBatch, check_key
from sash_engine.windows.spec.window import NANOSECONDS_PER_TICK, WindowSpec
from sash_wire.labels import join
from sash_wire.mapping import source_of, sources

SERVICE: str = DESCRIPTOR.services_by_name["MetricsService"].full_name
Request = ExportMetricsServiceRequest

BYTES_MAX = 4 << 20
"""Of a request. An SDK sends some kilobytes, a Collector 8,192 points at a time, which are 1 to 2 MB."""

PARSED = 70
"""So many times its bytes a request takes at most when it is parsed: 67, where all of it are empty points of
exponential histograms, and 35 of numbers."""

METRIC = "otel_metric"
"""Stands for the metric's name, among the attributes."""

_POINT_BYTES = 120
"""As of a sample of remote write."""
_POINTS_A_STEP = 200
_MESSAGES_A_STEP, _MESSAGES_MAX = 100, 100_000
"""Resources, scopes and metrics. An empty one takes two bytes and 2.5 µs."""
_ATTRIBUTES_MAX = 200
_STARTS_MAX = 100_000
"""Keys whose start is remembered. Of others it is written again, and the window has it already."""
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_COUNTERS = ("increase", "rate")
_SERIES_AT_ONCE = 64
"""Writes of series that are under way together: some 5 ms of work, and one commit."""

_REFUSED: Mapping[type[SashError], str] = {
    ProducerFenced: "a point is older than the last one of its series; does another process export the same one? Give "
    "each an attribute service.instance.id",
    SequenceReused: "a point has the time of another one of its series, and not its values",
}

Attributes = Mapping[str, Any]
_Starts = dict[tuple[str, str | None], tuple[WindowSpec, int]]


@dataclass(frozen=True)
class _Rules:
    """Which window points go to, and which attributes are the key; by default the metric's name is the window's."""

    window: str | None
    key: str
    parts: Mapping[str, str]

    @classmethod
    def of(cls, header: Callable[[str], str | None]) -> _Rules:
        """Read them from the headers `sash-window`, `sash-key` and `sash-parts` of a call.

        Raises:
            InvalidArgument: `sash-parts` is no list of part=attribute.
        """
        parts = dict[str, str]()
        for each in (header("sash-parts") or "").split(","):
            part, equals, attribute = (text.strip() for text in each.partition("="))
            if equals and part not in parts:
                parts[part] = attribute
            elif each.strip():
                raise InvalidArgument(
                    f"sash-parts: {each[:80]!r} is not part=attribute, or names a part twice", field="sash-parts"
                )
        return cls(header("sash-window"), header("sash-key") or KEY, parts)

    @refusing
    def attributes(self, spec: WindowSpec) -> list[str]:
        """The attributes that are the parts of a window's key, or its key; none where it is not keyed."""
        known = {"name": spec.name, "fields": spec.fields, "keys": spec.parts, "keyed": spec.keyed}
        if spec.parts and self.window is not None:
            found = sources(known, "time", parts=self.parts)
        else:
            found = sources(known, "time", None if spec.parts else self.key, shared=self.parts)
        named = [found.parts[part] for part in spec.parts] or ([] if found.key is None else [found.key])
        return [".".join(source_of(text, "sash-parts").path) for text in named]


@dataclass(frozen=True)
class _Route:
    """Where the points of a metric go."""

    target: Target
    attributes: list[str]
    counts: bool = False
    """Whether the window is for cumulative counts."""
    makers: Mapping[str, Maker] | None = None
    """What makes the partials of a window that takes histograms; None: it takes numbers."""

    @property
    def ns_per_tick(self) -> int:
        """Nanoseconds of a tick."""
        return NANOSECONDS_PER_TICK[self.target.spec.time_unit]


class _Export:
    """One request: its entries by window, and the points that are rejected.

    Args:
        plane: knows the windows.
        need: raises if there is no memory for so many bytes.
        rules: where points go.
        known: where counts began; see `OtlpMetrics`.
    """

    def __init__(self, plane: Plane, need: Callable[[int], None], rules: _Rules, known: _Starts) -> None:
        self._plane, self._need, self._rules, self._known = plane, need, rules, known
        self._routes = dict[tuple[str, bool], _Route]()
        self.columns = dict[str, Columns]()
        self.points = dict[str, int]()
        """By window: entries that stand for points, and not for where counts began."""
        self.starts = dict[str, dict[str | None, int]]()
        self.series = dict[tuple[str, str], dict[int, PartialBatch]]()
        """By window and series: the points of histograms, by time."""
        self.taken = self.rejected = 0
        self.reasons = dict[str, None]()
        self.denied: PermissionDenied | None = None

    def reject(self, points: int, reason: str) -> None:
        self.rejected += points
        self.reasons[reason] = None

    def sort(self, request: Request, points_max: int) -> Steps[None]:
        """Sort the points by window."""
        for number, (resource, scope, metric) in enumerate(_each(request)):
            if not number % _MESSAGES_A_STEP:
                yield
            if number == _MESSAGES_MAX:
                raise TooLarge(
                    "too many metrics in one request: make its batches smaller",
                    field="resource_metrics",
                    limit=f"{_MESSAGES_MAX} resources, scopes and metrics",
                )
            if metric is None or (kind := metric.WhichOneof("data")) is None:
                continue
            data = getattr(metric, kind).data_points
            self.taken += len(data)
            if self.taken > points_max:
                raise TooLarge(
                    "too many points in one request: make its batches smaller",
                    field="resource_metrics",
                    limit=f"{points_max} points",
                )
            self._need(_POINT_BYTES * len(data))
            try:
                if kind == "summary":
                    raise InvalidArgument(f"metric {metric.name[:80]!r} is a summary, which is not taken")
                shared = _named(resource.attributes)
            except InvalidArgument as error:
                self.reject(len(data), error.message)
            else:
                yield from self._take(metric, kind, data, shared, scope)

    def _take(self, metric: Any, kind: str, data: Any, shared: Attributes, scope: str) -> Steps[None]:
        """Take the points of a metric."""
        window, folds = metric.name if self._rules.window is None else self._rules.window, kind in KINDS
        try:
            if (route := self._routes.get((window, folds))) is None:
                route = self._routes[window, folds] = (self._folding if folds else self._route)(window)
            counts = _check_kind(metric, kind, route)
        except SashError as error:
            if isinstance(error, InvalidArgument) and (error.field or "").partition(".")[0] in ("parts", "sash-parts"):
                raise  # no point of any request with these headers would be taken
            if isinstance(error, PermissionDenied):
                self.denied = error
            self.reject(len(data), error.message)
            return
        spec = route.target.spec
        columns = self.columns.get(spec.name) or Columns(route.target)
        for number, point in enumerate(data, 1):
            if not number % _POINTS_A_STEP:
                yield
            if point.flags & _NO_VALUE:
                continue
            if folds:
                yield
            try:
                if folds:
                    self._pane(route, kind, metric.name, point, shared, scope)
                    continue
                self._insert(columns, route, counts, metric.name, point, shared)
            except InvalidArgument as error:
                self.reject(1, error.message)
                continue
            self.columns[spec.name] = columns
            self.points[spec.name] = self.points.get(spec.name, 0) + 1

    def _insert(
        self, columns: Columns, route: _Route, counts: bool, metric: str, point: Any, shared: Attributes
    ) -> None:
        """Make an entry of a point, and one of where its count began.

        Raises:
            InvalidArgument: it cannot be taken.
        """
        if (value := point.WhichOneof("value")) is None:
            raise InvalidArgument(f"a point of metric {metric[:80]!r} has no value")
        key, attributes = _placed(route, metric, point, shared)
        columns.own(key, metric, attributes)
        time = point.time_unix_nano // route.ns_per_tick
        if counts and 0 < point.start_time_unix_nano < point.time_unix_nano:
            start = point.start_time_unix_nano // route.ns_per_tick + 1
            self._begin(columns, key, start)
            time = max(time, start + 1)
        columns.append(time, float(getattr(point, value)), key)

    def _pane(self, route: _Route, kind: str, metric: str, point: Any, shared: Attributes, scope: str) -> None:
        """Make partials of a point of a histogram; one without values is none. Raises InvalidArgument as `_insert`."""
        key, attributes = _placed(route, metric, point, shared)
        if not point.count:
            return
        assert route.makers is not None
        try:
            partials = partials_of(route.makers, kind, point)
        except InvalidArgument as error:
            raise InvalidArgument(f"metric {metric[:80]!r}: {error.message}") from None
        self._need(sum(len(part.item(0)) for parts in partials.values() for part in parts if part.dtype == object))
        time = np.array([point.time_unix_nano // route.ns_per_tick], np.int64)
        keys = None if key is None else Coded.of([key])
        batch = PartialBatch(time, partials, np.array([point.count], np.int64), keys)
        place = (route.target.spec.name, _series(scope, attributes))
        if self.series.setdefault(place, {}).setdefault(point.time_unix_nano, batch) is not batch:
            raise InvalidArgument(_REFUSED[SequenceReused])

    def _begin(self, columns: Columns, key: str | None, start: int) -> None:
        """Make an entry of where a count began: in the tick behind its start, because the count before may end there.

        A count of that tick is moved behind it, so that no entry of a count is before its 0.
        """
        spec = columns.target.spec
        had = self._known.get((spec.name, key))
        if had is not None and had[0] is spec and had[1] == start:
            return
        starts = self.starts.setdefault(spec.name, {})
        if starts.get(key) != start:
            starts[key] = start
            columns.append(start, 0.0, key)

    def _route(self, window: str) -> _Route:
        """Where points go.

        Raises:
            NotFound, InvalidArgument: nowhere.
            PermissionDenied: the caller may not write there.
        """
        target = target_of(self._plane, window)
        spec = target.spec
        counts = any(each.function in _COUNTERS for each in spec.aggregates.values())
        if counts and "reject" in (spec.order.late, spec.order.out_of_order):
            raise InvalidArgument(
                f"window {window!r} keeps counts, and refuses late entries or those out of order, as the start of a "
                "count may be; have it drop or allow them"
            )
        return _Route(target, self._rules.attributes(spec), counts)

    def _folding(self, window: str) -> _Route:
        """Where points of histograms go; raises as `_route`."""
        spec = self._plane.spec(window, "bulk_insert")
        return _Route(Target(spec, ""), self._rules.attributes(spec), makers=makers_of(spec))


class OtlpMetrics:
    """Takes points.

    Args:
        plane: applies them.
        memory: where what they take is reserved.
        entries_max: the most points of a request.
        metrics: count what becomes of points.
    """

    def __init__(self, plane: Plane, memory: MemoryBudget, entries_max: int, metrics: Metrics) -> None:
        self._plane = plane
        self._metrics = metrics
        self._memory = memory
        self._entries_max = entries_max
        self._starts: _Starts = {}
        """Where the count of a key began, as its window has it: what is here need not be written again."""

    async def export(self, request: Request) -> ExportMetricsServiceResponse:
        """Take one request. What can be applied is applied; the answer says how much was rejected, and why.

        Raises:
            Unavailable: the same request may succeed later.
            InvalidArgument: the headers are wrong.
            PermissionDenied: none of it may be written.
        """
        await self._plane.learn()
        found = _Export(self._plane, self._memory.need, _Rules.of(serving().header), self._starts)
        await self._plane.parsed(found.sort(request, self._entries_max))
        if found.denied is not None and not found.columns and not found.series:
            raise found.denied
        refused = await applied(self._plane, found.columns)
        for window, error in refused.items():
            found.reject(found.points[window], error.message)
        repeated = await self._fold(found)
        for window, starts in found.starts.items():
            if window not in refused:
                self._remember(found.columns[window].target.spec, starts)
        self._metrics.count_points(found.taken - found.rejected - repeated, found.rejected, repeated)
        response = ExportMetricsServiceResponse()
        if found.rejected:
            response.partial_success.rejected_data_points = found.rejected
            response.partial_success.error_message = told(list(found.reasons))
        return response

    async def _fold(self, found: _Export) -> int:
        """Write the points of histograms; return how many were written before. Raises Unavailable as `applied`.

        The first point of a series in a request begins an epoch, which is its time; the next ones are later writes of
        it, so that a repeated request finds all of them.
        """
        repeated, places = 0, dict[tuple[str, str], Origin]()
        turns = zip_longest(*(sorted(points.items()) for points in found.series.values()))
        for turn in turns:
            there = deque((place, *each) for place, each in zip(found.series, turn, strict=True) if each is not None)
            while there:
                writes = {}
                for place, time_ns, batch in (there.popleft() for _ in range(min(_SERIES_AT_ONCE, len(there)))):
                    origin = places.setdefault(place, Origin(place[1], 1, epoch=time_ns))
                    writes[place] = self._plane.write(place[0], BulkInsert(batch), origin)
                results, refused = await written(writes)
                repeated += sum(result.already_applied for result in results.values())
                for place, error in refused.items():
                    found.reject(1, _REFUSED.get(type(error), error.message))
                    if isinstance(error, ProducerFenced):
                        del places[place]  # the next point may be newer
                for place in writes:
                    if place in results or isinstance(refused[place], SequenceReused):
                        places[place] = replace(places[place], sequence=places[place].sequence + 1)
        return repeated

    def _remember(self, spec: WindowSpec, starts: Mapping[str | None, int]) -> None:
        if len(self._starts) + len(starts) > _STARTS_MAX:
            self._starts.clear()
        self._starts.update({(spec.name, key): (spec, start) for key, start in starts.items()})


def method_of(metrics: OtlpMetrics) -> Method:
    """The method by which gRPC takes points."""
    return Method(
        "Export", metrics.export, Request, False, False, False, service=SERVICE, bytes_max=BYTES_MAX, parsed=PARSED
    )


def _check_kind(metric: Any, kind: str, route: _Route) -> bool:
    """Return whether the points of a metric are counts since their start; raises InvalidArgument if it has no place."""
    name, window = metric.name[:80], route.target.spec.name
    if route.makers is not None and getattr(metric, kind).aggregation_temporality != _DELTA:
        raise InvalidArgument(f"metric {name!r} is a histogram that is not of deltas: have the exporter send those")
    if kind != "sum":
        return False
    temporality = metric.sum.aggregation_temporality
    if temporality not in (_CUMULATIVE, _DELTA):
        raise InvalidArgument(f"metric {name!r} does not say whether its sum is cumulative")
    if temporality == _DELTA and route.counts:
        raise InvalidArgument(
            f"metric {name!r} is a sum of deltas, and window {window!r} keeps counts, of which it answers the increase "
            "or rate"
        )
    if temporality == _DELTA or not metric.sum.is_monotonic:
        return False
    if not route.counts:
        raise InvalidArgument(
            f"metric {name!r} is a cumulative sum: give window {window!r} an aggregate increase or rate, or have the "
            "exporter send deltas"
        )
    return True


def _each(request: Request) -> Iterator[tuple[Any, str, Any]]:
    """Each metric with its resource and scope; without a metric, what is empty: it costs time, too."""
    for resource in request.resource_metrics:
        yield resource.resource, "", None
        for scope in resource.scope_metrics:
            yield resource.resource, "", None
            for metric in scope.metrics:
                yield resource.resource, scope.scope.name, metric


def _placed(route: _Route, metric: str, point: Any, shared: Attributes) -> tuple[str | None, Attributes]:
    """The key of a point, and its attributes with those of its resource; raises InvalidArgument as `_insert`."""
    if not 0 < point.time_unix_nano < 2**63:
        raise InvalidArgument(f"a point of metric {metric[:80]!r} has no time, or one that is out of range")
    attributes = {**shared, **_named(point.attributes), METRIC: metric}
    key = None
    if route.target.spec.keyed:
        key = _key_of(route.target.spec, route.attributes, attributes)
        check_key(key)
    return key, attributes


def _series(scope: str, attributes: Attributes) -> str:
    """The name of a series as a producer: of all that tells it from others."""
    found = blake2b(scope.encode(), digest_size=16)
    for name, value in sorted(attributes.items()):
        data = value.encode() if isinstance(value, str) else value.SerializeToString(deterministic=True)
        for each in (name.encode(), data):
            found.update(len(each).to_bytes(4) + each)
    return f"otlp {found.hexdigest()}"


def _named(attributes: Sequence[Any]) -> dict[str, Any]:
    if len(attributes) > _ATTRIBUTES_MAX:
        raise InvalidArgument(f"a point or a resource has {len(attributes)} attributes; {_ATTRIBUTES_MAX} are taken")
    return {each.key: each.value for each in attributes}


def _key_of(spec: WindowSpec, names: list[str], attributes: Attributes) -> str:
    texts = [_text(name, attributes.get(name, "")) for name in names]
    if spec.parts:
        return join(texts)
    if not texts[0]:
        raise InvalidArgument(f"window {spec.name!r} is keyed, and a point has no attribute {names[0][:80]!r}")
    return texts[0]


def _text(name: str, value: Any) -> str:
    """An attribute as a part of a key.

    Raises:
        InvalidArgument: it is a list, a map or bytes.
    """
    if isinstance(value, str):
        return value
    match value.WhichOneof("value"):
        case None:
            return ""
        case "string_value":
            return str(value.string_value)
        case "bool_value":
            return "true" if value.bool_value else "false"
        case "int_value" | "double_value" as kind:
            return str(getattr(value, kind))
        case kind:
            raise InvalidArgument(f"attribute {name[:80]!r} is {kind.removesuffix('_value')}, and no part of a key is")
