"""Services that keep windows: restarted, killed, without their tier, with a full one, and two on one place."""

import contextlib
import io
import re
import signal
import subprocess
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sash.durability import formats as values
from sash.tiers.lmdb import LmdbTier
from sash_client import Client, Unavailable
from sash_client.errors import DataLoss
from sash_engine.clock import ManualClock
from tests.support.redis_servers import ALWAYS, BINARIES, redis_server, wait_until
from tests.support.servers import WAIT_S, problem, refused_start, running_service, serve, service_process

SPEC = {
    "name": "kept",
    "keyed": True,
    "time_unit": "none",
    "fields": {"value": "int64"},
    "aggregates": {"n": {"function": "count"}, "all": {"function": "collect"}, "max": {"function": "max"}},
}
TIERS = ["lmdb", *(["redis"] if BINARIES else [])]


@pytest.fixture(params=TIERS)
def place(request, tmp_path):
    """An address to keep windows at."""
    if request.param == "lmdb":
        yield str(tmp_path / "data")
        return
    with redis_server(next(iter(BINARIES.values())), ALWAYS) as redis:
        yield redis.url


def written(window):
    """Write all kinds of things; what the window must answer for keys a and b."""
    window.bulk_insert(list(range(3000)), {"value": list(range(3000))}, keys="a", producer="p", sequence=1)
    window.insert(7, fields={"value": 70}, key="b", producer="p", sequence=2)
    window.bulk_evict(999, key="a", producer="p", sequence=3)
    staged = window.stage([8, 9], {"value": [80, 90]}, keys="b", query="q", batch=0)
    window.commit("q", 0, staged)
    return {"a": list(range(1000, 3000)), "b": [70, 80, 90]}


def check(client, expected, name="kept"):
    window = client.window(name)
    for key, found in expected.items():
        [answer] = window.query(key=key)
        assert answer.aggregates["all"] == found
        assert answer.entries == answer.aggregates["n"] == len(found)
    info = window.describe()
    assert (info.entries, info.keys, info.durability) == (2003, 2, "sync")
    assert (info.counts.inserted, info.counts.evicted) == (3003, 1000)


def check_once(window):
    """What was written is not written again."""
    assert window.insert(7, fields={"value": 70}, key="b", producer="p", sequence=2).already_applied
    assert window.commit("q", 0, []).already_applied


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_acknowledged_is_there_after_a_restart_and_after_a_kill(place, end):
    with service_process("--data", place) as service, Client(service.grpc_target) as client:
        expected = written(client.create_window(SPEC))
        service.process.send_signal(end)
        service.process.wait(WAIT_S)
    with service_process("--data", place) as service, Client(service.grpc_target) as client:
        check(client, expected)
        check_once(client.window("kept"))
        check(client, expected)
        client.create_window(SPEC)
        assert client.window("kept").insert(5000, fields={"value": 1}, key="a").inserted == 1


def refused(place):
    """What a service says that does not start on a place."""
    return refused_start("--data", place)


def test_the_second_server_of_one_place_is_refused_and_told_who_has_it(place):
    with service_process("--data", place) as first, Client(first.grpc_target) as client:
        window = client.create_window(SPEC)
        error = refused(place)
        assert str(first.process.pid) in error, "it names the process"
        assert "Traceback" not in error
        assert window.insert(1, fields={"value": 1}, key="a").durability == "sync"


def test_an_exported_window_moves_between_memory_and_a_tier_and_back(place):
    with contextlib.ExitStack() as open_:
        memory, durable = (open_.enter_context(running_service(data=data)) for data in ("memory", place))
        there, here = (open_.enter_context(Client(service.grpc_target)) for service in (memory, durable))
        there.create_window(SPEC)
        written(there.window("kept"))
        file = io.BytesIO()
        there.export_window("kept", file)
        info = here.import_window(io.BytesIO(file.getvalue()))
        assert (info.durability, there.window("kept").describe().durability) == ("sync", "memory")
        check_once(here.window("kept"))
        again = io.BytesIO()
        here.export_window("kept", again)
        back = there.import_window(io.BytesIO(again.getvalue()), name="back")
        assert (back.entries, back.keys, back.durability) == (2003, 2, "memory")
    with running_service(data=place) as durable, Client(durable.grpc_target) as client:
        assert client.window("kept").query(key="b")[0].aggregates["all"] == [70, 80, 90]


def metric(service, name):
    lines = service.http().get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)}


def test_metrics_of_the_tier(place):
    with running_service(data=place) as service, Client(service.grpc_target) as client:
        written(client.create_window(SPEC))
        kind = "redis" if place.startswith("redis") else "lmdb"
        assert metric(service, "sash_tier_up") == {f'sash_tier_up{{tier="{kind}"}}': 1.0}
        assert metric(service, "sash_journal_records_total")["sash_journal_records_total"] >= 5
        for name in (
            "sash_tier_commits_total",
            "sash_tier_pending_bytes",
            "sash_journal_groups",
            "sash_damaged_values_total",
        ):
            assert metric(service, name), name
        (used,) = metric(service, "sash_tier_used_bytes").values()
        assert used > 0


def test_metrics_say_how_full_a_directory_is(tmp_path):
    place = {"data": str(tmp_path), "data_max_bytes": 10 * 2**20}
    with running_service(**place) as service, Client(service.grpc_target) as client:
        window = client.create_window(SPEC)
        (limit,) = metric(service, "sash_tier_limit_bytes").values()
        # Four fifths, the rest is for making room; and of a small limit four fifths of that, for scattered free pages.
        assert limit == int(10 * 2**20 * 0.64)
        (before,) = metric(service, "sash_tier_used_bytes").values()
        written(window)
        (after,) = metric(service, "sash_tier_used_bytes").values()
        assert before < after < limit


