"""`sash admin check` and its salvage on real directories, on Redis, and beside servers."""

import asyncio
import os

import lmdb
import pytest

from sash.durability import formats as values
from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import BulkInsert
from sash.durability.storage import Storage
from sash.runtime.clock import SystemClock
from sash.tiers.lmdb import LmdbTier
from sash.tiers.redis import RedisTier
from sash_client import Client, SashClientError
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.placement import shard_of
from tests.support.damage import flipped
from tests.support.lmdb_values import change, stored
from tests.support.redis_servers import BINARIES, redis_server
from tests.support.servers import refused_start, running_service
from tests.support.stored import batch

SPEC = {"keyed": True, "time_unit": "none", "fields": {"value": "int64"}, "aggregates": {"n": {"function": "count"}}}
NAMES = ("one", "two")


@pytest.fixture
def check(ran):
    """Runs `sash check`; returns its exit status, the lines it prints, and its error."""

    def check(*arguments):
        status, said = ran("check", *arguments)
        return status, said.out.splitlines(), said.err

    return check


async def fill(tier):
    """Two windows of 300 entries: 200 in an image, 100 in the journal behind it."""
    for first in (0, 200):
        storage = Storage(Catalogue(), SystemClock(), tier(), store_entries=64, block=64)
        await storage.start()
        for name in NAMES:
            await storage.create(WindowSpec.parse({"name": name, **SPEC}))
            times = range(first, 200 if not first else 300)
            write = BulkInsert(batch([("a", time) for time in times], first))
            await storage.write(name, write, Origin("p", 1 + bool(first)))
        if not first:
            await storage.stop()
        else:
            await storage.store.session.journal.stop(5)
            storage.store.session.tier.close()


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    asyncio.run(fill(lambda: LmdbTier(path)))
    return path


def served(data, **settings):
    """By window, how many entries a service has."""
    with running_service(data=str(data), **settings) as service, Client(service.grpc_target) as client:
        windows = client.list_windows()
        assert not any(window.problem for window in windows)
        return {window.name: client.window(window.name).query(key="a")[0].aggregates["n"] for window in windows}


def test_a_whole_directory_is_said_to_be_whole(check, data):
    status, lines, _ = check(data)
    assert status == 0
    *windows, total = lines
    assert windows == ["window 'one': 300 entries", "window 'two': 300 entries"]
    size = sum(map(len, stored(data).values()))
    assert total == f"2 windows, {len(stored(data))} values, {size:,} bytes: all is well"


def test_what_is_damaged_is_named_and_the_rest_salvaged_and_served(check, data, tmp_path):
    there = stored(data)
    kinds = {}
    for key in sorted(there):
        name = values.name_of(key)
        kinds.setdefault((name.kind, name.window, key in (b"journal",)), key)
    assert len(kinds) == 3 + 1 + 2 * 4, "of every kind one, of each window"
    for number, ((kind, window, _), key) in enumerate(kinds.items()):
        change(data, {key: flipped(there[key], -1)})
        status, lines, _ = check(data)
        assert status == 1
        assert any(key.decode() in line for line in lines)
        assert "all is well" not in lines[-1]
        new = tmp_path / f"new {number}"
        assert check("--salvage", data, new)[0] == 1
        assert stored(data) == there | {key: flipped(there[key], -1)}, "it is as it was"
        expected = dict.fromkeys(NAMES, 300)
        if kind == "block":
            expected[NAMES[window - 1]] = 300 - 64
        elif kind == "journal":
            expected["one"] = 200  # the first group is the one of its first window
        elif window is not None:
            del expected[NAMES[window - 1]]
        assert served(new) == expected, key
        assert check(new)[0] == 0
        change(data, {key: there[key]})
    assert check(data)[0] == 0


def test_the_report_says_whom_it_concerns_and_with_how_many_entries(check, data, tmp_path):
    there = stored(data)
    block = next(key for key in sorted(there) if key.startswith(b"block/00000001"))
    pointer = values.pointer_key(2)
    change(data, {block: flipped(there[block], -1), pointer: None})
    status, lines, _ = check(data)
    assert status == 1
    assert lines[0] == f"value {block.decode()!r} is damaged: its checksum is another (window 'one', 64 entries)"
    assert lines[1] == "window 'one': 236 entries, and 64 in values that are damaged or missing"
    assert lines[2] == (
        "window 'two' cannot be read: the pointer to the image of window 'two' is missing. Its stored blocks have 300 "
        "rows, and the journal has 1 of its writes, with 100 entries"
    )
    assert lines[3].endswith("1 values are damaged or missing")
    status, lines, _ = check("--salvage", data, tmp_path / "new")
    assert status == 1
    assert lines[-2:] == [
        f"window 'one' is in {tmp_path / 'new'}: 236 entries; 64 entries and 0 writes are left behind",
        "window 'two' is left behind",
    ]
    with running_service(data=str(tmp_path / "new")) as service, Client(service.grpc_target) as client:
        times = range(200, 300)
        again = client.window("one").bulk_insert(times, {"value": times}, keys="a", producer="p", sequence=2)
        assert again.already_applied


