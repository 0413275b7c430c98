"""A token that goes, or expires, ends the streams that were opened with it. Reloads end no other call."""

import json
import queue

import grpc
import pytest

from sash_engine.clock import ManualClock
from sash_proto.v1 import windows_pb2 as pb
from tests.security.conftest import TOKENS, ending, going_on, with_windows
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens
from tests.support.waiting import wait_until

EXPIRES_NS = 2_000_000_000 * 10**9


@pytest.fixture
def clock():
    return ManualClock(EXPIRES_NS - 10**9)


@pytest.fixture
def path(tmp_path):
    brief = {"role": "write", "expires": "2033-05-18T03:33:20Z"}
    return write_tokens(tmp_path / "tokens.yaml", {**TOKENS, "steady": {"role": "write"}, "brief": brief})


@pytest.fixture
def service(path, clock):
    with running_service(clock, tokens=path) as running:
        with_windows(running)
        yield running


def removed(path, clock):
    write_tokens(path, {**TOKENS, "steady": {"role": "write"}})


def expired(path, clock):
    clock.advance(10**9)


pytestmark = pytest.mark.timeout(600)  # a stream that does not end would wait for ever
ENDS = pytest.mark.parametrize("end", [removed, expired])
QUESTION = pb.WatchRequest(query=pb.QueryRequest(window="seen", key="k"), interval_ms=50)


def grpc_watch(service, name):
    for _ in service.stub().Watch(QUESTION, metadata=list(bearer(name).items())):
        yield "shown"


def connect_watch(service, name):
    body = QUESTION.SerializeToString()
    headers = {"content-type": "application/connect+proto", **bearer(name)}
    content = b"\0" + len(body).to_bytes(4, "big") + body
    with service.http().stream("POST", "/sash.v1.Windows/Watch", content=content, headers=headers) as response:
        for part in response.iter_raw():
            if part[:1] == b"\x02":
                raise RuntimeError(json.loads(part[5:])["error"]["code"].upper())
            yield "shown"


def rest_watch(service, name):
    with service.http().stream(
        "GET", "/v1/windows/seen/watch", params={"key": "k", "interval": 50}, headers=bearer(name)
    ) as response:
        problem = False
        for line in response.iter_lines():
            if problem:
                raise RuntimeError(json.loads(line.removeprefix("data: "))["reason"])
            problem = line == "event: problem"
            if line.startswith("data: "):
                yield "shown"


def end_of(watch):
    """The code that a watch ends with."""
    try:
        for _ in watch:
            pass
    except grpc.RpcError as error:
        return error.code().name
    except RuntimeError as error:
        return str(error)
    return "OK"


@ENDS
def test_watches_end(service, path, clock, end):
    watches = {kind.__name__: kind(service, "brief") for kind in (grpc_watch, connect_watch, rest_watch)}
    steady = grpc_watch(service, "steady")
    assert [next(watch) for watch in (*watches.values(), steady)] == ["shown"] * 4
    end(path, clock)
    assert {name: end_of(watch) for name, watch in watches.items()} == dict.fromkeys(watches, "UNAUTHENTICATED")
    # Another token's watch goes on.
    insert = pb.InsertRequest(window="seen", time=1, key="k", fields={"value": pb.Value(float64=1.0)})
    service.stub().Insert(insert, metadata=list(bearer("root").items()))
    assert next(steady) == "shown"


@ENDS
def test_insert_streams_end(service, path, clock, end):
    requests = queue.SimpleQueue()
    columns = {"value": pb.Column(float64=bytes(8))}
    bulk = pb.BulkInsertRequest(
        window="seen", time=bytes(8), fields=columns, key=pb.Strings(dictionary=["k"], codes=bytes(4))
    )
    answers = service.stub().InsertStream(iter(requests.get, None), metadata=list(bearer("brief").items()))
    requests.put(bulk)
    assert ending(lambda: next(answers))[0] == "OK"
    end(path, clock)
    found = ["OK"]

    def is_over():
        requests.put(bulk)
        found.append(ending(lambda: next(answers))[0])
        return found[-1] != "OK"

    wait_until(is_over)
    requests.put(None)
    assert found[-1] == "UNAUTHENTICATED"


def test_a_reload_under_load_fails_no_call(service, path):
    """Calls run all the time while the file changes again and again, and is broken in between."""

    def call_grpc():
        stub = service.stub()
        while True:
            yield stub.Query(QUESTION.query, metadata=list(bearer("reader").items()))

    def call_rest():
        http = service.http()
        while True:
            response = http.get("/v1/windows/seen/query", params={"key": "k"}, headers=bearer("reader"))
            yield response.raise_for_status()

    http = service.http()
    with going_on(call_grpc, call_rest) as all_go_on:
        for i in range(3):
            if i == 1:
                path.write_text("tokens: broken")
            write_tokens(path, {**TOKENS, f"new-{i}": {}})
            wait_until(lambda i=i: http.get("/v1/windows", headers=bearer(f"new-{i}")).status_code == 200)
            all_go_on()


def test_a_tidying_that_fails_keeps_no_token_alive(service, path, clock, monkeypatch):
    def fail():
        raise RuntimeError("a window cannot be tidied")

    monkeypatch.setattr(service.plane, "tidy", fail)
    http = service.http()
    assert http.get("/v1/windows", headers=bearer("brief")).status_code == 200
    removed(path, clock)
    wait_until(lambda: http.get("/v1/windows", headers=bearer("brief")).status_code == 401)
