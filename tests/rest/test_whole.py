"""Answers in one piece are the answers that messages of ASGI would make."""

import socket

import pytest

from sash.rest.connection import ANSWER_BYTES, Connection, Exchange
from tests.support.servers import WAIT_S, running_service

SPEC = b'{"name": "w", "time_unit": "s", "aggregates": {"all": {"function": "collect"}}}'
HEAD = b"host: localhost\r\n"


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        ask(running, request("POST", "/v1/windows", SPEC))
        yield running


def request(method, path, body=b"", kind="application/json", further=b"", version="1.1"):
    length = b"content-length: %d\r\n" % len(body) if body else b""
    return (
        f"{method} {path} HTTP/{version}\r\ncontent-type: {kind}\r\n".encode()
        + HEAD
        + further
        + length
        + b"\r\n"
        + body
    )


def ask(running, data, answers=1):
    """Send bytes over a connection of its own; return as many answers, each its status, its headers and its body."""
    found = []
    with socket.create_connection(("127.0.0.1", running.rest_port), WAIT_S) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as received:
            for _ in range(answers):
                status = received.readline()
                if b" 100 " in status:
                    assert received.readline() == b"\r\n"
                    status = received.readline()
                headers = {}
                while (line := received.readline()) != b"\r\n":
                    name, _, value = line.partition(b": ")
                    headers[name.lower()] = value
                headers.pop(b"date")
                length = int(headers.get(b"content-length", b"0"))
                found.append((status, headers, b"" if data.startswith(b"HEAD") else received.read(length)))
            if b"connection: close" in data or b"HTTP/1.0" in data:
                assert received.read() == b""
    return found


QUERY = "/v1/windows/w/query"
CASES = [
    request("GET", QUERY),
    request("HEAD", QUERY),
    request("GET", QUERY, version="1.0"),
    request("GET", QUERY, further=b"connection: close\r\n"),
    request("GET", QUERY, further=b"origin: http://localhost\r\n"),
    request("GET", "/v1/windows/missing/query"),
    request("POST", "/v1/windows", SPEC),
    request("POST", "/v1/windows/w/insert", b'{"time": 1, "value": 1}', further=b"expect: 100-continue\r\n"),
    request("POST", "/sash.v1.Windows/ListWindows", b"{}"),
    request("POST", "/sash.v1.Windows/GetWindow", b"\x0a\x01w", kind="application/proto"),
    request("POST", "/sash.v1.Windows/GetWindow", b"\x0a\x01v", kind="application/proto"),
]


@pytest.mark.parametrize("data", CASES)
def test_an_answer_in_one_piece_is_the_same(service, monkeypatch, data):
    monkeypatch.setattr(Connection, "_may_begin_at_once", lambda *_: False)
    answer, pieces = Exchange.answer, []

    async def noted(self, whole):
        pieces.append(whole)
        await answer(self, whole)

    async def in_messages(self, whole):
        headers = [(b"content-type", whole.kind), (b"content-length", b"%d" % (len(whole.body) + len(whole.end)))]
        await self.send({"type": "http.response.start", "status": whole.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": whole.body + whole.end})

    monkeypatch.setattr(Exchange, "answer", noted)
    (whole,) = ask(service, data)
    assert bool(pieces) == (b" 200 " in whole[0])
    monkeypatch.setattr(Exchange, "answer", in_messages)
    (apart,) = ask(service, data)
    for _, headers, _ in (whole, apart):
        if b"x-request-id" in headers:
            del headers[b"x-request-id"]
    if b"request_id" in whole[2] or b"insert" in data or b"Windows" in data:
        assert (whole[0], set(whole[1])) == (apart[0], set(apart[1]))
    else:
        assert whole == apart


def test_a_large_answer_is_whole(service):
    n = 90_000
    body = b'{"time": [' + b",".join(b"%d" % i for i in range(n)) + b'], "value": [' + b",".join([b"1"] * n) + b"]}"
    (done,) = ask(service, request("POST", "/v1/windows/w/bulk-insert", body))
    assert done[0].startswith(b"HTTP/1.1 200"), done
    (found,) = ask(service, CASES[0])
    assert len(found[2]) > ANSWER_BYTES
    assert found[2].endswith(b"]}}]}\n")


def test_a_caller_that_does_not_read_is_waited_for(service):
    """Its answers wait in the service, and it gets all of them in the end."""
    many = 200
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(WAIT_S)
        connection.connect(("127.0.0.1", service.rest_port))
        connection.sendall(CASES[0] * many)
        received = 0
        with connection.makefile("rb") as answers:
            while received < many:
                assert answers.readline().startswith(b"HTTP/1.1 200")
                headers = dict(line.lower().split(b": ") for line in iter(answers.readline, b"\r\n"))
                answers.read(int(headers[b"content-length"]))
                received += 1
