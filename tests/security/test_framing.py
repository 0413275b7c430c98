"""Requests whose bodies do not end, or end elsewhere than they seem to; on raw connections."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from sash.rest.connection import Connection, Receiving
from tests.support.servers import json_head, running_service, service_process
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

CHUNKED = (
    b"POST /v1/windows/w/insert HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
COUNT = {"n": {"function": "count"}}


@contextlib.contextmanager
def connected(running):
    with socket.create_connection(("127.0.0.1", running.rest_port), timeout=120) as connection:
        yield connection


def answer(connection):
    """One answer, whole."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += connection.recv(65536)
    head, _, body = found.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head


def rest_of(connection):
    """All that comes until the connection is closed."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            found += part
    return found


def send_until_closed(connection, block, most):
    """Send a block again and again; return how many bytes were sent when the service closed the connection."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most:
            connection.sendall(block)
            sent += len(block)
    return sent


@pytest.fixture
def locked(tmp_path):
    """A service that asks for tokens; nobody here has one."""
    tokens = write_tokens(tmp_path / "tokens.yaml", {"reader": {}})
    with running_service(tokens=tokens, body_timeout_s=1, idle_timeout_s=1) as running:
        yield running


@pytest.mark.parametrize(
    "block",
    [b"0\r\n" + b"x-trailer: y\r\n" * 8000, b"0\r\nx-trailer: " + b"y" * 100_000, b"1;" + b"x" * 100_000],
    ids=["trailers", "a long trailer", "an extension of a chunk"],
)
def test_what_is_no_content_has_an_end(block):
    """It was kept: 60 MB of trailers took 480 MB, without a token."""
    with running_service() as running, connected(running) as connection:
        assert running.http().post("/v1/windows", json={"name": "w", "aggregates": COUNT}).status_code == 201
        connection.sendall(CHUNKED)
        send_until_closed(connection, block, len(block))
        assert rest_of(connection)[:13] in (b"HTTP/1.1 400 ", b"")
        assert 'sash_requests_rejected_total{code="400",edge="rest"} 1.0' in running.http().get("/metrics").text


def test_trailers_and_extensions_are_left_out():
    with running_service() as running, connected(running) as connection:
        assert running.http().post("/v1/windows", json={"name": "w", "aggregates": COUNT}).status_code == 201
        for _ in range(2):
            connection.sendall(CHUNKED + b'14;a=b\r\n{"time":1,"value":1}\r\n')
            connection.sendall(b"0\r\nhost: example.com\r\nauthorization: x\r\n\r\n")
            assert answer(connection).startswith(b"HTTP/1.1 200 ")


def test_many_small_chunks_are_content():
    """They arrive by themselves, each with more framing than content."""
    body = b'{"time":1,"value":1' + b" " * 1000 + b"}"
    with running_service() as running, connected(running) as connection:
        assert running.http().post("/v1/windows", json={"name": "w", "aggregates": COUNT}).status_code == 201
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(CHUNKED)
        for byte in body:
            connection.sendall(b"1;" + b"x" * 100 + b"\r\n%c\r\n" % byte)
        connection.sendall(b"0\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 200 ")


def next_of(answers):
    """The status and the body of the next answer of several."""
    status, length = answers.readline(), 0
    while (line := answers.readline()) not in (b"\r\n", b""):
        name, _, value = line.lower().partition(b": ")
        length = int(value) if name == b"content-length" else length
    return status, answers.read(length)


def received_in(monkeypatch, *sizes):
    """Have the service receive what is sent in parts of these sizes, whatever the network makes of it."""
    receive, waiting, ends = Connection.data_received, bytearray(), list(sizes)

    def received(self, data):
        waiting.extend(data)
        while ends and len(waiting) >= ends[0]:
            size = ends.pop(0)
            part = bytes(waiting[:size])
            del waiting[:size]
            receive(self, part)

    monkeypatch.setattr(Connection, "data_received", received)


GET = b"GET /v1/windows HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 1000 + b"\r\n\r\n"
INSERT = b"POST /sash.v1.Windows/Insert%b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ENTRY = b'{"window": "w", "time": "1", "value": 1}'
INSERT += b"content-length: %d\r\n\r\n" % len(ENTRY)


@pytest.mark.parametrize("inside", ["its head", "its body"])
def test_a_request_that_begins_behind_many_others_is_read(monkeypatch, inside):
    """What arrived together with it was taken for its own head, or for framing of its body."""
    last = INSERT % b""
    many = GET * 80 + last
    cut = len(many) - (30 if inside == "its head" else 0)
    with running_service() as running:
        assert running.http().post("/v1/windows", json={"name": "w", "aggregates": COUNT}).status_code == 201
        received_in(monkeypatch, cut, len(many) + len(ENTRY) - cut)
        with connected(running) as connection:
            connection.sendall(many + ENTRY)
            with connection.makefile("rb") as answers:
                assert {next_of(answers)[0] for _ in range(81)} == {b"HTTP/1.1 200 OK\r\n"}


