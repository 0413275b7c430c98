"""Requests that one client sends on one connection without waiting for answers.

Commits are held by the tests: what is answered, begun and applied meanwhile does not depend on how fast a disk is.
"""

import socket
import struct
import threading

import orjson
import pytest

from sash import calls
from sash.rest.connection import PIPELINED_MAX
from sash.tiers.lmdb import LmdbTier
from tests.rest.conftest import held_by_a_write
from tests.support.raw_http import asking, next_of, statuses
from tests.support.servers import WAIT_S, running_service
from tests.support.waiting import wait_until

SPEC = {"name": "w", "aggregates": {"n": {"function": "count"}, "all": {"function": "collect"}}}
KEEPS, CLOSES = b"", b"connection: close\r\n"


def asked(path, body, more=KEEPS, method=b"POST"):
    head = b"%b %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n%b" % (method, path, more)
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def rest_insert(i, more=KEEPS):
    return asked(b"/v1/windows/w/insert", orjson.dumps({"time": i, "value": i}), more)


def connect_insert(i, more=KEEPS):
    return asked(b"/sash.v1.Windows/Insert", orjson.dumps({"window": "w", "time": str(i), "value": i}), more)


QUERY = b"GET /v1/windows/w/query HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Held:
    """A service whose tier commits nothing until it is let."""

    def __init__(self, running, let, commits):
        self.running, self.let, self.commits = running, let, commits

    @property
    def entries(self):
        return self.running.on_loop(lambda: self.running.plane._windows._storage.find("w").info().entries)


@pytest.fixture
def held(monkeypatch, tmp_path, connections):
    let, commits, commit = threading.Event(), [], LmdbTier.commit
    let.set()

    def waited(self, puts, deletes=()):
        assert let.wait(WAIT_S)
        commits.append(len(puts))
        return commit(self, puts, deletes)

    monkeypatch.setattr(LmdbTier, "commit", waited)
    with running_service(data=str(tmp_path)) as running:
        assert running.http().post("/v1/windows", json=SPEC).status_code == 201
        let.clear()
        connections.clear()
        try:
            yield Held(running, let, commits)
        finally:
            let.set()


@pytest.mark.parametrize("insert", [rest_insert, connect_insert])
def test_inserts_of_one_connection_share_a_commit(held, insert):
    """Each waited for the commit of the one before it."""
    with asking(held.running, b"".join(map(insert, range(40)))) as (_, answers):
        wait_until(lambda: held.entries == 40)
        before = len(held.commits)
        held.let.set()
        for _ in range(40):
            status, answer = next_of(answers)
            assert (status, int(orjson.loads(answer)["inserted"])) == (200, 1)
        assert len(held.commits) - before <= 2  # the first insert alone, and all others


