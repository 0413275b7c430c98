"""The Redis tier when its server or the network fails, and when the address is wrong."""

import logging
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator

import pytest

from sash.tiers.redis import RedisTier
from sash_engine.errors import DataLoss, InvalidArgument, OutOfRoom, Unavailable
from tests.support.redis_servers import (
    BINARIES,
    Proxy,
    proxy,
    redis_server,
    wait_until,
)
from tests.support.redis_tiers import TIMEOUT_S, lost, patiently, refused, scripts

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


def test_full_is_noticed_while_idle_and_the_lease_is_renewed(server, tiers):
    tier = tiers(server.url, lease_s=0.1)
    server.ask("CONFIG", "SET", "maxmemory", 1)
    wait_until(lambda: full(tier))
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


# The network fails


@pytest.fixture
def between(server) -> Iterator[Proxy]:
    with proxy(server.port) as running:
        yield running


def test_cut_while_idle_goes_unnoticed(between, tiers):
    tier = tiers(between.url)
    for _ in range(5):
        tier.commit({b"k": b"1"})
        between.cut()
        assert tier.get_many([b"k"]) == [b"1"]
        between.cut()
    assert tier.healthy


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("n_bytes", [1, 3, 1000, 100_000])
@pytest.mark.parametrize("times", [1, 2])
def test_cut_within_a_call_is_all_or_nothing(between, tiers, way, n_bytes, times):
    tier = tiers(between.url)
    keys = [b"a", b"b", b"c"]
    tier.commit(dict.fromkeys(keys, b"old" * 20_000))
    between.cut_after(way, n_bytes, times)
    try:
        tier.commit(dict.fromkeys(keys, b"new" * 20_000))
        expected = [b"new"]
    except Unavailable:
        assert times == 2  # once is not enough: it is tried again at once
        expected = [b"old", b"new"]
    values = patiently(lambda: tier.get_many(keys))
    assert values in [[value * 20_000] * 3 for value in expected]
    patiently(lambda: tier.commit({b"a": b"later"}, [b"b"]))
    assert tier.get_many(keys) == [b"later", None, values[2]]


@pytest.mark.parametrize("maxmemory", [0, 1])
def test_what_arrives_late_is_refused(server, between, tiers, maxmemory):
    # 1st commit  ──────────────── held ───────────────▶ Redis
    # 2nd commit        ──▶ Redis
    tier = tiers(between.url, timeout_s=TIMEOUT_S)
    patiently(lambda: tier.commit({b"k": b"0"}))
    server.ask("CONFIG", "SET", "maxmemory", maxmemory)
    release = between.hold()
    with pytest.raises(Unavailable):
        tier.commit({b"k": b"1", b"new": b"1"})
    patiently(lambda: tier.commit({b"k": b"2"}))
    before = scripts(server)
    release.set()
    wait_until(lambda: scripts(server) > before)
    assert patiently(lambda: tier.get_many([b"k", b"new"])) == [b"2", None]
    patiently(lambda: tier.commit({b"k": b"3"}))
    assert patiently(lambda: tier.get_many([b"k"])) == [b"3"]


def test_one_round_trip(server, tiers):
    tier = tiers(server.url)

    def processed() -> int:
        return int(server.ask("INFO", "stats").split(b"total_commands_processed:")[1].split()[0])

    tier.commit({b"%d" % i: b"v" for i in range(100)})
    before = processed()
    tier.get_many([b"%d" % i for i in range(100)])
    assert processed() - before == 2  # and the question how many


def test_more_threads_than_connections(server, tiers):
    tier = tiers(server.url + "?client_name=many", connections=2)
    tier.commit({b"%d" % i: b"%d" % i * 1000 for i in range(20)})
    right: list[bool] = []

    def read():
        right.extend(tier.get_many([b"%d" % (i % 20)]) == [b"%d" % (i % 20) * 1000] for i in range(50))

    threads = [threading.Thread(target=read) for _ in range(12)]
    for thread in threads:
        thread.start()
    for i in range(100):
        tier.commit({b"other": b"%d" % i})
    for thread in threads:
        thread.join()
    assert right == [True] * 12 * 50
    assert 1 <= server.ask("CLIENT LIST").count(b"name=many") <= 2


