"""Health, reflection, shutting down."""

import asyncio
import socket
import threading

import grpc
import httpx
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from sash_engine.errors import InvalidArgument
from sash_proto.v1 import windows_pb2 as pb
from tests.support.messages import COUNT, answered, bulk, int64
from tests.support.rpc_errors import ended_with
from tests.support.servers import PLAIN, WAIT_S, json_head, running_service
from tests.support.waiting import until, wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("name", ["", "sash.v1.Windows"])
def test_health(service, name):
    health = health_pb2_grpc.HealthStub(service.channel())
    assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == SERVING


def test_health_of_what_is_not_here(service):
    health = health_pb2_grpc.HealthStub(service.channel())
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="nope"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_reflection_shows_every_method(service):
    database = ProtoReflectionDescriptorDatabase(service.channel())
    assert set(database.get_services()) >= {"sash.v1.Windows", "grpc.health.v1.Health"}
    found = DescriptorPool(database).FindServiceByName("sash.v1.Windows")
    assert {method.name for method in found.methods} == {
        method.name for method in pb.DESCRIPTOR.services_by_name["Windows"].methods
    }


def test_rejected_calls_are_counted(service, stub):
    http = service.http()

    def count():
        lines = http.get("/metrics").text.splitlines()
        found = [
            line for line in lines if line.startswith('sash_requests_rejected_total{code="NOT_FOUND",edge="grpc"}')
        ]
        return float(found[0].split()[-1]) if found else 0.0

    before = count()
    with pytest.raises(grpc.RpcError):
        stub.GetWindow(pb.GetWindowRequest(name="nope"))
    assert count() == before + 1


def test_it_says_goodbye_before_it_goes(monkeypatch):
    """During the delay both edges report not to be ready and still serve; afterwards nobody listens."""
    delay_s, over, sleep = 3600.0, threading.Event(), asyncio.sleep

    async def held(seconds, result=None):
        await (until(over.is_set) if seconds == delay_s else sleep(seconds))
        return result

    monkeypatch.setattr(asyncio, "sleep", held)
    with running_service(shutdown_delay_s=delay_s) as service:
        http, stub = service.http(), service.stub()
        health = health_pb2_grpc.HealthStub(service.channel())
        assert http.get("/readyz").status_code == 200
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        wait_until(lambda: http.get("/readyz").status_code != 200)
        assert http.get("/healthz").status_code == 200
        wait_until(lambda: health.Check(health_pb2.HealthCheckRequest()).status != SERVING)
        assert health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
        spec = pb.WindowSpec(name="last", aggregates={"n": pb.AggregateSpec(function="count")})
        assert stub.CreateWindow(pb.CreateWindowRequest(spec=spec)).created
        over.set()
        stopping.join()
        with pytest.raises(httpx.TransportError):
            http.get("/healthz")
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListWindows(pb.ListWindowsRequest())
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_open_streams_do_not_hold_the_service_up():
    """Their callers are told, and so is one that has sent nothing yet; what was answered of inserts is applied."""
    more = threading.Event()

    def sends(*some):
        yield from some
        more.wait(WAIT_S)

    with running_service(shutdown_grace_s=WAIT_S * 2, idle_timeout_s=WAIT_S * 2) as service:
        stub, http, channel = service.stub(), service.http(), service.channel()
        stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates={"n": COUNT})))
        inserts = stub.InsertStream(sends(bulk("w", [1], [1])))
        assert next(inserts).inserted == 1
        watched = stub.Watch(pb.WatchRequest(query=pb.QueryRequest(window="w"), interval_ms=3_600_000))
        assert next(watched).answers[0].entries == 1
        pairs = pb.AnswersAtRequest(window="w", time=int64(5))
        answers, silent = (stub.AnswersAtStream(sends(*some)) for some in ([pairs], []))
        assert len(next(answers).answers) == 1
        healthy = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(healthy).status == SERVING
        listed = reflection_pb2.ServerReflectionRequest(list_services="")
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(sends(listed))
        assert next(reflected).HasField("list_services_response")
        with http.stream("GET", "/v1/windows/w/watch?interval=3600000") as events:
            lines = events.iter_lines()
            assert '"entries":1' in next(lines)
            assert http.get("/healthz").status_code == 200  # on a connection that is idle then
            stub.AnswersAt(pairs)  # behind this call, the service knows of the silent one
            service.stop()  # asserts that it ends within WAIT_S, which is less than the grace
            assert not [line for line in lines if line.startswith("data")]
        for stream, applied in ((inserts, "1"), (watched, None), (answers, "1"), (silent, "0")):
            found, error = answered(stream)
            assert (found, error.code()) == ([], grpc.StatusCode.UNAVAILABLE)
            assert ended_with(error).get("applied") == applied
        more.set()
        assert [each.status for each in healthy] in ([], [NOT_SERVING])
        assert list(reflected) == []


