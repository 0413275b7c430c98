"""Small requests are answered while they are read, as they would be answered by a task, and with all limits."""

import socket

import orjson
import pytest

from sash.limits.places import Places
from sash.limits.turns import Turns
from sash.rest.connection import SMALL_BYTES, Connection
from sash_engine.errors import Unavailable
from sash_proto.v1 import windows_pb2 as pb
from tests.rest.conftest import held_by_a_write
from tests.rest.test_whole import ask, request
from tests.support.raw_http import connected
from tests.support.servers import running_service
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

SPEC = {
    "name": "w",
    "time_unit": "s",
    "keyed": True,
    "aggregates": {"n": {"function": "count"}, "all": {"function": "collect"}},
    "slide": {"max_age": "1h"},
}
PROTO = "application/proto"
INSERT = "/v1/windows/w/insert"
QUERY = "/v1/windows/w/query"
CALL = "/sash.v1.Windows/"


@pytest.fixture(scope="module", params=["memory", "lmdb"])
def service(request, tmp_path_factory):
    data = "memory" if request.param == "memory" else str(tmp_path_factory.mktemp("data"))
    with running_service(data=data, max_entries_per_write=1000) as running:
        made = post("/v1/windows", orjson.dumps(SPEC))
        assert ask(running, made)[0][0].startswith(b"HTTP/1.1 201")
        yield running


def post(path, body, kind="application/json", further=b""):
    return request("POST", path, body, kind, further)


def same(data):
    """A request that says its id, which answers of errors repeat."""
    head, line, rest = data.partition(b"\r\n")
    return head + line + b"x-request-id: same\r\n" + rest


def entry(time, **more):
    return orjson.dumps({"time": time, "key": "a", "value": 1.5, **more})


def message(time):
    return pb.InsertRequest(window="w", time=time, key="a", value=2.5).SerializeToString()


def quickly(running, answered, data):
    """Ask until the answer is quick: on a busy machine, the first one may have to wait for its turn."""
    for _ in range(100):
        answered.clear()
        found = ask(running, data)
        if answered == [True]:
            return found
    raise AssertionError("it never was quick")


# Each is sent twice, and the second one changes nothing that an answer shows.
QUICK = {
    "insert": post(INSERT, entry(5, producer="p", sequence=1)),
    "insert with an answer": post(INSERT, entry(6, producer="p", sequence=2, answer=True, lookbacks=["1s"])),
    "insert by Connect": post(CALL + "Insert", message(-9999), PROTO),
    "insert by Connect in JSON": post(CALL + "Insert", b'{"window": "w", "time": "-9999", "key": "a", "value": 1}'),
    "query": request("GET", QUERY + "?key=a&lookback=5s"),
    "query of all keys": request("GET", QUERY + "?all_keys=true"),
    "range": request("GET", "/v1/windows/w/range?start=1&end=9&key=a"),
    "query by Connect": post(
        CALL + "Query", pb.QueryRequest(window="w", key="a", lookbacks=["5s"]).SerializeToString(), PROTO
    ),
    "query by Connect with a deadline": post(
        CALL + "Query",
        pb.QueryRequest(window="w", key="a").SerializeToString(),
        PROTO,
        b"connect-protocol-version: 1\r\nconnect-timeout-ms: 60000\r\n",
    ),
    "window by Connect": post(CALL + "GetWindow", pb.GetWindowRequest(name="w").SerializeToString(), PROTO),
    "entry of wrong type": post(INSERT, entry("x")),
    "no JSON": post(INSERT, b"{"),
    "no body": request("POST", INSERT),
    "body of another type": post(INSERT, b"time=5", "application/x-www-form-urlencoded"),
    "unknown window": request("GET", "/v1/windows/v/query"),
    "unknown parameter": request("GET", QUERY + "?keys=a"),
    "unknown window by Connect": post(CALL + "Insert", pb.InsertRequest(window="v").SerializeToString(), PROTO),
    "no message": post(CALL + "Insert", b"\xff", PROTO),
    "no time": post(CALL + "Insert", pb.InsertRequest(window="w", key="a", value=1).SerializeToString(), PROTO),
}
OTHERS = {
    "another version of HTTP": request("GET", QUERY + "?key=a", version="1.0"),
    "the last request": request("GET", QUERY + "?key=a", further=b"connection: close\r\n"),
    "another method": request("DELETE", QUERY),
    "head": request("HEAD", QUERY + "?key=a"),
    "another route": request("GET", "/v1/windows/w"),
    "another site's page": post(INSERT, entry(5), further=b"origin: http://example.org\r\n"),
    "two hosts": request("GET", QUERY + "?key=a", further=b"host: localhost\r\n"),
    "proxy": request("GET", QUERY + "?key=a", further=b"x-forwarded-for: 10.1.2.3\r\n"),
    "a fragment": request("GET", QUERY + "#?key=a"),
    "an escape": request("GET", "/v1/windows/%77/query?key=a"),
    "the whole address": request("GET", "http://localhost" + QUERY + "?key=a"),
    "no ASCII": request("GET", "/v1/windows/w\u00fc/query?key=a", further=b"connection: close\r\n"),
    "compressed": post(CALL + "Insert", message(-9999), PROTO, b"content-encoding: br\r\n"),
    "another version of Connect": post(CALL + "Insert", message(5), PROTO, b"connect-protocol-version: 7\r\n"),
    "no deadline": post(CALL + "Insert", message(5), PROTO, b"connect-timeout-ms: soon\r\n"),
    "another media type": post(CALL + "Insert", message(5), "application/x-proto"),
    "unknown method": post(CALL + "Insect", b"", PROTO),
}


