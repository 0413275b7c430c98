"""Requests of HTTP that end in time, also where the answer comes byte by byte.

A timeout of a socket is for each wait. A server that sends a byte every few seconds would keep a thread for hours, and
a service has few threads. So the sockets are shut down when the time has passed, which ends whatever waits for them.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.request
from types import TracebackType
from typing import Any


class Deadline:
    """A context in which requests end after some seconds, all together.

    Args:
        seconds: how long they may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = threading.Timer(seconds, self._pass)
        self._timer.daemon = True
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._passed = False

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        if self._passed and (error is None or isinstance(error, (OSError, http.client.HTTPException))):
            raise TimeoutError(f"it took more than {self._seconds:g} s") from None

    def fetched(self, url: str, bytes_max: int) -> bytes:
        """Return what is at an address, of `bytes_max` bytes at most; redirects are followed.

        Raises:
            OSError: it cannot be fetched, or not in time.
        """
        try:
            with self._opener().open(url, timeout=self._seconds) as response:
                text: bytes = response.read(bytes_max)
        except http.client.HTTPException as error:
            raise OSError(f"the answer is no HTTP: {error}") from None
        return text

    def _opener(self) -> urllib.request.OpenerDirector:
        deadline = self

        class Plain(http.client.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                deadline._note(self.sock)

        class Secure(http.client.HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                deadline._note(self.sock)

        class PlainHandler(urllib.request.HTTPHandler):
            def http_open(self, request: Any) -> Any:
                return self.do_open(Plain, request)

        class SecureHandler(urllib.request.HTTPSHandler):
            def https_open(self, request: Any) -> Any:
                return self.do_open(Secure, request)

        return urllib.request.build_opener(PlainHandler, SecureHandler)

    def _note(self, made: socket.socket) -> None:
        with self._lock:
            self._sockets.append(made)
            if self._passed:
                _shut(made)

    def _pass(self) -> None:
        with self._lock:
            self._passed = True
            for each in self._sockets:
                _shut(each)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # The plain one below TLS: TLS would be changed by two threads.
        socket.socket.shutdown(each, socket.SHUT_RDWR)
