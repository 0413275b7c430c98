"""The Redis tier when another server of Sash has it, and the tiers of many shards, which share connections."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from sash.tiers.owner import Owner
from sash.tiers.redis import RedisTier
from sash.tiers.redis_link import Link, Pool
from sash_engine.errors import FailedPrecondition, Unavailable
from tests.support.redis_servers import (
    wait_until,
)
from tests.support.redis_tiers import TIMEOUT_S, patiently, refused, scripts

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
    patiently(lambda: tier.commit({b"k": b"1"}))
    with server.frozen():
        wait_until(lambda: not tier.healthy)
    server.ask("DEL", "{t}:owner")  # as when it runs out on the server's clock
    wait_until(lambda: tier.healthy and server.ask("EXISTS", "{t}:owner"))
    patiently(lambda: tier.commit({b"k": b"2"}))
    assert patiently(lambda: tier.get_many([b"k"])) == [b"2"]


def test_lease_is_kept_while_idle(server, tiers):
    tier = tiers(server.url, lease_s=2.0)
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


def connections(server) -> int:
    return len(server.ask("CLIENT", "LIST").splitlines()) - 1  # less the one that asks


@pytest.fixture
def pool(server):
    made = Pool(server.url, 60.0, 2)
    yield made
    made.server(None).drop()


def test_tiers_share_connections(server, tiers, pool):
    before = connections(server)
    many = [tiers(server.url, f"t{i}", pool=pool, leased=True) for i in range(10)]
    for tier in many:
        tier.commit({b"k": b"v"})
        assert tier.get_many([b"k"]) == [b"v"]
    assert connections(server) == before + 1  # one call after the other
    threads = [threading.Thread(target=tier.commit, args=({b"k": b"w"},)) for tier in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert connections(server) <= before + 2
    assert all(tier.get_many([b"k"]) == [b"w"] for tier in many)
    assert many[0].used_bytes == many[9].used_bytes > 0


def test_a_tier_whose_lease_is_elsewhere_asks_nothing_until_it_is_used(server, tiers, pool, monkeypatch):
    leased = tiers(server.url, "leased", pool=pool, leased=True, lease_s=0.03)
    calls = []
    monkeypatch.setattr(leased._link, "call", lambda *arguments: calls.append(arguments))
    other = tiers(server.url, "other", lease_s=0.03)
    for _ in range(3):
        server.ask("DEL", "{other}:owner")
        wait_until(lambda: server.ask("EXISTS", "{other}:owner"))
    assert not calls
    assert leased.healthy
    assert other.healthy


def test_a_tier_whose_lease_is_elsewhere_reaches_its_server_again(server, tiers):
    tier = tiers(server.url, pool=Pool(server.url, TIMEOUT_S, 4), leased=True)
    patiently(lambda: tier.commit({b"k": b"1"}))
    with server.frozen():
        refused(lambda: tier.get_many([b"k"]))
        assert not tier.healthy
    wait_until(lambda: tier.healthy)
    assert patiently(lambda: tier.get_many([b"k"])) == [b"1"]


def test_a_tier_whose_lease_is_elsewhere_is_fenced(server, tiers, pool):
    old = tiers(server.url, pool=pool, leased=True)
    old.commit({b"k": b"1"})
    server.ask("DEL", "{t}:owner")  # as it runs out: nobody renews it
    new = tiers(server.url, pool=pool, leased=True)
    new.commit({b"k": b"2"})
    for call in (lambda: old.get_many([b"k"]), lambda: old.commit({b"k": b"3"})):
        with pytest.raises(Exception, match="Another server has taken"):
            call()
    assert new.get_many([b"k"]) == [b"2"]


@pytest.mark.parametrize("newer", [b"2", b"3"])
def test_what_an_owner_of_before_sent_is_late_whenever_it_arrives(server, tiers, pool, monkeypatch, newer):
    """Each command was sent twice. The first ones arrive, in order, when another owner has no lease any more."""
    sent, own = [], Link.call

    def call(self, command, *rest):
        sent.append(command())
        return own(self, command, *rest)

    monkeypatch.setattr(Link, "call", call)
    old = tiers(server.url, pool=pool, leased=True)
    for value in (b"1", b"2"):
        old.commit({b"k": value})
    monkeypatch.undo()
    server.ask("DEL", "{t}:owner")
    new = tiers(server.url, pool=pool, leased=True)
    if newer == b"3":
        new.commit({b"k": newer})
    server.ask("DEL", "{t}:owner")
    for command in sent:
        server.ask(*command)
    assert server.ask("GET", "{t}:k:k") == newer
    server.ask("DEL", "{t}:owner")
    after = tiers(server.url, pool=pool, leased=True)
    after.commit({b"k": b"4"})
    assert after.get_many([b"k"]) == [b"4"]


def test_a_lease_that_no_process_takes_is_not_waited_for(server, tiers, pool):
    """Redis' clock was set back by an hour, so the lease of a process that ended lasts for an hour more."""
    old = tiers(server.url, pool=pool, leased=True)
    old.commit({b"k": b"1"})
    theirs = b'{"id":"a","host":"h","machine":"m","pid":1,"started":"1"}'
    server.ask("SET", "{t}:owner", theirs, "PX", "15000")
    refused(lambda: tiers(server.url, pool=pool, leased=True), FailedPrecondition)
    server.ask("SET", "{t}:owner", theirs, "PX", "3600000")
    refused(lambda: tiers(server.url), FailedPrecondition)  # nobody says that the prefix is its own
    new = tiers(server.url, pool=pool, leased=True)
    assert new.get_many([b"k"]) == [b"1"]
    refused(lambda: old.commit({b"k": b"2"}), FailedPrecondition)