@pytest.mark.parametrize("protocol", [b"HTTP", b"RTSP"])
def test_few_requests_wait_for_others_on_a_connection(monkeypatch, protocol):
    """Each took 8 KB while it waited, so 256 KB that arrived at once took 80 MB, without a token."""
    begin, most = Connection.on_headers_complete, []

    def began(self):
        begin(self)
        most.append(len(self._exchanges))

    asked = b"GET /v1/windows/w " + protocol + b"/1.1\r\nhost:localhost\r\nx-request-id: %d\r\n\r\n"
    many = b"".join(asked % number for number in range(3000))
    monkeypatch.setattr(Connection, "on_headers_complete", began)
    with running_service() as running:
        received_in(monkeypatch, len(many) - 100, 100)
        with connected(running) as connection:
            connection.sendall(many)
            with connection.makefile("rb") as answers:
                for number in range(3000):
                    status, body = next_of(answers)
                    assert status == b"HTTP/1.1 404 Not Found\r\n"
                    assert b'"request_id":"%d"' % number in body
    assert len(most) == 3000
    assert 0 < max(most) < 100


def test_a_head_is_not_slow_while_the_service_does_not_read(monkeypatch):
    """It waits behind an answer that takes long."""
    made, found = Connection.connection_made, []

    def noted(self, transport):
        made(self, transport)
        found.append(self)

    several = b"GET /v1/windows/w/query HTTP/1.1\r\nhost: localhost\r\n\r\n" + 2 * GET
    with running_service() as running:
        assert running.http().post("/v1/windows", json={"name": "w", "aggregates": COUNT}).status_code == 201
        monkeypatch.setattr(Connection, "connection_made", noted)
        held = running.on_loop(lambda: running.plane._windows._storage.store.lock("w").exclusive())
        running.on_loop(held.__enter__)
        with connected(running) as connection:
            connection.sendall(several[:-100])
            wait_until(lambda: found and found[0]._receiving is Receiving.HEAD)
            connection.sendall(several[-100:])
            running.on_loop(lambda: found[0].look(found[0]._looked_s + 1000))
            assert not running.on_loop(found[0].is_closing)
            running.on_loop(lambda: held.__exit__(None, None, None))
            with connection.makefile("rb") as answers:
                assert {next_of(answers)[0] for _ in range(3)} == {b"HTTP/1.1 200 OK\r\n"}


def test_a_head_that_begins_behind_others_has_an_end(monkeypatch):
    head = b"GET /healthz HTTP/1.1\r\nx: "
    with running_service() as running:
        received_in(monkeypatch, len(GET) * 80 + len(head), 66_000)
        with connected(running) as connection:
            connection.sendall(GET * 80 + head + b"x" * 66_000)
            assert b"HTTP/1.1 431 " in rest_of(connection)


def test_an_insert_with_a_long_address_changes_nothing(monkeypatch):
    """It was applied, and then refused, where its head came in two parts."""
    sent = INSERT % (b"?" + b"a" * 65_999) + ENTRY
    with running_service() as running:
        http = running.http()
        assert http.post("/v1/windows", json={"name": "w", "aggregates": COUNT}).status_code == 201
        with monkeypatch.context() as patch, connected(running) as connection:
            received_in(patch, 60_000, len(sent) - 60_000)
            connection.sendall(sent)
            assert b"HTTP/1.1 431 " in rest_of(connection)
        assert http.get("/v1/windows/w").json()["entries"] == 0


def test_a_body_that_stalls_behind_its_refusal_is_not_waited_for(locked):
    with connected(locked) as connection:
        connection.sendall(json_head("/v1/windows/w/insert", 1000))
        assert answer(connection).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"{")
        assert rest_of(connection) == b""


def test_a_body_without_end_behind_its_refusal_is_not_read_for_ever(locked):
    with connected(locked) as connection:
        connection.sendall(CHUNKED)
        assert answer(connection).startswith(b"HTTP/1.1 401 ")
        # Small chunks: the service keeps up with them, so it does not stop reading, which is not the client's time.
        sent = send_until_closed(connection, b"10\r\n" + b"x" * 16 + b"\r\n", 10**9)
        assert sent < 10**9


