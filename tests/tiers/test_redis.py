"""The Redis tier when something is wrong: with the server, the network, the address, or another Sash server."""

import logging
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from sash.tiers.owner import Owner
from sash.tiers.redis import RedisTier
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, OutOfRoom, Unavailable
from tests.support.redis_servers import (
    BINARIES,
    EVERYSEC,
    Proxy,
    RedisServer,
    proxy,
    redis_cluster,
    redis_server,
    wait_until,
)

TIMEOUT_S = 0.3  # where a test waits for it; elsewhere it is long, as this machine may be busy


@pytest.fixture(scope="module", params=BINARIES)
def running(request) -> Iterator[RedisServer]:
    with redis_server(BINARIES[request.param], EVERYSEC) as server:
        yield server


@pytest.fixture
def server(running) -> Iterator[RedisServer]:
    """An empty server that no other test has left anything on."""
    running.ask("FLUSHALL")
    yield running
    for line in ("maxmemory", "min-replicas-to-write"):
        running.ask("CONFIG", "SET", line, 0)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that may be killed."""
    with redis_server(BINARIES["valkey"]) as server:
        yield server


@pytest.fixture
def tiers() -> Iterator["Tiers"]:
    made = Tiers()
    yield made
    for tier in made:
        tier.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sash-redis")]


class Tiers(list):
    def __call__(self, url, prefix="t", **options) -> RedisTier:
        """A tier that has been acquired, closed after the test."""
        tier = RedisTier(url, prefix, **{"timeout_s": 10.0, **options})
        self.append(tier)
        tier.acquire()
        return tier


def patiently(call, within_s=10.0):
    """What the call returns, once the tier is available."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except Unavailable as error:
            if not error.retry_after_s or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def refused(call, error=Unavailable):
    with pytest.raises(error):
        call()


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


def lost(tier):
    """The tier says so for ever, and writes nothing."""
    for _ in range(2):
        with pytest.raises(DataLoss):
            patiently(lambda: tier.commit({b"k": b"v"}))
        with pytest.raises(DataLoss):
            tier.get_many([b"k"])


def test_paused_fails_and_recovers(server, tiers):
    tier = tiers(server.url, timeout_s=TIMEOUT_S)
    tier.commit({b"k": b"1"})
    server.ask("CLIENT", "PAUSE", 1500)  # nothing but time ends it: UNPAUSE would have to wait as well
    refused(lambda: tier.get_many([b"k"]))
    wait_until(lambda: tier.healthy)
    tier.commit({b"k": b"2"})
    assert tier.get_many([b"k"]) == [b"2"]


def test_silent_fails_without_a_call_and_recovers(server, tiers, monkeypatch):
    tier = tiers(server.url, timeout_s=TIMEOUT_S)
    tier.commit({b"k": b"1"})
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
    tier.commit({b"k": b"2"})
    assert tier.get_many([b"k"]) == [b"2"]


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
    tier.commit({b"k": b"0"})
    server.ask("CONFIG", "SET", "maxmemory", maxmemory)
    release = between.hold()
    with pytest.raises(Unavailable):
        tier.commit({b"k": b"1", b"new": b"1"})
    patiently(lambda: tier.commit({b"k": b"2"}))
    before = scripts(server)
    release.set()
    wait_until(lambda: scripts(server) > before)
    assert tier.get_many([b"k", b"new"]) == [b"2", None]
    tier.commit({b"k": b"3"})
    assert tier.get_many([b"k"]) == [b"3"]


def scripts(server) -> int:
    """How many scripts the server has run."""
    lines = server.ask("INFO", "commandstats").decode().split()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_eval:"))


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


# Another server of Sash

