"""The Redis tier when its server fails: killed, emptied, silent, full, read-only."""

import shutil
import threading

import pytest

from sash_engine.errors import DataLoss, OutOfRoom, Unavailable
from tests.support.redis_servers import (
    BINARIES,
    redis_server,
    wait_until,
)
from tests.support.redis_tiers import TIMEOUT_S, lost, patiently, refused

# The server fails


def test_killed_and_restarted_what_was_returned_is_there(own_server, tiers):
    tier = tiers(own_server.url)
    returned: list[int] = []
    stop = threading.Event()

    def write():
        while not stop.is_set():
            puts = {b"%d" % len(returned): b"v" * 100, b"last": b"%d" % len(returned)}
            patiently(lambda puts=puts: tier.commit(puts))
            returned.append(len(returned))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            enough = len(returned) + 20
            wait_until(lambda enough=enough: len(returned) > enough)
            own_server.kill()
            wait_until(lambda: not tier.healthy)
            own_server.start()
            wait_until(lambda: tier.healthy)
    finally:
        stop.set()
        writer.join()
    last, *values = tier.get_many([b"last", *(b"%d" % number for number in returned)])
    assert values == [b"v" * 100] * len(returned)
    assert int(last) == returned[-1]


def test_restarted_without_persistence_is_data_loss(tiers):
    with redis_server(BINARIES["valkey"], "appendonly no") as server:
        tier = tiers(server.url)
        tier.commit({b"k": b"v"})
        server.kill()
        server.start()
        lost(tier)


@pytest.mark.parametrize("notices", ["get_many", "commit"])
def test_gone_back_to_an_earlier_state_is_data_loss(own_server, tiers, notices):
    tier = tiers(own_server.url)
    tier.commit({b"k": b"1"})
    kept = own_server.directory / "appendonlydir"
    copy = shutil.copytree(kept, own_server.directory / "copy")
    tier.commit({b"k": b"2"})
    own_server.kill()
    shutil.rmtree(kept)
    copy.rename(kept)
    own_server.start()
    with pytest.raises(DataLoss):  # over a new connection, so before the background has looked
        tier.get_many([b"k"]) if notices == "get_many" else tier.commit({b"k": b"3"})
    lost(tier)
    assert own_server.ask("GET", "{t}:k:k") == b"1"


def test_flushall_is_data_loss(server, tiers):
    reader, writer, idle = tiers(server.url, "a"), tiers(server.url, "b"), tiers(server.url, "c", lease_s=0.1)
    for tier in (reader, writer):
        tier.commit({b"k": b"v"})
    server.ask("FLUSHALL")
    wait_until(lambda: not idle.healthy)  # it notices by itself
    with pytest.raises(DataLoss):
        reader.get_many([b"k"])
    with pytest.raises(DataLoss):
        writer.commit({b"k": b"v"})
    for tier in (reader, writer, idle):
        lost(tier)
    assert server.ask("DBSIZE") == 0


def test_paused_fails_and_recovers(server, tiers):
    tier = tiers(server.url, timeout_s=TIMEOUT_S)
    patiently(lambda: tier.commit({b"k": b"1"}))
    server.ask("CLIENT", "PAUSE", 3000)  # nothing but time ends it: UNPAUSE would have to wait as well
    refused(lambda: tier.get_many([b"k"]))
    wait_until(lambda: tier.healthy)
    patiently(lambda: tier.commit({b"k": b"2"}))
    assert patiently(lambda: tier.get_many([b"k"])) == [b"2"]