def test_a_connection_is_idle_once_the_body_behind_a_refusal_is_there(tmp_path):
    tokens = write_tokens(tmp_path / "tokens.yaml", {"reader": {}})
    with running_service(tokens=tokens, idle_timeout_s=1) as running, connected(running) as connection:
        connection.sendall(json_head("/v1/windows/w/insert", 1000))
        assert answer(connection).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b" " * 1000)
        assert rest_of(connection) == b""


def test_the_body_behind_an_upgrade_is_no_request(locked):
    """The parser takes no body there. A proxy does, and would see two answers to one request."""
    head = b"POST /v1/windows/w/insert HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
    body = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with connected(locked) as connection:
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
        assert answer(connection).startswith(b"HTTP/1.1 401 ")
        with contextlib.suppress(ConnectionError):
            connection.sendall(body)
        assert rest_of(connection) == b""


def test_a_get_that_offers_another_protocol_is_answered():
    with running_service() as running:
        headers = {"connection": "upgrade", "upgrade": "h2c"}
        assert running.http().get("/v1/windows", headers=headers).status_code == 200


def test_requests_that_are_none_are_not_logged():
    """Each was, without a token and without a limit."""
    with service_process() as running:
        for _ in range(10):
            with connected(running) as connection:
                connection.sendall(b"nonsense\r\n\r\n")
                assert rest_of(connection).startswith(b"HTTP/1.1 400 ")
        assert running.process is not None
        running.process.terminate()
        assert "Invalid HTTP" not in running.process.communicate(timeout=120)[1]


# ---------------------------------------------------------------- requests behind others

SLOW = CHUNKED + b'14\r\n{"time":1,"value":1}\r\n0\r\n\r\n'
"""An insert that takes the long way: it has not begun when what is behind it is received."""

NEXT = b"POST /v1/windows/w/insert HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def windowed(**settings):
    """A service with a window."""

    @contextlib.contextmanager
    def running():
        with running_service(**settings) as service:
            assert service.http().post("/v1/windows", json={"name": "w", "aggregates": COUNT}).status_code == 201
            yield service

    return running()


@contextlib.contextmanager
def busy(running):
    """While this is open, questions wait."""
    held = running.on_loop(lambda: running.plane._windows._storage.store.lock("w").exclusive())
    running.on_loop(held.__enter__)
    try:
        yield
    finally:
        running.on_loop(lambda: held.__exit__(None, None, None))


@pytest.fixture
def made(monkeypatch):
    """The connections that a service gets."""
    make, found = Connection.connection_made, []

    def noted(self, transport):
        make(self, transport)
        found.append(self)

    monkeypatch.setattr(Connection, "connection_made", noted)
    return found


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n", 400),
        (b"GET http:// HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
        (NEXT + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (NEXT + b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 70_000, 400),
        (b"GET / HTTP/1.1\r\nx: " + b"x" * 70_000, 431),
        (b"GET / HTTP/1.1\r\nx: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/2.0\r\nhost: localhost\r\n\r\n", 505),
    ],
    ids=["nonsense", "a line feed", "an address", "a chunk", "an extension", "a head", "a whole head", "a version"],
)
@pytest.mark.parametrize("before", [1, 3])
def test_a_wrong_request_is_refused_behind_the_answers_before_it(wrong, status, before):
    """It was answered first, in the place of a write that was applied."""
    with windowed() as running, connected(running) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(SLOW * before + wrong + GET)
        with connection.makefile("rb") as answers:
            for _ in range(before):
                assert next_of(answers)[0] == b"HTTP/1.1 200 OK\r\n"
            found, body = next_of(answers)
            assert found.startswith(b"HTTP/1.1 %d " % status)
            assert json.loads(body)["status"] == status
            assert answers.read() == b""
        assert running.http().get("/v1/windows/w").json()["entries"] == before
        assert f'sash_requests_rejected_total{{code="{status}",edge="rest"}} 1.0' in running.http().get("/metrics").text


@pytest.mark.parametrize("late", [GET[:-100], NEXT + b"content-length: 9\r\n\r\n"], ids=["its head", "its body"])
def test_a_request_that_stalls_behind_others_is_refused_behind_their_answers(late, made):
    query = b"GET /v1/windows/w/query HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with windowed() as running:
        made.clear()
        with connected(running) as connection, connection.makefile("rb") as answers:
            with busy(running):
                connection.sendall(query + late)
                wait_until(lambda: made and made[0]._receiving in (Receiving.HEAD, Receiving.BODY))
                running.on_loop(lambda: setattr(made[0], "_read_paused", False))
                for _ in range(2):
                    running.on_loop(lambda: made[0].look(made[0]._looked_s + 1000))
                assert not running.on_loop(made[0].is_closing)
            assert next_of(answers)[0] == b"HTTP/1.1 200 OK\r\n"
            assert next_of(answers)[0].startswith(b"HTTP/1.1 408 ")
            assert answers.read() == b""