def test_links_ask_once_for_the_slots_and_again_after_a_failure(server, pool, monkeypatch):
    asked = []
    slots = pool._asked
    monkeypatch.setattr(pool, "_asked", lambda address: asked.append(address) or slots(address))
    links = [Link(server.url, f"t{i}", 60.0, 2, pool) for i in range(4)]
    for link in links:
        link.locate()
    assert len(asked) == 1
    links[0].drop()
    links[1].locate()
    assert len(asked) == 1
    links[0].locate()
    assert len(asked) == 2
    links[0].locate()
    assert len(asked) == 2


def test_a_failure_to_ask_is_told_to_all_who_waited(pool, monkeypatch):
    asked = []

    def fail(address):
        asked.append(address)
        raise OSError("gone")

    monkeypatch.setattr(pool, "_asked", fail)
    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            pool.slots([None], 0.0)
    assert len(asked) == 1


def test_who_gets_no_connection_says_so(server):
    pool = Pool(server.url, TIMEOUT_S, 1)
    link, other = (Link(server.url, tag, TIMEOUT_S, 1, pool) for tag in "ab")
    begun, end = threading.Event(), threading.Event()

    def wait():
        begun.set()
        end.wait(60)
        return ["PING"]

    thread = threading.Thread(target=link.call, args=(wait,))
    thread.start()
    begun.wait(60)
    with pytest.raises(Unavailable, match="busy"):
        other.call(lambda: ["PING"])
    end.set()
    thread.join()
    assert other.call(lambda: ["PING"]) == b"PONG"
    other.drop()


def test_a_connection_that_was_in_use_when_others_were_dropped_is_closed(server, pool):
    link = Link(server.url, "a", 60.0, 2, pool)
    before = connections(server)
    link.call(lambda: link.drop() or ["PING"])
    assert connections(server) == before
    link.call(lambda: ["PING"])
    assert connections(server) == before + 1


def test_a_tier_that_was_not_acquired_asks_anew_who_has_its_slot(server, tiers, pool, monkeypatch):
    asked = []
    slots = pool._asked
    monkeypatch.setattr(pool, "_asked", lambda address: asked.append(address) or slots(address))
    tier = RedisTier(server.url, "t", pool=pool, leased=True)
    tiers.append(tier)
    with monkeypatch.context() as patched:

        def fail(_):
            raise ConnectionError("it has gone over to another server")

        patched.setattr(tier, "_take_lease", fail)
        refused(tier.acquire)
    tier.acquire()
    assert len(asked) == 2
