"""A service with little memory stays up, refuses clearly, and keeps every entry that it acknowledged."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.support.servers import json_head, problem, service_process
from tests.support.waiting import wait_until

LIMIT_MIB = 512
UNDER = ("sh", "-c", f'ulimit -d {LIMIT_MIB * 1024}; exec "$@"', "sh")
COUNT = pb.AggregateSpec(function="count")


@contextlib.contextmanager
def limited(data):
    """A service under RLIMIT_DATA; what it may use follows from that."""
    with service_process(under=UNDER, SASH_DATA=str(data)) as running:
        yield running
        assert running.process.poll() is None, "it stayed up"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    with limited(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def stub(small):
    return small.stub()


def bulk(window, times, values, keys=None):
    made = pb.BulkInsertRequest(window=window, time=np.asarray(times, "<i8").tobytes())
    made.fields["value"].float64 = np.asarray(values, "<f8").tobytes()
    if keys is not None:
        made.key.dictionary.extend(keys)
        made.key.codes = np.arange(len(keys), dtype="<u4").tobytes()
    return made


def create(stub, name, **spec):
    stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name=name, **spec)))


def until_refused(send, times, *limits):
    """Send until it is refused, which must come, with RESOURCE_EXHAUSTED and the limit; return how much was taken."""
    taken, error = 0, None
    for at in range(times):
        try:
            taken += send(at)
        except grpc.RpcError as caught:
            error = caught
            break
    assert error is not None
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
    assert any(limit in str(error.trailing_metadata()) for limit in limits), error
    return taken


def entries(stub, window):
    return stub.GetWindow(pb.GetWindowRequest(name=window)).entries


def post(port, path, body):
    """Send a request whatever is answered meanwhile, and return the status."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(60)
        sending = threading.Thread(target=send, args=(connection, json_head(path, len(body)), body))
        sending.start()
        answer = connection.makefile("rb").readline()
        connection.shutdown(socket.SHUT_RDWR)
        sending.join()
    return int(answer.split(b" ", 2)[1])


def send(connection, *parts):
    try:
        for part in parts:
            connection.sendall(part)
    except OSError:
        pass  # it was answered and closed


def test_forty_large_bodies_at_once(small, stub):
    create(stub, "bodies", aggregates={"n": COUNT})
    numbers = b",".join([b"1.25"] * 6_000_000)
    body = b'{"time":[' + b",".join([b"1"] * 10) + b'],"fields":{"value":[' + numbers + b"]}}" + b" " * 30_000_000
    assert len(body) > 60_000_000
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: post(small.rest_port, "/v1/windows/bodies/bulk-insert", body), range(40)))
    assert set(found) <= {413, 429, 507}, found
    assert entries(stub, "bodies") == 0
    assert small.http().post("/v1/windows/bodies/insert", json={"time": 1, "value": 2}).status_code == 200


def test_large_messages_are_refused_by_name(small, stub):
    create(stub, "messages", aggregates={"n": COUNT})
    with pytest.raises(grpc.RpcError) as caught:
        stub.BulkInsert(bulk("messages", np.arange(1_500_000), np.zeros(1_500_000)))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert entries(stub, "messages") == 0


def test_staged_parts_that_nobody_commits(small, stub):
    create(stub, "staged", aggregates={"n": COUNT}, durability="memory")
    part = bulk("staged", np.arange(300_000), np.zeros(300_000))

    def stage(number):
        return stub.StageBatch(pb.StageBatchRequest(entries=part, query="q", batch=number)).entries

    assert until_refused(stage, 100, "SASH_MEMORY_BYTES", "SASH_MAX_STAGED_BYTES")
    assert entries(stub, "staged") == 0
    stub.DeleteWindow(pb.DeleteWindowRequest(name="staged"))


def test_a_million_keys_with_sketches(small, stub):
    """In panes, as a key in panes has a sketch from its first entry on."""
    quantile = pb.AggregateSpec(function="quantile", parameters={"q": pb.Value(float64=0.5)})
    distinct = pb.AggregateSpec(function="distinct_count")
    create(stub, "keys", keyed=True, granularity="100", aggregates={"n": COUNT, "q": quantile, "d": distinct})
    wait_until(lambda: small.http().get("/readyz").status_code == 200)
    count = 5_000

    def insert(at):
        keys = [f"key-{i}" for i in range(at * count, (at + 1) * count)]
        return stub.BulkInsert(bulk("keys", np.full(count, 1000), np.zeros(count), keys)).inserted

    taken = until_refused(insert, 200, "SASH_MEMORY_BYTES")
    assert taken >= count
    assert entries(stub, "keys") == taken

    # What makes room goes on, and then there is room again.
    assert stub.BulkEvict(pb.BulkEvictRequest(window="keys", time=2000)).evicted == taken
    stub.DeleteWindow(pb.DeleteWindowRequest(name="keys"))
    wait_until(lambda: small.http().get("/readyz").status_code == 200)


def test_collects(tmp_path):
    """A service of its own: the limit counts holes in the heap, and one that was full before has some."""
    with limited(tmp_path) as small:
        check_collects(small, small.stub())


def check_collects(small, stub):
    create(stub, "lists", aggregates={"all": pb.AggregateSpec(function="collect")}, durability="memory")
    count = 200_000

    def insert(at):
        return stub.BulkInsert(bulk("lists", np.arange(at * count, (at + 1) * count), np.zeros(count))).inserted

    taken = until_refused(insert, 100, "SASH_MEMORY_BYTES")

    def ask(_):
        answer = httpx.get(f"{small.rest_url}/v1/windows/lists/query", timeout=240, trust_env=False)
        return answer.status_code if answer.status_code == 200 else problem(answer)["reason"]

    trailing = small.http().get("/v1/windows/lists/query", params={"lookback": "100"}).json()
    assert trailing["answers"][0]["entries"] == 100
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ask, range(8)))
    assert found <= {200, "TOO_LARGE", "RESOURCE_EXHAUSTED"}
    assert entries(stub, "lists") == taken > 0


def test_metrics_show_it_by_part(small):
    shown = small.http().get("/metrics").text
    for part in ("bodies", "staged", "cache", "writes", "answers", "rest"):
        assert f'sash_memory_bytes{{part="{part}"}}' in shown
    limit = next(line for line in shown.splitlines() if line.startswith("sash_memory_limit_bytes "))
    assert int(float(limit.split()[1])) == int(0.8 * LIMIT_MIB * 2**20)
