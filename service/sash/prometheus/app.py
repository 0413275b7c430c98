"""Serves the HTTP API of Prometheus as an ASGI app.

    GET, POST  /prometheus/api/v1/query  query_range  labels  series  query_exemplars  format_query
    GET        /prometheus/api/v1/label/<name>/values  metadata  status/buildinfo  rules  alerts
    GET        /prometheus/federate
    POST       /prometheus/api/v1/write  application/x-protobuf, compressed by snappy

Forms are taken here and nowhere else. They change nothing, and `Guard`, which stands ahead, refuses those of other
sites' pages.

Source: prometheus.io/docs/prometheus/latest/querying/api; the requests of Grafana's data source.
"""

from __future__ import annotations

import contextlib
import logging
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import promql_parser
from starlette.types import Receive, Scope, Send

from sash.limits.memory import MemoryBudget
from sash.plane import Plane
from sash.prometheus.documents import TEXT, entries_steps, exposed, failure, instant_steps, range_steps, success
from sash.prometheus.metadata import Metadata
from sash.prometheus.names import MetricNames
from sash.prometheus.queryable import WindowsQueryable
from sash.prometheus.remote_write import RemoteWrite
from sash.prometheus.requests import Parameters, headers_of, parameters_of, respond
from sash.prometheus.series import Selectors
from sash.promql.errors import BadData
from sash.promql.evaluate import NAMES, Evaluator
from sash.promql.parsing import parsed, parsed_selector, pretty
from sash.promql.times import Times, duration_ms, ms_of, range_steps_of, time_ms
from sash.promql.values import Room, Text, Vector
from sash.rest.bodies import Gone
from sash.runtime.metrics import Metrics
from sash_engine.clock import Clock
from sash_engine.errors import SashError
from sash_engine.version import version

PREFIX = "/prometheus/"

Answer = bytes | list[bytes]
_Route = tuple[Sequence[str], Callable[[Parameters], Awaitable[Answer]] | None]
"""The methods of a path, and what answers; None: remote write, which has a body of its own."""

_API = f"{PREFIX}api/v1/"
_WRITE = f"{_API}write"
_FEDERATE = f"{PREFIX}federate"
_LABEL, _VALUES = f"{_API}label/", "/values"
_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", TEXT.encode())
_log = logging.getLogger(__name__)