def test_who_calls_while_the_service_goes_is_told_to_try_again():
    """And not that the call was cancelled, which is what gRPC makes of calls that it has when it stops."""
    with running_service() as service:
        codes, going = [], threading.Barrier(9)

        def call_until_it_fails():
            stub = service.stub()
            stub.ListWindows(pb.ListWindowsRequest())
            going.wait(WAIT_S)
            try:
                while True:
                    stub.ListWindows(pb.ListWindowsRequest(), timeout=WAIT_S)
            except grpc.RpcError as error:
                codes.append(error.code())

        callers = [threading.Thread(target=call_until_it_fails) for _ in range(8)]
        for caller in callers:
            caller.start()
        going.wait(WAIT_S)
        service.stop()
        for caller in callers:
            caller.join()
    assert codes == [grpc.StatusCode.UNAVAILABLE] * 8


def test_a_call_in_progress_is_finished():
    """A request whose body is half sent when the service is told to stop gets its answer."""
    with running_service() as service:
        http = service.http()
        http.post("/v1/windows", json={"name": "w", "aggregates": {"n": {"function": "count"}}})
        holder = socket.create_connection(("127.0.0.1", service.rest_port))
        head = json_head("/v1/windows/w/insert", 23)
        holder.sendall(head + b'{"time": 1,')
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        refused = False
        while not refused:
            try:
                httpx.get(f"{service.rest_url}/healthz", trust_env=False, verify=False)
            except httpx.TransportError:
                refused = True
        holder.sendall(b' "value": 2}')
        assert b"200 OK" in holder.recv(65536)
        holder.close()
        stopping.join()


def test_a_port_that_is_taken_is_refused(service):
    for taken in ({"grpc_port": service.grpc_port}, {"rest_port": service.rest_port}):
        with pytest.raises(InvalidArgument) as caught, running_service(**taken):
            pass
        assert caught.value.field == next(iter(taken))


def test_many_clients_at_once(service, stub, window):
    """Calls of many threads through both edges: every entry arrives once."""
    http_window = f"{service.rest_url}/v1/windows/{window}/insert"

    def over_grpc(worker):
        own = service.stub()
        for i in range(50):
            own.Insert(pb.InsertRequest(window=window, time=i, value=worker))
            own.BulkInsert(bulk(window, [i, i], [worker, worker]))

    def over_rest(worker):
        with httpx.Client(**PLAIN) as own:
            for i in range(50):
                own.post(http_window, json={"time": i, "value": worker}).raise_for_status()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3) for work in (over_grpc, over_rest)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stub.GetWindow(pb.GetWindowRequest(name=window)).entries == 3 * 50 * 4


def test_calls_that_the_loop_does_not_take_up_are_cancelled_and_hold_no_memory(monkeypatch):
    monkeypatch.setattr("sash.rpc.server._UNTAKEN_S", 1)
    freed, held = threading.Event(), threading.Event()

    def hold():
        held.set()
        freed.wait(WAIT_S)

    with running_service() as running:
        stub = running.stub()
        stub.ListWindows(pb.ListWindowsRequest())  # the connection is there
        holding = threading.Thread(target=running.on_loop, args=(hold,))
        holding.start()
        try:
            held.wait(WAIT_S)
            waiting = [stub.ListWindows.future(pb.ListWindowsRequest()) for _ in range(10)]
            with pytest.raises(grpc.RpcError):
                stub.ListWindows(pb.ListWindowsRequest(), timeout=2)  # by gRPC's clock, which they wait by
        finally:
            freed.set()
            holding.join()
        # gRPC had handed over the first ones already, which the loop answers now.
        codes = [call.code() for call in waiting]
        assert codes.count(grpc.StatusCode.CANCELLED) >= 8, codes
        assert not stub.ListWindows(pb.ListWindowsRequest()).windows
