"""Calls of Connect as requests and responses of HTTP/1.1, apart from how they are sent.

    POST /sash.v1.Windows/Insert    application/proto ──▶ 200 application/proto: the answer
                                                          else application/json: code, message, details of an error

Source: connectrpc.com/docs/protocol, unary calls.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message import DecodeError

from sash_client.errors import DeadlineExceeded, SashClientError, Unavailable, described, unreachable
from sash_client.libraries import imported
from sash_client.targets import Endpoint
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["CONNECTIONS_MAX", "RESPONSES", "Response", "answer_of", "broken", "head_of", "late", "not_connected"]

CONNECTIONS_MAX = 64
"""Connections of one client. Further calls wait for one of these to end."""
_SERVICE = pb.DESCRIPTOR.services_by_name["Windows"]
RESPONSES: dict[str, Any] = {
    method.name: getattr(pb, method.output_type.name)
    for method in _SERVICE.methods
    if not method.client_streaming and not method.server_streaming
}
"""The message that answers each method with one request and one answer."""

_PREFIX = "type.googleapis.com/"
# What a status means that does not come from Connect, but from a proxy, or from HTTP itself; as the protocol has it.
_BY_STATUS = {
    400: "INTERNAL",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    429: "UNAVAILABLE",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}


def head_of(endpoint: Endpoint, method: str, size: int, timeout_s: float, metadata: Sequence[tuple[str, str]]) -> bytes:
    """Return the head of a request.

    Args:
        endpoint: where it goes.
        method: of `sash.v1.Windows`.
        size: bytes of the message behind it.
        timeout_s: after which the service need not go on.
        metadata: further headers: plain ASCII, checked where they are made.
    """
    further = "".join(f"{name}: {value}\r\n" for name, value in metadata)
    return (
        f"POST /sash.v1.Windows/{method} HTTP/1.1\r\nhost: {endpoint.authority}\r\n"
        "content-type: application/proto\r\nconnect-protocol-version: 1\r\n"
        f"connect-timeout-ms: {min(max(math.ceil(timeout_s * 1000), 1), 9_999_999_999)}\r\n{further}"
        f"content-length: {size}\r\n\r\n"
    ).encode("ascii")


class Response:
    """What a connection receives: one response after the other, each until it is complete."""

    def __init__(self) -> None:
        self._parser = imported("httptools", "a client over Connect").HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """Wait for the next response."""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.parts: list[bytes] = []
        self.is_complete = False
        self.may_be_kept = False

    def feed(self, data: bytes) -> None:
        """Take what was received. After bytes behind the response, the connection may not be kept.

        Raises:
            Unavailable: it is no HTTP; the connection cannot go on.
        """
        try:
            self._parser.feed_data(data)
        except Exception as error:  # httptools has no public base for its errors
            if not self.is_complete:
                raise Unavailable(f"what answered does not speak HTTP: {error}") from None
            self.may_be_kept = False

    def on_message_begin(self) -> None:
        """A response begins."""
        if self.is_complete:
            raise ValueError("a response that nobody asked for")  # `feed` gets it from httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools, as the other methods of this kind."""
        if not self.status:  # else it is a trailer, which nobody reads
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self.status = self._parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        self.parts.append(part)

    def on_message_complete(self) -> None:
        """The response is complete."""
        if self.status < 200:  # such as 100 Continue: the response follows
            self.begin()
            return
        self.may_be_kept = self._parser.should_keep_alive()
        self.is_complete = True


def answer_of(method: str, response: Response) -> Any:
    """Return the message of a response.

    Raises:
        SashClientError: that the service, or a proxy before it, answers with.
    """
    body = b"".join(response.parts) if len(response.parts) != 1 else response.parts[0]
    kind = response.headers.get(b"content-type", b"").partition(b";")[0].strip()
    if response.status != 200:
        raise _error_of(response, kind, body)
    try:
        if kind == b"application/proto":
            return RESPONSES[method].FromString(body)
    except DecodeError:
        pass
    raise SashClientError(f"what answered is no service of sash.v1: {kind.decode('latin-1')[:80]!r}", code="UNKNOWN")


def _error_of(response: Response, kind: bytes, body: bytes) -> SashClientError:
    document: Any = None
    if kind in (b"application/json", b"application/problem+json"):
        try:
            document = json.loads(body)
        except ValueError:
            document = None
    if isinstance(document, dict) and isinstance(document.get("code"), str):
        code = {"canceled": "CANCELLED"}.get(document["code"], document["code"].upper())
        details = document.get("details")
        packed = map(_packed, details) if isinstance(details, list) else ()
        found = described(code, str(document.get("message") or code), packed)
    else:
        found = _of_http(response.status, document if isinstance(document, dict) else {})
    if found.retry_after_s is None:
        wait = response.headers.get(b"retry-after", b"")
        found.retry_after_s = float(wait) if wait.isdigit() else None
    return found


def _of_http(status: int, problem: dict[str, Any]) -> SashClientError:
    """The error for a status of HTTP, with a document of RFC 9457 where there is one."""
    code = _BY_STATUS.get(status, "UNKNOWN")
    found = described(code, str(problem.get("detail") or f"the answer has the HTTP status {status}"), ())
    found.reason, found.field = problem.get("reason"), problem.get("field")
    found.limit, found.request_id = problem.get("limit"), problem.get("request_id")
    return found


def _packed(detail: Any) -> Packed:
    try:
        value = str(detail["value"])
        return Packed(type_url=_PREFIX + str(detail["type"]), value=b64decode(value + "=" * (-len(value) % 4)))
    except (KeyError, TypeError, ValueError):
        return Packed()  # a proxy's garbage must not hide the error itself


def late(timeout_s: float) -> DeadlineExceeded:
    """The error of a call that took too long."""
    return DeadlineExceeded(f"no answer within {timeout_s:g} s")


def not_connected(endpoint: Endpoint, error: OSError | UnicodeError) -> Unavailable:
    """The error of a call that has no connection. The name may be one that DNS cannot have (UnicodeError)."""
    return unreachable(f"{endpoint}: {getattr(error, 'strerror', None) or error}")


def broken(endpoint: Endpoint, error: OSError, is_closed: bool) -> Unavailable:
    """The error of a call whose connection ended before its answer."""
    if is_closed:
        return Unavailable("the client is closed")
    return Unavailable(f"the connection to {endpoint} broke: {error.strerror or error}")
