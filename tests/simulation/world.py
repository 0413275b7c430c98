"""The world of a simulation: a service that dies and is started again, a network to it, and the client of each caller.

    caller ── AsyncClient ── network ──▶ Operations ── Plane ── Storage ── DiskTier ── Disk
              (its plans)    (delays,    the service's own, from the protocol's messages on; one process at a time
                             loses)

What the seed does not determine is given to the service as its parts take it: clock, tier, sleep, entropy, block size.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from sash.calls import each
from sash.context import CALL, CallContext
from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.plane import Plane
from sash.rpc.errors import described as described_by_service
from sash.rpc.methods import methods
from sash.rpc.operations import Operations
from sash.runtime.metrics import Metrics
from sash_client.aio import AsyncClient
from sash_client.errors import DeadlineExceeded, SashClientError, Unavailable, described, unreachable
from sash_engine.errors import DataLoss, FailedPrecondition, ResourceExhausted, SashError
from sash_engine.errors import Unavailable as SashUnavailable
from tests.simulation.disk import COMMITS_OF, Disk, DiskTier
from tests.simulation.history import Entry, Op
from tests.simulation.loop import Process, SimulatedLoop, running
from tests.simulation.scenario import Scenario
from tests.support.failing import parts_of
from tests.support.sharded import ShardedPlane, in_process

__all__ = ["World"]

T = TypeVar("T")

_TIDY_S = 1.0
_RESHARDED = 4
_LIFE = frozenset(("CreateWindow", "DeleteWindow", "AddAggregates"))
_EPOCH_NS = 1_700_000_000 * 10**9


class LoopClock:
    """The clock of a machine: virtual time, and jumps of wall time.

    Where `slow` is set, work takes time: whoever looks at the clock again may find that its turn is over.
    """

    def __init__(self, loop: SimulatedLoop, draw: random.Random, slow: bool) -> None:
        self._loop, self._draw, self._slow = loop, draw, slow
        self.ahead_ns = 0
        self._spent_s = 0.0

    def now_ns(self) -> int:
        return _EPOCH_NS + int(self._loop.time() * 1e9) + self.ahead_ns

    def monotonic_s(self) -> float:
        if self._slow:
            self._spent_s += self._draw.choice([0.0, 0.0, 0.002, 0.006])
        return self._loop.time() + self._spent_s

    def processor_s(self) -> float:
        return self._loop.time() + self._spent_s


class Served:
    """One process with its service, from its start to its death."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.process = Process(world.loop, number)
        self.ended: asyncio.Future[str] = world.loop.create_future()
        self.calls: dict[asyncio.Future[Any], int] = {}
        self.storage: Storage | None = None
        self.plane: Plane | None = None
        self.methods: Any = None
        self.running: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self.running = self.process.spawn(self._serve())

    async def _serve(self) -> None:
        world, options = self.world, self.world.scenario.options
        tier = DiskTier(world.disk, self.die, world.note)
        catalogue = Catalogue(clock=world.clock)
        entropy = random.Random(f"{world.scenario.seed} entropy {self.process.number}").randbytes
        storage = self.storage = Storage(
            catalogue, world.clock, tier, sleep=world.loop.passes, entropy=entropy, **options
        )
        plane = Plane.of(storage, Metrics(CollectorRegistry()), world.clock)
        try:
            await storage.start()
        except SashError as error:
            world.note(f"process {self.process.number} cannot start: {error.message}")
            world.failed_starts += 1
            world.told |= world.damaged and isinstance(error, DataLoss)
            tier.close()
            self._end("did not start")
            return
        self.methods = methods(Operations(plane, 100_000, asyncio.Event()))
        self.plane = plane
        world.note(f"process {self.process.number} serves")
        while True:
            await asyncio.sleep(_TIDY_S)
            plane.tidy()

    async def answered(self, name: str, data: bytes, reply: asyncio.Future[Any], number: int) -> None:
        """Serve a call; the answer goes back over the network."""
        CALL.set(CallContext(lambda: [("x-request-id", f"call-{number}")]))
        method = self.methods[name]
        try:
            response = await method.call(method.request.FromString(data))
            answer: Any = type(response), response.SerializeToString(deterministic=True)
        except Exception as error:
            if not isinstance(error, SashError):
                self.world.fail(error)
            code, message, details = described_by_service(error, name)
            answer = code.name, message, details
        self.world.reply(self, reply, answer, number)

    def die(self, power: bool = False) -> None:
        """Die as by SIGKILL, or with the machine, whose disk loses what is not synced."""
        world = self.world
        if not self.process.alive:
            return
        world.met[f"{'lost power' if power else 'killed'} | {self.state}"] += 1
        lost = world.disk.lose_power(world.random) if power else 0
        world.note(
            f"process {self.process.number} {'loses power' if power else 'is killed'} ({self.state})"
            f"{f', {lost} commits are lost' if lost else ''}"
        )
        if power and world.disk.misdirected and not world.damaged:
            world.damaged = True
            world.note(f"the disk has misdirected {world.disk.misdirected}")
        self._over("dead")

    def _over(self, how: str) -> None:
        self.process.kill()
        self.world._dies(self)
        self.world.broken_off(self)
        self._end(how)

    @property
    def state(self) -> str:
        """In which state it is, for the counters."""
        if self.plane is None or self.storage is None:
            return "starting"
        store: Any = self.storage.store
        journal = store.session.journal
        busy = "retrying" if journal.error is not None else "committing" if not journal._idle.is_set() else "idle"
        recovering = any(stored.failure is not None for stored in store.windows.values())
        held = any(not stored.writable.is_set() for stored in store.windows.values())
        image = any(stored.checkpointing for stored in store.windows.values())
        deleting = bool(store.listing._discarded)
        said = [busy, "image" * image, "recovering" * recovering, "held" * held, "deleting" * deleting]
        return " ".join(filter(None, said))

    async def stop(self) -> None:
        """End as by SIGTERM."""
        if self.plane is None:
            self.die()
            return
        self.plane = self.methods = None
        done: asyncio.Future[None] = self.world.loop.create_future()

        async def stop() -> None:
            try:
                await self._ends()
            except Exception as error:
                self.world.fail(error)
            self.world.loop.call_soon(done.set_result, None, context=self.world.context)

        self.running.cancel()  # type: ignore[union-attr]
        self.process.spawn(stop())
        await asyncio.wait([done, self.ended], return_when=asyncio.FIRST_COMPLETED)
        if self.process.alive:
            self.world.note(f"process {self.process.number} has stopped")
            self._over("stopped")

    async def _ends(self) -> None:
        """What the service does as it ends."""
        assert self.storage is not None
        await self.storage.stop(10.0)

    def _end(self, how: str) -> None:
        self.process.alive = False
        if not self.ended.done():
            self.ended.set_result(how)


