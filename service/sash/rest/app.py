"""The REST edge: the routes of one plane as a FastAPI app.

    uvicorn ──▶ Front (limits) ──▶ FastAPI ──▶ Route ──▶ a method of Routes ──▶ Plane
                                                └─ an exception becomes a problem document

FastAPI finds the route and keeps the documentation; it does not look at what comes in or goes out. Its
validation would build a model per request, report its own error document, and read any body whole; `Route`
calls the method straight away, which bodies and answers of a bulk pay nothing for. A write is answered when the plane
has it as durable as it promises, and goes on where nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from sash.calls import INTERVAL_MS, QUIET_S, check_interval, key_names, origin_of, unbroken
from sash.metrics import Metrics
from sash.plane import Plane
from sash.rest import arrow, columns, openapi, watch
from sash.rest.answers import (
    answer_document,
    bulk_document,
    eviction_document,
    json_bytes,
    json_response,
    series_document,
    staged_document,
    window_document,
    write_document,
)
from sash.rest.bodies import ARROW, JSON, OCTETS, YAML, media_type, parse_json, prefers, read_body
from sash.rest.problems import of_error, of_status
from sash.settings import Settings
from sash.version import version
from sash_engine.errors import InvalidArgument, NotFound
from sash_engine.windows.batch import Batch, Origin
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, KeyList, Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec import WindowSpec, parse_duration
from sash_engine.windows.spec_text import MAX_SPEC_BYTES

__all__ = ["create_app"]

Endpoint = Callable[[Request], Awaitable[Response]]

IMPORT = "/v1/windows/import"


def create_app(
    plane: Plane,
    settings: Settings,
    registry: CollectorRegistry,
    metrics: Metrics,
    not_ready: Callable[[], str | None] = lambda: None,
) -> FastAPI:
    """Make the app.

    Args:
        plane: the operations, called on the event loop that serves the app, and on no other.
        settings: limits.
        registry: what ``/metrics`` shows.
        metrics: counts the requests that end in an error.
        not_ready: why ``/readyz`` should say that requests are not welcome; None where they are.

    Those who watch are let go when the app's `state.closing` is set.
    """
    app = FastAPIOffline(
        docs_url="/docs",
        redoc_url=None,
        title="Sash",
        version=version(),
        description=openapi.DESCRIPTION,
        redirect_slashes=False,
    )

    def endpoint_route(path: str, endpoint: Endpoint, **options: Any) -> APIRoute:
        return _Route(path, endpoint, metrics=metrics, **options)

    app.state.closing = asyncio.Event()
    routes = _Routes(plane, settings, registry, not_ready)
    for method, path, name in (
        ("POST", "/v1/windows", "create_window"),
        ("GET", "/v1/windows", "list_windows"),
        ("GET", "/v1/windows/{name}", "get_window"),
        ("DELETE", "/v1/windows/{name}", "delete_window"),
        ("POST", "/v1/windows/{name}/insert", "insert"),
        ("POST", "/v1/windows/{name}/bulk-insert", "bulk_insert"),
        ("POST", "/v1/windows/{name}/bulk-evict", "bulk_evict"),
        ("POST", "/v1/windows/{name}/stage", "stage"),
        ("POST", "/v1/windows/{name}/commit", "commit"),
        ("GET", "/v1/windows/{name}/query", "query"),
        ("GET", "/v1/windows/{name}/range", "range_query"),
        ("GET", "/v1/windows/{name}/series", "series"),
        ("GET", "/v1/windows/{name}/watch", "watch"),
        ("GET", "/v1/windows/{name}/keys", "keys"),
        ("GET", "/v1/windows/{name}/entries", "entries"),
        ("POST", "/v1/windows/{name}/aggregates", "add_aggregates"),
        ("GET", "/v1/windows/{name}/export", "export_window"),
        ("POST", IMPORT, "import_window"),
        ("GET", "/metrics", "metrics"),
        ("GET", "/healthz", "healthz"),
        ("GET", "/readyz", "readyz"),
    ):
        documentation = openapi.describe(name)
        app.router.routes.append(
            endpoint_route(
                path,
                getattr(routes, name),
                methods=[method],
                name=name,
                operation_id=name,
                response_class=Response,
                status_code=min(documentation["responses"]),
                **documentation,
            )
        )
    for path in ("/metrics", "/healthz", "/readyz"):
        # Monitors ask with HEAD; the server leaves out the body.
        endpoint = getattr(routes, path[1:])
        app.router.routes.append(endpoint_route(path, endpoint, methods=["HEAD"], include_in_schema=False))
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, _HttpErrors(metrics))
    return app


class _Routes:
    """One method per route: it reads the request, calls the plane, writes the response."""

    def __init__(
        self, plane: Plane, settings: Settings, registry: CollectorRegistry, not_ready: Callable[[], str | None]
    ) -> None:
        self._plane = plane
        self._settings = settings
        self._registry = registry
        self._not_ready = not_ready

    # ------------------------------------------------------------ windows

    async def create_window(self, request: Request) -> Response:
        kind = media_type(request, (JSON, YAML, "application/x-yaml", "text/yaml"))
        body = await self._document(request)
        if kind == JSON:
            spec = WindowSpec.parse(parse_json(body))
        else:
            try:
                spec = WindowSpec.from_yaml(body.decode())
            except UnicodeDecodeError as error:
                raise InvalidArgument(f"the body is not UTF-8: {error.reason}", field="body") from None
        window, created = await unbroken(self._plane.create(spec))
        return json_response(window_document(window), HTTPStatus.CREATED if created else HTTPStatus.OK)

    async def list_windows(self, request: Request) -> Response:
        return json_response({"windows": [window_document(window) for window in self._plane.list()]})

    async def get_window(self, request: Request) -> Response:
        return json_response(window_document(self._plane.describe(_name(request))))

    async def delete_window(self, request: Request) -> Response:
        return json_response({"entries": await unbroken(self._plane.delete(_name(request)))})

    async def add_aggregates(self, request: Request) -> Response:
        media_type(request, (JSON,))
        aggregates = parse_json(await self._document(request))
        return json_response(window_document(await unbroken(self._plane.add_aggregates(_name(request), aggregates))))

    async def export_window(self, request: Request) -> Response:
        name = _name(request)
        parts = self._plane.export(name)
        first = next(parts, b"")  # there is such a window, so its name has nothing that would need quoting
        headers = {"content-disposition": f'attachment; filename="{name}.sash"'}
        return _streamed(chain([first], parts), OCTETS, headers)

    async def import_window(self, request: Request) -> Response:
        """Reads the body in parts, so its size is bounded by nothing here."""
        media_type(request, (OCTETS,))
        name = _parameters(request, once=("name",), repeatable=()).get("name", [None])[0]
        window = await unbroken(self._plane.restore(request.stream(), name))
        return json_response(window_document(window), HTTPStatus.CREATED)

    # ------------------------------------------------------------ writes

    async def insert(self, request: Request) -> Response:
        media_type(request, (JSON,))
        document = parse_json(await self._body(request))
        spec = self._plane.spec(_name(request))
        answer, lookbacks = columns.taken_question(document, spec)
        origin = columns.taken_origin(document, spec)
        time, fields, key = columns.entry_of(document, spec)
        write = self._plane.insert(_name(request), time, fields, key, answer, lookbacks, origin=origin)
        return json_response(write_document(await unbroken(write), answer))

    async def bulk_insert(self, request: Request) -> Response:
        batch, origin = await self._batch(request, columns.ORIGIN)
        write = self._plane.bulk_insert(_name(request), batch, origin=origin)
        return json_response(write_document(await unbroken(write)))

    async def bulk_evict(self, request: Request) -> Response:
        media_type(request, (JSON,))
        document = parse_json(await self._body(request))
        origin = columns.taken_origin(document)
        _only(document, ("time", "key"), columns.ORIGIN)
        time = columns.integer(columns.member(document, "time"), "time")
        key = columns.text(document["key"], "key") if "key" in document else None
        write = self._plane.bulk_evict(_name(request), time, key, origin=origin)
        return json_response(eviction_document(await unbroken(write)))

    async def stage(self, request: Request) -> Response:
        given = _parameters(request, once=("query", "batch"), repeatable=())
        query, number = _text(given, "query"), _ticks(given, "batch")
        batch, _ = await self._batch(request)
        staged = await unbroken(self._plane.stage(_name(request), batch, query, number))
        return json_response(staged_document(staged))

    async def commit(self, request: Request) -> Response:
        media_type(request, (JSON,))
        document = parse_json(await self._body(request))
        _only(document, ("query", "batch", "stages"))
        query = columns.text(columns.member(document, "query"), "query")
        number = columns.integer(columns.member(document, "batch"), "batch")
        stages = columns.texts(columns.member(document, "stages"), "stages")
        write = self._plane.commit(_name(request), query, number, stages)
        return json_response(write_document(await unbroken(write)))

    async def _batch(self, request: Request, origin: tuple[str, ...] = ()) -> tuple[Batch, Origin | None]:
        """Read a bulk, and who sends it.

        Args:
            origin: the names of what says who sends it, where that is taken: members of JSON, parameters of Arrow.
        """
        kind = media_type(request, (JSON, ARROW))
        # Before the body: to find out after 64 MiB that there is no such window helps nobody.
        spec = self._plane.spec(_name(request))
        entries_max = self._settings.max_entries_per_write
        if kind == JSON:
            if origin:
                _parameters(request, once=(), repeatable=())
            document = parse_json(await self._body(request))
            sender = columns.taken_origin(document, spec) if origin else None
            return columns.batch_of(document, spec, entries_max), sender
        given = _parameters(request, once=origin, repeatable=()) if origin else {}
        sequence, epoch = (_ticks(given, name) if name in given else None for name in ("sequence", "epoch"))
        sender = origin_of(given["producer"][0] if "producer" in given else None, sequence, epoch)
        return arrow.batch_of(await self._body(request), spec, entries_max), sender

    # ------------------------------------------------------------ reads

    async def query(self, request: Request) -> Response:
        return json_response(self._question(request)[1]())

    async def watch(self, request: Request) -> Response:
        given, ask = self._question(request, "interval")
        interval_ms = _ticks(given, "interval") if "interval" in given else INTERVAL_MS
        check_interval(interval_ms, "interval")
        ask()  # what is wrong with the question is refused before the stream begins

        async def look() -> bytes:
            return json_bytes(ask())

        changes = self._plane.watches.changes(
            ("json", str(request.url.path), request.url.query), look, interval_ms, request.app.state.closing, QUIET_S
        )
        return StreamingResponse(
            watch.events(changes), headers={"cache-control": "no-store"}, media_type=watch.MEDIA_TYPE
        )

    def _question(self, request: Request, *further: str) -> tuple[Mapping[str, list[str]], Callable[[], Any]]:
        """The parameters of a query, and a function that asks it: now, or over and over."""
        once = ("all_keys", "combine", "as_of", "partials", *further)
        given = _parameters(request, once=once, repeatable=("key", "lookback"))
        as_of = _ticks(given, "as_of") if "as_of" in given else None
        combine, partials = _flag(given, "combine"), _flag(given, "partials")
        # Whoever combines a list of keys may have a list of one.
        key, keys = (None, given["key"]) if combine and "key" in given and "all_keys" not in given else _keys(given)
        name, question = _name(request), Query(key, given.get("lookback", []), as_of, keys, combine, partials)

        def ask() -> dict[str, Any]:
            answers = self._plane.query(name, question)
            spec = self._plane.spec(name) if partials else None
            return {"answers": [answer_document(answer, spec) for answer in answers]}

        return given, ask

    async def range_query(self, request: Request) -> Response:
        once = ("start", "end", "end_exclusive", "all_keys", "partials")
        given = _parameters(request, once=once, repeatable=("key",))
        start, end, partials = _ticks(given, "start"), _ticks(given, "end"), _flag(given, "partials")
        exclusive = _flag(given, "end_exclusive")
        question = RangeQuery(start, end, *_keys(given), partials, exclusive)
        answer = self._plane.range_query(_name(request), question)
        return json_response(answer_document(answer, self._plane.spec(_name(request)) if partials else None))

    async def entries(self, request: Request) -> Response:
        given = _parameters(request, once=("start", "end", "end_exclusive", "all_keys"), repeatable=("key",))
        start, end = (_ticks(given, name) if name in given else None for name in ("start", "end"))
        question = EntriesQuery(start, end, *_keys(given), _flag(given, "end_exclusive"))
        bulks = self._plane.entries(_name(request), question)
        first, spec = next(bulks, None), self._plane.spec(_name(request))
        bulks = chain([] if first is None else [first], bulks)
        if prefers(request, ARROW):
            return _streamed(arrow.stream_of_bulks(bulks, spec), ARROW)
        return _streamed(_json_bulks(bulks, spec), JSON)

    async def series(self, request: Request) -> Response:
        given = _parameters(request, once=("start", "end", "step", "width", "all_keys"), repeatable=("key",))
        start, end = _ticks(given, "start"), _ticks(given, "end")
        step = _text(given, "step")
        width = given["width"][0] if "width" in given else None
        series = self._plane.series(_name(request), SeriesQuery(start, end, step, width, *_keys(given)))
        if prefers(request, ARROW):
            return Response(arrow.stream_of(series), media_type=ARROW)
        ticks = parse_duration(step, self._plane.spec(_name(request)).time_unit, "step")
        return json_response(series_document(series, start, end, ticks))

    async def keys(self, request: Request) -> Response:
        given = _parameters(request, once=("prefix", "limit", "position"), repeatable=())
        numbers = {name: _ticks(given, name) for name in ("limit", "position") if name in given}
        prefix = given["prefix"][0] if "prefix" in given else ""
        keys, next_ = await key_names(self._plane, _name(request), prefix, **numbers)
        return json_response({"keys": keys} | ({} if next_ is None else {"next": next_}))

    # ------------------------------------------------------------ service

    async def metrics(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"content-type": content_type})

    async def healthz(self, request: Request) -> Response:
        return json_response({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        reason = self._not_ready()
        if reason is None:
            return json_response({"status": "ready"})
        return of_status(HTTPStatus.SERVICE_UNAVAILABLE, reason)

    async def _document(self, request: Request) -> bytes:
        """The body where it is a spec, or a part of one."""
        return await read_body(request, min(MAX_SPEC_BYTES, self._settings.max_body_bytes))

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self._settings.max_body_bytes)


class _Route(APIRoute):
    """A route that calls its endpoint with the request as it is, and maps what it raises."""

    def __init__(self, path: str, endpoint: Endpoint, *, metrics: Metrics, **options: Any) -> None:
        super().__init__(path, endpoint, **options)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                response = await endpoint(Request(scope, receive))
            except ClientDisconnect:
                return
            except NotFound as error:
                if scope["path"] == IMPORT:  # a window may be called `import`, but none is
                    raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED) from None
                response = of_error(error, scope["method"], scope["path"])
            except Exception as error:
                response = of_error(error, scope["method"], scope["path"])
            if response.status_code >= HTTPStatus.BAD_REQUEST:
                metrics.count_rejected("rest", str(int(response.status_code)))
            await response(scope, receive, send)

        self.app = app


class _HttpErrors:
    """Problem documents for what no route is asked about: unknown paths and methods."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self._metrics.count_rejected("rest", str(error.status_code))
        path = request.url.path[:200]
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            taken = ", ".join(_methods_of(request))
            return of_status(error.status_code, f"{path} takes {taken}, not {request.method}", {"allow": taken})
        if error.status_code == HTTPStatus.NOT_FOUND:
            return of_status(error.status_code, f"there is nothing at {path}; /docs shows what there is")
        return of_status(error.status_code, error.detail, error.headers)


