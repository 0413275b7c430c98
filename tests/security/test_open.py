"""What needs no token, and what quotas do at each edge."""

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from sash_client import Client, ResourceExhausted
from sash_engine.clock import ManualClock
from sash_proto.v1 import windows_pb2 as pb
from tests.security.conftest import TOKENS, with_windows
from tests.support.servers import problem, running_service
from tests.support.tokens import bearer, write_tokens


def test_health_is_open_and_reflection_is_not(service):
    channel = service.channel()
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    assert next(health.Watch(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    with pytest.raises(grpc.RpcError) as refused:
        next(reflection.ServerReflectionInfo(iter(asked)))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    answer = next(reflection.ServerReflectionInfo(iter(asked), metadata=list(bearer("reader").items())))
    assert len(answer.list_services_response.service) == 4


def test_a_method_that_is_none_needs_a_token_too(service):
    call = service.channel().unary_unary("/other.Service/Method")
    for headers, code in (({}, grpc.StatusCode.UNAUTHENTICATED), (bearer("reader"), grpc.StatusCode.UNIMPLEMENTED)):
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", metadata=list(headers.items()))
        assert refused.value.code() is code


@pytest.mark.parametrize(
    ("public", "is_open"),
    [("", []), ("metrics", ["/metrics"]), ("docs", ["/docs", "/openapi.json"]), ("metrics, docs", None)],
)
def test_some_paths_may_be_public(tmp_path, public, is_open):
    paths = ["/metrics", "/docs", "/openapi.json"]
    with running_service(tokens=write_tokens(tmp_path / "tokens.yaml", TOKENS), public=public) as service:
        http = service.http()
        found = [path for path in paths if http.get(path).status_code == 200]
        assert found == (paths if is_open is None else is_open)
        assert http.get("/v1/windows").status_code == 401
        assert http.get("/docs/").status_code == 401
        files = http.get("/static-offline-docs/swagger-ui.css").status_code
        assert files == (200 if "docs" in public else 401)


@pytest.fixture
def limited(tmp_path):
    """A service on a clock that stands still, with a token for two calls and ten entries a second."""
    tokens = {**TOKENS, "few": {"role": "write", "calls_per_s": 2}, "small": {"role": "write", "entries_per_s": 10}}
    clock = ManualClock(10**18)
    with running_service(clock, tokens=write_tokens(tmp_path / "tokens.yaml", tokens)) as service:
        with_windows(service)
        yield service, clock


def test_calls_beyond_a_quota_wait(limited):
    service, clock = limited
    http, few = service.http(), bearer("few")
    asks = {
        "rest": lambda: http.get("/v1/windows", headers=few),
        "connect": lambda: http.post("/sash.v1.Windows/ListWindows", json={}, headers=few),
    }
    for ask in asks.values():
        clock.advance(10**9)
        assert [ask().status_code for _ in range(3)] == [200, 200, 429]
        assert ask().headers["retry-after"] == "1"
    assert problem(asks["rest"]())["limit"] == "2 calls a second"
    with pytest.raises(grpc.RpcError) as refused:
        service.stub().ListWindows(pb.ListWindowsRequest(), metadata=list(few.items()))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    retry = error_details_pb2.RetryInfo()
    details = rpc_status.from_call(refused.value).details
    assert any(detail.Unpack(retry) for detail in details)
    assert retry.retry_delay.ToTimedelta().total_seconds() == pytest.approx(0.5)
    assert http.get("/v1/windows", headers=bearer("reader")).status_code == 200  # others go on


def test_entries_beyond_a_quota_wait(limited):
    service, clock = limited
    with Client(service.grpc_target, token="small-token") as client:
        window = client.window("seen")
        times = list(range(25))
        window.bulk_insert(times, {"value": times}, keys=["k"] * 25)
        for write in (
            lambda: window.bulk_insert([99], {"value": [1]}, keys=["k"]),
            lambda: window.insert(99, 1.0, key="k"),
        ):
            with pytest.raises(ResourceExhausted, match="'small' has used up its quota of entries") as refused:
                write()
            assert refused.value.limit == "10 entries a second"
            assert refused.value.retry_after_s == pytest.approx(1.6)
        assert window.query(key="k")[0].entries == 25  # refused writes change nothing, and reads go on
        staged = {"time": [99], "key": ["k"], "value": [1]}
        stage, token = "/v1/windows/seen/stage?query=q&batch=1", bearer("small")
        assert service.http().post(stage, json=staged, headers=token).status_code == 429
        clock.advance(16 * 10**8)
        window.insert(99, 1.0, key="k")
