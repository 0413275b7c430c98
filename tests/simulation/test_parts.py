"""The parts of the simulation do what they say: disk, Redis, network, loop, threads. A fault that never happens tests
nothing, and a check that never fails finds nothing; `planted.OWN` takes them away one by one.
"""

from __future__ import annotations

import ast
import asyncio
import contextvars
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from redis.exceptions import AskError, ConnectionError, MovedError, ResponseError, TimeoutError

from sash.durability.storage import Storage
from sash.tiers.redis_scripts import ACQUIRE, COMMIT
from sash_engine.errors import FailedPrecondition, OutOfRoom, Unavailable
from tests.simulation import ending, single
from tests.simulation.callers import compared, folded
from tests.simulation.disk import Disk, DiskTier
from tests.simulation.history import Contradiction, TooMany
from tests.simulation.loop import Killed, Process, SimulatedLoop
from tests.simulation.peers import Network
from tests.simulation.redis import Connection, Server
from tests.simulation.run import run, shrunk
from tests.simulation.scenario import Fault, of_seed, smaller
from tests.simulation.threads import Machine
from tests.simulation.world import World

# ---------------------------------------------------------------- the disk


def on_disk(**faults):
    disk, died = Disk(), []
    disk.faults = {2: faults["fault"]} if faults else {}
    tier = DiskTier(disk, died.append, lambda what: None)
    tier.acquire()
    tier.commit({b"window/1": b"old"})
    return disk, tier, died


@pytest.mark.parametrize(
    ("fault", "error", "died", "there", "after_power"),
    [
        ("refused", Unavailable, [], b"old", {b"old"}),
        ("full", OutOfRoom, [], b"old", {b"old"}),
        ("answer lost", Unavailable, [], b"new", {b"new"}),
        ("sync failed", Unavailable, [], b"new", {b"old", b"new"}),
        ("dies before", Killed, [False], b"old", {b"old"}),
        ("dies unsynced", Killed, [True], b"new", {b"old", b"new"}),
        ("dies after", Killed, [True], b"new", {b"new"}),
    ],
)
def test_a_commit_that_fails_has_taken_effect_or_not(fault, error, died, there, after_power):
    found = set()
    for seed in range(20):
        disk, tier, killed = on_disk(fault=fault)
        with pytest.raises(error):
            tier.commit({b"window/1": b"new"}, [b"gone"])
        assert killed == died
        assert tier.get_many([b"window/1"]) == [there]
        disk.lose_power(random.Random(seed))
        found.add(tier.get_many([b"window/1"])[0])
    assert found == after_power
    assert disk.met[f"{fault} | window"] == 1


def test_what_is_answered_survives_the_power_and_what_is_deleted_is_gone():
    disk, tier, _ = on_disk()
    tier.commit({b"window/2": b"two"}, [b"window/1"])
    assert disk.lose_power(random.Random(1)) == 0
    assert tier.get_many([b"window/1", b"window/2"]) == [None, b"two"]


def test_only_who_has_the_disk_reads_and_writes():
    disk, tier, died = on_disk()
    other = DiskTier(disk, died.append, lambda what: None)
    for refused in (other.acquire, lambda: other.get_many([b"window/1"]), lambda: other.commit({b"a": b"b"})):
        with pytest.raises(FailedPrecondition):
            refused()
    tier.close()
    other.acquire()
    with pytest.raises(FailedPrecondition):
        tier.commit({b"window/1": b"late"})
    assert other.get_many([b"window/1"]) == [b"old"]


def test_faults_of_a_kind_of_commit_and_of_reads_happen_at_theirs():
    disk, tier, _ = on_disk()
    disk.faults_of, disk.failing_reads = {("pointer", 2): "refused"}, {2}
    tier.commit({b"pointer/1": b"1"})
    tier.commit({b"journal/1": b"1"})
    with pytest.raises(Unavailable):
        tier.commit({b"pointer/1": b"2"})
    assert tier.get_many([b"pointer/1"]) == [b"1"]
    with pytest.raises(Unavailable):
        tier.get_many([b"pointer/1"])


