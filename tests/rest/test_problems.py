"""Problem documents: of defects, of limits, on both edges; and what answers look like to people with curl."""

import json
import socket

import pytest
from google.rpc import error_details_pb2, status_pb2

from sash.rest.problems import of_error
from sash.rpc.errors import status_of
from sash_engine import errors
from tests.support.errors import ERRORS
from tests.support.refusals import COUNT
from tests.support.servers import json_head, problem, running_service
from tests.support.waiting import wait_until


def test_a_failure_of_the_service_is_logged_and_not_shown(http, service, unchanged, monkeypatch, caplog):
    async def fail(name):
        raise RuntimeError("secret")

    monkeypatch.setattr(service.plane, "window", fail)
    response = http.get(f"/v1/windows/{unchanged}")
    assert problem(response)["status"] == 500
    assert "secret" not in response.text
    assert "secret" in caplog.text


def test_a_client_that_goes_away_does_no_harm(http, service, unchanged):
    for ending in (b"", b'{"time": 1, "val'):
        with socket.create_connection(("127.0.0.1", service.rest_port)) as connection:
            head = json_head(f"/v1/windows/{unchanged}/insert", 50)
            connection.sendall(head + ending)
    assert http.get("/healthz").status_code == 200


def test_requests_beyond_those_allowed_are_refused():
    """A watcher holds the only place. A request whose body is on its way holds none, and monitors need none."""
    with running_service(max_concurrent_calls=1) as small:
        http = small.http()
        http.post("/v1/windows", json={"name": "w", "aggregates": COUNT})
        with socket.create_connection(("127.0.0.1", small.rest_port)) as half:
            half.sendall(json_head("/v1/windows/w/insert", 23) + b'{"time": 1,')
            with http.stream("GET", "/v1/windows/w/watch") as watching:
                parts = watching.iter_raw()  # named: a generator that goes closes the stream
                next(parts)
                response = http.get("/v1/windows")
                assert problem(response)["limit"] == "SASH_MAX_CONCURRENT_CALLS: 1"
                assert (response.status_code, response.headers["retry-after"]) == (503, "1")
                for path in ("/healthz", "/readyz", "/metrics"):
                    assert http.get(path).status_code == 200
                half.sendall(b' "value": 2}')
                assert b"503 Service Unavailable" in half.recv(65536)
        wait_until(lambda: http.get("/v1/windows").status_code == 200)  # the service hears that the watcher has gone


@pytest.mark.parametrize("error", [*(kind("so it is") for kind in ERRORS[1:]), ZeroDivisionError()], ids=repr)
def test_both_edges_give_an_error_the_same_reason(error):
    document = json.loads(of_error(error, "GET", "/").body)
    detail, _ = status_pb2.Status.FromString(status_of(error, "Insert").trailing_metadata[0][1]).details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    reason = "INTERNAL" if isinstance(error, ZeroDivisionError) else type(error).reason()
    assert document["reason"] == info.reason == reason
    assert "ZeroDivisionError" not in document["detail"]


@pytest.mark.parametrize(
    ("error", "again", "unchanged"),
    [
        (errors.Unavailable("away"), "1", None),
        (errors.Unavailable("away", retry_after_s=2.5), "3", None),
        (errors.Unavailable("moving", retry_after_s=2, unchanged=True), "2", "true"),
        (errors.ResourceExhausted("quota", retry_after_s=2), "2", None),
        (errors.NotFound("gone"), None, None),
    ],
)
def test_both_edges_say_whether_to_come_again(error, again, unchanged):
    response = of_error(error, "GET", "/")
    assert response.headers.get("retry-after") == again
    assert json.loads(response.body).get("unchanged") == (unchanged and True)
    metadata = dict(status_of(error, "Query").trailing_metadata)
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(metadata["grpc-status-details-bin"]).details[0].Unpack(info)
    assert info.metadata.get("unchanged") == unchanged
    waits = isinstance(error, errors.Unavailable) and error.retry_after_s is not None
    assert metadata.get("grpc-retry-pushback-ms") == (str(int(error.retry_after_s * 1000)) if waits else None)


# ---------------------------------------------------------------- for people with curl


@pytest.mark.parametrize("path", ["", "/query", "/entries", "/keys", "/nothing", "/query?wrong=1"])
def test_answers_end_with_a_line_break(http, window, path):
    content = http.get(f"/v1/windows/{window}{path}").content
    assert content.endswith(b"}\n")
    assert content.count(b"\n") == 1


def test_a_long_answer_ends_with_a_line_break(http, window):
    n = 20_000
    http.post(
        f"/v1/windows/{window}/bulk-insert", json={"time": list(range(n)), "value": [123456.789] * n}
    ).raise_for_status()
    path = f"/v1/windows/{window}/series?start=0&end={n}&step=2"
    response = http.get(path)
    assert response.content.endswith(b"}\n")
    assert len(response.content) > 300_000
    assert len(response.json()["time"]) == n // 2


@pytest.mark.parametrize("asked", ["pretty", "pretty=true", "pretty=", "lookback=1h&pretty"])
def test_pretty_answers(http, window, asked):
    http.post(f"/v1/windows/{window}/insert", json={"time": 1, "value": 2**62}).raise_for_status()
    plain = http.get(f"/v1/windows/{window}/query?{asked.replace('pretty', '').strip('=true&')}")
    pretty = http.get(f"/v1/windows/{window}/query?{asked}")
    assert pretty.json() == plain.json()
    assert pretty.text.startswith('{\n  "answers": [\n')
    assert pretty.headers["content-length"] == str(len(pretty.content))
    wrong = http.get(f"/v1/windows/{window}/query?{asked}&wrong=1")
    assert wrong.status_code == 400
    assert wrong.text.startswith('{\n  "type"')


def test_pretty_answers_keep_integers_of_any_size(http):
    spec = {"name": "large", "fields": {"i": "int64"}, "aggregates": {"s": {"function": "sum", "field": "i"}}}
    http.post("/v1/windows", json=spec).raise_for_status()
    try:
        http.post("/v1/windows/large/bulk-insert", json={"time": [1, 2, 3], "i": [2**63 - 1] * 3}).raise_for_status()
        assert f'"s": {3 * (2**63 - 1)}\n' in http.get("/v1/windows/large/query?pretty").text
    finally:
        http.delete("/v1/windows/large")