@pytest.mark.parametrize("case", [*QUICK, *OTHERS])
def test_a_quick_answer_is_that_of_a_task(service, answered, monkeypatch, case):
    data = same(QUICK[case] if case in QUICK else OTHERS[case])
    monkeypatch.setattr("sash.context.new_id", lambda: "of a head that is none")
    ask(service, data)  # an entry is applied
    found = quickly(service, answered, data) if case in QUICK else ask(service, data)
    monkeypatch.setattr(Connection, "_may_begin_at_once", lambda *_: False)
    assert found == ask(service, data)


@pytest.mark.parametrize("case", ["insert", "query", "insert by Connect", "query by Connect"])
@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_request_in_parts_is_answered_the_same(service, case, size):
    """Its head and its body end anywhere in what is received."""
    data = same(QUICK[case])
    (found,) = ask(service, data)
    with connected(service) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for a in range(0, len(data), size):
            client.sendall(data[a : a + size])
        received = b""
        while not received.endswith(found[2]):
            received += client.recv(65536)
    assert received.startswith(found[0])


@pytest.mark.parametrize("case", ["insert", "query", "insert by Connect", "query by Connect"])
def test_requests_behind_each_other_are_answered_the_same(service, case):
    data = same(QUICK[case])
    (found,) = ask(service, data)
    assert ask(service, data * 200, 200) == [found] * 200


def test_a_body_in_parts_has_a_task(service, answered, monkeypatch):
    begin, begun = Connection._begin, []

    def noted(self, exchange, in_task=False):
        begin(self, exchange, in_task)
        begun.append(in_task)

    monkeypatch.setattr(Connection, "_begin", noted)
    data = post(INSERT, entry(5))
    with connected(service, data[:-9]) as client:
        wait_until(lambda: begun)
        client.sendall(data[-9:])
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert begun == [True]
    assert not answered


@pytest.mark.parametrize("case", QUICK)
def test_a_call_that_waits_for_its_turn_is_answered_the_same(service, answered, monkeypatch, case):
    data = same(QUICK[case])
    ask(service, data)
    found = quickly(service, answered, data)
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: True)
    answered.clear()
    assert ask(service, data) == found
    assert answered == [True]


@pytest.mark.parametrize("case", ["insert", "query", "insert by Connect", "query by Connect"])
def test_a_call_that_waits_for_its_turn_is_charged_the_same(service, monkeypatch, case):
    data = same(QUICK[case])
    ask(service, data)  # its host is known from now on
    charged = []
    turn = Turns.turn

    def noted(self, name, size=0, reads=False):
        charged.append((size, reads))
        return turn(self, name, size, reads)

    monkeypatch.setattr(Turns, "pays", lambda *_, **__: True)
    monkeypatch.setattr(Turns, "turn", noted)
    ask(service, data)
    monkeypatch.setattr(Connection, "_may_begin_at_once", lambda *_: False)
    ask(service, data)
    quickly_charged, charged_the_long_way = charged
    assert quickly_charged == charged_the_long_way == (len(data.partition(b"\r\n\r\n")[2]), case == "query")