def test_a_misdirected_value_is_in_another_place_or_nowhere_and_its_own_keeps_what_it_had():
    found = set()
    for seed in range(200):
        disk, tier, _ = on_disk()
        tier.commit({b"pointer/1": b"old", b"block/1": b"old", b"block/2": b"old"})
        disk.faults, disk.misdirects = {disk.commits + 1: "dies unsynced"}, True
        with pytest.raises(Killed):
            tier.commit({b"pointer/1": b"new pointer", b"image/1": b"new image"}, [b"block/2"])
        assert disk.lose_power(random.Random(seed)) == 0
        assert disk.synced == disk.values
        assert b"block/2" not in disk.values
        wrong = {key for key, value in disk.values.items() if value.startswith(b"new ") and key[:3] != value[4:7]}
        pointer = disk.values[b"pointer/1"] == b"new pointer"
        assert pointer == (b"image/1" not in disk.values)
        assert pointer or disk.values[b"pointer/1"] == b"old"
        assert wrong <= {b"block/1", b"window/1"}
        found.add((pointer, *wrong))
        over = b" ".join(wrong or [b"nothing"]).partition(b"/")[0].decode()
        assert disk.misdirected == f"{'image' if pointer else 'pointer'} over {over}"
        before = dict(disk.values)
        disk.faults = {disk.commits + 1: "dies unsynced"}
        with pytest.raises(Killed):
            tier.commit({b"pointer/1": b"last"})
        disk.lose_power(random.Random(seed))
        assert disk.values in (before, before | {b"pointer/1": b"last"})  # once is enough
    assert found == {(pointer, *wrong) for pointer in (False, True) for wrong in ([], [b"block/1"], [b"window/1"])}


# ---------------------------------------------------------------- the loop


def simulated(main, shuffled=False, seed=1):
    loop = SimulatedLoop(random.Random(seed), shuffled)
    try:
        return loop.run_until_complete(asyncio.wait_for(main(loop), 10_000.0))
    finally:
        left = asyncio.all_tasks(loop)
        loop.close()
        loop.bury()
        for task in left:
            task._log_destroy_pending = False
            task.get_coro().close()


def on(run, **options):
    """Make a test of a coroutine, which `run` runs."""

    def made(main):
        def test():
            run(main, **options)

        return test

    return made


@on(simulated)
async def test_who_stands_still_runs_nothing_and_then_all_of_it(loop):
    said = []

    async def works():
        for _ in range(3):
            await asyncio.sleep(1.0)
            said.append(loop.time())

    process = Process(loop, 1)
    process.spawn(works())
    await asyncio.sleep(1.5)
    loop.stop_process(process, 100.0)
    await asyncio.sleep(50.0)
    assert said == [1.0]
    await asyncio.sleep(100.0)
    assert said == [1.0, 101.5, 102.5]


@on(simulated)
async def test_what_was_ready_when_its_process_died_does_not_run(loop):
    said, process = [], Process(loop, 1)

    async def works():
        for word in ("one", "other"):
            asyncio.get_running_loop().call_soon(said.append, word)
        asyncio.get_running_loop().call_soon(process.kill)
        asyncio.get_running_loop().call_soon(said.append, "after")

    process.spawn(works())
    await asyncio.sleep(1.0)
    assert said == ["one", "other"]


@on(simulated)
async def test_what_blocks_a_loop_keeps_its_callbacks_and_no_other_ones(loop):
    said = []

    async def blocks(process):
        await asyncio.sleep(1.0)
        process.blocked_s = 5.0

    async def works(who):
        await asyncio.sleep(2.0)
        said.append((who, loop.time()))

    one, other = Process(loop, 1), Process(loop, 2)
    one.spawn(blocks(one))
    one.spawn(works("one"))
    other.spawn(works("other"))
    await asyncio.sleep(20.0)
    assert said == [("other", 2.0), ("one", 6.0)]


def test_the_order_of_what_is_ready_is_drawn():
    def order(shuffled, seed):
        async def main(loop):
            said = []
            for number in range(6):
                loop.call_soon(said.append, number)
            await asyncio.sleep(1.0)
            return said

        return simulated(main, shuffled, seed)

    assert order(False, 1) == [0, 1, 2, 3, 4, 5]
    assert order(True, 1) == order(True, 1)
    assert len({tuple(order(True, seed)) for seed in range(20)}) > 10


@on(simulated)
async def test_timers_come_in_their_order_and_not_if_they_are_cancelled(loop):
    said = []
    for at in (3.0, 1.0, 2.0):
        loop.call_later(at, lambda at=at: said.append((at, loop.time())))
    loop.call_later(1.5, said.append, "cancelled").cancel()
    loop.call_soon(said.append, "cancelled").cancel()
    await asyncio.sleep(5.0)
    assert said == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


@on(simulated)
async def test_a_process_may_die_between_a_call_in_a_thread_and_its_answer(loop):
    said = []
    loop.call_s = lambda: 2.0

    async def works():
        await asyncio.to_thread(said.append, "done")
        said.append("told")

    for dies_s, left in ((0.5, []), (1.5, ["done"]), (2.5, ["done", "told"])):
        said.clear()
        process = Process(loop, 1)
        process.spawn(works())
        await asyncio.sleep(dies_s)
        process.kill()
        await asyncio.sleep(10.0)
        # What a thread has handed to the system happens; its process hears nothing.
        assert said == (left if dies_s > 1 else [])


