"""Frames of HTTP/2, for callers that do what no client of gRPC does."""

from __future__ import annotations

from google.protobuf.message import Message

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = 1
"""A flag of settings and pings."""

END_HEADERS = 4
"""A flag of headers."""

INITIAL_WINDOW_SIZE = 4
"""A setting."""


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def headers(path: str, **more: str) -> bytes:
    """The block of headers of a call, each of them written out."""
    given = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
    given |= {"content-type": "application/grpc", "te": "trailers"} | more
    return b"".join(b"\0%c%b%c%b" % (len(name), name.encode(), len(v), v.encode()) for name, v in given.items())


def message(request: Message) -> bytes:
    """A message as gRPC sends it."""
    data = request.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data
