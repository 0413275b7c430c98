"""Connections of HTTP/1.1 on which a test sends bytes, and the answers that come back."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import BinaryIO

from tests.support.servers import WAIT_S, Running


@contextlib.contextmanager
def connected(running: Running, sent: bytes = b"", address: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A connection from an address, on which something is sent."""
    target = "127.0.0.1", running.rest_port
    with socket.create_connection(target, WAIT_S, source_address=(address, 0)) as connection:
        connection.sendall(sent)
        yield connection


@contextlib.contextmanager
def asking(running: Running, sent: bytes) -> Iterator[tuple[socket.socket, BinaryIO]]:
    """A connection on which something is sent, however much of it is taken; and the answers."""
    with connected(running) as connection, connection.makefile("rb") as answers:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        yield connection, answers


def statuses(answers: BinaryIO, count: int) -> list[int]:
    """The statuses of the next answers."""
    return [next_of(answers)[0] for _ in range(count)]


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            found += part
    return found


def next_of(answers: BinaryIO) -> tuple[int, bytes]:
    """The status and the body of the next answer; 0 where there is none."""
    status, length = answers.readline(), 0
    while (line := answers.readline()) not in (b"\r\n", b""):
        name, _, value = line.lower().partition(b": ")
        length = int(value) if name == b"content-length" else length
    return int(status[9:12] or 0), answers.read(length)