# ---------------------------------------------------------------- Redis, and its threads


class Store:
    """A Redis, and processes with threads that call it."""

    def __init__(self, loop, replicas=0, nodes=1):
        self.loop, self.machine = loop, Machine(loop, 1)
        self.told, self.failures, self.taken, self.moved = [], [], [], []
        self.server = Server(loop, random.Random(1), self.told.append, 10**18, replicas, nodes)
        self.server.world = contextvars.copy_context()
        self.server.fails = self.failures.append
        self.server.taken = self.taken.append
        self.server.moved = lambda *moved: self.moved.append(moved)
        self.server.in_use = True

    async def by(self, process, *commands, timeout_s=100.0):
        """Have a thread send commands, one after the other; return what it hears and when."""
        heard = []

        def work():
            connection = Connection(self.machine, self.server, {"socket_connect_timeout": 1.0})
            for command in commands:
                try:
                    if connection._era < 0 or connection._ended:
                        connection.connect()
                    connection.pack_command(*command)
                    connection.send_packed_command([])
                    heard.append(connection.read_response(timeout_s))
                except (ConnectionError, TimeoutError) as error:
                    heard.append(type(error))

        async def begin():
            self.machine.run(work)

        process.spawn(begin())
        end_s = self.loop.time() + 1000.0
        while len(heard) < len(commands) and self.loop.time() < end_s:
            await asyncio.sleep(0.01)
        return heard


def stored(main, **options):
    async def whole(loop):
        store = Store(loop, **options)
        try:
            return await main(store)
        finally:
            store.machine.end()

    return simulated(whole)


@on(stored)
async def test_a_row_goes_when_its_time_is_over_by_the_clock_of_redis(store):
    server = store.server
    server.execute(["SET", "a", "1", "PX", 5000])
    assert server.execute(["GET", "a"]) == b"1"
    assert 4900 <= server.execute(["PTTL", "a"]) <= 5000
    await asyncio.sleep(4.9)
    assert server.execute(["GET", "a"]) == b"1"
    await asyncio.sleep(0.2)
    assert server.execute(["GET", "a"]) is None
    assert server.execute(["PTTL", "a"]) == -2
    server.execute(["SET", "b", "1", "PX", 5000])
    server.ahead_ns = 10 * 10**9
    assert server.stored() == set()


@on(stored, nodes=3)
async def test_a_slot_moves_key_by_key_and_nodes_answer_as_those_of_a_redis_cluster(store):
    """Those of Valkey answer so, in all but the moment when only the new node has heard."""
    server = store.server
    server.draw = SimpleNamespace(choice=lambda some: some[-1])  # it takes 15 s, and goes to the last node
    server.execute(["SET", "{t}a", "1"], "redis3")
    server.execute(["SET", "{t}b", "2"], "redis3")

    def answers(host):
        commands = [["GET", "{t}a"], ["GET", "{t}b"], ["MGET", "{t}a", "{t}b"], ["MGET", "{t}b", "{t}x"]]
        commands += [["MGET", "{t}x", "{t}y"], ["EVAL", "return 1", 2, "{t}a", "{t}b"]]
        return [f"{each}" if isinstance(each, ResponseError) else each for each in map(said(host), commands)]

    def said(host):
        return lambda command: server.execute(command, host)

    def shown(host):
        first = server.execute(["CLUSTER", "SLOTS"], host)
        assert [each[0] for each in first[1:]] == [each[1] + 1 for each in first[:-1]]  # no gaps
        assert (first[0][0], first[-1][1]) == (0, 16_383)
        return [owner for low, high, owner in first if low <= 15_891 <= high]

    there = [b"1", b"2", [b"1", b"2"], [b"2", None], [None, None], 1]
    ask, moved, again = "15891 redis2:6379", "15891 {}:6379", "Multiple keys request during rehashing of slot"
    assert answers("redis3") == there
    assert answers("redis2") == answers("redis") == [moved.format("redis3")] * 6
    server.move_slot()
    server.move_slot()  # no other slot has keys
    await asyncio.sleep(1.0)
    assert answers("redis3") == [b"1", b"2", [b"1", b"2"], again, ask, 1]
    await asyncio.sleep(3.0)  # a has gone
    assert answers("redis3") == [ask, b"2", again, again, ask, again]
    assert type(server.execute(["GET", "{t}a"], "redis3")) is AskError
    await asyncio.sleep(6.0)  # b, too
    assert answers("redis3") == [ask] * 6
    assert answers("redis2") == answers("redis") == [moved.format("redis3")] * 6
    await asyncio.sleep(5.5)
    assert answers("redis3") == [ask] * 6
    assert answers("redis2") == there
    assert shown("redis2") == [[b"redis2", 6379]]
    assert shown("redis") == shown("redis3") == [[b"redis3", 6379]]
    await asyncio.sleep(1.5)
    assert answers("redis3") == answers("redis") == [moved.format("redis2")] * 6
    assert type(server.execute(["GET", "{t}a"], "redis3")) is MovedError
    assert answers("redis2") == there
    assert shown("redis") == shown("redis3") == [[b"redis2", 6379]]
    server.move_slot()  # it may move again
    assert answers("redis2")[3:5] == [again, "15891 redis3:6379"]
    assert {what for what in server.met if "Error" in what} >= {
        "redis: MovedError | {t}a",
        "redis: AskError | {t}a",
    }


