"""A service with little memory stays up, refuses clearly, and keeps every entry that it acknowledged."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.support.profile import THOROUGH
from tests.support.servers import json_head, problem, running_service, service_process
from tests.support.tokens import bearer, write_tokens
from tests.support.waiting import wait_until

LIMIT_MIB = 512
BODIES = 40 if THOROUGH else 12
"""Of more than 60 MB each."""
UNDER = ("sh", "-c", f'ulimit -d {LIMIT_MIB * 1024}; exec "$@"', "sh")
COUNT = pb.AggregateSpec(function="count")
SMALL_SPEC = {"name": "small", "aggregates": {"n": {"function": "count"}}}


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


def test_many_large_bodies_at_once(small, stub):
    create(stub, "bodies", aggregates={"n": COUNT})
    numbers = b",".join([b"1.25"] * 6_000_000)
    body = b'{"time":[' + b",".join([b"1"] * 10) + b'],"fields":{"value":[' + numbers + b"]}}" + b" " * 30_000_000
    assert len(body) > 60_000_000
    with ThreadPoolExecutor(BODIES) as pool:
        found = list(pool.map(lambda _: post(small.rest_port, "/v1/windows/bodies/bulk-insert", body), range(BODIES)))
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
        stub = small.stub()
        create(stub, "lists", aggregates={"all": pb.AggregateSpec(function="collect")}, durability="memory")
        count = 200_000

        def insert(at):
            return stub.BulkInsert(bulk("lists", np.arange(at * count, (at + 1) * count), np.zeros(count))).inserted

        taken = until_refused(insert, 100, "SASH_MEMORY_BYTES")

        def ask(_):
            answer = httpx.get(f"{small.rest_url}/v1/windows/lists/query", timeout=240, trust_env=False, verify=False)
            return answer.status_code if answer.status_code == 200 else problem(answer)["reason"]

        trailing = small.http().get("/v1/windows/lists/query", params={"lookback": "100"}).json()
        assert trailing["answers"][0]["entries"] == 100
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(ask, range(8)))
        assert found <= {200, "TOO_LARGE", "RESOURCE_EXHAUSTED"}
        assert entries(stub, "lists") == taken > 0


COLUMNS = [f"a{i}" for i in range(5)]


def test_forty_large_answers_at_once(tmp_path):
    """What they take is reserved before they are made. Small writes go on meanwhile."""
    with service_process(SASH_MEMORY_BYTES="256MiB") as running:
        stub, count = running.stub(), 50_000
        create(stub, "many", keyed=True, aggregates=dict.fromkeys(COLUMNS, COUNT))
        stub.BulkInsert(bulk("many", np.arange(count), np.zeros(count), [f"key-{i}" for i in range(count)]))
        used, peak, done = Path(f"/proc/{running.process.pid}/statm"), [0], threading.Event()

        def look():
            while not done.wait(0.01):
                _, resident, shared, *_ = map(int, used.read_text().split())
                peak[0] = max(peak[0], (resident - shared) * 4096)

        def ask(_):
            return httpx.get(
                f"{running.rest_url}/v1/windows/many/query?all_keys=true", timeout=240, trust_env=False, verify=False
            ).status_code

        looking = threading.Thread(target=look)
        looking.start()
        with ThreadPoolExecutor(40) as pool:
            asked = pool.map(ask, range(40))
            http, entry = running.http(), {"time": 10**6, "key": "key-1", "value": 1.0}
            wrote = {http.post("/v1/windows/many/insert", json=entry).status_code for _ in range(50)}
            found = set(asked)
        done.set()
        looking.join()
        assert wrote == {200}
        assert 200 in found <= {200, 429}
        assert peak[0] < 320 * 2**20


def test_a_caller_who_sees_no_window_stops_no_writes(tmp_path):
    """Sixteen connections that send 60 KiB which become 60 MiB."""
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}, "blind": {"windows": ["none"]}})
    body = gzip.compress(bytes(60 * 2**20))
    with service_process(SASH_MEMORY_BYTES="512MiB", SASH_TOKENS=str(tokens)) as running:
        root, url = bearer("root"), f"{running.rest_url}/sash.v1.Windows/Query"
        running.http().post("/v1/windows", json=SMALL_SPEC, headers=root).raise_for_status()
        headers = bearer("blind") | {"content-type": "application/proto", "content-encoding": "gzip"}
        done = threading.Event()

        def flood(_):
            while not done.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    httpx.post(url, content=body, headers=headers, timeout=60, trust_env=False, verify=False)

        with ThreadPoolExecutor(16) as pool:
            flooding = pool.map(flood, range(16))
            http = running.http()
            wrote = [
                http.post("/v1/windows/small/insert", json={"time": i, "value": 1.0}, headers=root).status_code
                for i in range(100)
            ]
            done.set()
            list(flooding)
        assert set(wrote) == {200}


def test_an_answer_is_its_callers_until_it_is_read():
    """On both edges: half of what there is, and no more for whoever does not read."""
    with running_service(memory_bytes=8 * 2**30) as running:
        stub, count = running.stub(), 50_000
        create(stub, "many", keyed=True, aggregates=dict.fromkeys(COLUMNS, COUNT))
        stub.BulkInsert(bulk("many", np.arange(count), np.zeros(count), [f"key-{i}" for i in range(count)]))
        budget = running.plane._windows._storage._memory
        with socket.create_connection(("127.0.0.1", running.rest_port)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(b"GET /v1/windows/many/query?all_keys=true HTTP/1.1\r\nhost: localhost\r\n\r\n")
            wait_until(lambda: 5 * 2**20 < budget._reserved < 12 * 2**20 and not budget._promised)
        wait_until(lambda: not budget._reserved)
        query = pb.QueryRequest(window="many", all_keys=True)
        assert len(stub.Query(query).answers) == count
        wait_until(lambda: not budget._reserved)
        call = stub.Query.future(query)
        wait_until(lambda: budget._reserved)
        call.cancel()
        wait_until(lambda: not budget._reserved)
        assert budget._callers == {}
        assert budget._promised == 0


def test_metrics_show_it_by_part(small):
    shown = small.http().get("/metrics").text
    for part in ("bodies", "staged", "cache", "writes", "answers", "rest"):
        assert f'sash_memory_bytes{{part="{part}"}}' in shown
    limit = next(line for line in shown.splitlines() if line.startswith("sash_memory_limit_bytes "))
    assert int(float(limit.split()[1])) == int(0.8 * LIMIT_MIB * 2**20)