def test_answers_come_in_the_order_of_requests(held):
    """Whatever they ask: a question sees the writes before it, and none behind it."""
    wrong = asked(b"/v1/windows/w/insert", b'{"time": "x"}')
    sent = [rest_insert(0), QUERY, wrong, rest_insert(1), QUERY, b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n"]
    with asking(held.running, b"".join([*sent, connect_insert(2), QUERY])) as (_, answers):
        wait_until(lambda: held.entries == 3)
        held.let.set()
        found = [next_of(answers) for _ in range(8)]
    assert [status for status, _ in found] == [200, 200, 400, 200, 200, 404, 200, 200]
    assert [orjson.loads(found[i][1])["answers"][0]["aggregates"]["all"] for i in (1, 4, 7)] == [
        [0.0],
        [0.0, 1.0],
        [0.0, 1.0, 2.0],
    ]


def test_what_follows_a_refused_request_waits_for_its_answer(held, connections):
    """Refusals have no place among the calls in progress, and would be without number."""
    refused = QUERY.replace(b"localhost", b"example.org")
    with asking(held.running, rest_insert(0) + refused + rest_insert(1) + rest_insert(2)) as (_, answers):
        wait_until(lambda: connections and len(connections[0]._exchanges) == 4 and connections[0]._exchanges[1].begun)
        assert held.running.on_loop(lambda: [each.begun for each in connections[0]._exchanges]) == [
            True,
            True,
            False,
            False,
        ]
        held.let.set()
        assert statuses(answers, 4) == [200, 421, 200, 200]


def test_nothing_is_answered_before_what_was_asked_first(held):
    """A question is answered behind the write that it saw, which may not be durable yet."""
    with asking(held.running, rest_insert(0) + QUERY) as (client, _):
        wait_until(lambda: held.entries == 1)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_so_many_are_begun_and_no_more(held, connections):
    with asking(held.running, b"".join(map(rest_insert, range(3 * PIPELINED_MAX)))) as (_, answers):
        wait_until(lambda: connections and connections[0]._read_paused and held.entries >= PIPELINED_MAX)
        most = held.running.on_loop(lambda: len(connections[0]._exchanges))
        assert PIPELINED_MAX <= held.entries <= most < PIPELINED_MAX + 50  # those of one part, of 4 KiB
        held.let.set()
        assert set(statuses(answers, 3 * PIPELINED_MAX)) == {200}
    assert held.entries == 3 * PIPELINED_MAX


OLD = rest_insert(1, b"connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")


@pytest.mark.parametrize("last", [rest_insert(1, CLOSES), OLD], ids=["close", "HTTP/1.0"])
def test_what_follows_the_last_request_of_a_connection_does_not_begin(held, connections, last):
    with asking(held.running, rest_insert(0) + last + rest_insert(2)) as (_, answers):
        wait_until(lambda: held.entries == 2)
        held.let.set()
        assert statuses(answers, 2) == [200, 200]
        assert answers.read() == b""
    assert held.entries == 2


def test_a_body_that_arrives_in_parts_is_waited_for(held, connections):
    """Also where its head came behind a write that waits for the tier."""
    second = rest_insert(1)
    with asking(held.running, rest_insert(0) + second[:-5]) as (client, answers):
        wait_until(lambda: connections and len(connections[0]._exchanges) == 2)
        assert not connections[0]._exchanges[1].begun
        assert held.entries == 1
        client.sendall(second[-5:] + rest_insert(2))
        wait_until(lambda: held.entries == 3)
        held.let.set()
        assert set(statuses(answers, 3)) == {200}


def test_a_request_that_waits_for_a_window_lets_none_overtake_it(held, connections):
    """It is not applied yet, so what follows must not be, either."""
    held.let.set()
    sent = b"".join(map(rest_insert, range(5)))
    with held_by_a_write(held.running) as end, asking(held.running, sent) as (client, answers):
        wait_until(lambda: connections and len(connections[0]._exchanges) == 5)
        assert held.running.on_loop(lambda: [each.begun for each in connections[0]._exchanges]) == [True] + 4 * [False]
        end()
        assert set(statuses(answers, 5)) == {200}
        client.sendall(QUERY)
        assert orjson.loads(next_of(answers)[1])["answers"][0]["aggregates"]["all"] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_client_that_waits_to_be_told_to_continue_is_told_so_in_its_turn(held, connections):
    """Its request does not begin before: it would wait for a body that the client does not send."""
    head, body = rest_insert(1, b"expect: 100-continue\r\n").split(b"\r\n\r\n")
    sent = rest_insert(0) + head + b"\r\n\r\n"
    with held_by_a_write(held.running) as end, asking(held.running, sent) as (client, answers):
        wait_until(lambda: connections and len(connections[0]._exchanges) == 2)
        end()
        wait_until(lambda: held.entries == 1)
        wait_until(lambda: connections[0]._exchanges[0].may_be_followed)
        assert not held.running.on_loop(lambda: connections[0]._exchanges[1].begun)
        held.let.set()
        assert next_of(answers)[0] == 200
        assert (answers.readline(), answers.readline()) == (b"HTTP/1.1 100 Continue\r\n", b"\r\n")
        client.sendall(body)
        assert next_of(answers)[0] == 200


def test_writes_go_on_when_their_client_goes(held, connections):
    with asking(held.running, b"".join(map(rest_insert, range(10)))) as (client, _):
        wait_until(lambda: held.entries == 10)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is gone at once
    wait_until(lambda: not connections[0]._exchanges)
    assert held.running.on_loop(lambda: len(calls._running)) == 10
    held.let.set()
    wait_until(lambda: held.running.on_loop(lambda: not calls._running))
    assert held.entries == 10


def test_a_client_that_says_no_more_gets_all_answers(held):
    with asking(held.running, b"".join(map(rest_insert, range(10)))) as (client, answers):
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: held.entries == 10)
        held.let.set()
        assert set(statuses(answers, 10)) == {200}
        assert answers.read() == b""