FENCE, OWNER, TABLE = b"{s/1}:fence", b"{s/1}:owner", b"{s}:table"
NEITHER = b'{"id":"nobody"}'


def acquired(server, who):
    return server.execute(["EVAL", ACQUIRE, 2, FENCE, OWNER, who * 4, b'{"id":"%s"}' % who, 5000, NEITHER])


def committed(server, who, number, value):
    return server.execute(["EVAL", COMMIT, 2, FENCE, b"{s/1}:k:a", who * 4, number - 1, number, value])


@on(stored)
async def test_who_takes_a_prefix_is_told_and_nobody_else_writes_there(store):
    server = store.server
    assert acquired(server, b"a") == 0
    assert committed(server, b"a", 1, b"1") == b"DONE"
    assert acquired(server, b"b")[0] == b'{"id":"a"}'
    await asyncio.sleep(6.0)
    assert acquired(server, b"b") == 1
    assert store.taken == [FENCE, FENCE]
    assert committed(server, b"a", 2, b"2") == b"TAKEN"
    assert store.failures == []
    server.rows[FENCE] = b"aaaa 1", None  # as if the fence were not there
    assert committed(server, b"a", 2, b"2") == b"DONE"
    assert "another process has taken" in str(store.failures[0])


@on(stored)
async def test_a_shard_that_the_table_gives_away_is_told(store):
    script = b"redis.call('HSET', KEYS[1], 's:1', ARGV[1]) return {'s:1'}"
    for who in ("a", "a", "b"):
        store.server.execute(["EVAL", script, 1, TABLE, who])
    assert store.moved == [(1, "", "a"), (1, "a", "b")]


@on(stored)
async def test_the_answer_of_a_command_is_that_of_its_script(store):
    script = b"redis.call('HSET', KEYS[1], 'a', ARGV[1], 'b', 2) redis.call('HDEL', KEYS[1], 'b') " + (
        b"return {redis.call('HGETALL', KEYS[1]), redis.call('HGET', KEYS[1], 'c'), 7, redis.pcall('CLUSTER').err}"
    )
    found = store.server.execute(["EVAL", script, 1, "t", "x"])
    assert found[:3] == [[b"a", b"x"], None, 7]
    assert b"cluster support disabled" in found[3]
    assert store.server.execute(["UNLINK", "t", "u"]) == 1


@on(stored)
async def test_commands_that_fail_have_been_executed_or_not(store):
    one = Process(store.loop, 1)
    for at, (fault, heard, there) in enumerate(
        [
            ("request lost", TimeoutError, None),
            ("answer lost", TimeoutError, b"v"),
            ("restarts", ConnectionError, None),
            ("answer late", "OK", b"v"),
            ("late", "OK", b"v"),
        ]
    ):
        store.server.faults = {store.server.commands + 1: fault}
        began_s = store.loop.time()
        assert await store.by(one, ("SET", f"k{at}", "v")) == [heard], fault
        assert store.server.execute(["GET", f"k{at}"]) == there, fault
        if "late" in fault:
            assert store.loop.time() - began_s >= 0.2
        await asyncio.sleep(20.0)
    assert store.server.met["redis: late | SET"] == 1
    assert sum("Redis, at command" in each for each in store.told) == 5


@on(stored)
async def test_a_late_command_is_executed_after_its_sender_gave_up(store):
    store.server.faults = {1: "late"}
    assert await store.by(Process(store.loop, 1), ("SET", "a", "v"), timeout_s=0.1) == [TimeoutError]
    assert store.server.execute(["GET", "a"]) is None
    await asyncio.sleep(50.0)
    assert store.server.execute(["GET", "a"]) == b"v"