OWNER = """
import sys, time
from sash.tiers.redis import RedisTier
tier = RedisTier(sys.argv[1], "t")
tier.acquire()
tier.commit({b"k": b"theirs"})
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(server) -> Iterator[subprocess.Popen]:
    """A process that has the tier."""
    with subprocess.Popen([sys.executable, "-c", OWNER, server.url], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def test_second_server_is_refused(server, tiers, other):
    with pytest.raises(FailedPrecondition, match=f"process {other.pid} on '{socket.gethostname()}'") as caught:
        tiers(server.url)
    assert 0 < caught.value.retry_after_s <= 10
    mine = tiers(server.url, "another")
    assert mine.get_many([b"k"]) == [None]


def test_killed_server_is_replaced_at_once(server, tiers, other):
    other.kill()  # and not waited for: it is a zombie, or about to be one
    wait_until(Owner.parse(server.ask("GET", "{t}:owner")).gone)
    assert tiers(server.url).get_many([b"k"]) == [b"theirs"]


def test_closed_tier_is_free_at_once(server, tiers):
    tier = tiers(server.url)
    with pytest.raises(FailedPrecondition):
        tiers(server.url)
    tier.commit({b"k": b"v"})
    tier.close()
    tier.close()
    with pytest.raises(FailedPrecondition):
        tier.commit({b"k": b"w"})
    with pytest.raises(FailedPrecondition):
        tier.get_many([b"k"])
    assert tiers(server.url).get_many([b"k"]) == [b"v"]


def test_old_owner_is_fenced(server, tiers):
    writer = tiers(server.url)
    writer.commit({b"k": b"1"})
    server.ask("DEL", "{t}:owner")  # as if the lease had run out while it stood still
    reader = tiers(server.url)
    reader.commit({b"k": b"2"})
    server.ask("DEL", "{t}:owner")
    new = tiers(server.url)
    with pytest.raises(FailedPrecondition):
        writer.commit({b"k": b"no", b"l": b"no"})
    with pytest.raises(FailedPrecondition):
        reader.get_many([b"k"])
    assert new.get_many([b"k", b"l"]) == [b"2", None]
    for old in (writer, reader):
        with pytest.raises(FailedPrecondition):
            old.commit({b"k": b"no"})
        assert not old.healthy
        old.close()  # and takes nothing with it
    new.commit({b"k": b"3"})
    with pytest.raises(FailedPrecondition):
        tiers(server.url)


def test_flushed_and_taken_by_another_is_fenced(server, tiers):
    old = tiers(server.url)
    server.ask("FLUSHALL")
    new = tiers(server.url)
    with pytest.raises(FailedPrecondition):
        old.commit({b"k": b"no"})
    assert new.get_many([b"k"]) == [None]


def test_lease_that_ran_out_is_taken_again(server, tiers):
    tier = tiers(server.url, lease_s=0.15, timeout_s=TIMEOUT_S)
    tier.commit({b"k": b"1"})
    with server.frozen():
        wait_until(lambda: not tier.healthy)
    server.ask("DEL", "{t}:owner")  # as when it runs out on the server's clock
    wait_until(lambda: tier.healthy and server.ask("EXISTS", "{t}:owner"))
    tier.commit({b"k": b"2"})
    assert tier.get_many([b"k"]) == [b"2"]


def test_lease_is_kept_while_idle(server, tiers):
    tier = tiers(server.url, lease_s=0.6)
    before = scripts(server)
    wait_until(lambda: scripts(server) >= before + 4)  # for longer than the lease, as it is renewed three times in it
    refused(lambda: tiers(server.url), FailedPrecondition)
    assert tier.healthy


@pytest.mark.parametrize("token", [b"somebody", b"{}", b'{"id": 1}', b"[1]", b"\xff"])
def test_unknown_owner_is_respected(server, tiers, token):
    server.ask("SET", "{t}:owner", token)
    with pytest.raises(FailedPrecondition, match="does not say who it is"):
        tiers(server.url)


def test_which_processes_are_gone():
    here = Owner.here()
    assert Owner.parse(here.token()) == here
    assert not here.gone()
    assert Owner(here.id, here.host, here.machine, here.pid, "1").gone()  # the number is used again
    assert not Owner(here.id, here.host, "another boot", here.pid, "1").gone()
    assert not Owner(here.id, here.host, "", here.pid, "1").gone()
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        assert Owner(here.id, here.host, here.machine, child.pid, here.started).gone()


# A cluster


@pytest.fixture(scope="module")
def cluster():
    with redis_cluster(BINARIES["valkey"]) as running:
        yield running


@pytest.mark.parametrize("prefix", ["a", "b", "c", "d"])
def test_any_node_will_do(cluster, tiers, prefix):
    tier = tiers(cluster.url, prefix)
    puts = {b"%d" % i: b"v" for i in range(50)}
    tier.commit(puts)
    tier.commit({b"1": b"w"}, [b"0"])
    assert tier.get_many(list(puts)) == [None, b"w"] + [b"v"] * 48
    (owner,) = (node for node in cluster.nodes if node.ask("CLUSTER COUNTKEYSINSLOT", key_slot(prefix.encode())))
    assert owner is cluster.owner(key_slot(prefix.encode()))


def test_slot_moves(cluster, tiers):
    tier = tiers(cluster.url)
    for round_ in range(2):
        tier.commit({b"k": b"%d" % round_, b"l": b"x" * 100_000})
        cluster.move(key_slot(b"t"))
        patiently(lambda: tier.commit({b"m": b"x"}))
        assert tier.get_many([b"k", b"l", b"m"]) == [b"%d" % round_, b"x" * 100_000, b"x"]


def test_node_killed_and_restarted(cluster, tiers):
    tier = tiers(cluster.url, "n")
    tier.commit({b"k": b"1"})
    owner = cluster.owner(key_slot(b"n"))
    owner.kill()
    with pytest.raises(Unavailable):
        tier.commit({b"k": b"2"})
    owner.start()
    patiently(lambda: tier.commit({b"l": b"3"}))
    assert tier.get_many([b"l"]) == [b"3"]
    assert tier.get_many([b"k"])[0] in (b"1", b"2")
