"""Serves OTLP's metrics over HTTP as an ASGI app.

    POST /v1/metrics   application/x-protobuf, as it is or compressed by gzip

An error is a google.rpc.Status in protobuf, as OTLP has it. Exporters send again what was answered with 429, 502, 503
or 504.
"""

from __future__ import annotations

from http import HTTPStatus

from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from starlette.types import Receive, Scope, Send

from sash.calls import joined
from sash.connect.compression import ENCODING, unpacked, unpacked_size
from sash.limits.memory import mine
from sash.otlp.metrics import BYTES_MAX, PARSED, OtlpMetrics, Request
from sash.plane import Plane
from sash.prometheus.requests import header, headers_of, read_body, respond
from sash.rest.bodies import Gone
from sash.rest.problems import STATUSES, UnsupportedMediaType, kind_of
from sash.rpc.errors import described
from sash.rpc.parsing import LONG_BYTES, parsed
from sash.runtime.metrics import Metrics
from sash_engine.errors import InvalidArgument, SashError, TooLarge

PATH = "/v1/metrics"

_KIND = "application/x-protobuf"
_TYPE = (b"content-type", _KIND.encode())
_SMALL_BYTES = 65_536


class OtlpApp:
    """Serves `PATH`.

    Args:
        plane: parses long bodies.
        metrics: takes points.
        counted: counts requests that end in an error.
        body_bytes_max: the largest body.
    """

    def __init__(self, plane: Plane, metrics: OtlpMetrics, counted: Metrics, body_bytes_max: int) -> None:
        self._plane = plane
        self._metrics = metrics
        self._counted = counted
        self._bytes_max = min(body_bytes_max, BYTES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; `scope` is one of HTTP."""
        if scope["path"] != PATH:
            await respond(send, HTTPStatus.NOT_FOUND, [_TYPE], [])
            return
        if scope["method"] != "POST":
            await respond(send, HTTPStatus.METHOD_NOT_ALLOWED, [_TYPE, (b"allow", b"POST")], [])
            return
        try:
            response = await self._metrics.export(await self._request(scope, receive))
        except Gone:
            return
        except Exception as error:
            await self._fail(send, error)
        else:
            await respond(send, HTTPStatus.OK, [_TYPE], [response.SerializeToString()])

    async def refuse(self, scope: Scope, receive: Receive, send: Send, error: SashError) -> None:
        """Answer a request that may not come in."""
        await self._fail(send, error)

    async def _request(self, scope: Scope, receive: Receive) -> Request:
        """Read and parse a body.

        Raises:
            UnsupportedMediaType: it is of another type, or compressed in another way.
            TooLarge: it is too large, as it is or unpacked.
            InvalidArgument: it is damaged.
            Unavailable: there is no memory for it.
        """
        kind = header(scope, b"content-type")
        if kind.partition(";")[0].strip().lower() != _KIND:
            raise UnsupportedMediaType(
                f"Content-Type {kind[:80]!r} is not taken; send {_KIND}" if kind else "Content-Type is missing",
                field="Content-Type",
            )
        encoding = header(scope, b"content-encoding").lower()
        if encoding not in ("", "identity", "gzip"):
            raise UnsupportedMediaType(
                f"Content-Encoding {encoding[:80]!r} is not taken; send gzip", field="Content-Encoding"
            )
        data, reserved = await read_body(scope, receive, self._bytes_max), mine()
        size = unpacked_size(data) if encoding == ENCODING.decode() else len(data)
        if size > self._bytes_max:
            raise TooLarge(
                f"the body has {size} bytes when it is unpacked; {self._bytes_max} are allowed: make batches smaller",
                field="body",
                limit=f"{self._bytes_max} bytes",
            )
        if size > _SMALL_BYTES and reserved is not None:
            reserved.take(PARSED * size, size)
        if encoding == ENCODING.decode():
            data = await joined(await self._plane.parsed(unpacked(data, size)))
        if size > _SMALL_BYTES and reserved is not None:
            reserved.arrived(size)
        try:
            if size <= LONG_BYTES:
                return Request.FromString(data)
            return await self._plane.parsed(parsed(Request, data))
        except DecodeError:
            raise InvalidArgument("the body is no ExportMetricsServiceRequest", field="body") from None

    async def _fail(self, send: Send, error: Exception) -> None:
        status = STATUSES[kind_of(error)] if isinstance(error, SashError) else HTTPStatus.INTERNAL_SERVER_ERROR
        code, message, details = described(error, PATH)
        answer = status_pb2.Status(code=code.value[0], message=message)
        for detail in details:
            answer.details.add().Pack(detail)
        self._counted.count_rejected("otlp", str(int(status)))
        await respond(send, status, [_TYPE, *headers_of(error, status)], [answer.SerializeToString()])