@on(stored)
async def test_a_machine_that_is_cut_off_reaches_nothing_and_another_one_does(store):
    one, other = Process(store.loop, 1, machine=1), Process(store.loop, 2, machine=2)
    store.server.cut = {1: store.loop.time() + 60.0}
    assert await store.by(one, ("GET", "a")) == [TimeoutError]
    assert await store.by(other, ("GET", "a")) == [None]
    store.server.heal()
    assert await store.by(one, ("GET", "a")) == [None]


@on(stored)
async def test_a_machine_that_fades_hears_late_and_then_sends_into_nothing(store):
    one = Process(store.loop, 1, machine=1)
    store.server.faults = {1: "fades"}
    began_s = store.loop.time()
    assert await store.by(one, ("SET", "a", "1")) == ["OK"]
    assert store.loop.time() - began_s > 1.4
    await asyncio.sleep(8.0)
    assert await store.by(one, ("SET", "a", "2"), timeout_s=1.0) == [TimeoutError]
    assert store.server.execute(["GET", "a"]) == b"1"


@on(stored)
async def test_a_server_that_restarts_ends_connections_and_is_away_for_a_while(store):
    one, server = Process(store.loop, 1), store.server
    server.restart()
    assert server.up_s > store.loop.time()
    assert await store.by(one, ("GET", "a")) == [ConnectionError]
    await asyncio.sleep(15.0)
    assert await store.by(one, ("GET", "a")) == [None]
    server.faults = {server.commands + 2: "restarts"}
    assert (await store.by(one, ("GET", "a"), ("GET", "a"), timeout_s=2.0))[1] is ConnectionError


@on(stored, replicas=1)
async def test_a_replica_that_takes_over_has_what_was_waited_for_and_perhaps_no_more(store):
    server = store.server
    acquired(server, b"a")
    server.execute(["SET", "a", "1"])
    assert server.execute(["WAITAOF", 1, 1, 100]) == [1, 1]
    server.lags_until_s = store.loop.time() + 10.0
    server.execute(["SET", "a", "2"])
    assert server.execute(["WAITAOF", 1, 1, 100]) == [1, 0]
    store.taken.clear()
    server.fail_over()
    assert server.execute(["GET", "a"]) == b"1"
    assert server.went_back
    assert store.taken == [FENCE], "who had it in memory is told that it is lost"
    server.execute(["SET", "a", "3"])
    assert server.execute(["WAITAOF", 1, 1, 100]) == [1, 1]
    server.fail_over()
    assert server.execute(["GET", "a"]) == b"3"


@on(stored)
async def test_a_redis_that_syncs_each_second_may_lose_two_seconds_and_no_more(store):
    server, lost = store.server, []
    server.everysec, server.lost = True, lost.append
    server.marks = lambda: server.rows.get(b"a", (b"0", None))[0]
    found = set()
    for _ in range(30):
        for number in range(8):
            server.execute(["SET", "a", number])
            await asyncio.sleep(0.5)
        server.lose()
        found.add(int(server.execute(["GET", "a"])))
        assert int(lost[-1]) == int(server.execute(["GET", "a"])), "what is noted is of the same moment"
    assert min(found) >= 2
    assert len(found) > 2


@on(stored)
async def test_a_wait_that_is_shorter_than_a_clock_can_say_ends(store):
    machine, waits = store.machine, 0

    def work():
        nonlocal waits
        end_s = machine.now_s() + 1e-14
        while machine.now_s() < end_s and waits < 10:
            machine.threading.Event().wait(end_s - machine.now_s())
            waits += 1

    async def begin():
        machine.run(work)

    process = Process(store.loop, 1)
    process.slept_s = 3990.0
    await asyncio.sleep(4000.0)
    process.spawn(begin())
    await asyncio.sleep(1.0)
    assert waits == 1


@on(stored)
async def test_threads_wait_for_each_other_and_no_longer_than_they_say(store):
    machine, said = store.machine, []
    event, lock = machine.threading.Event(), machine.threading.Lock()

    def waits():
        with lock:
            said.append(("timed out", event.wait(2.0), machine.now_s()))
            said.append(("woken", event.wait(100.0), machine.now_s()))

    def sets():
        machine.sleep(5.0)
        event.set()

    def after():
        machine.sleep(1.0)
        said.append(("not had", lock.acquire(timeout=0.5), machine.now_s()))
        with lock:
            said.append(("had", True, machine.now_s()))

    async def begin():
        for work in (waits, sets, after):
            machine.run(work)

    Process(store.loop, 1).spawn(begin())
    await asyncio.sleep(10.0)
    assert said == [
        ("not had", False, 1.5),
        ("timed out", False, 2.0),
        ("woken", True, 5.0),
        ("had", True, 5.0),
    ]


