"""The budget of memory: where its limit comes from, what is counted, and what a full service still does."""

from __future__ import annotations

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash.durability.storage import Storage
from sash.limits import memory
from sash.limits.memory import MIB, SMALL_BYTES, MemoryBudget, StagedBytes, apart, available_bytes
from sash.plane import Plane
from sash.runtime.clock import SystemClock
from sash.runtime.metrics import Metrics
from sash.tiers.memory import MemoryStore, MemoryTier
from sash_engine.errors import OutOfRoom, ResourceExhausted, TooLarge
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.spec.window import WindowSpec
from tests.support.refused import refused


class Machine:
    """A machine that says how much is used, and a clock that stands still."""

    def __init__(self):
        self.used, self.asked, self.now_s = 0, 0, 0.0

    def __call__(self):
        self.asked += 1
        return self.used

    def budget(self, limit=1000, bodies=1000, staged=1000):
        parts = {"bodies": (bodies, "SASH_MAX_UNREAD_BYTES"), "staged": (staged, "SASH_MAX_STAGED_BYTES")}
        return MemoryBudget(limit, parts, self, lambda: self.now_s)


@pytest.fixture(autouse=True)
def no_request():
    """Reservations that a test makes are those of its request."""
    yield
    memory._mine.set(None)


@pytest.fixture
def machine():
    return Machine()


def take_apart(budget, caller, count):
    """Reserve memory for another request than that of the test."""
    mine = budget.reservation(caller)
    mine.take(count)
    memory._mine.set(None)
    return mine


# ---------------------------------------------------------------- the limit


def proc(tmp_path, cgroup, **files):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for path, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_the_least_limit_of_cgroups_v2_counts(tmp_path):
    files = {"a/b/memory.max": "max\n", "a/memory.max": f"{100 * MIB}\n", "memory.max": f"{200 * MIB}\n"}
    assert available_bytes(proc(tmp_path, "0::/a/b\n", **files)) == 100 * MIB