def test_the_largest_value(own_server, tiers):
    tier = tiers(own_server.url)
    largest = b"\x00\xff" * (32 << 20)
    tier.commit({b"k": largest, b"l": b"small"})
    assert tier.get_many([b"l", b"k"]) == [b"small", largest]


def test_many_keys(server, tiers):
    tier = tiers(server.url)
    many = {b"%d" % i: b"v" for i in range(20_000)}  # more than Lua can hand to one command
    tier.commit(many)
    assert tier.get_many(list(many)) == [b"v"] * len(many)
    tier.commit({}, many)
    assert tier.get_many(list(many)) == [None] * len(many)


def test_tls(server, tiers, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 1 -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-out", certificate, "-keyout", key], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with proxy(server.port, context) as between:
        url = f"rediss://127.0.0.1:{between.port}"
        with pytest.raises(InvalidArgument, match="certificate"):
            tiers(url)
        tier = tiers(f"{url}?ssl_ca_certs={certificate}")
        tier.commit({b"k": b"v" * 1_000_000})
        assert tier.get_many([b"k"]) == [b"v" * 1_000_000]
        tier.close()


# The address is wrong


def test_password(server, tiers):
    rights = ["~{t}:*", "-@all", "+eval", "+get", "+set", "+mget", "+pttl", "+unlink"]
    server.ask("ACL", "SETUSER", "sash", "on", ">right", *rights)
    with pytest.raises(InvalidArgument) as caught:
        tiers(server.url.replace("//", "//sash:wrong@"))
    assert caught.value.field == "url"
    tier = tiers(server.url.replace("//", "//sash:right@"))  # these rights are enough
    tier.commit({b"k": b"v"}, [b"l"])
    assert tier.get_many([b"k"]) == [b"v"]
    with pytest.raises(InvalidArgument, match=r"(?i)perm"):
        tiers(server.url.replace("//", "//sash:right@"), "elsewhere")
    tier.close()
    server.ask("ACL", "DELUSER", "sash")


def test_databases(server, tiers):
    one, two = tiers(server.url + "/1"), tiers(server.url + "/2")
    one.commit({b"k": b"1"})
    assert two.get_many([b"k"]) == [None]
    with pytest.raises(InvalidArgument):
        tiers(server.url + "/99")


def test_not_a_redis(tiers):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(InvalidArgument):
            tiers(f"redis://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def test_nobody_there(tiers):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        refused(lambda: tiers(url, timeout_s=TIMEOUT_S))  # takes connections and says nothing
    refused(lambda: tiers(url))


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis:/x", "", "redis://h?nonsense=1", "redis://h?db=x"])
def test_malformed_url(url):
    with pytest.raises(InvalidArgument) as caught:
        RedisTier(url)
    assert caught.value.field == "url"


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a b", "é", "x" * 65])
def test_malformed_prefix(prefix):
    with pytest.raises(InvalidArgument) as caught:
        RedisTier("redis://127.0.0.1", prefix)
    assert caught.value.field == "prefix"


def test_server_that_keeps_nothing_is_warned_of(tiers, caplog):
    with redis_server(BINARIES["valkey"], "appendonly no", "maxmemory 1gb", "maxmemory-policy allkeys-lru") as server:
        tiers(server.url)
    assert [record.levelno for record in caplog.records if "append-only" in record.message] == [logging.WARNING]
    assert [record.levelno for record in caplog.records if "noeviction" in record.message] == [logging.WARNING]


def test_server_that_may_lose_the_last_seconds_is_warned_of(server, tiers, caplog):
    tiers(server.url)
    assert [record.levelno for record in caplog.records if "appendfsync" in record.message] == [logging.WARNING]


def test_well_kept_server_is_not_warned_of(own_server, tiers, caplog):
    tiers(own_server.url)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
