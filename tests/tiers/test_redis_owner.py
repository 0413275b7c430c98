"""The Redis tier when another server of Sash has it, or takes it."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sash.tiers.owner import Owner
from sash_engine.errors import FailedPrecondition
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