def _methods_of(request: Request) -> list[str]:
    """All methods that the path takes; the router names those of the first route only.

    A path without parameters goes before those with: `/v1/windows/import` before `/v1/windows/{name}`.
    """
    found = [
        route
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    plain = [route for route in found if not route.param_convertors]
    return sorted(method for route in plain or found for method in route.methods or ())


def _name(request: Request) -> str:
    return request.path_params["name"]  # type: ignore[no-any-return]


def _streamed(parts: Iterator[bytes], kind: str, headers: Mapping[str, str] | None = None) -> Response:
    """A response whose parts are made one at a time, with a turn for other calls between them."""

    async def in_turns() -> AsyncIterator[bytes]:
        for part in parts:
            yield part
            await asyncio.sleep(0)

    return StreamingResponse(in_turns(), headers=headers, media_type=kind)


def _json_bulks(bulks: Iterator[Batch], spec: WindowSpec) -> Iterator[bytes]:
    """One document, bulk by bulk: ``{"bulks": [{"time": […], …}, …]}``."""
    before = b'{"bulks":['
    for bulk in bulks:
        yield before + json_bytes(bulk_document(bulk, spec))
        before = b","
    yield b"]}" if before == b"," else before + b"]}"


def _only(document: Mapping[str, Any], names: Sequence[str], taken: Sequence[str] = ()) -> None:
    """Raise `InvalidArgument` for a member that a path does not take; `taken` ones are there no more."""
    for name in document:
        if name not in names:
            takes = ", ".join((*names, *taken))
            raise InvalidArgument(f"{name[:80]!r} is unknown; this path takes {takes}", field=name)


def _parameters(request: Request, once: tuple[str, ...], repeatable: tuple[str, ...]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        if name not in once and name not in repeatable:
            taken = ", ".join((*once, *repeatable)) or "no parameters with this body"
            raise InvalidArgument(f"{name[:80]!r} is unknown; this path takes {taken}", field=name)
        if name in found and name in once:
            raise InvalidArgument(f"{name} is given twice", field=name)
        found.setdefault(name, []).append(value)
    return found


def _keys(given: Mapping[str, list[str]]) -> tuple[str | None, KeyList]:
    """The one key, and the several keys, that are asked for: at most one of the two is there."""
    keys = given.get("key", [])
    if _flag(given, "all_keys"):
        if keys:
            raise InvalidArgument("give either key or all_keys", field="all_keys")
        return None, ALL_KEYS
    return (keys[0] if keys else None, ()) if len(keys) < 2 else (None, keys)


def _flag(given: Mapping[str, list[str]], name: str) -> bool:
    plain = given[name][0] if name in given else "false"
    if plain not in ("true", "false"):
        raise InvalidArgument(f"{name} must be true or false, not {plain[:40]!r}", field=name)
    return plain == "true"


def _text(given: Mapping[str, list[str]], name: str) -> str:
    if name not in given:
        raise InvalidArgument(f"{name} is missing", field=name)
    return given[name][0]


def _ticks(given: Mapping[str, list[str]], name: str) -> int:
    plain = _text(given, name)
    if not re.fullmatch(r"-?[0-9]{1,40}", plain):
        raise InvalidArgument(f"{name} must be an integer, not {plain[:40]!r}", field=name)
    return columns.integer(int(plain), name)