def test_a_call_for_which_there_is_no_place_after_its_turn_is_refused(service, answered, monkeypatch):
    data = same(QUICK["query"])
    quickly(service, answered, data)
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: True)

    def full(self, caller):
        raise Unavailable("there is no place", retry_after_s=1.0)

    monkeypatch.setattr(Places, "enter", full)
    answered.clear()
    (found,) = ask(service, data)
    assert found[0].startswith(b"HTTP/1.1 503")
    assert answered == [True]
    monkeypatch.setattr(Connection, "_may_begin_at_once", lambda *_: False)
    assert ask(service, data) == [found]


@pytest.mark.parametrize("case", ["query", "range", "query by Connect", "query by Connect with a deadline", "insert"])
def test_a_call_that_waits_goes_on_as_it_began(service, answered, case):
    """A long write holds the window when the call begins."""
    quickly(service, answered, QUICK["insert"])
    answered.clear()
    with held_by_a_write(service) as end, connected(service, QUICK[case]) as client:
        wait_until(lambda: answered)
        end()
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_quick_requests_are_answered_in_order_between_others(service):
    """A write that waits for the tier comes before the question behind it."""
    several = b"".join(
        [
            QUICK["query"],
            post(INSERT, entry(-5000)),
            QUICK["query"],
            request("GET", "/v1/windows/v/query"),
            OTHERS["another route"],
            QUICK["query by Connect"],
        ]
    )
    answers = ask(service, several, 6)
    assert [status.split()[1] for status, *_ in answers] == [b"200", b"200", b"200", b"404", b"200", b"200"]
    assert b'"late":1' in answers[1][2]
    assert answers[5][1][b"content-type"] == b"application/proto\r\n"


def test_quick_calls_are_counted_as_others_are(service):
    def count(name):
        (found,) = ask(service, request("GET", "/metrics", further=b"connection: close\r\n"))
        return sum(float(line.split()[-1]) for line in found[2].splitlines() if line.startswith(name))

    names = (
        b'sash_operation_seconds_count{operation="insert"',
        b'sash_requests_rejected_total{code="404",edge="rest"}',
    )
    before = [count(name) for name in names]
    ask(service, post(INSERT, entry(7)))
    ask(service, QUICK["unknown window"])
    assert [count(name) - old for name, old in zip(names, before, strict=True)] == [1, 1]


def test_tokens_and_quotas_hold_for_quick_calls(tmp_path, answered):
    tokens = write_tokens(
        tmp_path / "tokens.yaml", {"writer": {"role": "admin"}, "reader": {}, "slow": {"calls_per_s": 0.001}}
    )
    with running_service(tokens=tokens) as running:
        bearer = {name: f"authorization: Bearer {name}-token\r\n".encode() for name in ("writer", "reader", "slow")}
        made = post("/v1/windows", orjson.dumps(SPEC), further=bearer["writer"])
        assert ask(running, made)[0][0].startswith(b"HTTP/1.1 201")
        question = request("GET", QUERY + "?key=a", further=bearer["reader"])
        answered.clear()
        assert ask(running, question)[0][0].startswith(b"HTTP/1.1 200")
        assert quickly(running, answered, question)[0][0].startswith(b"HTTP/1.1 200")
        (refused,) = quickly(running, answered, post(INSERT, entry(5), further=bearer["reader"]))
        assert refused[0].startswith(b"HTTP/1.1 403")
        for status in (b"401", b"401"):
            (refused,) = ask(running, request("GET", QUERY + "?key=a"))
            assert refused[0].split()[1] == status
        used = [ask(running, request("GET", QUERY + "?key=a", further=bearer["slow"]))[0][0] for _ in range(5)]
        assert used[0].startswith(b"HTTP/1.1 200")
        assert used[-1].startswith(b"HTTP/1.1 429")


# ---------------------------------------------------------------- the limits of all others

QUESTION = request("GET", QUERY + "?key=a")


def asked(running, data):
    """As `ask`; the service is done with the request, too. It notes more after it has answered."""
    found = ask(running, data)
    running.on_loop(lambda: None)
    return found