@on(stored)
async def test_a_thread_dies_with_its_process_and_a_machine_that_sleeps_has_not_seen_time_pass(store):
    machine, said = store.machine, []

    def works():
        for _ in range(4):
            machine.sleep(1.0)
            said.append(round(machine.now_s(), 3))

    async def begin():
        machine.run(works)

    one = Process(store.loop, 1)
    one.spawn(begin())
    await asyncio.sleep(1.5)
    store.loop.stop_process(one, 100.0, sleeps=True)
    await asyncio.sleep(101.0)
    assert said == [1.0, 1.5, 2.5]
    one.kill()
    await asyncio.sleep(10.0)
    assert said == [1.0, 1.5, 2.5]


# ---------------------------------------------------------------- the network between processes


class Peers:
    """Two processes, of which one serves a stream that says again what it hears."""

    def __init__(self, loop):
        self.loop, self.struck = loop, []
        world = contextvars.copy_context()
        self.network = Network(loop, random.Random(1), lambda what: None, world, Counter())
        self.network.strikes = lambda process, kind: self.struck.append((process.number, kind))
        self.one, self.other = Process(loop, 1, machine=1), Process(loop, 2, machine=2)
        self.got, self.heard = [], []

    async def __aenter__(self):
        async def echo(given, context):
            async for data in given:
                self.got.append(data)
                yield data

        async def serve():
            server = self.network.grpc.aio.server(())
            server.add_generic_rpc_handlers(({"echo": ("stream", "stream", echo)},))
            self.address = f"node2:{server.add_insecure_port('')}"
            await server.start()

        await self.other.spawn(serve())
        return self

    async def __aexit__(self, *_):
        pass

    def says(self, *words):
        async def say():
            stream = self.network.grpc.aio.insecure_channel(self.address, ()).stream_stream("/echo")(None)
            try:
                for word in words:
                    await stream.write(word)
                async for data in stream:
                    self.heard.append(data)
            except grpc.aio.AioRpcError as error:
                self.heard.append((error.code(), self.loop.time()))

        self.one.spawn(say())


def between(main):
    async def whole(loop):
        async with Peers(loop) as peers:
            await main(peers)

    simulated(whole)


@on(between)
async def test_messages_arrive_in_order_also_where_one_is_late(peers):
    peers.network.faults = {3: "late"}
    peers.says(*[b"%d" % number for number in range(20)])
    await asyncio.sleep(0.4)
    assert len(peers.got) < 5
    await asyncio.sleep(60.0)
    assert peers.got == peers.heard == [b"%d" % number for number in range(20)]


def test_a_stream_that_is_cut_breaks_for_both_and_a_message_may_have_arrived():
    arrived = Counter()
    for seed in range(12):

        async def main(peers, seed=seed):
            peers.network.draw = random.Random(seed)
            peers.network.faults = {2: "cut"}
            peers.says(b"word")
            await asyncio.sleep(100.0)
            arrived[len(peers.got)] += 1
            assert peers.heard[-1][0] is grpc.StatusCode.UNAVAILABLE
            assert not peers.network.streams

        between(main)
    assert set(arrived) == {0, 1}


@on(between)
async def test_two_machines_that_are_apart_find_out_after_keepalive_and_others_reach_each_other(peers):
    peers.network.cut[frozenset((1, 2))] = peers.loop.time() + 90.0
    peers.says(b"word")
    await asyncio.sleep(200.0)
    assert peers.got == []
    assert peers.heard[-1][0] is grpc.StatusCode.UNAVAILABLE
    peers.network.cut = {frozenset((1, 3)): peers.loop.time() + 90.0}
    peers.says(b"word")
    await asyncio.sleep(5.0)
    assert peers.got == [b"word"]


@on(between)
async def test_a_short_partition_holds_messages_back(peers):
    peers.network.cut[frozenset((1, 2))] = peers.loop.time() + 8.0
    peers.says(b"word")
    await asyncio.sleep(7.0)
    assert peers.got == []
    await asyncio.sleep(5.0)
    assert peers.heard == [b"word"]


@on(between)
async def test_streams_of_a_process_that_dies_break_and_nobody_reaches_it(peers):
    peers.says(b"word")
    await asyncio.sleep(1.0)
    peers.other.kill()
    peers.network.died(peers.other)
    await asyncio.sleep(1.0)
    assert peers.heard[0] == b"word"
    assert peers.heard[-1][0] is grpc.StatusCode.UNAVAILABLE
    peers.says(b"again")
    await asyncio.sleep(1.0)
    assert peers.got == [b"word"]
    assert len(peers.heard) == 3


