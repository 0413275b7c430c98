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
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import promql_parser
from starlette.types import Receive, Scope, Send

from sash.context import HEADER, request_id
from sash.limits.memory import MemoryBudget
from sash.plane import Plane
from sash.prometheus.documents import TEXT, entries_steps, exposed, failure, instant_steps, range_steps, success
from sash.prometheus.metadata import Metadata
from sash.prometheus.names import MetricNames
from sash.prometheus.queryable import WindowsQueryable
from sash.prometheus.remote_write import RemoteWrite
from sash.prometheus.requests import Parameters, parameters_of
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
R = TypeVar("R")

_API = f"{PREFIX}api/v1/"
_WRITE = f"{_API}write"
_FEDERATE = f"{PREFIX}federate"
_JSON = (b"content-type", b"application/json")
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
        self._routes: Mapping[str, tuple[Sequence[str], Callable[[Parameters], Awaitable[Answer]]]] = {
            "query": (both, self._query),
            "query_range": (both, self._query_range),
            "format_query": (both, self._format),
            "labels": (both, self._labels),
            "series": (both, self._series),
            "metadata": (reads, self._metadata_of),
            "query_exemplars": (both, self._nothing([])),
            "rules": (reads, self._nothing({"groups": []})),
            "alerts": (reads, self._nothing({"alerts": []})),
            "status/buildinfo": (reads, self._buildinfo),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; `scope` is one of HTTP."""
        with contextlib.suppress(Gone):
            await self._answer(scope, receive, send)

    async def refuse(self, scope: Scope, receive: Receive, send: Send, error: SashError) -> None:
        """Answer a request that may not come in."""
        await self._fail(send, error)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == _WRITE:
            await self._write(scope, receive, send)
            return
        route, kind = self._found(scope["path"]), _JSON
        if scope["path"] == _FEDERATE:
            route, kind = (("GET",), self._federate), (b"content-type", TEXT.encode())
        if route is None:
            await self._send(send, HTTPStatus.NOT_FOUND, [b"404 page not found\n"], (b"content-type", b"text/plain"))
            return
        methods, handler = route
        if scope["method"] not in methods:
            allow = (b"allow", ", ".join(methods).encode())
            await self._send(send, HTTPStatus.METHOD_NOT_ALLOWED, [], allow)
            return

        async def called() -> Answer:
            given = await parameters_of(scope, receive)
            await self._plane.learn()
            return await handler(given)

        answer = await self._tried(scope, send, called())
        if answer is not None:
            await self._send(send, HTTPStatus.OK, [answer] if isinstance(answer, bytes) else answer, kind)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._send(send, HTTPStatus.METHOD_NOT_ALLOWED, [], (b"allow", b"POST"))
            return

        async def called() -> bool:
            await self._plane.learn()
            await self._remote_write.write(scope, receive)
            return True

        if await self._tried(scope, send, called()):
            await self._send(send, HTTPStatus.NO_CONTENT, [])

    async def _tried(self, scope: Scope, send: Send, call: Coroutine[Any, Any, R]) -> R | None:
        """Await a call; None where it failed, and the failure is answered."""
        try:
            return await call
        except Gone:
            raise
        except SashError as error:
            await self._fail(send, error)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            await self._fail(send, SashError("the service failed; its log says how"), HTTPStatus.INTERNAL_SERVER_ERROR)
        return None

    def _found(self, path: str) -> tuple[Sequence[str], Callable[[Parameters], Awaitable[Answer]]] | None:
        if not path.startswith(_API):
            return None
        rest = path[len(_API) :]
        if rest.startswith("label/") and rest.endswith("/values") and (name := rest[6:-7]):
            return ("GET",), lambda given: self._values(name, given)
        return self._routes.get(rest)

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
        headers = [_JSON, (HEADER.encode(), request_id().encode())]
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, -int(-error.retry_after_s // 1))))
        if status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        await self._send(send, status, [body], *headers)

    async def _send(self, send: Send, status: int, parts: Sequence[bytes], *headers: tuple[bytes, bytes]) -> None:
        length = [] if status == HTTPStatus.NO_CONTENT else [(b"content-length", b"%d" % sum(map(len, parts)))]
        await send({"type": "http.response.start", "status": int(status), "headers": [*headers, *length]})
        for a in range(0, len(parts), 500):
            body = b"".join(parts[a : a + 500])
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
