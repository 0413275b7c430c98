"""A caller's request id comes back with every error and stands in the audit log; odd ids are replaced."""

import json
import logging
import re
import socket
from base64 import b64decode

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

import sash_client
from sash_client import Client, InvalidArgument, NotFound
from sash_client.aio import AsyncClient
from sash_proto.v1 import windows_pb2 as pb
from tests.security.conftest import SPEC
from tests.support.servers import problem, running_service
from tests.support.tokens import bearer

OWN = re.compile("[0-9a-f]{32}")
CHOSEN = "order:7.b/2@x+y=z_-A"
ODD = ["", "a b", "a" * 129, 'a"b', "ä", "a,b", "a\tb", "<x>", "a%0ab"]


def of_grpc(error):
    """The id in the details of a status."""
    info = error_details_pb2.RequestInfo()
    (found,) = [detail for detail in rpc_status.from_call(error).details if detail.Unpack(info)]
    assert found
    return info.request_id


def of_connect(document):
    (value,) = [each["value"] for each in document["details"] if each["type"] == "google.rpc.RequestInfo"]
    return error_details_pb2.RequestInfo.FromString(b64decode(value + "=" * (-len(value) % 4))).request_id


@pytest.mark.parametrize(
    ("method", "path", "token"),
    [
        ("GET", "/v1/windows/missing", "root"),  # the plane
        ("GET", "/v1/windows", "nobody"),  # authentication
        ("GET", "/v1/nothing", "root"),  # no route
        ("PUT", "/v1/windows", "root"),  # no method
        ("POST", "/v1/windows/seen/insert", "reader"),  # no right
    ],
)
def test_rest(service, method, path, token):
    http = service.http()
    answer = http.request(method, path, headers={"X-Request-Id": CHOSEN, **bearer(token)})
    assert problem(answer)["request_id"] == CHOSEN
    made = {problem(http.request(method, path, headers=bearer(token)))["request_id"] for _ in range(2)}
    assert len(made) == 2
    assert all(OWN.fullmatch(each) for each in made)


def test_rest_ahead_of_every_app(service):
    answer = service.http().get("/v1/windows", headers={"host": "evil.example", "x-request-id": CHOSEN})
    assert answer.status_code == 421
    assert problem(answer)["request_id"] == CHOSEN


def test_rest_where_no_head_is_read(service):
    with socket.create_connection(("127.0.0.1", service.rest_port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"x" * 80_000)
        head, _, body = connection.recv(65_536).partition(b"\r\n\r\n")
    given = json.loads(body)["request_id"]
    assert OWN.fullmatch(given)
    assert f"x-request-id: {given}".encode() in head


@pytest.mark.parametrize("odd", ODD)
def test_odd_ids_are_replaced(service, odd):
    given = odd.encode("latin-1")
    answer = service.http().get("/v1/windows/missing", headers=[*bearer("root").items(), (b"x-request-id", given)])
    assert OWN.fullmatch(problem(answer)["request_id"])


def test_two_ids_are_none(service):
    twice = [*bearer("root").items(), ("x-request-id", "a"), ("x-request-id", "b")]
    assert OWN.fullmatch(problem(service.http().get("/v1/windows/missing", headers=twice))["request_id"])


@pytest.mark.parametrize("token", ["root", "nobody"])
def test_grpc(service, token):
    for chosen in (CHOSEN, None):
        metadata = [*bearer(token).items(), *([("x-request-id", chosen)] if chosen else [])]
        with pytest.raises(grpc.RpcError) as one:
            service.stub().GetWindow(pb.GetWindowRequest(name="missing"), metadata=metadata)
        with pytest.raises(grpc.RpcError) as stream:
            list(service.stub().Watch(pb.WatchRequest(), metadata=metadata))
        for error in (one.value, stream.value):
            given = of_grpc(error)
            assert given == chosen if chosen else OWN.fullmatch(given)


@pytest.mark.parametrize("token", ["root", "nobody"])
def test_connect(service, token):
    headers = {"X-Request-Id": CHOSEN, **bearer(token)}
    answer = service.http().post("/sash.v1.Windows/GetWindow", json={"name": "missing"}, headers=headers)
    assert answer.status_code in (401, 404)
    assert of_connect(answer.json()) == answer.headers["x-request-id"] == CHOSEN


def test_connect_where_time_ran_out(tmp_path):
    headers = {"connect-timeout-ms": "0", "x-request-id": CHOSEN}
    asked = {"window": "seen", "key": "k", "time": 1, "value": 1.0}
    with running_service(data=str(tmp_path / "data")) as service:  # a write waits for its commit
        http = service.http()
        assert http.post("/v1/windows", json={"name": "seen", **SPEC}).status_code == 201
        answer = http.post("/sash.v1.Windows/Insert", json=asked, headers=headers)
    assert answer.json()["code"] == "deadline_exceeded"
    assert of_connect(answer.json()) == CHOSEN


def test_the_python_client(address):
    with Client(**address, token="root-token") as client:
        with sash_client.request_id("outer"), sash_client.request_id(CHOSEN), pytest.raises(NotFound) as caught:
            client.window("missing").query()
        assert caught.value.request_id == CHOSEN
        with pytest.raises(NotFound) as caught:
            client.window("missing").query()
        assert OWN.fullmatch(caught.value.request_id)


async def test_the_python_client_for_asyncio(address):
    async with AsyncClient(**address, token="root-token") as client:
        with sash_client.request_id(CHOSEN), pytest.raises(NotFound) as caught:
            await client.window("missing").query()
        assert caught.value.request_id == CHOSEN


@pytest.mark.parametrize("odd", [*ODD, " ", "line\n"])
def test_the_python_client_sends_no_odd_ids(odd):
    with pytest.raises(InvalidArgument, match="request_id must have") as caught, sash_client.request_id(odd):
        pass
    assert (caught.value.field, caught.value.limit) == ("request_id", "128")


def test_the_audit_log_has_it(service, caplog):
    caplog.set_level(logging.INFO, "sash.audit")
    http = service.http()
    for token in ("root", "nobody"):
        headers = {"x-request-id": CHOSEN, **bearer(token)}
        http.post("/v1/windows", json={"name": f"audited_{token}", **SPEC}, headers=headers)
    made, refused = (record.getMessage() for record in caplog.records if record.name == "sash.audit")
    assert made.endswith(f'outcome=ok request_id="{CHOSEN}"')
    assert refused.endswith(f'outcome=UNAUTHENTICATED request_id="{CHOSEN}"')