def test_a_service_serves_what_a_damaged_group_does_not_concern_and_says_how_to_save_the_rest(check, data, tmp_path):
    there = stored(data)
    groups = sorted(key for key in there if values.name_of(key).kind == "journal")
    change(data, {groups[0]: None})
    with running_service(data=str(data)) as service, Client(service.grpc_target) as client:
        problems = {window.name: window.problem for window in client.list_windows()}
        assert problems["two"] is None
        assert groups[0].decode() in problems["one"]
        assert "sash admin check --salvage" in problems["one"]
        assert client.window("two").query(key="a")[0].aggregates["n"] == 300
        with pytest.raises(SashClientError, match="is not served"):
            client.window("one").query(key="a")
    status, lines, _ = check("--salvage", data, tmp_path / "new")
    assert status == 1
    assert "window 'one': 200 entries; it would not be served: " in "\n".join(lines)
    assert served(tmp_path / "new") == {"one": 200, "two": 300}


def test_a_directory_that_a_server_has_is_not_looked_at(check, data):
    with running_service(data=str(data)):
        status, lines, error = check(data)
    assert (status, lines) == (1, [])
    assert error.startswith("sash: A server has the data directory")
    assert check(data)[0] == 0


def test_what_cannot_be_is_refused(check, data, tmp_path, monkeypatch):
    for arguments, said in (
        ((tmp_path / "none",), "not a data directory"),
        (("memory://",), "not a place where windows are stored"),
        (("--salvage", data), "give NEWDATA with --salvage"),
        ((data, tmp_path / "new"), "give --salvage with NEWDATA"),
        (("--salvage", data, data), "Another server has the data directory"),
        (("--salvage", data, "memory"), "a place that keeps"),
        (("--salvage", data, "reddis://x"), "not a place to store windows"),
        (("--prefix", "a b", data), "SASH_REDIS_PREFIX"),
    ):
        status, _, error = check(*arguments)
        assert status == 1, arguments
        assert said in error, arguments
    assert not (tmp_path / "new").exists()
    asyncio.run(fill(lambda: LmdbTier(tmp_path / "used")))
    status, _, error = check("--salvage", data, tmp_path / "used")
    assert status == 1
    assert "is not empty" in error
    assert served(tmp_path / "used") == dict.fromkeys(NAMES, 300)


def test_a_directory_that_lost_a_write_is_not_served_and_can_be_salvaged(check, data, tmp_path):
    with lmdb.open(str(data), max_dbs=1) as env, env.begin(write=True) as changed:
        changed.put(b"mine", b"1")
    said = refused_start("--data", data)
    assert "has lost a write" in said
    assert "sash admin check --salvage" in said
    status, lines, _ = check("--salvage", data, tmp_path / "new")
    assert status == 1
    assert "has lost a write" in lines[0]
    assert served(tmp_path / "new") == dict.fromkeys(NAMES, 300)


def test_in_redis_a_prefix_is_looked_at_and_salvaged(check, tmp_path, monkeypatch):
    if not BINARIES:
        pytest.skip("there is no Redis server")
    with redis_server(next(iter(BINARIES.values()))) as server:
        asyncio.run(fill(lambda: RedisTier(server.url, "some", timeout_s=60)))
        status, lines, _ = check("--prefix", "some", server.url)
        assert (status, lines[0]) == (0, "window 'one': 300 entries")
        with running_service(data=server.url, redis_prefix="some"):
            status, _, error = check("--prefix", "some", server.url)
            assert status == 1
            assert f"A server has 'some' on this Redis: process {os.getpid()} " in error
        [block, *_] = sorted(server.ask("KEYS", "{some}:k:block/00000002/*"))
        server.ask("DEL", block)
        monkeypatch.setenv("SASH_REDIS_PREFIX", "some")
        status, lines, _ = check("--salvage", server.url, server.url, "--new-prefix", "other")
        assert status == 1
        assert lines[-1].endswith("236 entries; 64 entries and 0 writes are left behind")
        assert served(server.url, redis_prefix="other") == {"one": 300, "two": 236}
        assert check("--salvage", server.url, tmp_path / "new")[0] == 1
        assert served(tmp_path / "new") == {"one": 300, "two": 236}
        status, _, error = check("--salvage", server.url, server.url)
        assert status == 1
        assert "is not empty" in error


def test_every_shard_is_looked_at(check, tmp_path):
    with running_service(data=str(tmp_path / "d"), shards=2) as running:
        http = running.http()
        spec = {"name": "w", "keyed": True, "aggregates": {"n": {"function": "count"}}}
        http.post("/v1/windows", json=spec).raise_for_status()
        http.post("/v1/windows/w/insert", json={"time": 1, "key": "a", "value": 1}).raise_for_status()
    status, lines, _ = check(tmp_path / "d")
    assert status == 0
    assert [line for line in lines if line.endswith(":")] == [f"{tmp_path}/d/shard-{i}:" for i in (0, 1)]
    assert sorted(line for line in lines if line.startswith("window")) == [
        "window 'w': 0 entries",
        "window 'w': 1 entries",
    ]
    assert check("--salvage", tmp_path / "d" / "shard-1", tmp_path / "alone")[0] == 0