class Caller(AsyncClient):
    """The Python client, whose calls go over the network of the world."""

    def __init__(self, world: World, name: str, timeout_s: float) -> None:
        self._world = world
        self.delay_s = 0.0
        """How much longer requests are on their way."""
        self.began_s = 0.0
        """When the present step began."""
        self.sent: list[int] = []
        """The numbers of the calls that its user has made for the present step."""
        super().__init__("127.0.0.1:1", timeout_s=timeout_s)
        self._now_s = world.loop.time  # type: ignore[method-assign]
        self._uniform = random.Random(f"{world.scenario.seed} pauses {name}").uniform  # type: ignore[method-assign]

    def _open_channel(self) -> None:
        """It has none."""

    async def _call(
        self,
        method: str,
        request: Any,
        timeout_s: float | None,
        target: str | None = None,
        shard: int | None = None,
    ) -> Any:
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        return await self._world.call(method, request, timeout_s, self)


class World:
    """All of a simulation but its callers.

    Attributes:
        events: what has happened, as lines.
        digest: of all events.
        met: which faults met which states, by name.
        failure: what was found wrong; None while nothing was.
    """

    def __init__(self, loop: SimulatedLoop, scenario: Scenario) -> None:
        self.loop, self.scenario = loop, scenario
        self.context = contextvars.copy_context()
        self.random = random.Random(f"{scenario.seed} world")
        self.clock = LoopClock(loop, random.Random(f"{scenario.seed} clock"), scenario.slow)
        self.disk = Disk()
        self.disk.faults = {fault.at: fault.kind for fault in scenario.faults if fault.place == "commit"}
        self.disk.faults_of = {
            (fault.place, fault.at): fault.kind for fault in scenario.faults if fault.place in COMMITS_OF
        }
        self.disk.failing_reads = {fault.at for fault in scenario.faults if fault.place == "read"}
        self.net = {fault.at: fault.kind for fault in scenario.faults if fault.place == "call"}
        self.net_of_life = {fault.at: fault.kind for fault in scenario.faults if fault.place == "life"}
        self._lives = 0
        self._repeats = random.Random(f"{scenario.seed} repeats")
        self.kills = {fault.at: fault.kind for fault in scenario.faults if fault.place == "callback"}
        self.histories: dict[str, Any] = {}
        self.keys = ["x|a", "y|b", "x|c"]
        self.added: dict[str, bool] = {}
        """Aggregates that were added, and whether that was answered."""
        self.copies: list[str] = []
        """Windows that may have been imported."""
        self.moves = False
        """Whether shards can be moved."""
        self.move_share = 0.0
        """How often callers move shards."""
        self.loses = False
        """Whether the store may lose what it has answered."""
        self.stale = False
        """Whether what is only read may be of before, see `ClusterPart`."""
        self.damaged = False
        """Whether the disk has a value in a wrong place: all may be refused from then on, nothing answered wrong."""
        self.told = False
        """Whether a process did not start because of that."""
        self.logged: list[Any] = []
        """Answers that must be given again, see `callers.Logged`."""
        self.events: list[str] = []
        self.digest = hashlib.blake2b(digest_size=16)
        self.met: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.served: Served | None = None
        self.unchecked = False
        self.restarts = 0
        self.failed_starts = self.done = 0
        self._calls = 0
        self._under_way: set[int] = set()
        self._lost: list[tuple[set[int], Any, Op]] = []
        self._records: dict[int, tuple[Any, int, Process]] = {}
        """By call: the journal of who served it, and the number of the last record then."""
        self._gathered: list[tuple[Any, int, Callable[[Op], None], Op]] = []
        """Calls that were answered before they were durable: journal, record, and who is told when it is stored."""
        self._callbacks = 0
        self._stopping: list[asyncio.Future[None]] = []
        self.left_alone = False
        """Whether nobody creates or deletes windows any more, after a call that did so has failed."""
        self.over = False
        self.ended = False
        """Whether the run is over: what is closed now says nothing."""
        loop.call_s = lambda: self.random.choice([0.0, 0.001, 0.003, 0.02, 0.3])
        loop.after_each = self._after_each

    def begin(self) -> None:
        """Make the histories."""
        raise NotImplementedError

    async def compare(self) -> None:
        """Whatever has happened, all is well now, and stays so."""
        raise NotImplementedError

    def made(self) -> None:
        """The windows are there."""

    def processes(self) -> list[Process]:
        """Those that may run, at the end."""
        return [] if self.served is None else [self.served.process]

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Have the service's code go by the world, where it takes nothing else."""
        yield

    # ---------------------------------------------------------------- what happens

    def note(self, what: str) -> None:
        """Something has happened."""
        if self.failure is not None and not what.startswith("WRONG"):
            return  # what follows explains nothing
        line = f"{self.loop.time():10.4f}  {what}"
        self.digest.update(line.encode() + b"\n")
        self.events.append(line)

    def fail(self, error: BaseException) -> None:
        """Something is wrong."""
        if self.failure is None and not self.ended:
            self.failure = error
            self.note(f"WRONG: {type(error).__name__}: {error}")

    def checked(self, step: Any, *args: Any) -> None:
        """Take a step of a history."""
        if self.unchecked or self.failure is not None:
            return
        try:
            step(*args)
        except AssertionError as error:
            self.fail(error)
        except Exception as error:
            if type(error).__name__ != "TooMany":
                raise
            self.unchecked = True

    def strikes(self, process: Process, kind: str) -> None:
        """Have something happen to a process."""

    def _after_each(self, process: Process) -> None:
        self._callbacks += 1
        kind = self.kills.get(self._callbacks)
        if kind is None or self.served is None or self.served.process is not process:
            return
        if kind == "stopped":
            self.loop.stop_process(process, self.loop.late(self.random.choice([0.5, 5.0, 40.0])))
            self.met[f"stopped | {self.served.state}"] += 1
            self.note(f"process {process.number} stands still until {process.stopped_until_s:.1f}")
        elif kind == "clock":
            self.clock.ahead_ns += self.random.choice([-(10**9), -3600 * 10**9, 10**9, 60 * 10**9])
            self.met[f"clock jumped | {self.served.state}"] += 1
            self.note("the clock jumps")
        elif kind == "ends":
            self.met[f"stops | {self.served.state}"] += 1
            self._stopping.append(self.loop.create_task(self.served.stop(), context=self.context))
        else:
            self.served.die(kind == "power")

    # ---------------------------------------------------------------- processes

    def owner_of(self, name: str, key: str) -> Hashable:
        """What changes whenever memory is lost that has a key."""
        return self.restarts

    def knows(self, name: str, entries: Sequence[Entry]) -> None:
        """Take note of entries that are about to be written."""

    async def move(self, client: Caller, draw: random.Random) -> None:
        """Have a shard moved."""

    async def supervise(self) -> None:
        """Start a process, and another one whenever it has died."""
        number = 0
        while not self.over:
            number += 1
            self.restarts += number > 1
            self.served = Served(self, number)
            self.served.begin()
            await self.served.ended
            await asyncio.sleep(self.random.choice([0.0, 0.05, 1.0, 5.0]))

    async def serving(self) -> Served:
        """The process that serves, as soon as one does."""
        end_s = self.loop.time() + 600
        while self.served is None or self.served.plane is None or not self.served.process.alive:
            if self.told:
                raise Unavailable("the store is damaged, and no process starts")
            if self.loop.time() > end_s:
                raise AssertionError("recovery does not end: no process serves for 600 s")
            await asyncio.sleep(0.05)
        return self.served

    async def done_by(self, served: Served, work: Coroutine[Any, Any, T]) -> T:
        """Have a process do something; raises what a client is told, and Unavailable if the process ends."""
        done: asyncio.Future[T] = self.loop.create_future()

        def answer(set_: Callable[[Any], None], result: Any) -> None:
            if not done.done():
                set_(result)

        self.done += 1

        async def do() -> None:
            CALL.set(CallContext(lambda: [("x-request-id", f"done-{self.done}")]))
            try:
                result = await work
            except Exception as error:
                self.loop.call_soon(answer, done.set_exception, error, context=self.context)
            else:
                self.loop.call_soon(answer, done.set_result, result, context=self.context)

        served.process.spawn(do())
        await asyncio.wait([done, served.ended], return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise Unavailable("the process has ended")
        try:
            return done.result()
        except (SashUnavailable, FailedPrecondition, ResourceExhausted, DataLoss) as error:
            if isinstance(error, DataLoss) and not self.damaged:
                raise
            raise Unavailable(error.message) from None

    @staticmethod
    async def exported(served: Served, name: str) -> list[bytes]:
        """A window as a file, as a process exports it."""
        return [part async for part in each(await _open(served.plane).export(name))]

    async def imported(self, parts: Sequence[bytes], name: str) -> None:
        """Have the process that runs import a file."""

        plane = next(each.plane for each in self.all_served_by() if each.process is running())
        await _open(plane).restore(parts_of(parts), name)

    async def resharded(self, parts: Sequence[bytes], name: str) -> ShardedPlane:
        """A deployment with another number of shards, which has a window from a file."""

        other = in_process(_RESHARDED)
        token = CALL.set(CallContext(lambda: [("x-request-id", "resharded")]))
        try:
            await other.restore(parts_of(parts), name)
        finally:
            CALL.reset(token)
        return other

    def all_serving(self) -> list[Served]:
        """The processes that serve now."""
        return [each for each in self.all_served_by() if each.plane is not None and each.process.alive]

    def all_served_by(self) -> list[Served]:
        """The processes that there are."""
        return [] if self.served is None else [self.served]

    # ---------------------------------------------------------------- network

    def target(self, caller: Caller) -> Served | None:
        """The process that a caller calls."""
        return self.served

    def failed(self, caller: Caller) -> None:
        """What a caller has called does not answer."""

    async def call(self, method: str, request: Any, timeout_s: float, caller: Caller) -> Any:
        """Make a call of a process."""
        self._calls += 1
        number, fault = self._calls, self.net.get(self._calls)
        if method in _LIFE:
            self._lives += 1
            fault = self.net[number] = self.net_of_life.get(self._lives, fault or "")
        caller.sent.append(number)
        data = request.SerializeToString(deterministic=True)
        reply: asyncio.Future[Any] = self.loop.create_future()
        delay_s = caller.delay_s + self.random.choice([0.0, 0.0, 0.0005, 0.002, 0.05])
        if fault:
            self.met[f"{fault} | {method}"] += 1
            self.note(f"call {number} ({method}): {fault}")
        if fault == "delayed":
            delay_s += self.random.choice([2.0, timeout_s, timeout_s + 30])
        self.loop.late(delay_s)
        target = self.target(caller)
        if (getattr(request, "producer", "") or method == "CommitBatch") and (
            self._repeats.random() < self.scenario.repeated
        ):
            self._repeat(method, data, caller)
        if fault == "request lost":
            self.loop.call_later(delay_s, self._answer, reply, None)
        else:
            self._under_way.add(number)
            self.loop.call_later(delay_s, self._arrives, target, method, data, reply, number)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await reply
        except TimeoutError:
            self.failed(caller)
            raise DeadlineExceeded(f"no reply within {timeout_s:g} s") from None
        if not isinstance(answer, tuple):
            self.failed(caller)
        if answer is None:
            raise Unavailable("the connection broke off")
        if isinstance(answer, SashClientError):
            raise answer
        if isinstance(answer[0], str):
            code, message, details = answer
            raise described(code, message, _packed(details))
        kind, content = answer
        return kind.FromString(content)

    def _repeat(self, method: str, data: bytes, caller: Caller) -> None:
        """Deliver a call once more: before it or long after it, to any process. It counts once, and nobody listens."""
        self._calls += 1
        caller.sent.insert(0, self._calls)
        self._under_way.add(self._calls)
        delay_s = self.loop.late(self._repeats.choice([0.0, 0.001, 0.05, 2.0, 60.0]))
        self.met[f"delivered twice | {method}"] += 1
        self.note(f"call {self._calls} ({method}) is the last one again")
        nobody: asyncio.Future[Any] = self.loop.create_future()
        self.loop.call_later(delay_s, self._arrives, self.target(caller), method, data, nobody, self._calls)

    def _arrives(
        self, target: Served | None, method: str, data: bytes, reply: asyncio.Future[Any], number: int
    ) -> None:
        if target is None or not target.process.alive:
            self._answer(reply, None if target is not None else unreachable("refused"))
            self._served(number)
        elif target.methods is None:
            self._answer(reply, unreachable("refused"))
            self._served(number)
        else:
            target.calls[reply] = number
            fault = self.net.get(number) or ""
            if fault.endswith(" soon"):
                self.strikes(target.process, fault)
            target.process.spawn(target.answered(method, data, reply, number))

    def lost(self, history: Any, op: Op, caller: Caller) -> None:
        """Take note that nobody will say what became of a call."""
        self.checked(history.lost, op)
        self._lost.append((self._under_way.intersection(caller.sent), history, op))
        self._served(0)

    def _dies(self, served: Served) -> None:
        """What the journal has is durable; the rest of memory is lost."""
        self.disk.owner = None
        self._has_stored()
        self.met["lost with memory? | a write that was answered"] += len(self._gathered)
        self._gathered.clear()
        for history in self.histories.values():
            self.checked(history.died)

    def answered(self, history: Any, op: Op, result: Hashable, caller: Caller) -> None:
        """A call is answered; one that is answered early is durable when the journal has got so far."""
        if not op.soon:
            self.checked(history.end, op, result)
            return
        journal, record, process = self._records[caller.sent[-1]]
        if process.alive:
            self.checked(history.end, op, result)
            self._gathered.append((journal, record, history.stored, op))
        else:  # its answer was on its way when it was lost with memory
            self.lost(history, op, caller)

    def _has_stored(self) -> None:
        """Tell which calls are durable by now; whatever dies does not take them with it."""
        for journal, record, stored, op in self._gathered:
            if record <= journal._durable:
                self.met["durable | a write that was answered before"] += 1
                self.checked(stored, op)
        self._gathered = [each for each in self._gathered if each[1] > each[0]._durable]

    def _served(self, number: int) -> None:
        """A process has done what it will for a call: one whose answer is lost has taken effect, or never will."""
        self._under_way.discard(number)
        if self._lost and not self.moves:  # in a cluster, another process may go on with it
            for left, history, op in self._lost:
                left.discard(number)
                if not left:
                    self.checked(history.served, op)
            self._lost = [each for each in self._lost if each[0]]

    def reply(self, served: Served, reply: asyncio.Future[Any], answer: Any, number: int) -> None:
        """Send an answer back."""
        served.calls.pop(reply, None)
        if served.storage is not None and self.scenario.gathered:
            journal = served.storage.store.session.journal  # type: ignore[attr-defined]
            self._records[number] = journal, journal.last, served.process
            self._has_stored()
        self._served(number)
        delay_s = self.random.choice([0.0, 0.0, 0.0005, 0.002, 0.05])
        fault = self.net.get(number)
        if fault == "answer lost":
            answer = None
        elif fault == "answer delayed":
            delay_s += self.random.choice([2.0, 60.0])
        self.loop.late(delay_s)
        self.loop.call_later(delay_s, self._answer, reply, answer, context=self.context)

    def broken_off(self, served: Served) -> None:
        """Tell those who have called a process that is dead; some never hear of it."""
        for reply, number in list(served.calls.items()):
            self._served(number)
            if self.random.random() < 0.8:
                self.loop.call_later(0.001, self._answer, reply, None, context=self.context)

    @staticmethod
    def _answer(reply: asyncio.Future[Any], answer: Any) -> None:
        if not reply.done():
            reply.set_result(answer)


def _open(plane: Plane | None) -> Plane:
    """The plane of a process, which takes no calls any more once it has begun to end."""
    if plane is None:
        raise SashUnavailable("the process ends")
    return plane


def _packed(details: Any) -> list[Any]:
    from google.protobuf import any_pb2

    packed = []
    for detail in details:
        any_ = any_pb2.Any()
        any_.Pack(detail)
        packed.append(any_)
    return packed
