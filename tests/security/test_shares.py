"""With tokens, a caller is the name of a token: places and turns go by it. Rights hold while watching."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.support.servers import problem, running_service
from tests.support.tokens import bearer, write_tokens

ANN, BOB = bearer("ann"), bearer("bob")


@pytest.fixture
def tokens(tmp_path):
    def write(**more):
        return write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}, "ann": {}, "bob": {}} | more)

    return write


@pytest.fixture
def service(tokens):
    with running_service(tokens=tokens(), max_concurrent_calls=10, max_calls_per_address=1) as running:
        spec = {"name": "w", "aggregates": {"n": {"function": "count"}}}
        running.http().post("/v1/windows", json=spec, headers=bearer("root")).raise_for_status()
        yield running


@contextlib.contextmanager
def watching(service, headers, interval=50):
    """The events of a watch, one after the other."""
    path, params = "/v1/windows/w/watch", {"interval": interval}
    with service.http().stream("GET", path, params=params, headers=headers, timeout=120) as stream:
        lines = stream.iter_lines()
        yield (line for line in lines if line.startswith(("data", "event")))


def test_places_are_counted_by_the_names_of_tokens(service):
    http = service.http()
    with watching(service, ANN) as events:
        next(events)
        refused = http.get("/v1/windows", headers=ANN)
        assert problem(refused)["limit"] == "SASH_MAX_CALLS_PER_ADDRESS: 1"
        assert "calls of ann" in refused.json()["detail"]
        assert http.get("/v1/windows", headers=BOB).status_code == 200


def test_places_of_grpc_are_counted_by_the_names_of_tokens(service):
    stub = service.stub()
    request = pb.WatchRequest(query=pb.QueryRequest(window="w"))
    stream = stub.Watch(request, metadata=tuple(ANN.items()))
    next(stream)
    with pytest.raises(grpc.RpcError, match="calls of ann"):
        stub.ListWindows(pb.ListWindowsRequest(), metadata=tuple(ANN.items()))
    assert stub.ListWindows(pb.ListWindowsRequest(), metadata=tuple(BOB.items())).windows
    stream.cancel()


def test_a_token_that_goes_ends_its_own_watch_and_not_that_of_others(service, tokens):
    """Both watch the same question, which is computed once for both; ann was first."""
    http = service.http()
    with watching(service, ANN) as of_ann, watching(service, BOB) as of_bob, ThreadPoolExecutor(1) as pool:
        assert '"entries":0' in next(of_ann)
        assert '"entries":0' in next(of_bob)
        assert service.plane.watches.questions == 1
        tokens(ann={"windows": ["another"]})
        assert pool.submit(next, of_ann).result(120) == "event: problem"
        assert "PERMISSION_DENIED" in next(of_ann)
        entry = {"time": 1, "value": 2.0}
        http.post("/v1/windows/w/insert", json=entry, headers=bearer("root")).raise_for_status()
        assert '"entries":1' in next(of_bob)
        assert http.get("/v1/windows/w", headers=ANN).status_code == 403


def test_turns_are_charged_to_the_names_of_tokens(service, monkeypatch):
    charged = []

    def pays(name, size=0, reads=False):
        charged.append(name)
        return False

    monkeypatch.setattr(service.plane.turns, "pays", pays)
    service.http().get("/v1/windows", headers=ANN).raise_for_status()
    service.http().post("/sash.v1.Windows/ListWindows", json={}, headers=bearer("root")).raise_for_status()
    service.stub().ListWindows(pb.ListWindowsRequest(), metadata=tuple(BOB.items()))
    assert charged == ["ann", "root", "bob"]