def test_all_shards_are_salvaged_together_and_served(check, tmp_path):
    """Also a window that the first shard has lost, and others have not."""
    data, new = tmp_path / "data", tmp_path / "new"
    keys = [f"k{i}" for i in range(40)]
    with running_service(data=str(data), shards=3) as service, Client(service.grpc_target) as client:
        for name in NAMES:
            window = client.create_window({"name": name, **SPEC})
            window.bulk_insert(range(40), list(range(40)), keys=keys)
        client.create_window({"name": "lately", "of": "one", "aggregates": {"n": {"function": "count"}}})
        of_shard = len({key for key in keys if shard_of("two", key, 3) == 0})
        before = {name: client.window(name).describe().spec for name in (*NAMES, "lately")}
    pointer = values.pointer_key(2)
    there = stored(data / "shard-0")
    change(data / "shard-0", {pointer: flipped(there[pointer], -1)})
    status, lines, _ = check("--salvage", data, new)
    assert status == 1
    assert lines[-1] == f"window 'two' is in {new}/shard-0: no entries; other shards have some"
    for _ in range(2):
        with running_service(data=str(new)) as service, Client(service.grpc_target) as client:
            assert {window.name: window.spec for window in client.list_windows()} == before
            counted = {name: client.window(name).describe().entries for name in before}
            assert counted == {"one": 40, "lately": 40, "two": 40 - of_shard}
            assert client.topology().shards == 3
    status, _, error = check("--salvage", data, new)
    assert (status, "is not empty" in error) == (1, True)
    assert check(new)[0] == 0
    one_by_one = tmp_path / "one by one"
    for shard in (2, 0, 1):
        assert not (one_by_one / "shards.json").exists(), "nothing starts there yet"
        assert check("--salvage", data / f"shard-{shard}", one_by_one / f"shard-{shard}")[0] == (shard == 0)
    with running_service(data=str(one_by_one)) as service, Client(service.grpc_target) as client:
        assert {name: client.window(name).describe().entries for name in before} == counted


FED = {
    "requests": {**SPEC, "slide": {"max_age": 1000}},
    "minutes": {**SPEC, "from": {"window": "requests", "granularity": 10}},
    "hours": {**SPEC, "from": {"window": "minutes", "granularity": 20}},
    "lately": {"of": "requests", "slide": {"max_age": 50}, "aggregates": SPEC["aggregates"]},
    "recent": {"of": "minutes", "aggregates": SPEC["aggregates"]},
}


def test_windows_that_are_stored_together_are_told_and_salvaged_together(check, tmp_path):
    data, new = tmp_path / "data", tmp_path / "new"
    with running_service(data=str(data)) as service, Client(service.grpc_target) as client:
        for name, spec in FED.items():
            client.create_window({"name": name, **spec})
        client.window("requests").bulk_insert(range(300), [1] * 300, keys=["a"] * 300)
        before = {name: client.window(name).describe() for name in FED}
    status, lines, _ = check(data)
    assert (status, lines[:5]) == (
        0,
        [
            "window 'requests': 300 entries",
            "window 'minutes', fed by 'requests', has 300 entries",
            "window 'hours', fed by 'minutes', has 300 entries",
            "window 'lately', a view of 'requests', has 50 entries",
            "window 'recent', a view of 'minutes', has 300 entries",
        ],
    )
    assert lines[5].startswith("5 windows, ")
    status, lines, _ = check("--salvage", data, new)
    assert (status, lines[6:]) == (0, [f"window {name!r} is in {new}: {before[name].entries} entries" for name in FED])
    with running_service(data=str(new)) as service, Client(service.grpc_target) as client:
        after = {window.name: window for window in client.list_windows()}
        assert {name: (each.spec, each.entries) for name, each in after.items()} == {
            name: (each.spec, each.entries) for name, each in before.items()
        }
        client.window("requests").bulk_insert([300], [1], keys=["a"])
        assert [client.window(name).describe().entries for name in FED] == [301, 301, 301, 50, 301]
    pointer = values.pointer_key(1)
    change(data, {pointer: None})
    status, lines, _ = check(data)
    assert status == 1
    assert lines[1:5] == [
        f"window {name!r}, {kind} {of!r}, cannot be read: see window 'requests'"
        for name, kind, of in (
            *(("minutes", "fed by", "requests"), ("hours", "fed by", "minutes")),
            *(("lately", "a view of", "requests"), ("recent", "a view of", "minutes")),
        )
    ]
    assert check("--salvage", data, tmp_path / "none")[1][-5:] == [f"window {name!r} is left behind" for name in FED]