@on(between)
async def test_messages_that_write_have_faults_of_their_own(peers):
    peers.network.faults_of = {("write", 2): "dies: receiver", ("write", 1): "stands still: sender"}
    peers.says(b"other", b"\xa5write 1", b"other", b"\xa5write 2")
    await asyncio.sleep(5.0)
    # The echo counts, too: what is written, and what is answered to that.
    assert peers.struck[0] == (1, "stands still")
    assert peers.struck[1][1] == "dies"


# ---------------------------------------------------------------- the world


class _Wrong(World):
    def begin(self):
        pass


@pytest.fixture
def world():
    loop = SimulatedLoop(random.Random(1), False)
    yield lambda: _Wrong(loop, of_seed(1))
    loop.close()


def test_what_the_checker_finds_fails_the_run_and_what_it_cannot_follow_is_said(world):
    def contradicts():
        raise Contradiction("no order")

    def too_many():
        raise TooMany

    found = world()
    found.checked(contradicts)
    assert isinstance(found.failure, Contradiction)
    assert "WRONG: Contradiction: no order" in found.events[-1]
    found = world()
    found.checked(too_many)
    assert found.failure is None
    assert found.unchecked


def test_an_answer_that_is_not_the_fold_fails_the_run(world):
    found = world()
    ending._same(found, "the sum", {"x": 1}, {"x": 1})
    assert found.failure is None
    ending._same(found, "the sum", {"x": 1}, {"x": 2})
    assert "the sum is {'x': 1}, and the fold is {'x': 2}" in str(found.failure)


def test_folds_are_by_time_and_of_all_that_they_say():
    entries = [("x|a", 5, 3), ("x|b", 1, 4), ("y|a", 3, 5)]
    assert folded(entries, ["x|a", "x|b", "y|a"], True) == (3, (), 5, 12)
    assert folded([*entries[:1], ("x|a", 1, 9)], ["x|a"], True) == (2, (9, 3), 9, 12)
    assert folded([], ["x|a"], True) == (0, (), None, 0)
    assert ending.folded(entries) == {"max": 5, "n": 3, "sum": 12}
    assert ending._by(0, entries) == {"x": ending.folded(entries[:2]), "y": ending.folded(entries[2:])}
    assert ending._by(1, entries)["a"] == ending.folded([entries[0], entries[2]])


NONE = {"faults": (), "steps": 10, "callers": (0, 1)}


def scenario_of(seed, **changes):
    return replace(of_seed(seed), **changes)


async def loses(world, what, name="kept"):
    await compared(world, what)
    (await world.serving()).storage.find(name).bulk_evict(10**12)


async def leaves_in_the_store(world, what):
    world.disk.values[b"block/99/1"] = b"left"


async def leaves_in_memory(world, what):
    (await world.serving()).storage.store.session._unstored_bytes += 7


async def waits(storage):
    await asyncio.sleep(10**9)


@pytest.mark.parametrize(
    ("where", "name", "does", "told"),
    [
        (single, "compared", loses, ""),
        (single, "all_forms", leaves_in_the_store, "the store has still [b'block/99/1']"),
        (single, "all_forms", leaves_in_memory, "memory has still {'bytes that are not stored': 7}"),
        (Storage, "start", waits, "recovery does not end"),
    ],
)
def test_what_is_wrong_behind_everybodys_back_is_found_at_the_end(monkeypatch, where, name, does, told):
    """Each of the last checks fails by itself."""
    monkeypatch.setattr(where, name, does)
    outcome = run(scenario_of(41, **NONE))
    assert outcome.failure is not None
    assert told in outcome.failure


def test_a_call_that_is_lost_delayed_or_late_ends_as_its_caller_hears():
    def told(fault, at=20):
        outcome = run(scenario_of(30, faults=(Fault("call", at, fault),), callers=(0,), steps=24))
        assert outcome.failure is None
        assert sum(count for what, count in outcome.met.items() if what.startswith(f"{fault} |")) == 1
        return outcome

    for fault in ("request lost", "answer lost", "delayed", "answer delayed"):
        told(fault)


def test_a_scenario_is_made_smaller_in_each_way_and_only_as_long_as_it_fails():
    whole = scenario_of(
        7, callers=(0, 1), steps=8, faults=(Fault("call", 1, "answer lost"), Fault("read", 2, "failed"))
    )
    steps = list(smaller(whole))
    assert {each.steps for each in steps} == {8, 4, 6, 7}
    assert {each.callers for each in steps} == {(0, 1), (0,), (1,)}
    assert {len(each.faults) for each in steps} == {2, 1}

    def breaks(world):
        if 0 in world.scenario.callers:
            world.fail(AssertionError("as planted"))

    small = shrunk(whole, breaks)
    assert (small.scenario.callers, small.scenario.steps, small.scenario.faults) == ((0,), 1, ())