@pytest.fixture
def lone():
    """A service that nobody else asks."""
    with running_service() as running:
        asked(running, post("/v1/windows", orjson.dumps(SPEC)))
        asked(running, QUESTION)
        yield running


def test_another_host_is_refused(lone, answered):
    (found,) = asked(lone, QUESTION.replace(b"host: localhost", b"host: example.org"))
    assert found[0].startswith(b"HTTP/1.1 421")
    assert answered == [True]


def test_a_large_body_has_memory_set_aside(lone, answered):
    (found,) = asked(lone, post(INSERT, entry(5) + b" " * SMALL_BYTES))
    assert found[0].startswith(b"HTTP/1.1 200")
    assert True not in answered


def test_who_reads_no_answers_gets_no_more_of_them(lone, answered, connections):
    with connected(lone) as client:
        wait_until(lambda: connections)
        lone.on_loop(connections[0].pause_writing)  # as the transport does when its buffer is full
        client.sendall(QUESTION)
        wait_until(lambda: connections[0]._exchanges)
        assert answered == [False]
        lone.on_loop(connections[0].resume_writing)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_connection_that_waits_takes_nothing_more(lone, connections):
    """A call that waits for its caller to go has it read on."""
    with held_by_a_write(lone) as end, connected(lone, QUESTION * 200) as client:
        wait_until(lambda: connections and connections[0]._waiting)

        def received_more():
            connections[0].read_on()
            connections[0].data_received(QUESTION)
            return connections[0]._read_paused

        assert lone.on_loop(received_more)
        end()
        found = b""
        while found.count(b"HTTP/1.1 200") < 201:
            found += client.recv(65536)


def test_a_connection_beyond_the_limit_is_for_monitors(answered):
    with running_service(max_connections=1) as running:
        with connected(running, post("/v1/windows", orjson.dumps(SPEC))) as first:
            assert first.recv(65536).startswith(b"HTTP/1.1 201")
            first.sendall(QUESTION)
            assert first.recv(65536).startswith(b"HTTP/1.1 200")
            running.on_loop(lambda: None)
            answered.clear()
            (found,) = asked(running, QUESTION)
        assert found[0].startswith(b"HTTP/1.1 503")
        assert answered == [False]


def test_a_question_without_a_place_is_refused(lone, monkeypatch, answered):
    def full(self, caller):
        raise Unavailable("there is no place", retry_after_s=1.0)

    monkeypatch.setattr(Places, "enter", full)
    answered.clear()
    assert asked(lone, QUESTION)[0][0].startswith(b"HTTP/1.1 503")
    assert answered == [True]


def test_a_quick_question_corrects_what_its_caller_was_charged(lone, answered, monkeypatch):
    charged, metered = [], Turns.metered

    async def noted(self, name, work, reads):
        charged.append(name)
        return await metered(self, name, work, reads)

    monkeypatch.setattr(Turns, "metered", noted)
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: False)
    answered.clear()
    asked(lone, QUESTION)
    assert (answered, charged) == ([True], ["127.0.0.1"])


def test_quick_answers_have_the_date_of_their_second(lone, answered, connections, monkeypatch):
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: False)
    with connected(lone) as client:
        wait_until(lambda: connections)
        for date in (b"the first", b"the second"):

            def headers_are(date=date):
                connections[0].date = b"date: %b\r\n" % date
                connections[0].data_received(QUESTION)

            answered.clear()
            lone.on_loop(headers_are)
            assert answered == [True]
            assert b"\r\ndate: " + date + b"\r\n" in client.recv(65536)


def test_a_quick_write_is_its_callers(lone, answered, monkeypatch):
    wrote = []
    monkeypatch.setattr(Turns, "wrote", lambda self, name, spent_s: wrote.append(name))
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: False)
    answered.clear()
    asked(lone, post(INSERT, entry(5)))
    assert (answered, wrote) == ([True], ["127.0.0.1"])


def test_a_call_that_waited_gives_its_place_back(lone, answered, monkeypatch):
    left = []
    leave = Places.leave
    monkeypatch.setattr(Places, "leave", lambda self, name: (leave(self, name), left.append(name)))
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: True)
    answered.clear()
    asked(lone, QUESTION)
    assert (answered, left) == ([True], ["127.0.0.1"])
