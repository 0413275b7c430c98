"""Requests whose bodies do not end, or end elsewhere than they seem to; on raw connections."""

from __future__ import annotations

import json
import socket

import pytest

from sash.rest.connection import Connection, Receiving
from tests.rest.conftest import held_by_a_write
from tests.security.conftest import COUNT, new_window, rejected
from tests.support.raw_http import asking, connected, next_of, rest_of, statuses
from tests.support.servers import json_head, running_service, service_process
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

GET = b"GET /v1/windows HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 1000 + b"\r\n\r\n"
QUERY = b"GET /v1/windows/w/query HTTP/1.1\r\nhost: localhost\r\n\r\n"
NEXT = b"POST /v1/windows/w/insert HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = NEXT + b"transfer-encoding: chunked\r\n\r\n"
SLOW = CHUNKED + b'14\r\n{"time":1,"value":1}\r\n0\r\n\r\n'
"""An insert that takes the long way: it has not begun when what is behind it is received."""

ENTRY = b'{"window": "w", "time": "1", "value": 1}'
INSERT = b"POST /sash.v1.Windows/Insert%b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
INSERT += b"content-length: %d\r\n\r\n" % len(ENTRY)


@pytest.fixture(scope="module")
def open_service():
    with running_service() as running:
        yield running, running.http()


@pytest.fixture
def running(open_service):
    """A service with an empty window."""
    new_window(open_service[1])
    return open_service[0]


@pytest.fixture
def http(open_service):
    return open_service[1]


@pytest.fixture
def arriving(monkeypatch):
    """Has the service receive what is sent in parts of some sizes, whatever the network makes of it."""

    def in_parts(*sizes):
        receive, waiting, ends = Connection.data_received, bytearray(), list(sizes)

        def received(self, data):
            waiting.extend(data)
            while ends and len(waiting) >= ends[0]:
                size = ends.pop(0)
                part = bytes(waiting[:size])
                del waiting[:size]
                receive(self, part)

        monkeypatch.setattr(Connection, "data_received", received)

    return in_parts


@pytest.mark.parametrize(
    "block",
    [b"0\r\n" + b"x-trailer: y\r\n" * 8000, b"0\r\nx-trailer: " + b"y" * 100_000, b"1;" + b"x" * 100_000],
    ids=["trailers", "a long trailer", "an extension of a chunk"],
)
def test_what_is_no_content_has_an_end(running, http, block):
    """It was kept: 60 MB of trailers took 480 MB, without a token."""
    before = rejected(http, 400)
    with asking(running, CHUNKED + block) as (connection, _):
        assert rest_of(connection)[:13] in (b"HTTP/1.1 400 ", b"")
    assert rejected(http, 400) == before + 1


def test_trailers_and_extensions_are_left_out(running):
    one = CHUNKED + b'14;a=b\r\n{"time":1,"value":1}\r\n0\r\nhost: example.com\r\nauthorization: x\r\n\r\n'
    with asking(running, one + one) as (_, answers):
        assert statuses(answers, 2) == [200, 200]


def test_many_small_chunks_are_content(running):
    """They arrive by themselves, each with more framing than content."""
    with asking(running, CHUNKED) as (connection, answers):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b'{"time":1,"value":1' + b" " * 1000 + b"}":
            connection.sendall(b"1;" + b"x" * 100 + b"\r\n%c\r\n" % byte)
        connection.sendall(b"0\r\n\r\n")
        assert statuses(answers, 1) == [200]


@pytest.mark.parametrize("left", [30, 0], ids=["its head", "its body"])
def test_a_request_that_begins_behind_many_others_is_read(running, arriving, left):
    """What arrived together with it was taken for its own head, or for framing of its body."""
    many = GET * 80 + INSERT % b""
    arriving(len(many) - left, left + len(ENTRY))
    with asking(running, many + ENTRY) as (_, answers):
        assert statuses(answers, 81) == [200] * 81