class PrometheusApp:
    """Serves everything under `PREFIX`.

    Args:
        plane: the operations, called on the event loop that serves the app.
        metrics: counts requests that end in an error.
        clock: says what now is, where a request does not.
        remote_write: takes samples.
        memory: what expressions may take.
    """

    def __init__(
        self, plane: Plane, metrics: Metrics, clock: Clock, remote_write: RemoteWrite, memory: MemoryBudget
    ) -> None:
        self._plane = plane
        self._memory = memory
        self._remote_write = remote_write
        self._metrics = metrics
        self._clock = clock
        self._names = MetricNames()
        self._metadata = Metadata(plane, self._names, memory)
        both, reads = ("GET", "POST"), ("GET",)
        self._routes: Mapping[str, _Route] = {
            f"{_API}query": (both, self._query),
            f"{_API}query_range": (both, self._query_range),
            f"{_API}format_query": (both, self._format),
            f"{_API}labels": (both, self._labels),
            f"{_API}series": (both, self._series),
            f"{_API}metadata": (reads, self._metadata_of),
            f"{_API}query_exemplars": (both, self._nothing([])),
            f"{_API}rules": (reads, self._nothing({"groups": []})),
            f"{_API}alerts": (reads, self._nothing({"alerts": []})),
            f"{_API}status/buildinfo": (reads, self._buildinfo),
            _FEDERATE: (reads, self._federate),
            _WRITE: (("POST",), None),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; `scope` is one of HTTP."""
        path = scope["path"]
        route = self._found(path)
        if route is None:
            await respond(send, HTTPStatus.NOT_FOUND, [(b"content-type", b"text/plain")], [b"404 page not found\n"])
            return
        methods, handler = route
        if scope["method"] not in methods:
            await respond(send, HTTPStatus.METHOD_NOT_ALLOWED, [(b"allow", ", ".join(methods).encode())], [])
            return
        answer: Answer = []
        try:
            if handler is None:
                await self._plane.learn()
                await self._remote_write.write(scope, receive)
                status, headers = HTTPStatus.NO_CONTENT, []
            else:
                given = await parameters_of(scope, receive)
                await self._plane.learn()
                answer = await handler(given)
                status, headers = HTTPStatus.OK, [_TEXT if path == _FEDERATE else _JSON]
        except Gone:
            return
        except SashError as error:
            await self._fail(send, error)
        except Exception:
            _log.exception("%s %s failed", scope["method"], path)
            await self._fail(send, SashError("the service failed; its log says how"), HTTPStatus.INTERNAL_SERVER_ERROR)
        else:
            await respond(send, status, headers, [answer] if isinstance(answer, bytes) else answer)

    async def refuse(self, scope: Scope, receive: Receive, send: Send, error: SashError) -> None:
        """Answer a request that may not come in."""
        await self._fail(send, error)

    def _found(self, path: str) -> _Route | None:
        name = path.removeprefix(_LABEL).removesuffix(_VALUES)
        if name and path == f"{_LABEL}{name}{_VALUES}":
            return ("GET",), lambda given: self._values(name, given)
        return self._routes.get(path)

    # ---------------------------------------------------------------- handlers

    async def _query(self, given: Parameters) -> Answer:
        expr = parsed(given.text("query"), known=NAMES)
        at = given.text("time", "")
        times = Times(time_ms(at, "time") if at else ms_of(self._clock.now_ns() / 1e9), 1, 1)
        windows = self._queryable()
        if isinstance(expr, promql_parser.MatrixSelector):
            series = await windows.entries(expr, times)
            return await windows.in_slices(entries_steps(series, windows.selectors.warnings))
        value = await Evaluator(windows, times).evaluated(expr)
        return await windows.in_slices(instant_steps(value, times, windows.selectors.warnings))

    async def _query_range(self, given: Parameters) -> Answer:
        start, end = time_ms(given.text("start"), "start"), time_ms(given.text("end"), "end")
        times = range_steps_of(start, end, duration_ms(given.text("step"), "step"))
        expr = parsed(given.text("query"), known=NAMES)
        if isinstance(expr, promql_parser.MatrixSelector | promql_parser.StringLiteral):
            kind = "string" if isinstance(expr, promql_parser.StringLiteral) else "range vector"
            raise BadData(
                f'invalid parameter "query": invalid expression type "{kind}" for range query, must be Scalar or '
                "instant Vector",
                field="query",
            )
        windows = self._queryable()
        value = await Evaluator(windows, times).evaluated(expr)
        if isinstance(value, Text):
            raise BadData('invalid parameter "query": a string has no range', field="query")
        return await windows.in_slices(range_steps(value, times, windows.selectors.warnings))

    def _queryable(self) -> WindowsQueryable:
        """The windows, for one expression."""
        return WindowsQueryable(self._plane, Selectors(self._plane, self._names, Room(self._memory)))

    async def _format(self, given: Parameters) -> Answer:
        return success(pretty(given.text("query")))

    async def _labels(self, given: Parameters) -> Answer:
        return success(*await self._metadata.labels(given))

    async def _values(self, name: str, given: Parameters) -> Answer:
        return success(*await self._metadata.values(name, given))

    async def _series(self, given: Parameters) -> Answer:
        if not given.all("match[]"):
            raise BadData("no match[] parameter provided", field="match[]")
        return success(*await self._metadata.series(given))

    async def _metadata_of(self, given: Parameters) -> Answer:
        return success(self._metadata.metadata(given))

    async def _buildinfo(self, _: Parameters) -> Answer:
        return success(
            {
                # Grafana asks for what a Prometheus of this version has: `limit`, and `match[]` of labels.
                "version": "2.42.0",
                "revision": f"sash-{version()}",
                "branch": "",
                "buildUser": "",
                "buildDate": "",
                "goVersion": "",
                "application": "Sash",
                "pythonVersion": platform.python_version(),
            }
        )

    async def _federate(self, given: Parameters) -> Answer:
        times = Times(ms_of(self._clock.now_ns() / 1e9), 1, 1)
        windows = self._queryable()
        asked = [parsed_selector(text) for text in self._metadata.selectors(given)]
        for selector in asked:
            windows.expect(selector)
        vectors = list[Vector]()
        with contextlib.ExitStack() as waiting:
            for selector in asked:
                vectors.append(await windows.instant(selector, times))
                waiting.enter_context(windows.room.held(vectors[-1]))
            return await windows.in_slices(exposed(vectors, times))

    def _nothing(self, data: Any) -> Callable[[Parameters], Awaitable[Answer]]:
        answer = success(data)

        async def found(_: Parameters) -> Answer:
            return answer

        return found

    # ---------------------------------------------------------------- sending

    async def _fail(self, send: Send, error: SashError, status: int | None = None) -> None:
        body, found = failure(error)
        status = status or found
        self._metrics.count_rejected("prometheus", str(int(status)))
        await respond(send, status, [_JSON, *headers_of(error, status)], [body])