def test_silent_fails_without_a_call_and_recovers(server, tiers, monkeypatch):
    tier = tiers(server.url, timeout_s=TIMEOUT_S)
    patiently(lambda: tier.commit({b"k": b"1"}))
    call, callers = tier._link.call, []

    def watched(*arguments):
        callers.append(threading.current_thread())
        return call(*arguments)

    monkeypatch.setattr(tier._link, "call", watched)
    with server.frozen():
        refused(lambda: tier.get_many([b"k"]))  # though nothing ever comes
        assert callers == [threading.main_thread()]
        assert not tier.healthy
        for _ in range(20):
            refused(lambda: tier.get_many([b"k"]))
            refused(lambda: tier.commit({b"k": b"no"}))
        assert threading.main_thread() not in callers[1:], "only the background tries"
    wait_until(lambda: tier.healthy)
    patiently(lambda: tier.commit({b"k": b"2"}))
    assert patiently(lambda: tier.get_many([b"k"])) == [b"2"]


def full(tier):
    """Whether new entries are refused."""
    try:
        tier.check_room(1)
    except OutOfRoom:
        return True
    return False


def test_full(server, tiers):
    """What has begun goes through, all of it; new entries are refused until there is room."""
    tier = tiers(server.url)
    tier.commit({b"a": b"1", b"b": b"x" * 1000})
    assert not full(tier)
    server.ask("CONFIG", "SET", "maxmemory", 1)
    tier.commit({b"a": b"2", b"c": b"3"}, [b"b"])
    with pytest.raises(OutOfRoom, match="full") as caught:
        tier.check_room(1)
    assert (caught.value.field, caught.value.limit) == ("data", "maxmemory")
    tier.check_room(10**9, reserve=0.5)
    assert tier.get_many([b"a", b"b", b"c"]) == [b"2", None, b"3"]
    tier.commit({}, [b"c"])
    assert tier.get_many([b"a", b"c"]) == [b"2", None]
    assert tier.healthy
    tier.close()
    again = tiers(server.url)  # so is starting again
    again.commit({b"a": b"4"})
    assert full(again)
    server.ask("CONFIG", "SET", "maxmemory", 0)
    wait_until(lambda: not full(again))  # though nothing is committed meanwhile
    assert again.get_many([b"a"]) == [b"4"]


def test_how_full_it_is(server, tiers):
    """As far as it says so: without maxmemory there is no limit."""
    tier = tiers(server.url, lease_s=0.1)
    assert tier.limit_bytes is None
    before = tier.used_bytes
    tier.commit({b"a": b"x" * 2**20})
    wait_until(lambda: tier.used_bytes >= before + 2**20)
    server.ask("CONFIG", "SET", "maxmemory", 2**30)
    wait_until(lambda: tier.limit_bytes == 2**30)


def test_full_is_noticed_while_idle(server, tiers):
    tier = tiers(server.url, lease_s=0.1)
    server.ask("CONFIG", "SET", "maxmemory", 1)
    wait_until(lambda: full(tier))


def test_lease_is_renewed_while_full(server, tiers):
    tier = tiers(server.url, lease_s=0.1)
    server.ask("CONFIG", "SET", "maxmemory", 1)
    server.ask("DEL", "{t}:owner")
    wait_until(lambda: server.ask("EXISTS", "{t}:owner"))
    assert tier.healthy


def test_too_few_replicas_refuses_writes_only(server, tiers):
    tier = tiers(server.url, lease_s=0.1)
    tier.commit({b"k": b"1"})
    server.ask("CONFIG", "SET", "min-replicas-to-write", 1)
    with pytest.raises(Unavailable):
        tier.commit({b"k": b"2"})
    assert tier.get_many([b"k"]) == [b"1"]
    assert tier.healthy
    server.ask("CONFIG", "SET", "min-replicas-to-write", 0)
    tier.commit({b"k": b"3"})


def test_read_only_replica(server, tiers):
    tier = tiers(server.url)
    tier.commit({b"k": b"1"})
    server.ask("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(Unavailable):
        tier.commit({b"k": b"2"})
    with pytest.raises(Unavailable):
        tiers(server.url, "another")
    server.ask("REPLICAOF NO ONE")
    wait_until(lambda: tier.healthy)
    assert tier.get_many([b"k"]) == [b"1"]
    tier.commit({b"k": b"2"})