# ---------------------------------------------------------------- what the seed does not determine

CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "perf_counter", "thread_time", "process_time", "sleep"},
    "random": {"uniform", "random", "randrange", "choice", "randbytes"},
    "secrets": {"token_bytes", "token_hex", "token_urlsafe"},
    "os": {"urandom", "getpid"},
    "uuid": {"uuid1", "uuid4"},
    "datetime": {"now", "utcnow"},
    "threading": {"Thread", "Timer", "Event", "Lock", "Semaphore", "Condition"},
    "concurrent.futures": {"ThreadPoolExecutor"},
    "socket": {"gethostname"},
}
SIMULATED = (
    "service/sash/*.py",
    "service/sash/durability",
    "service/sash/shards",
    "service/sash/tiers/redis*.py",
    "service/sash/tiers/owner.py",
    "service/sash/limits",
    "service/sash/prometheus",
    "service/sash_engine",
    "clients/sash_client/aio.py",
    "clients/sash_client/calls/plans.py",
    "clients/sash_client/calls/owners.py",
)
GIVEN = {
    # what a service is made with: the world gives another one
    "service/sash/durability/storage.py": {"secrets.token_bytes", "time.sleep"},
    "service/sash/durability/journal/session.py": {"secrets.token_bytes"},
    "service/sash/limits/memory.py": {"time.monotonic"},
    "clients/sash_client/aio.py": {"threading.Thread"},
    "clients/sash_client/calls/plans.py": {"random.uniform"},
    "clients/sash_client/calls/owners.py": {"time.monotonic"},
    # what runs on the loop, which runs it as it wants
    "service/sash/durability/journal/journal.py": {"concurrent.futures.ThreadPoolExecutor"},
    # what `Cluster.installed` replaces in the module
    "service/sash/context.py": {"os.urandom"},
    "service/sash/shards/commands.py": {"secrets.token_hex"},
    "service/sash/shards/heartbeat.py": {
        *("concurrent.futures.ThreadPoolExecutor", "threading.Event", "threading.Lock", "threading.Thread"),
        "time.monotonic",
    },
    "service/sash/shards/lease_table.py": {"secrets.token_hex", "threading.Lock", "time.monotonic"},
    "service/sash/shards/leased_host.py": {"time.monotonic"},
    "service/sash/shards/lifecycle.py": {"secrets.token_hex"},
    "service/sash/shards/redis_layout.py": {"secrets.token_hex", "time.monotonic", "time.sleep"},
    "service/sash/tiers/owner.py": {"os.getpid", "secrets.token_hex", "socket.gethostname"},
    "service/sash/tiers/redis.py": {"random.uniform", "threading.Event", "threading.Thread", "time.monotonic"},
    "service/sash/tiers/redis_link.py": {"threading.Lock", "threading.Semaphore", "time.monotonic"},
    # what only measures: it changes no answer
    "service/sash/limits/metered.py": {"time.perf_counter"},
    "service/sash/limits/watches.py": {"time.perf_counter"},
    # what is not simulated: the settings give an address; turns of calls that take long
    "service/sash/shards/members.py": {"socket.gethostname"},
    "service/sash/limits/turns.py": {"time.thread_time"},
}
"""Who gives a module what the seed does not determine."""


def asked_of_the_machine(text):
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {f"{node.value.id}.{node.attr}"} if node.attr in CLOCKS.get(node.value.id, ()) else set()
        elif isinstance(node, ast.ImportFrom):
            names = CLOCKS.get(node.module or "", set())
            found |= {f"{node.module}.{each.name}" for each in node.names if each.name in names}
    return found


def test_who_asks_the_machine_for_its_clock_for_chance_or_for_a_thread_is_known():
    """What is new here would not replay: give it to the service, or have the world replace it, and say so above."""
    files = [
        path
        for place in SIMULATED
        for path in (Path().glob(place) if place.endswith(".py") else Path(place).rglob("*.py"))
        if str(path) != "service/sash/service.py"  # it gives what is real
    ]
    assert len(files) > 150
    found = {str(path): asked for path in files if (asked := asked_of_the_machine(path.read_text()))}
    assert found == GIVEN
    assert asked_of_the_machine("import time\nfrom random import choice\nx = time.monotonic()") == {
        "time.monotonic",
        "random.choice",
    }
