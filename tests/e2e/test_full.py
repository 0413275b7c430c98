"""A service whose tier is full, as its users see it: refused clearly, still answering, and emptied while it runs."""

import pytest

from sash_client import Client
from sash_client.errors import ResourceExhausted
from tests.support.redis_servers import BINARIES, EVERYSEC, redis_server, wait_until
from tests.support.servers import problem, running_service

SPEC = {
    "time_unit": "none",
    "fields": {"value": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}
ROWS = 2000


@pytest.fixture(params=["lmdb", *BINARIES])
def settings(request, tmp_path):
    if request.param == "lmdb":
        yield {"data": str(tmp_path / "data"), "data_max_bytes": 2 * 2**20}
        return
    with redis_server(BINARIES[request.param], EVERYSEC, "maxmemory-policy noeviction") as server:
        used = int(server.ask("INFO", "memory").split(b"used_memory:")[1].split()[0])
        server.ask("CONFIG", "SET", "maxmemory", used + 2 * 2**20)
        yield {"data": server.url}


def insert(window, first):
    times = list(range(first, first + ROWS))
    return window.bulk_insert(times, {"value": times})


def fill(window, first):
    """Insert until it is refused; where the next entry would be, and the refusal."""
    while True:
        try:
            insert(window, first)
        except ResourceExhausted as refused:
            return first, refused
        first += ROWS


def holds(window, first, stop):
    [answer] = window.query()
    assert (answer.aggregates["n"], answer.aggregates["sum"]) == (stop - first, sum(range(first, stop)))


def test_a_full_service_is_emptied_while_it_runs(settings):
    limit = "2,097,152 bytes" if "data_max_bytes" in settings else "maxmemory"
    with running_service(**settings) as service, Client(service.grpc_target) as client:
        http = service.http()
        window = client.create_window(SPEC | {"name": "full"})
        other = client.create_window(SPEC | {"name": "other"})
        insert(other, 0)
        stop, refused = fill(window, 0)
        assert (refused.field, refused.limit) == ("data", limit)
        assert (refused.code, refused.reason) == ("RESOURCE_EXHAUSTED", "OUT_OF_ROOM")
        assert "full" in refused.message
        holds(window, 0, stop)

        body = {"time": list(range(ROWS)), "value": [1] * ROWS}
        answer = http.post("/v1/windows/full/bulk-insert", json=body)
        document = problem(answer)
        assert (answer.status_code, document["type"]) == (507, "urn:sash:error:out-of-room")
        assert document["reason"] == refused.reason
        assert (document["field"], document["limit"]) == ("data", limit)
        assert http.get("/healthz").status_code == 200
        assert http.get("/readyz").status_code == 503
        assert "full" in http.get("/readyz").text
        assert sum(len(bulk.times) for bulk in window.entries()) == stop
        holds(window, 0, stop)

        window.bulk_evict(stop // 2 - 1)
        wait_until(lambda: http.get("/readyz").status_code == 200)
        insert(window, stop)
        holds(window, stop // 2, stop + ROWS)

        stop, _ = fill(window, stop + ROWS)
        client.delete_window("other")
        window.bulk_evict(stop - ROWS - 1)
        wait_until(lambda: http.get("/readyz").status_code == 200)
        insert(window, stop)
        holds(window, stop - ROWS, stop + ROWS)
    with running_service(**settings) as service, Client(service.grpc_target) as client:
        assert [found.spec["name"] for found in client.list_windows()] == ["full"]
        holds(client.window("full"), stop - ROWS, stop + ROWS)
        assert service.http().get("/readyz").status_code == 200
