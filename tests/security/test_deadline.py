"""Keys of an identity provider that arrive byte by byte hold no thread for long."""

import contextlib
import itertools
import socket
import threading

import pytest

from sash.access import jwt as jwts
from sash.access.deadline import Deadline
from tests.support.waiting import wait_until

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@contextlib.contextmanager
def server(sent, then=b""):
    """A server that sends something, and then a byte again and again until the client has gone."""
    over = threading.Event()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(sent)
                    for byte in itertools.cycle(then):
                        if over.wait(0.005):
                            break
                        connection.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("sent", "drips"),
    [
        (HEAD + b"content-length: 1000000\r\n\r\n{", b" "),
        (HEAD + b"\r\n{", b" "),
        (HEAD, b"x"),
        (HEAD + b"x-long: ", b"x"),
        (b"", b"H"),
    ],
)
def test_an_answer_that_drips_ends(sent, drips):
    """Each byte came within the timeout of a read, so the fetch never ended, and its thread was lost."""
    slow = pytest.raises(TimeoutError, match=r"it took more than 0\.1 s")
    with server(sent, drips) as url, slow, Deadline(0.1) as deadline:
        deadline.fetched(url, 1 << 20)


def test_an_answer_in_time_is_whole():
    with server(HEAD + b"content-length: 2\r\n\r\n{}") as url:
        assert jwts._fetched(url) == b"{}"
    with server(HEAD + b"content-length: 9\r\n\r\n123456789") as url, Deadline(20) as deadline:
        assert deadline.fetched(url, 5) == b"12345"


def test_what_is_no_http_is_an_error_that_can_be_tried_again():
    with server(b"SSH-2.0-OpenSSH\r\n\r\n") as url, pytest.raises(OSError, match="no HTTP"), Deadline(20) as deadline:
        deadline.fetched(url, 5)


def test_a_connection_that_is_made_too_late_is_shut():
    made, other = socket.socketpair()
    with made, other:
        with contextlib.suppress(TimeoutError), Deadline(0.001) as deadline:
            wait_until(lambda: deadline._passed)
            deadline._note(made)
        assert other.recv(1) == b""
