"""Calls over Connect that block: a connection for each call in progress, kept for the next one."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any

from sash_client.connect_messages import CONNECTIONS_MAX, Response, answer_of, broken, head_of, late, not_connected
from sash_client.errors import Unavailable
from sash_client.targets import Endpoint

__all__ = ["BlockingCalls"]

_JOINED_BYTES = 65_536
_RECEIVED_BYTES = 262_144


class BlockingCalls:
    """Makes calls; threads may share it.

    Args:
        endpoint: where the service is.
        context: for TLS; None: without it.
        name: that the service's certificate has; None: the host.
    """

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> None:
        self._endpoint = endpoint
        self._context = context
        self._name = name or endpoint.host
        self._idle: list[_Wire] = []
        self._all: set[_Wire] = set()
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._is_closed = False
        self._process = os.getpid()

    def call(self, method: str, request: Any, timeout_s: float, metadata: tuple[tuple[str, str], ...]) -> Any:
        """Make a call; return its answer.

        Raises:
            SashClientError: the call failed.
        """
        deadline_s = time.monotonic() + timeout_s
        if not self._places.acquire(timeout=timeout_s):
            raise late(timeout_s)
        try:
            wire = self._wire(deadline_s, timeout_s)
            try:
                body = request.SerializeToString()
                head = head_of(self._endpoint, method, len(body), deadline_s - time.monotonic(), metadata)
                return answer_of(method, wire.exchange(head, body, deadline_s))
            except TimeoutError:
                raise late(timeout_s) from None
            except OSError as error:
                raise broken(self._endpoint, error, self._is_closed) from None
            finally:
                self._keep(wire)
        finally:
            self._places.release()

    def connect(self, timeout_s: float) -> None:
        """Make a connection, for the next call.

        Raises:
            Unavailable: there is no service.
        """
        self._keep(self._wire(time.monotonic() + timeout_s, timeout_s))

    def close(self) -> None:
        """End all connections; calls in progress fail. In a forked process, the other one keeps its connections."""
        self._is_closed = True
        if os.getpid() == self._process:
            for wire in list(self._all):
                wire.interrupt()
        while self._idle:
            with suppress(IndexError):  # another thread has it
                self._drop(self._idle.pop())

    def _wire(self, deadline_s: float, timeout_s: float) -> _Wire:
        """A connection for one call, which may take `timeout_s` until the deadline."""
        while self._idle:
            with suppress(IndexError):  # another thread has it
                wire = self._idle.pop()
                if not wire.is_stale:
                    return wire
                self._drop(wire)
        try:
            wire = _Wire(self._opened(deadline_s))
        except TimeoutError:
            raise late(timeout_s) from None
        except (OSError, UnicodeError) as error:
            raise not_connected(self._endpoint, error) from None
        self._all.add(wire)
        if self._is_closed:
            self._drop(wire)
            raise Unavailable("the client is closed")
        return wire

    def _opened(self, deadline_s: float) -> socket.socket:
        """Connect to the first address that answers; all of them together have until the deadline."""
        refused = OSError("the name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._endpoint.host, self._endpoint.port, type=socket.SOCK_STREAM
        ):
            plain = socket.socket(family, kind, protocol)
            try:
                _wait_until(plain, deadline_s)
                plain.connect(address)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is None:
                    return plain
                _wait_until(plain, deadline_s)
                return self._context.wrap_socket(plain, server_hostname=self._name)
            except BaseException as error:
                plain.close()
                if isinstance(error, TimeoutError) or not isinstance(error, OSError):
                    raise
                refused = error
        raise refused

    def _keep(self, wire: _Wire) -> None:
        """Keep a connection for the next call, if the last one is complete."""
        if not wire.may_be_kept:
            self._drop(wire)
            return
        self._idle.append(wire)
        if self._is_closed:
            self.close()

    def _drop(self, wire: _Wire) -> None:
        self._all.discard(wire)
        wire.close()


class _Wire:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._response = Response()
        self.may_be_kept = True
        """Whether it can have another call."""

    @property
    def is_stale(self) -> bool:
        """Whether the service has closed the connection, or has said something that nobody asked for."""
        return bool(self._poll.poll(0))

    def exchange(self, head: bytes, body: bytes, deadline_s: float) -> Response:
        """Send a request, and receive its response; raises OSError, and TimeoutError after the deadline."""
        self.may_be_kept = False
        response = self._response
        response.begin()
        # A service that refuses a request may not read all of it: its answer says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            for part in (head + body,) if len(body) <= _JOINED_BYTES else (head, body):
                self._send(part, deadline_s)
        while True:
            _wait_until(self._socket, deadline_s)
            data = self._socket.recv(_RECEIVED_BYTES)
            if not data:
                raise ConnectionResetError("it was closed before the answer")
            response.feed(data)
            if response.is_complete:
                self.may_be_kept = response.may_be_kept
                return response

    def interrupt(self) -> None:
        """Make a call in progress fail, in whatever thread it is; that thread closes the connection."""
        with suppress(OSError):
            # Not by the method of a socket with TLS: it drops TLS first, and that thread would then send in the clear.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _send(self, part: bytes, deadline_s: float) -> None:
        # `sendall` with TLS would have the whole time for each record.
        left = memoryview(part)
        while left:
            _wait_until(self._socket, deadline_s)
            left = left[self._socket.send(left) :]


def _wait_until(sock: socket.socket, deadline_s: float) -> None:
    """Let the next operation of a socket take until the deadline; raises TimeoutError after it."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    sock.settimeout(left_s)