def health(service):
    stub = health_pb2_grpc.HealthStub(service.channel())
    return stub.Check(health_pb2.HealthCheckRequest(service="sash.v1.Windows")).status


@pytest.mark.skipif(not BINARIES, reason="there is no Redis server here")
def test_without_its_tier_a_service_says_so_and_answers_from_memory_until_it_is_back():
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    with contextlib.ExitStack() as open_:
        redis = open_.enter_context(redis_server(next(iter(BINARIES.values())), ALWAYS))
        service = open_.enter_context(running_service(data=redis.url))
        client = open_.enter_context(Client(service.grpc_target))
        expected = written(client.create_window(SPEC))
        window, http = client.window("kept"), service.http()
        assert http.get("/readyz").status_code == 200
        wait_until(lambda: health(service) == serving)
        redis.kill()
        with pytest.raises(Unavailable, match="may be applied") as unsure:
            window.insert(8000, fields={"value": 1}, key="c")
        assert unsure.value.code == "UNAVAILABLE"
        assert unsure.value.retry_after_s > 0
        body = {"time": 8002, "fields": {"value": 1}, "key": "d"}
        response = http.post("/v1/windows/kept/insert", json=body)
        assert problem(response)["status"] == 503
        assert "may be applied" not in problem(response)["detail"], "it is refused before it is tried"
        assert window.query(key="d")[0].entries == 0
        assert int(response.headers["retry-after"]) >= 1
        check_answers(window, expected)
        assert http.get("/readyz").status_code == 503
        assert http.get("/healthz").status_code == 200, "it need not be restarted"
        assert list(metric(service, "sash_tier_up").values()) == [0.0]
        wait_until(lambda: health(service) == not_serving)
        redis.start()
        wait_until(lambda: http.get("/readyz").status_code == 200)
        wait_until(lambda: health(service) == serving)
        assert window.insert(9000, fields={"value": 2}, key="d").inserted == 1
        assert list(metric(service, "sash_tier_up").values()) == [1.0]


@pytest.mark.skipif(not BINARIES, reason="there is no Redis server here")
def test_a_start_waits_for_a_tier_that_is_away():
    with redis_server(next(iter(BINARIES.values())), ALWAYS) as redis:
        with service_process("--data", redis.url) as service, Client(service.grpc_target) as client:
            expected = written(client.create_window(SPEC))
        redis.kill()
        with serve("--data", redis.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert "cannot be reached" in next(line for line in process.stderr if "tried again for 30 s" in line)
                redis.start()
                port = re.search(r"gRPC on .*:(\d+), REST", process.stdout.readline())[1]
                with Client(f"127.0.0.1:{port}") as client:
                    check(client, expected)
            finally:
                process.kill()


def check_answers(window, expected):
    for key, found in expected.items():
        assert window.query(key=key)[0].aggregates["all"] == found


@pytest.mark.parametrize("data", ["memory", "directory"])
def test_a_window_on_wall_time_empties_by_itself(data, tmp_path):
    """Nobody writes or asks: the service's own clock does it."""
    place = data if data == "memory" else str(tmp_path / "data")
    slide = {"max_age": "1s", "clock": "wall"}
    now_us = 1_700_000_000 * 10**6
    clock = ManualClock(now_us * 1000)
    with running_service(clock, data=place) as service, Client(service.grpc_target) as client:
        window = client.create_window({"name": "brief", "slide": slide, "aggregates": {"n": {"function": "count"}}})
        assert window.bulk_insert([now_us - 2, now_us - 1, now_us], [1.0, 2.0, 3.0]).inserted == 3
        entries = 'sash_window_entries{window="brief"}'
        assert metric(service, "sash_window_entries")[entries] == 3.0
        clock.advance(10**9 + 1)
        wait_until(lambda: metric(service, "sash_window_entries")[entries] == 0.0)
        assert window.describe().counts.evicted == 3


@contextlib.contextmanager
def opened(place):
    """The tier of a data directory that no service has."""
    tier = LmdbTier(Path(place))
    tier.acquire()
    yield tier
    tier.close()


def test_a_window_that_cannot_be_recovered_is_listed_with_its_problem_by_all_that_list(tmp_path, sash):
    place = str(tmp_path / "data")
    with running_service(data=place) as service, Client(service.grpc_target) as client:
        for name in ("kept", "lost"):
            client.create_window(SPEC | {"name": name}).insert(1, fields={"value": 1}, key="a")
    with opened(place) as tier:
        tier.commit({values.pointer_key(2): b"nonsense"})
    with running_service(data=place) as service, Client(service.grpc_target) as client:
        kept, lost = client.list_windows()
        assert (kept.name, kept.problem, kept.entries) == ("kept", None, 1)
        assert lost.name == "lost"
        assert "delete the window" in lost.problem
        over_rest = service.http().get("/v1/windows").json()["windows"]
        assert [window["problem"] for window in over_rest] == [None, lost.problem]
        assert f"lost answers nothing: {lost.problem}" in sash("list", service=service).out
        with pytest.raises(DataLoss, match="delete the window"):
            client.window("lost").describe()
        client.delete_window("lost")
        assert [window.name for window in client.list_windows()] == ["kept"]
