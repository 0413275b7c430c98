"""A Redis server, its replica, and connections to it over the network: for `redis_link`, in place of redis-py's.

    sent ──▶ on its way ──▶ executed, appended ──▶ on its way ──▶ read        each may be late, or never come
                            └─▶ replica, later

Where there are several nodes, each has slots, and slots move: the keys of one go first, and then each node hears of it.
A node answers as Redis' getNodeByQuery:

    all keys of the slot here   executed        some: TRYAGAIN        none: ASK        the slot is another node's: MOVED

Nobody sends ASKING: a commit puts keys that are not there yet, and the new node answers TRYAGAIN to that until it has
the slot. All nodes restart together.

The scripts are the service's own, run by Lua. What a server has acknowledged survives its restart, unless the scenario
says that it syncs each second. A replica that takes over has what was waited for, and perhaps no more.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import greenlet
from lupa import lua51
from redis.crc import key_slot
from redis.exceptions import AskError, ConnectionError, MovedError, ResponseError, TimeoutError, TryAgainError

from tests.simulation.loop import Process, SimulatedLoop, running
from tests.simulation.threads import Machine, Waiter

__all__ = ["REDIS_FAULTS", "Connection", "Server"]

REDIS_FAULTS = (
    "request lost",
    "answer lost",
    "answer late",
    "late",
    "slow",
    "cut off",
    "restarts",
    "clock",
    "no replica",
    "lags",
    "fails over",
    "loses writes",
    "fades",
    "dies",
    "stands still",
    "sleeps",
)
"""What can happen at a command; the last three, to the process that sends it."""

PLACES = {"EVAL of fence": "fence", "EVAL of table": "table", "EVAL of swap": "swap", "MGET": "read"}
"""Commands that have faults of their own: takes of prefixes and commits, heartbeats, changes of the table, and MGET."""

_SYNCED_S = 2.0
"""So much may be lost where Redis does not sync before it answers."""

_HOSTS = ("redis", "redis2", "redis3")
_SLOTS = 16_384

_Row = tuple[Any, float | None]
"""A value, and when it expires."""

_LUA = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)  # type: ignore[call-arg]
_TABLE = _LUA.table_from
_SCRIPTS: dict[bytes, Any] = {}
_server: Server | None = None


def _called(protected: bool, *args: Any) -> Any:
    assert _server is not None
    try:
        return _to_lua(_server.command([_argument(each) for each in args]))
    except ResponseError as error:
        if protected:
            return _LUA.table_from({b"err": str(error).encode()})
        raise


def _argument(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    return b"%d" % value if isinstance(value, int) or value == int(value) else b"%.17g" % value


def _to_lua(answer: Any) -> Any:
    if answer is None:
        return False
    if answer == "OK":
        return _LUA.table_from({b"ok": b"OK"})
    if type(answer) is not list:
        return answer
    return _TABLE([each if type(each) is bytes else _to_lua(each) for each in answer])


def _from_lua(answer: Any) -> Any:
    if type(answer) is bytes:
        return answer
    if answer is None or answer is False:
        return None
    if isinstance(answer, int):
        return answer
    if isinstance(answer, float):
        return int(answer)
    if b"err" in answer:
        raise ResponseError(answer[b"err"].decode())
    if b"ok" in answer:
        return answer[b"ok"]
    return [each if type(each) is bytes else _from_lua(each) for each in answer.values()]


_LUA.globals()[b"redis"] = _LUA.table_from(
    {b"call": lambda *args: _called(False, *args), b"pcall": lambda *args: _called(True, *args)}
)


class Server:
    """The server, and the replica that may take its place.

    Args:
        loop, draw: time, and chance.
        note: is told what happens.
        epoch_ns: the wall clock at the beginning.
        nodes: of a Redis Cluster; one is none.

    Attributes:
        faults: by number of a command over all time.
        slot_moves: at which commands a slot begins to move.
        fails: is told of what must never be.
        everysec: whether what is answered may be lost for two seconds.
        marks: returns what the world notes beside what is stored at a moment.
        lost: is told that all is as it was when that was noted.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        draw: random.Random,
        note: Callable[[str], None],
        epoch_ns: int,
        replicas: int,
        nodes: int = 1,
    ) -> None:
        self.loop, self.draw, self.note, self._epoch_ns = loop, draw, note, epoch_ns
        self.rows: dict[bytes, _Row] = {}
        self.replica: dict[bytes, _Row] = {}
        self.replicas, self.nodes = replicas, nodes
        self.slot_moves: set[int] = set()
        self._views: list[dict[int, int]] = [{} for _ in range(nodes)]
        """By node: who has each slot that has moved, as far as it has heard."""
        self._moving: dict[int, tuple[int, int, set[bytes] | None]] = {}
        """By slot: from where, to where, and the keys that have gone; None: the new node has the slot."""
        self._at = 0
        """The node that executes a command."""
        self.behind = False
        """Whether the replica has not got the last writes."""
        self.replica_back_s = 0.0
        self.lags_until_s = 0.0
        """Until then the replica gets nothing, and answers; it may take the server's place all the same."""
        self.up_s = 0.0
        self.slow_until_s = 0.0
        self.cut: dict[int, float] = {}
        """By machine: until when it does not reach the server."""
        self.faint: dict[int, tuple[float, float]] = {}
        """By machine: until when answers are late, and by how much."""
        self.mute: dict[int, tuple[float, float]] = {}
        """By machine: from when until when nothing arrives that it sends."""
        self.ahead_ns = 0
        self.faults: dict[int, str] = {}
        self.fails: Callable[[BaseException], None] = lambda error: None
        self.taken: Callable[[bytes], None] = lambda fence: None
        """Is told of each prefix that another owner takes: from now on the one before commits nothing."""
        self.strikes: Callable[[Process, str], None] = lambda process, kind: None
        """Has something happen to a process."""
        self.go_on_s: Callable[[], Sequence[float]] = lambda: ()
        """Says when those go on that stand still."""
        self.moved: Callable[[int, str, str], None] = lambda shard, old, new: None
        """Is told of each shard that the lease table gives to another process."""
        self.asking: Process | None = None
        """Whose command is executed."""
        self.commands = 0
        self.commands_of = Counter[str]()
        self.faults_of: dict[tuple[str, int], str] = {}
        """By place and number of a command of those that have their own."""
        self.era = 0
        self.met: Counter[str] = Counter()
        self.owners: dict[bytes, bytes] = {}
        """Who took each prefix last."""
        self.everysec = False
        self.marks: Callable[[], Any] = lambda: None
        self.lost: Callable[[Any], None] = lambda mark: None
        self._unsynced: deque[tuple[float, dict[bytes, _Row], Any]] = deque()
        """What was stored until a moment, for some of the last moments."""
        self.went_back = False
        self.in_use = False
        """Whether something was acknowledged. A deployment that is lost in its first second is begun anew by hand."""

    # ---------------------------------------------------------------- faults

    def happens(self, process: Process | None, what: str) -> str | None:
        """Count a command that is sent; return what happens to it."""
        self.commands += 1
        fault = self.faults.get(self.commands)
        place = PLACES.get(what)
        if place is not None:
            self.commands_of[place] += 1
            fault = self.faults_of.get((place, self.commands_of[place]), fault)
        if self.commands in self.slot_moves:
            self.move_slot()
        if fault is None:
            return None
        self.met[f"redis: {fault} | {what}"] += 1
        self.note(f"Redis, at command {self.commands} ({what}): {fault}")
        now_s, draw = self.loop.time(), self.draw
        if fault == "slow":
            self.slow_until_s = now_s + draw.choice([3.0, 20.0])
        elif fault == "cut off" and process is not None:
            self.cut[process.machine] = now_s + draw.choice([0.5, 4.0, 15.0, 60.0])
        elif fault == "fades" and process is not None:  # late answers first; then nothing arrives that it sends
            mute_s, late_s = now_s + draw.choice([2.0, 6.0]), draw.uniform(1.5, 4.8)
            self.faint[process.machine] = mute_s, late_s
            self.mute[process.machine] = mute_s, mute_s + draw.choice([15.0, 30.0])
        elif fault == "restarts":
            self.restart()
        elif fault == "clock":
            self.ahead_ns += draw.choice([-3600, -10, 10, 3600]) * 10**9
        elif fault == "no replica":
            self.replica_back_s = now_s + draw.choice([2.0, 20.0])
        elif fault == "lags":
            self.lags_until_s = now_s + draw.choice([0.5, 3.0, 20.0])
        elif fault == "fails over":
            self.fail_over()
        elif fault == "loses writes":
            self.lose()
        elif process is not None and fault in ("dies", "stands still", "sleeps"):
            self.strikes(process, fault)
        return fault

    def heal(self) -> None:
        """Let nothing more happen, and end what lasts."""
        self.faults.clear()
        self.faults_of.clear()
        self.slot_moves.clear()
        self.cut.clear()
        self.faint.clear()
        self.mute.clear()
        self.slow_until_s = self.replica_back_s = self.lags_until_s = 0.0

    def restart(self) -> None:
        """End, and begin again with what is synced."""
        self.era += 1
        self.up_s = self.loop.time() + self.draw.choice([0.1, 2.0, 12.0])

    def lose(self) -> None:
        """End, and begin again without some of the last writes."""
        since_s = self.loop.time() - _SYNCED_S
        some = [(rows, mark) for until_s, rows, mark in self._unsynced if until_s > since_s]
        self._unsynced.clear()
        if some and self.in_use:
            self.restart()
            self.went_back = True
            self.rows, mark = self.draw.choice(some)
            self.lost(mark)

    def _noted(self) -> None:
        """Take note of what is stored now, if nothing was noted for a while."""
        now_s = self.loop.time()
        if not self._unsynced or now_s - self._unsynced[-1][0] > self.draw.choice([0.0, 0.05, 0.3]):
            self._unsynced.append((now_s, dict(self.rows), self.marks()))
            while self._unsynced[0][0] < now_s - _SYNCED_S:
                self._unsynced.popleft()

    def fail_over(self) -> None:
        """The machine is lost, and the replica takes its place; a new one follows it."""
        if not self.replicas or not self.in_use or self.replica_back_s > self.loop.time():
            return
        self.restart()
        self.lags_until_s = 0.0
        if self.behind:
            self.went_back = True
            self.rows = dict(self.replica)
            for fence in self.owners:
                self.taken(fence)  # what was not durable is lost
        self.behind = False

    # ---------------------------------------------------------------- slots

    def move_slot(self) -> None:
        """Begin to move a slot that has keys to another node."""
        slots = sorted({key_slot(key) for key in self.rows} - self._moving.keys())
        if self.nodes == 1 or not slots:
            return
        slot, draw = self.draw.choice(slots), self.draw
        old = next(node for node in range(self.nodes) if self._owner(node, slot) == node)
        new = draw.choice([node for node in range(self.nodes) if node != old])
        self._moving[slot] = old, new, set()
        self.met["redis: a slot moves | "] += 1
        self.note(f"slot {slot} of Redis begins to move from {_HOSTS[old]} to {_HOSTS[new]}")
        takes_s = self.loop.late(draw.choice([0.0, 0.4, 4.0, 15.0]))
        self.loop.call_later(takes_s / 4, self._move_keys, slot, 3, takes_s / 4, context=self.world)

    def _move_keys(self, slot: int, left: int, pause_s: float) -> None:
        """Move some of the keys of a slot; with the last ones the slot."""
        old, new, gone = self._moving[slot]
        assert gone is not None
        keys = [key for key in self.rows if key not in gone and key_slot(key) == slot]
        gone.update(keys[: -(-len(keys) // (left + 1))])
        if left:
            self.loop.call_later(pause_s, self._move_keys, slot, left - 1, pause_s, context=self.world)
        else:
            self._moving[slot] = old, new, None
            self._views[new][slot] = new
            late_s = [self.draw.choice([0.0, 0.05, 1.0]) for _ in range(self.nodes)]
            for node in range(self.nodes):
                self.loop.call_later(late_s[node], self._views[node].__setitem__, slot, new, context=self.world)
            self.loop.call_later(self.loop.late(max(late_s) + 0.01), self._moving.pop, slot, context=self.world)

    def _owner(self, node: int, slot: int) -> int:
        """Who has a slot, as a node has heard."""
        return self._views[node].get(slot, slot * self.nodes // _SLOTS)

    def _redirect(self, keys: Sequence[bytes]) -> None:
        """Raise the error of a node that has not all keys of a command."""
        if self.nodes == 1 or not keys:
            return
        slot = key_slot(keys[0])
        owner = self._owner(self._at, slot)
        error: ResponseError | None = None
        if owner != self._at:
            error = MovedError(f"{slot} {_HOSTS[owner]}:6379")
        elif slot in self._moving and self._moving[slot][0] == self._at:
            _, new, gone = self._moving[slot]
            there = [key for key in keys if gone is not None and key not in gone and self._row(key) is not None]
            if not there:
                error = AskError(f"{slot} {_HOSTS[new]}:6379")
            elif len(there) < len(keys):
                error = TryAgainError("Multiple keys request during rehashing of slot")
        if error is not None:
            self.met[f"redis: {type(error).__name__} | {keys[0].rpartition(b':')[2].decode()}"] += 1
            raise error

    # ---------------------------------------------------------------- who reaches it

    def reachable(self, machine: int, now_s: float) -> bool:
        return self.cut.get(machine, 0.0) <= now_s

    def late_s(self, process: Process | None) -> float:
        """How late an answer is."""
        until_s, late_s = (0.0, 0.0) if process is None else self.faint.get(process.machine, (0.0, 0.0))
        return late_s if until_s > self.loop.time() else 0.0

    # ---------------------------------------------------------------- commands

    def execute(self, command: Sequence[Any], host: str = _HOSTS[0]) -> Any:
        """Run a command on a node, and return its answer, or the error that it answers."""
        global _server
        _server = self
        if self.everysec and self.in_use:
            self._noted()
        parts = [each.encode() if isinstance(each, str) else each for each in command]
        self._at = _HOSTS.index(host)
        try:
            command = [b"%d" % each if isinstance(each, int) else bytes(each) for each in parts]
            self._redirect(_keys_of(command))
            return self.command(command)
        except ResponseError as error:
            return error

    def command(self, command: list[bytes]) -> Any:
        name, *args = command
        return _COMMANDS[name](self, *args)

    def stored(self) -> set[bytes]:
        """All that there are."""
        return {key for key in self.rows if self._row(key) is not None}

    def _row(self, key: bytes) -> Any:
        found = self.rows.get(key)
        if found is None or (found[1] is not None and found[1] <= self.now_ms()):
            return None
        return found[0]

    def now_ms(self) -> float:
        return (self._epoch_ns + self.ahead_ns) / 1e6 + self.loop.time() * 1e3

    def _changes(self) -> None:
        if self.replicas and not self.behind:
            # What it has got, it has; the rest follows when somebody waits for it, or now and then.
            self.replica, self.behind = dict(self.rows), True
            self.loop.call_later(self.draw.choice([0.0, 0.01, 1.0]), self.follow, context=self.world)

    world: Any = None

    def follow(self) -> None:
        """The replica gets what it lacks."""
        if max(self.replica_back_s, self.lags_until_s) <= self.loop.time():
            self.replica, self.behind = {}, False
        elif self.behind:
            self.loop.call_later(1.0, self.follow, context=self.world)

    def _eval(self, script: bytes, count: bytes, *args: bytes) -> Any:
        compiled = _SCRIPTS.get(script)
        if compiled is None:
            compiled = _SCRIPTS[script] = _LUA.execute(b"return function(KEYS, ARGV) " + script + b"\nend")
        keys, argv = list(args[: int(count)]), list(args[int(count) :])
        before = self._row(keys[0]) or {} if len(keys) == 1 and keys[0].endswith(b":table") else None
        try:
            answer = _from_lua(compiled(_LUA.table_from(keys), _LUA.table_from(argv)))
        except lua51.LuaError as error:
            raise ResponseError(str(error)) from None
        self._look_at(keys, argv, answer)
        if before is not None:
            for field in answer if isinstance(answer, list) else ():
                kind, _, shard = field.partition(b":")
                if kind == b"s" and before.get(field, b"") != argv[0]:
                    self.moved(int(shard), before.get(field, b"").decode(), argv[0].decode())
        return answer

    def _look_at(self, keys: list[bytes], argv: list[bytes], answer: Any) -> None:
        """Whoever writes must be who took the prefix last."""
        if not keys or not keys[0].endswith(b"}:fence"):
            return
        if len(keys) == 2 and keys[1].endswith(b"}:owner") and isinstance(answer, int) and len(argv) == 4:
            if self.owners.get(keys[0]) != argv[0]:
                self.owners[keys[0]] = argv[0]
                self.taken(keys[0])
        elif not self.went_back and answer in (b"DONE", b"FULL") and self.owners.get(keys[0], argv[0]) != argv[0]:
            self.fails(AssertionError(f"{argv[0][:6]!r} writes to {keys[0]!r}, which another process has taken"))

    def _get(self, key: bytes) -> Any:
        return self._row(key)

    def _mget(self, *keys: bytes) -> Any:
        return [self._row(key) for key in keys]

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        self._changes()
        self.rows[key] = value, self.now_ms() + int(options[1]) if options else None
        return "OK"

    def _unlink(self, *keys: bytes) -> Any:
        self._changes()
        return sum(self.rows.pop(key, None) is not None for key in keys)

    def _pttl(self, key: bytes) -> Any:
        if self._row(key) is None:
            return -2
        due = self.rows[key][1]
        return -1 if due is None else int(due - self.now_ms())

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        return dict(self._row(key) or {})

    def _hget(self, key: bytes, field: bytes) -> Any:
        return (self._row(key) or {}).get(field)

    def _hset(self, key: bytes, *pairs: bytes) -> Any:
        self._changes()
        self.rows[key] = self._hash(key) | dict(zip(pairs[::2], pairs[1::2], strict=True)), None
        return len(pairs) // 2

    def _hdel(self, key: bytes, *fields: bytes) -> Any:
        self._changes()
        there = self._hash(key)
        found = sum(there.pop(field, None) is not None for field in fields)
        self.rows[key] = there, None
        return found

    def _hgetall(self, key: bytes) -> Any:
        return [part for pair in (self._row(key) or {}).items() for part in pair]

    def _time(self) -> Any:
        micros = int(self.now_ms() * 1000)
        return [b"%d" % (micros // 10**6), b"%d" % (micros % 10**6)]

    def _info(self, *_: bytes) -> Any:
        return b"aof_enabled:1\r\nused_memory:1\r\nmaxmemory:0\r\n"

    def _config(self, *_: bytes) -> Any:
        return [b"appendfsync", b"everysec" if self.everysec else b"always"]

    def _cluster(self, *_: bytes) -> Any:
        if self.nodes == 1:
            raise ResponseError("ERR This instance has cluster support disabled")
        bounds = {-(-_SLOTS * node // self.nodes) for node in range(self.nodes + 1)}
        for slot in self._views[self._at]:
            bounds |= {slot, slot + 1}
        return [
            [first, end - 1, [_HOSTS[self._owner(self._at, first)].encode(), 6379]]
            for first, end in itertools.pairwise(sorted(bounds))
        ]

    def _waitaof(self, local: bytes, replicas: bytes, timeout_ms: bytes) -> Any:
        there = max(self.replica_back_s, self.lags_until_s) <= self.loop.time()
        if there:
            self.behind = False
        return [1, self.replicas if there else 0]


_COMMANDS: dict[bytes, Callable[..., Any]] = {
    name.encode(): getattr(Server, f"_{name.lower()}")
    for name in (
        *("EVAL", "GET", "MGET", "SET", "UNLINK", "PTTL", "HGET", "HSET", "HDEL", "HGETALL"),
        *("TIME", "INFO", "CONFIG", "CLUSTER", "WAITAOF"),
    )
}


class Connection:
    """A connection of `redis_link`: what is sent arrives in order, and is executed once, whether or not it is read."""

    def __init__(self, machine: Machine, server: Server, options: dict[str, Any]) -> None:
        self._machine, self._server = machine, server
        self.host, self.port = options.get("host", "redis"), options.get("port", 6379)
        self._connects_s = options["socket_connect_timeout"]
        self._process = running()
        self._era = -1
        self._packed: list[Sequence[Any]] = []
        self._answers: deque[Any] = deque()
        self._coming: deque[tuple[Sequence[Any], str | None]] = deque()
        self._going: deque[Any] = deque()
        self._waiter: Waiter | None = None
        self._arrives_s = self._answers_s = 0.0
        self._broken = False

    def connect(self) -> None:
        server, machine = self._server, self._machine
        for _ in range(1000):
            now_s = machine.now_s()
            if not self._reaches(now_s):
                machine.sleep(self._connects_s)
                raise TimeoutError("Timeout connecting to server")
            if server.up_s > now_s:
                machine.sleep(0.001)
                raise ConnectionError("Error 111 connecting to redis:6379. Connection refused.")
            break
        machine.sleep(server.draw.choice([0.0, 0.0005, 0.002]))
        self._era = server.era

    def disconnect(self) -> None:
        self._broken = True

    def can_read(self) -> bool:
        return bool(self._answers) or self._ended

    @property
    def _ended(self) -> bool:
        return self._broken or self._era != self._server.era

    def _reaches(self, now_s: float) -> bool:
        return self._process is None or self._server.reachable(self._process.machine, now_s)

    def pack_command(self, *args: Any) -> list[bytes]:
        self._packed.append(args)
        return []

    def send_command(self, *args: Any) -> None:
        self._packed.append(args if len(args) > 1 else str(args[0]).split())
        self.send_packed_command([])

    def send_packed_command(self, pieces: list[Any]) -> None:
        packed, self._packed = self._packed, []
        if self._ended:
            raise ConnectionError("Connection closed by server.")
        for command in packed:
            self._send(command)

    def _send(self, command: Sequence[Any]) -> None:
        server, machine = self._server, self._machine
        fault = server.happens(self._process, _said(command))
        if fault in ("stands still", "sleeps") and greenlet.getcurrent() is not machine.hub:
            machine.sleep(0.0)  # it is sent when the process goes on
        if self._ended:
            return  # the server has restarted by this fault
        now_s = machine.now_s()
        delay_s = server.draw.choice([0.0, 0.0, 0.0002, 0.001, 0.02])
        if now_s < server.slow_until_s:
            delay_s += server.draw.choice([0.2, 0.7, 1.5])
        if not self._reaches(now_s):
            # It is sent again and again below us. If the network is whole soon, it arrives, and else never does.
            left_s = server.cut[self._process.machine] - now_s  # type: ignore[union-attr]
            if left_s > 10:
                return
            delay_s += left_s + 0.2
        since_s, until_s = server.mute.get(self._process.machine, (0.0, 0.0)) if self._process else (0.0, 0.0)
        if fault == "request lost" or since_s <= now_s < until_s:
            return
        if fault == "late":
            # Or soon after somebody goes on who stands still: that is when it does harm.
            back_s = [until_s - now_s for until_s in server.go_on_s() if until_s > now_s]
            wait_s = server.draw.choice([0.6, 3.0, 12.0, 40.0])
            if back_s and server.draw.random() < 0.6:
                wait_s = max(back_s) + server.draw.choice([0.01, 0.05, 0.3])
            delay_s += server.loop.late(wait_s)
        self._coming.append((command, fault))
        arrives_s = self._arrives_s = max(self._arrives_s, now_s + delay_s)
        if greenlet.getcurrent() is machine.hub and arrives_s - now_s < 1.0:
            # It blocks the loop of its process. The world goes on after the callback, so it is executed now.
            machine.sleep(arrives_s - now_s)
            self._arrive()
        else:
            server.loop.call_at(arrives_s, self._arrive, context=server.world)

    def _arrive(self) -> None:
        server = self._server
        command, fault = self._coming.popleft()  # in order, also where two are due
        if self._era != server.era or server.up_s > server.loop.time():
            return
        server.asking = self._process
        answer = server.execute(command, self.host)
        if fault == "answer lost":
            return
        delay_s = server.draw.choice([0.0, 0.0, 0.0002, 0.001, 0.02]) + server.late_s(self._process)
        if fault == "answer late":
            delay_s += server.draw.choice([0.2, 0.7, 1.5, 4.0])
        if greenlet.getcurrent() is self._machine.hub and running() is not None:
            self._machine.sleep(delay_s)
            self._answers.append(answer)
        else:
            self._going.append(answer)
            self._answers_s = max(self._answers_s, server.loop.time() + delay_s)
            server.loop.call_at(self._answers_s, self._answered, context=server.world)

    def _answered(self) -> None:
        answer = self._going.popleft()
        if self._process is not None and not self._reaches(self._server.loop.time()):
            return
        self._answers.append(answer)
        if self._waiter is not None:
            self._waiter.wake()

    def read_response(self, timeout: float | None = None) -> Any:
        machine = self._machine
        timeout = 5.0 if timeout is None else timeout
        if not self._answers:
            self._waiter = Waiter(machine)
            # A server that restarts ends its connections; who waits hears of it, mostly.
            heard_s = timeout if not self._ended else 0.001
            woken = self._waiter.wait(min(timeout, heard_s))
            self._waiter = None
            if not woken and not self._answers:
                if self._ended:
                    raise ConnectionError("Connection closed by server.")
                raise TimeoutError("Timeout reading from redis:6379")
        answer = self._answers.popleft()
        if isinstance(answer, ResponseError):
            raise answer
        return answer


def _keys_of(command: list[bytes]) -> list[bytes]:
    name, *args = command
    if name == b"EVAL":
        return args[2 : 2 + int(args[1])]
    if name in (b"MGET", b"UNLINK"):
        return args
    return [] if name in (b"TIME", b"INFO", b"CONFIG", b"CLUSTER", b"WAITAOF") else args[:1]


def _said(command: Sequence[Any]) -> str:
    name = command[0] if isinstance(command[0], str) else command[0].decode()
    if name == "EVAL":
        key = command[3]
        kind = (key.decode() if isinstance(key, bytes) else str(key)).rpartition(":")[2]
        return "EVAL of swap" if kind == "table" and command[2] == 1 else f"EVAL of {kind}"
    return name