def test_cgroups_v1(tmp_path):
    files = {"memory/x/memory.limit_in_bytes": f"{90 * MIB}\n", "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}
    root = proc(tmp_path, "8:pids:/x\n4:cpu,memory:/x\n0::/\n", **files)
    assert available_bytes(root) == 90 * MIB


def test_a_container_that_sees_the_path_of_its_host(tmp_path):
    files = {"memory/memory.limit_in_bytes": f"{80 * MIB}\n"}
    assert available_bytes(proc(tmp_path, "4:memory:/docker/abc\n", **files)) == 80 * MIB


def test_the_machine_where_there_is_no_cgroup(tmp_path):
    assert available_bytes(tmp_path) == available_bytes(tmp_path / "elsewhere") > MIB


# ---------------------------------------------------------------- what is counted


def test_what_is_admitted_counts_until_the_system_is_asked(machine):
    budget = machine.budget()
    for _ in range(9):
        budget.check(100)
    assert machine.asked == 1
    machine.used = 850
    with pytest.raises(OutOfRoom) as caught:
        budget.check(100)
    assert machine.asked == 2
    assert caught.value.limit.startswith("SASH_MEMORY_BYTES")
    assert caught.value.retry_after_s == 1
    budget.check(50)


def test_estimates_from_above_do_not_refuse_what_fits(machine):
    """Ten writes of 100 by their estimates took 10 each."""
    budget = machine.budget()
    for _ in range(30):
        machine.used += 10
        budget.check(100)


def test_what_is_promised_is_nobody_elses(machine):
    budget = machine.budget()
    mine = budget.reservation("ann")
    mine.take(400, 300)
    budget.check(800)  # of the same request: what it was promised is for this
    mine.release()
    first, second = budget.reservation("ann"), budget.reservation("bob")
    first.take(400)
    for machine.now_s, machine.used, arrived in ((1.0, 0, 300), (2.0, 300, 100), (3.0, 400, 0)):
        refused(budget.check, 501, error=OutOfRoom)
        first.arrived(arrived)
    budget.check(500)
    machine.now_s = 4.0  # nothing came of that
    first.release()
    second.release()
    machine.used, machine.now_s = 0, 5.0
    budget.check(900)
    assert budget.parts()["bodies"] == 0


def test_what_another_service_promised_is_not_of_this_one(machine):
    """Several services may be of one process, and their calls of one context."""
    machine.budget().reservation("ann").take(400)
    machine.used = 500
    with pytest.raises(OutOfRoom):
        machine.budget().check(600)


def test_what_is_given_back_counts_until_the_system_is_asked(machine):
    """Nobody knows whether an answer was made of it that a client has not read."""
    budget = machine.budget()
    mine = budget.reservation("ann")
    mine.take(400)
    mine.release()
    assert machine.asked == 1
    budget.check(600)
    assert machine.asked == 2


def test_a_caller_has_half_of_what_others_leave(machine):
    """Of 850: 425 for the first one, half of the rest for the next one, and so on, however many requests they make."""
    budget, found, told = machine.budget(), {}, []
    for caller in ("ann", "bob", "carl"):
        found[caller] = 0
        for _ in range(850):
            try:
                budget.reservation(caller).take(1)
            except ResourceExhausted as error:
                told.append((error.limit[:17], error.retry_after_s))
                break
            found[caller] += 1
    assert found == {"ann": 425, "bob": 212, "carl": 106}
    assert told == [("SASH_MEMORY_BYTES", 1.0)] * 3
    refused(budget.reservation("dora").take, 426, error=TooLarge, match="one caller may have")


def test_what_lasts_is_nobodys_share(machine):
    machine.used = 450
    budget = machine.budget()
    refused(budget.reservation("ann").take, 201, error=ResourceExhausted, match="half of what others leave")
    mine = budget.reservation("ann")
    mine.take(200)
    mine.arrived(200)
    machine.used, machine.now_s = 650, 1.0
    refused(budget.reservation("ann").take, 1, error=ResourceExhausted)
    budget.reservation("bob").take(100)


def test_what_is_reserved_and_used_counts_once(machine):
    """Nobody tells how much of an answer is in memory. Small writes of others are not refused for both."""
    machine.used = 100
    budget = machine.budget()
    take_apart(budget, "ann", 370)
    for machine.now_s, machine.used in ((1.0, 100), (2.0, 300), (3.0, 470)):
        refused(budget.check, 431, error=OutOfRoom)
    budget.check(430)
    machine.now_s, machine.used = 4.0, 600  # of what was admitted, 130 at least
    refused(budget.check, 1, error=OutOfRoom)


def test_more_is_used_than_was_reserved(machine):
    """Estimates were too low, or the service uses it for something else: then it lasts."""
    budget = machine.budget()
    take_apart(budget, "ann", 100)
    machine.now_s, machine.used = 1.0, 600
    refused(budget.check, 301, error=OutOfRoom)
    take_apart(budget, "bob", 100)
    machine.now_s = 2.0
    refused(budget.check, 201, error=OutOfRoom)
    budget.check(200)


def test_an_answer_holds_what_it_has_until_it_is_read(machine):
    budget = machine.budget()
    mine = budget.reservation("ann")
    mine.take(400, 10)
    mine.keep(150)
    assert (mine.held, mine.promised, budget.parts()["bodies"]) == (150, 0, 10)
    mine.keep(500)  # it has no more than it was given
    assert mine.held == 150
    budget.reservation("ann").take(275)
    refused(budget.reservation("ann").take, 1, error=ResourceExhausted)
    mine.release()
    assert (mine.held, budget.parts()["bodies"]) == (0, 0)
    budget.reservation("ann").take(150)


def test_what_is_over_reserves_nothing_more(machine):
    """A write goes on whose caller has gone, and may be asked for an answer."""
    budget = machine.budget(10**8)
    gone = budget.reservation("ann")
    gone.release()
    gone.need(10**7)
    budget.need(10**7)
    assert gone.held == 0
    refused(budget.need, 10**8, error=TooLarge)


def test_small_needs_of_one_answer_are_added_up(machine):
    budget = machine.budget(10**6)
    mine = budget.reservation("ann")
    for _ in range(6):
        budget.need(10_000)
    assert mine.held == 0
    budget.need(10_000)
    assert mine.held == 70_000
    for _ in range(36):
        budget.need(10_000)
    refused(budget.need, 60_000, error=ResourceExhausted)


async def test_one_of_many_answers_has_a_reservation_of_its_own(machine):
    budget = machine.budget(10**6)
    mine = budget.reservation("ann")

    async def answer():
        budget.need(300_000)

    for _ in range(3):
        await apart(answer())
    assert mine.held == 0
    await answer()
    assert mine.held == 300_000


def test_what_is_large_leaves_room_for_small_writes(machine):
    machine.used = 840 * MIB
    budget = machine.budget(1000 * MIB)
    refused(budget.check, 11 * MIB, error=OutOfRoom, match="no more than 85%")
    for _ in range(10):
        budget.check(SMALL_BYTES)
    machine.used, machine.now_s = 880 * MIB, 1.0
    refused(budget.check, SMALL_BYTES + 1, error=OutOfRoom, match="no more than 85%")
    budget.check(SMALL_BYTES)
    machine.used, machine.now_s = 900 * MIB, 300.0
    refused(budget.check, 1, error=OutOfRoom, match="no more than 90%")


def test_what_windows_do_not_have_refuses_no_small_write(machine):
    """Others hold all of the memory, and more, for an hour."""
    held, machine.used = [20 * MIB], 100 * MIB
    budget = machine.budget(1000 * MIB, staged=1000 * MIB)
    budget.watch_windows(lambda: held[0])
    for second in range(3600):
        machine.used, machine.now_s = 1200 * MIB, float(second)
        budget.check(SMALL_BYTES)
        assert budget.problem() is None
        if second > 120:
            refused(budget.check, SMALL_BYTES + 1, error=OutOfRoom)
    left = 900 * MIB - (100 + 125 + 20) * MIB
    machine.now_s += 1
    for _ in range(left // SMALL_BYTES):  # what is admitted counts until the windows are asked again
        budget.check(SMALL_BYTES)
    refused(budget.check, SMALL_BYTES, error=OutOfRoom, match="no more than 90%")
    machine.now_s += 1
    budget.check(SMALL_BYTES)
    for add in (lambda: held.__setitem__(0, 20 * MIB + left), lambda: budget.hold("staged", left)):
        add()
        machine.now_s += 1
        refused(budget.check, SMALL_BYTES, error=OutOfRoom, match="no more than 90%")
        assert budget.problem() is None  # there is room for what is smaller
        held[0] = 20 * MIB
    budget.hold("staged", 1)
    machine.now_s += 1
    assert budget.problem() is not None
    machine.used, machine.now_s = 300 * MIB, machine.now_s + 200  # estimates were too high
    budget.check(SMALL_BYTES)


def test_the_cache_and_pending_writes_stay_and_answers_do_not(machine):
    sizes = dict.fromkeys(("cache", "writes", "answers"), 0)
    machine.used = 100
    budget = machine.budget()
    budget.watch_windows(lambda: 0)
    for part in sizes:
        budget.watch(part, lambda part=part: sizes[part])
    machine.used = 1200
    for part, stays in (("cache", True), ("writes", True), ("answers", False)):
        sizes[part], machine.now_s = 900, machine.now_s + 300
        assert (budget.problem() is not None) is stays, part
        sizes[part] = 0


@pytest.mark.parametrize("reserved", [0, 200 * MIB])
def test_what_others_hold_for_a_while_refuses_no_small_write(machine, reserved):
    """All of the memory is used, and more, by answers and connections, of which nobody knows how much they take."""
    machine.used = 300 * MIB
    budget = machine.budget(1000 * MIB)
    budget.check(1)
    take_apart(budget, "ann", reserved)
    for second in range(1, 600):
        machine.used, machine.now_s = (1200 if second % 50 else 700) * MIB, float(second)
        budget.check(SMALL_BYTES)
        assert budget.problem() is None
        if second % 50:  # what is large goes by what is used
            refused(budget.check, SMALL_BYTES + 1, error=OutOfRoom)
            refused(budget.reservation("bob").take, 400 * MIB, error=ResourceExhausted)
            memory._mine.set(None)


def test_small_writes_fill_what_they_may_and_no_more(machine):
    """What was admitted stays. The least that was used before does not hide it."""
    machine.used = 300 * MIB
    budget = machine.budget(1000 * MIB)
    for _ in range(600 * MIB // SMALL_BYTES):
        machine.now_s += 0.01
        budget.check(SMALL_BYTES)
        machine.used += SMALL_BYTES
    refused(budget.check, 1, error=OutOfRoom, match="no more than 90%")
    assert budget.problem() is None
    machine.used, machine.now_s = 300 * MIB, machine.now_s + 1  # entries were evicted
    budget.check(SMALL_BYTES)


def test_what_is_promised_hides_nothing_of_what_stays(machine):
    """It may not be in memory yet; what was received is."""
    machine.used = 895 * MIB
    budget = machine.budget(1000 * MIB)
    with budget.promised(100 * MIB):
        machine.now_s = 300.0
        budget.check(SMALL_BYTES)
        machine.used, machine.now_s = 950 * MIB, 600.0
        refused(budget.check, 1, error=OutOfRoom, match="no more than 90%")
    machine.used, machine.now_s = 300 * MIB, 900.0
    mine = take_apart(budget, "ann", 200 * MIB)
    machine.used, machine.now_s = 950 * MIB, 1200.0
    refused(budget.check, 1, error=OutOfRoom, match="no more than 90%")
    mine.arrived(200 * MIB)
    machine.now_s = 1500.0
    budget.check(1)


def test_what_grows_without_being_admitted_is_seen_in_minutes(machine):
    """Estimates were too low, or a cache fills."""
    machine.used = 300 * MIB
    budget = machine.budget(1000 * MIB)
    for second in range(122):
        machine.used, machine.now_s = (950 if second else 300) * MIB, float(second)
        if second < 60:
            budget.check(1)
        assert budget.used
    refused(budget.check, 1, error=OutOfRoom, match="no more than 90%")
    assert budget.problem() is not None
    machine.now_s = 1000.0
    machine.used = 300 * MIB
    budget.check(1)
    machine.used, machine.now_s = 950 * MIB, 2000.0
    refused(budget.check, 1, error=OutOfRoom)


def test_a_part_has_a_limit_of_its_own(machine):
    budget = machine.budget(bodies=100)
    one, other = budget.reservation("ann"), budget.reservation("bob")
    one.take(60, 60)
    with pytest.raises(ResourceExhausted, match="bodies hold") as caught:
        other.take(60, 60)
    assert caught.value.limit.startswith("SASH_MAX_UNREAD_BYTES")
    refused(other.take, 101, 101, error=TooLarge)
    one.release()
    other.release()
    assert budget.parts() == {"bodies": 0, "staged": 0, "rest": 0}


def test_what_never_fits_is_too_large(machine):
    with pytest.raises(TooLarge):
        machine.budget().check(901)


def test_staged_parts_are_counted_until_they_go(machine):
    staged = StagedBytes(budget := machine.budget(staged=100))
    staged.check(60)
    staged.add("w", 1, 60)
    refused(staged.check, 60, error=ResourceExhausted, match="staged hold")
    staged.keep("w", {7})  # 7 was staged before the service was started
    staged.check(60)
    staged.add("w", 2, 60)
    staged.forget("w")
    assert budget.parts()["staged"] == 0


# ---------------------------------------------------------------- a full service


@pytest.fixture
async def plane(machine):
    clock = SystemClock()
    catalogue = Catalogue(clock=clock)
    storage = Storage(catalogue, clock, MemoryTier(MemoryStore()), memory=machine.budget(10**6, staged=10_000))
    await storage.start()
    made = Plane.of(storage, Metrics(CollectorRegistry()), clock)
    for durability in ("sync", "memory"):
        aggregates = {"n": {"function": "count"}, "all": {"function": "collect"}}
        await made.create(WindowSpec.parse({"name": durability, "durability": durability, "aggregates": aggregates}))
    yield made
    await storage.stop()


def batch(n):
    return Batch(np.arange(n), {"value": np.zeros(n)})


@pytest.mark.parametrize("window", ["sync", "memory"])
async def test_a_full_service_refuses_what_adds_and_does_the_rest(plane, machine, window):
    origin = Origin("p", 1)
    await plane.write(window, BulkInsert(batch(10)), origin)
    staged = await plane.write(window, StageBatch(batch(10), "q", 1))
    machine.used, machine.now_s = 950_000, 300.0
    for write in (
        lambda: plane.write(window, Insert(11, {"value": 1.0})),
        lambda: plane.write(window, BulkInsert(batch(10))),
        lambda: plane.write(window, StageBatch(batch(10), "q", 2)),
        lambda: plane.write(window, Commit("q", 1, [staged.stage])),
        lambda: plane.create(WindowSpec.parse({"name": "new", "aggregates": {"n": {"function": "count"}}})),
    ):
        with pytest.raises(OutOfRoom) as caught:
            await write()
        assert caught.value.limit == "SASH_MEMORY_BYTES: 1.0 MiB"
    assert (await plane.window(window)).entries == 10
    assert (await plane.write(window, BulkInsert(batch(10)), origin)).already_applied
    assert (await plane.write(window, BulkEvict(4))).evicted == 5
    machine.used, machine.now_s = 0, 301.0
    assert (await plane.write(window, Commit("q", 1, [staged.stage]))).inserted == 10
    assert await plane.delete(window) == 15


async def test_staged_parts_have_a_limit(plane):
    await plane.write("memory", StageBatch(batch(300), "q", 1))
    await plane.write("memory", StageBatch(batch(300), "q", 2))
    with pytest.raises(ResourceExhausted, match="staged"):
        await plane.write("memory", StageBatch(batch(300), "q", 3))
    await plane.write("memory", Commit("q", 1, []))
    await plane.write("memory", StageBatch(batch(300), "q", 3))
    await plane.delete("memory")
    await plane.write("sync", StageBatch(batch(600), "q", 1))


async def test_an_answer_with_lists_needs_memory(plane, machine):
    from sash_engine.windows.questions import Query, RangeQuery

    await plane.write("memory", BulkInsert(batch(1000)))
    machine.used, machine.now_s = 850_000, 1.0
    for question in (
        lambda: plane.ask("memory", Query(None, [])),
        lambda: plane.ask("memory", Query(None, ["1ms"])),
    ):
        with pytest.raises(ResourceExhausted, match="memory"):
            await question()
    assert (await plane.ask("memory", RangeQuery(0, 99, None))).entries == 100