@pytest.mark.parametrize("protocol", [b"HTTP", b"RTSP"])
def test_few_requests_wait_for_others_on_a_connection(running, arriving, monkeypatch, protocol):
    """Each took 8 KB while it waited, so 256 KB that arrived at once took 80 MB, without a token."""
    begin, most = Connection.on_headers_complete, []

    def began(self):
        begin(self)
        most.append(len(self._exchanges))

    asked = b"GET /v1/windows/v " + protocol + b"/1.1\r\nhost:localhost\r\nx-request-id: %d\r\n\r\n"
    many = b"".join(asked % number for number in range(1000))
    monkeypatch.setattr(Connection, "on_headers_complete", began)
    arriving(len(many) - 100, 100)
    with asking(running, many) as (_, answers):
        for number in range(1000):
            status, body = next_of(answers)
            assert status == 404
            assert b'"request_id":"%d"' % number in body
    assert len(most) == 1000
    assert 0 < max(most) < 100


def test_a_head_is_not_slow_while_the_service_does_not_read(running, connections):
    """It waits behind an answer that takes long."""
    several = QUERY + 2 * GET
    with asking(running, b"") as (connection, answers):
        with held_by_a_write(running):
            connection.sendall(several[:-100])
            wait_until(lambda: connections and connections[-1]._receiving is Receiving.HEAD)
            connection.sendall(several[-100:])
            running.on_loop(lambda: connections[-1].look(connections[-1]._looked_s + 1000))
            assert not running.on_loop(connections[-1].is_closing)
        assert statuses(answers, 3) == [200] * 3


def test_a_head_that_begins_behind_others_has_an_end(running, arriving):
    head = b"GET /healthz HTTP/1.1\r\nx: "
    arriving(len(GET) * 80 + len(head), 66_000)
    with asking(running, GET * 80 + head + b"x" * 66_000) as (connection, _):
        assert b"HTTP/1.1 431 " in rest_of(connection)


def test_an_insert_with_a_long_address_changes_nothing(running, http, monkeypatch, arriving):
    """It was applied, and then refused, where its head came in two parts."""
    sent = INSERT % (b"?" + b"a" * 65_999) + ENTRY
    arriving(60_000, len(sent) - 60_000)
    with asking(running, sent) as (connection, _):
        assert b"HTTP/1.1 431 " in rest_of(connection)
    monkeypatch.undo()
    assert http.get("/v1/windows/w").json()["entries"] == 0


def test_a_get_that_offers_another_protocol_is_answered(http):
    assert http.get("/v1/windows", headers={"connection": "upgrade", "upgrade": "h2c"}).status_code == 200


def test_requests_that_are_none_are_not_logged():
    """Each was, without a token and without a limit."""
    with service_process() as running:
        for _ in range(10):
            with asking(running, b"nonsense\r\n\r\n") as (_, answers):
                assert statuses(answers, 1) == [400]
        assert running.process is not None
        running.process.terminate()
        assert "Invalid HTTP" not in running.process.communicate(timeout=120)[1]


# ---------------------------------------------------------------- requests behind others


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n", 400),
        (b"GET http:// HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
        (CHUNKED + b"zz\r\n", 400),
        (CHUNKED + b"1;" + b"x" * 70_000, 400),
        (b"GET / HTTP/1.1\r\nx: " + b"x" * 70_000, 431),
        (b"GET / HTTP/1.1\r\nx: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/2.0\r\nhost: localhost\r\n\r\n", 505),
    ],
    ids=["nonsense", "a line feed", "an address", "a chunk", "an extension", "a head", "a whole head", "a version"],
)
@pytest.mark.parametrize("before", [1, 3])
def test_a_wrong_request_is_refused_behind_the_answers_before_it(running, http, wrong, status, before):
    """It was answered first, in the place of a write that was applied."""
    count = rejected(http, status)
    with asking(running, SLOW * before + wrong + GET) as (_, answers):
        assert statuses(answers, before) == [200] * before
        found, body = next_of(answers)
        assert found == json.loads(body)["status"] == status
        assert answers.read() == b""
    assert http.get("/v1/windows/w").json()["entries"] == before
    assert rejected(http, status) == count + 1


@pytest.mark.parametrize("late", [GET[:-100], NEXT + b"content-length: 9\r\n\r\n"], ids=["its head", "its body"])
def test_a_request_that_stalls_behind_others_is_refused_behind_their_answers(running, connections, late):
    with asking(running, b"") as (connection, answers):
        with held_by_a_write(running):
            connection.sendall(QUERY + late)
            wait_until(lambda: connections and connections[-1]._receiving in (Receiving.HEAD, Receiving.BODY))
            running.on_loop(lambda: setattr(connections[-1], "_read_paused", False))
            for _ in range(2):
                running.on_loop(lambda: connections[-1].look(connections[-1]._looked_s + 1000))
            assert not running.on_loop(connections[-1].is_closing)
        assert statuses(answers, 2) == [200, 408]
        assert answers.read() == b""