@pytest.mark.parametrize("request_line", [b"GET /x HTTP/2.0", b"GET /x HTTP/0.9", b"GET /x"])
def test_another_version_of_http_is_refused(request_line):
    with running_service() as running, connected(running) as connection:
        connection.sendall((request_line + b"\r\nhost: localhost\r\n\r\n") * 100)
        with connection.makefile("rb") as answers:
            status, body = next_of(answers)
            assert status == b"HTTP/1.1 505 HTTP Version Not Supported\r\n"
            assert json.loads(body)["detail"] == "only HTTP/1.1 and HTTP/1.0 are spoken here"
            assert answers.read() == b""


def test_http_1_0_is_spoken():
    with running_service() as running, connected(running) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert rest_of(connection).startswith(b"HTTP/1.1 200 OK\r\n")


def test_an_address_that_is_none_is_refused_before_its_body_arrives():
    with running_service() as running, connected(running) as connection:
        connection.sendall(b"POST http:// HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n")
        assert rest_of(connection).startswith(b"HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t "])
@pytest.mark.parametrize("name", [b"host", b"content-type", b"authorization", b"expect"])
def test_space_behind_a_value_is_not_of_it(name, space, tmp_path):
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}})
    values = {
        b"host": b"localhost",
        b"content-type": b"application/json",
        b"authorization": b"Bearer root-token",
        b"expect": b"100-continue",
    }
    values[name] += space
    head = b"POST /v1/windows HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % value for value in values.items())
    body = json.dumps({"name": "w", "aggregates": COUNT}).encode()
    with running_service(tokens=tokens) as running, connected(running) as connection:
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert answer(connection).startswith(b"HTTP/1.1 201 ")


# ---------------------------------------------------------------- clients that send no more


@pytest.mark.parametrize(
    "sent",
    [[SLOW], [SLOW, GET, SLOW], [GET] * 300, [SLOW, GET, GET[:-50]], [SLOW, NEXT + b"content-length: 9\r\n\r\n{"]],
    ids=["one", "three", "many", "part of a head", "part of a body"],
)
def test_a_client_that_sends_no_more_gets_its_answers(sent, made):
    """It got none."""
    whole = [each for each in sent if each in (SLOW, GET)]
    with windowed() as running, connected(running) as connection:
        connection.sendall(b"".join(sent))
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answers:
            for _ in whole:
                assert next_of(answers)[0] == b"HTTP/1.1 200 OK\r\n"
            assert answers.read() == b""
        assert running.http().get("/v1/windows/w").json()["entries"] == whole.count(SLOW)
        wait_until(lambda: not [each for each in made[0]._port.open if each._no_more])


def test_a_client_that_sends_no_more_is_waited_for(made):
    query = b"GET /v1/windows/w/query HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with windowed() as running:
        made.clear()
        with connected(running) as connection:
            with busy(running):
                connection.sendall(query)
                wait_until(lambda: made and made[0]._exchanges)
                connection.shutdown(socket.SHUT_WR)
                wait_until(lambda: made[0]._no_more)
                running.on_loop(lambda: made[0].look(made[0]._looked_s + 1000))
            assert rest_of(connection).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_body_that_cannot_be_completed_is_not_waited_for():
    with windowed() as running, connected(running) as connection:
        connection.sendall(json_head("/v1/windows/w/insert", 9) + b"{")
        connection.shutdown(socket.SHUT_WR)
        assert rest_of(connection) == b""


@pytest.mark.parametrize("path", ["/v1/windows/w/watch", "/sash.v1.Windows/Watch"])
@pytest.mark.parametrize("behind", [b"", GET])
def test_a_watch_ends_when_its_client_goes(path, behind):
    """With a request behind it, it went on for ever."""
    if path.startswith("/v1"):
        sent = b"GET /v1/windows/w/watch HTTP/1.1\r\nhost: localhost\r\n\r\n"
    else:
        message = b'{"query": {"window": "w"}}'
        sealed = b"\0%b%b" % (len(message).to_bytes(4, "big"), message)
        sent = b"POST /sash.v1.Windows/Watch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/connect+json\r\n"
        sent += b"content-length: %d\r\n\r\n%b" % (len(sealed), sealed)
    with windowed() as running:
        with connected(running) as connection:
            connection.sendall(sent + behind)
            assert b" 200 " in connection.recv(65536)
            wait_until(lambda: running.plane.watches.questions == 1)
        wait_until(lambda: running.plane.watches.questions == 0)
