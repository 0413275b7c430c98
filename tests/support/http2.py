"""Frames of HTTP/2, for callers that do what no client of gRPC does."""

from __future__ import annotations

import struct

from google.protobuf.message import Message

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK, END_STREAM, END_HEADERS = 1, 1, 4
"""Flags: of settings and pings, of data, of headers."""

INITIAL_WINDOW_SIZE = 4
"""A setting."""


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings(initial_window: int | None = None) -> bytes:
    """The first frame of each side."""
    given = b"" if initial_window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, initial_window)
    return frame(SETTINGS, payload=given)


ACKNOWLEDGED = frame(SETTINGS, ACK)


def call(stream: int, block: bytes, whole: bool = True) -> bytes:
    """The headers of a call, which may go on."""
    return frame(HEADERS, END_HEADERS if whole else 0, stream, block)


def more(stream: int, block: bytes, whole: bool = False) -> bytes:
    """More headers of a call."""
    return frame(CONTINUATION, END_HEADERS if whole else 0, stream, block)


def data(stream: int, sent: bytes, ends: bool = True) -> bytes:
    """What a call sends."""
    return frame(DATA, END_STREAM if ends else 0, stream, sent)


def reset(stream: int) -> bytes:
    """Calls a call off."""
    return frame(RESET, 0, stream, struct.pack(">I", 8))


def headers(path: str, **more: str) -> bytes:
    """The block of headers of a call, each of them written out."""
    given = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
    given |= {"content-type": "application/grpc", "te": "trailers"} | more
    return b"".join(b"\0%c%b%c%b" % (len(name), name.encode(), len(v), v.encode()) for name, v in given.items())


def message(request: Message) -> bytes:
    """A message as gRPC sends it."""
    data = request.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data
