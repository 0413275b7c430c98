"""A service whose tier is full, as its users see it: refused clearly, still answering, and emptied while it runs."""

import contextlib

import pytest

from sash.tiers.lmdb import LmdbTier
from sash_client import Client
from sash_client.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from tests.support.disks import fill as fill_disk
from tests.support.disks import small_disk
from tests.support.redis_servers import BINARIES, EVERYSEC, redis_server, wait_until
from tests.support.servers import problem, running_service

SPEC = {
    "time_unit": "none",
    "fields": {"value": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}
ROWS = 2000


@pytest.fixture(params=["lmdb", *BINARIES])
def place(request, tmp_path):
    """Settings of a service with little room; and a context in which it stays full once it is."""
    if request.param == "lmdb":
        yield {"data": str(tmp_path / "data"), "data_max_bytes": 2 * 2**20}, contextlib.nullcontext
        return
    with redis_server(BINARIES[request.param], EVERYSEC, "maxmemory-policy noeviction") as server:
        used = int(server.ask("INFO", "memory").split(b"used_memory:")[1].split()[0])
        limit = used + 2 * 2**20
        server.ask("CONFIG", "SET", "maxmemory", limit)

        @contextlib.contextmanager
        def full():
            # A server's memory goes up and down by itself, by a few KiB.
            server.ask("CONFIG", "SET", "maxmemory", 1)
            yield
            server.ask("CONFIG", "SET", "maxmemory", limit)

        yield {"data": server.url}, full


def insert(window, first, **origin):
    times = list(range(first, first + ROWS))
    return window.bulk_insert(times, {"value": times}, **origin)


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


def test_a_full_service_is_emptied_while_it_runs(place):
    settings, full = place
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

        with full():
            wait_until(lambda: http.get("/readyz").status_code == 503)
            body = {"time": list(range(ROWS)), "value": [1] * ROWS}
            answer = http.post("/v1/windows/full/bulk-insert", json=body)
            document = problem(answer)
            assert (answer.status_code, document["type"]) == (507, "urn:sash:error:out-of-room")
            assert document["reason"] == refused.reason
            assert (document["field"], document["limit"]) == ("data", limit)
            assert http.get("/healthz").status_code == 200
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


# ---------------------------------------------------------------- a disk that another process fills


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 16 * 2**20) as mounted:
        yield mounted


def numbered(sequence):
    return {"producer": "p", "sequence": sequence}


def test_a_disk_that_another_process_filled_refuses_writes_and_nothing_of_them_is_there(disk):
    settings = {"data": str(disk / "data")}
    with running_service(**settings) as service, Client(service.grpc_target) as client:
        http, window = service.http(), client.create_window(SPEC | {"name": "full"})
        insert(window, 0, **numbered(1))
        filler = fill_disk(disk)
        for _ in range(2):
            with pytest.raises(ResourceExhausted, match="full") as refused:
                insert(window, ROWS, **numbered(2))
            assert (refused.value.field, refused.value.limit) == ("data", "the disk")
        answer = http.post("/v1/windows/full/bulk-insert", json={"time": [ROWS], "value": [1]})
        assert (answer.status_code, problem(answer)["limit"]) == (507, "the disk")
        assert insert(window, 0, **numbered(1)).already_applied, "it needs no room"
        assert "full" in http.get("/readyz").text
        holds(window, 0, ROWS)
        filler.unlink()
        assert not insert(window, ROWS, **numbered(2)).already_applied
        holds(window, 0, 2 * ROWS)
        assert http.get("/readyz").status_code == 200
    with running_service(**settings) as service, Client(service.grpc_target) as client:
        holds(client.window("full"), 0, 2 * ROWS)


def answered(window, first, **numbers):
    """An insert, again where the last attempt of the client had too little time."""
    while True:
        try:
            return insert(window, first, **numbers)
        except DeadlineExceeded:
            pass


def test_a_write_that_meets_a_full_disk_after_it_was_applied_is_no_refusal_and_is_there_once(disk, monkeypatch):
    """The disk is filled between the look whether there is room and the commit."""
    settings = {"data": str(disk / "data")}
    look = LmdbTier.check_room
    fillers = []

    def look_and_fill(self, size, reserve=0.0):
        look(self, size, reserve)
        fillers.append(fill_disk(disk))

    rows = {"time": list(range(ROWS, 2 * ROWS)), "value": list(range(ROWS, 2 * ROWS))}
    with running_service(**settings) as service, Client(service.grpc_target, timeout_s=3) as client:
        http, window = service.http(), client.create_window(SPEC | {"name": "full"})
        insert(window, 0, **numbered(1))

        monkeypatch.setattr(LmdbTier, "check_room", look_and_fill)
        answer = http.post("/v1/windows/full/bulk-insert", json=rows | numbered(2))
        monkeypatch.setattr(LmdbTier, "check_room", look)
        document = problem(answer)
        assert (answer.status_code, document["type"]) == (503, "urn:sash:error:unavailable")
        assert "may be applied" in document["detail"]
        assert "full" in document["detail"]
        assert (document["field"], document["limit"]) == ("data", "the disk")
        assert int(answer.headers["retry-after"]) >= 1
        holds(window, 0, 2 * ROWS)

        with pytest.raises(Unavailable, match="may be applied") as unsure:
            answered(window, ROWS, **numbered(2))
        assert (unsure.value.field, unsure.value.limit) == ("data", "the disk")
        with pytest.raises(ResourceExhausted) as refused:
            insert(window, 2 * ROWS, **numbered(3))
        assert refused.value.limit == "the disk"
        holds(window, 0, 2 * ROWS)

        fillers[0].unlink()
        wait_until(lambda: http.get("/readyz").status_code == 200)
        assert insert(window, ROWS, **numbered(2)).already_applied
        assert insert(window, 2 * ROWS, **numbered(3)).inserted == ROWS
        holds(window, 0, 3 * ROWS)
    with running_service(**settings) as service, Client(service.grpc_target) as client:
        holds(client.window("full"), 0, 3 * ROWS)