@pytest.mark.parametrize("request_line", [b"GET /x HTTP/2.0", b"GET /x HTTP/0.9", b"GET /x"])
def test_another_version_of_http_is_refused(running, request_line):
    with asking(running, (request_line + b"\r\nhost: localhost\r\n\r\n") * 100) as (_, answers):
        status, body = next_of(answers)
        assert status == 505
        assert json.loads(body)["detail"] == "only HTTP/1.1 and HTTP/1.0 are spoken here"
        assert answers.read() == b""


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        # An address that is none is refused before its body arrives.
        (b"POST http:// HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
    ],
    ids=["HTTP/1.0", "an address"],
)
def test_what_is_answered_at_once_and_closed(running, sent, line):
    with asking(running, sent) as (connection, _):
        assert rest_of(connection).startswith(line)


def test_space_behind_a_value_is_not_of_it(tmp_path):
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}})
    values = {
        b"host": b"localhost",
        b"content-type": b"application/json",
        b"authorization": b"Bearer root-token",
        b"expect": b"100-continue",
    }
    with running_service(tokens=tokens) as running:
        for number, (name, space) in enumerate((name, space) for name in values for space in (b" ", b"\t", b" \t ")):
            body = json.dumps({"name": f"w{number}", "aggregates": COUNT}).encode()
            given = values | {name: values[name] + space, b"content-length": b"%d" % len(body)}
            head = b"POST /v1/windows HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % value for value in given.items())
            with asking(running, head + b"\r\n") as (connection, answers):
                assert statuses(answers, 1) == [100], (name, space)
                connection.sendall(body)
                assert statuses(answers, 1) == [201], (name, space)


# ---------------------------------------------------------------- clients that send no more


@pytest.mark.parametrize(
    "sent",
    [[SLOW], [SLOW, GET, SLOW], [GET] * 300, [SLOW, GET, GET[:-50]], [SLOW, NEXT + b"content-length: 9\r\n\r\n{"]],
    ids=["one", "three", "many", "part of a head", "part of a body"],
)
def test_a_client_that_sends_no_more_gets_its_answers(running, http, connections, sent):
    """It got none."""
    whole = [each for each in sent if each in (SLOW, GET)]
    with asking(running, b"".join(sent)) as (connection, answers):
        connection.shutdown(socket.SHUT_WR)
        assert statuses(answers, len(whole)) == [200] * len(whole)
        assert answers.read() == b""
    assert http.get("/v1/windows/w").json()["entries"] == whole.count(SLOW)
    wait_until(lambda: not [each for each in connections[0]._port.open if each._no_more])


def test_a_client_that_sends_no_more_is_waited_for(running, connections):
    with asking(running, b"") as (connection, answers):
        with held_by_a_write(running):
            connection.sendall(QUERY)
            wait_until(lambda: connections and connections[-1]._exchanges)
            connection.shutdown(socket.SHUT_WR)
            wait_until(lambda: connections[-1]._no_more)
            running.on_loop(lambda: connections[-1].look(connections[-1]._looked_s + 1000))
        assert statuses(answers, 1) == [200]


def test_a_body_that_cannot_be_completed_is_not_waited_for(running):
    with asking(running, json_head("/v1/windows/w/insert", 9) + b"{") as (connection, _):
        connection.shutdown(socket.SHUT_WR)
        assert rest_of(connection) == b""


CONNECT = b'\0\0\0\0\x1a{"query": {"window": "w"}}'
WATCHES = {
    "REST": b"GET /v1/windows/w/watch HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "Connect": b"POST /sash.v1.Windows/Watch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/connect+json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(CONNECT), CONNECT),
}


@pytest.mark.parametrize("edge", WATCHES)
@pytest.mark.parametrize("behind", [b"", GET], ids=["alone", "with a request behind it"])
def test_a_watch_ends_when_its_client_goes(running, edge, behind):
    """With a request behind it, it went on for ever."""
    with connected(running, WATCHES[edge] + behind) as connection:
        assert b" 200 " in connection.recv(65536)
        wait_until(lambda: running.plane.watches.questions == 1)
    wait_until(lambda: running.plane.watches.questions == 0)
