"""Requests that are answered while they are read have the limits of all others."""

import socket

import orjson
import pytest

from sash.limits.places import Places
from sash.limits.turns import Turns
from sash.rest import connection
from sash_engine.errors import Unavailable
from tests.rest.conftest import held_by_a_write
from tests.rest.test_quick import INSERT, QUERY, SPEC, entry, post
from tests.rest.test_whole import ask as ask_at_once
from tests.rest.test_whole import request
from tests.support.servers import WAIT_S, running_service
from tests.support.waiting import wait_until

QUESTION = request("GET", QUERY + "?key=a")


def ask(running, data):
    """As `ask_at_once`; the service is done with the request, too. It notes more after it has answered."""
    found = ask_at_once(running, data)
    running.on_loop(lambda: None)
    return found


@pytest.fixture
def service():
    with running_service() as running:
        ask(running, post("/v1/windows", orjson.dumps(SPEC)))
        ask(running, QUESTION)
        yield running


def test_another_host_is_refused(service, answered):
    (found,) = ask(service, QUESTION.replace(b"host: localhost", b"host: example.org"))
    assert found[0].startswith(b"HTTP/1.1 421")
    assert answered == [True]


def test_a_large_body_has_memory_set_aside(service, answered):
    (found,) = ask(service, post(INSERT, entry(5) + b" " * connection.SMALL_BYTES))
    assert found[0].startswith(b"HTTP/1.1 200")
    assert True not in answered


def test_who_reads_no_answers_gets_no_more_of_them(service, answered, connections):
    with socket.create_connection(("127.0.0.1", service.rest_port), WAIT_S) as client:
        wait_until(lambda: connections)
        service.on_loop(connections[0].pause_writing)  # as the transport does when its buffer is full
        client.sendall(QUESTION)
        wait_until(lambda: connections[0]._exchanges)
        assert answered == [False]
        service.on_loop(connections[0].resume_writing)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_connection_that_waits_takes_nothing_more(service, connections):
    """A call that waits for its caller to go has it read on."""
    with held_by_a_write(service) as end, socket.create_connection(("127.0.0.1", service.rest_port), WAIT_S) as client:
        client.sendall(QUESTION * 200)
        wait_until(lambda: connections and connections[0]._waiting)

        def received_more():
            connections[0].read_on()
            connections[0].data_received(QUESTION)
            return connections[0]._read_paused

        assert service.on_loop(received_more)
        end()
        found = b""
        while found.count(b"HTTP/1.1 200") < 201:
            found += client.recv(65536)


def test_a_connection_beyond_the_limit_is_for_monitors(answered):
    with running_service(max_connections=1) as running:
        with socket.create_connection(("127.0.0.1", running.rest_port), WAIT_S) as first:
            first.sendall(post("/v1/windows", orjson.dumps(SPEC)))
            assert first.recv(65536).startswith(b"HTTP/1.1 201")
            first.sendall(QUESTION)
            assert first.recv(65536).startswith(b"HTTP/1.1 200")
            running.on_loop(lambda: None)
            answered.clear()
            (found,) = ask(running, QUESTION)
        assert found[0].startswith(b"HTTP/1.1 503")
        assert answered == [False]


def test_a_question_without_a_place_is_refused(monkeypatch, answered):
    with running_service() as running:
        ask(running, post("/v1/windows", orjson.dumps(SPEC)))
        ask(running, QUESTION)

        def full(self, caller):
            raise Unavailable("there is no place", retry_after_s=1.0)

        monkeypatch.setattr(Places, "enter", full)
        answered.clear()
        assert ask(running, QUESTION)[0][0].startswith(b"HTTP/1.1 503")
        assert answered == [True]


def test_a_quick_question_corrects_what_its_caller_was_charged(service, answered, monkeypatch):
    asked = []
    metered = Turns.metered

    async def noted(self, name, work, reads):
        asked.append(name)
        return await metered(self, name, work, reads)

    monkeypatch.setattr(Turns, "metered", noted)
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: False)
    answered.clear()
    ask(service, QUESTION)
    assert (answered, asked) == ([True], ["127.0.0.1"])


def test_quick_answers_have_the_date_of_their_second(service, answered, connections, monkeypatch):
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: False)
    with socket.create_connection(("127.0.0.1", service.rest_port), WAIT_S) as client:
        wait_until(lambda: connections)
        for date in (b"the first", b"the second"):

            def headers_are(date=date):
                connections[0].date = b"date: %b\r\n" % date
                connections[0].data_received(QUESTION)

            answered.clear()
            service.on_loop(headers_are)
            assert answered == [True]
            assert b"\r\ndate: " + date + b"\r\n" in client.recv(65536)


def test_a_quick_write_is_its_callers(service, answered, monkeypatch):
    wrote = []
    monkeypatch.setattr(Turns, "wrote", lambda self, name, spent_s: wrote.append(name))
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: False)
    answered.clear()
    ask(service, post(INSERT, entry(5)))
    assert (answered, wrote) == ([True], ["127.0.0.1"])


def test_a_call_that_waited_gives_its_place_back(service, answered, monkeypatch):
    left = []
    leave = Places.leave
    monkeypatch.setattr(Places, "leave", lambda self, name: (leave(self, name), left.append(name)))
    monkeypatch.setattr(Turns, "pays", lambda *_, **__: True)
    answered.clear()
    ask(service, QUESTION)
    assert (answered, left) == ([True], ["127.0.0.1"])
