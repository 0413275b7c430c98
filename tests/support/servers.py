"""A real service on free ports of 127.0.0.1: in this process, on a thread of its own, or as a process.

service (fixture)          one per module, in process; its plane is at hand
running_service(...)       the same as a context manager, with settings of your own
service_process(...)       `sash serve` as a process, for signals and what it prints
serve(...)                 the same as a `Popen`, for tests of its start
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import uvloop

from sash.plane import Plane
from sash.service import Service
from sash.settings import Settings
from sash_engine.clock import Clock
from sash_proto.v1 import windows_pb2_grpc as pb_grpc
from tests.support.forked import Forked

Process = subprocess.Popen[str] | Forked

WAIT_S = 120
PLAIN: dict[str, Any] = {"timeout": WAIT_S, "trust_env": False, "verify": False}
"""Options of httpx for a service without TLS: loading certificates takes longer than most tests."""


@dataclass(eq=False)
class Running:
    """A service that runs."""

    grpc_port: int
    rest_port: int
    plane: Plane | None = None
    """Only of one in this process; call it through `on_loop`."""
    on_loop: Callable[[Callable[[], Any]], Any] = lambda call: call()
    """Runs a function on the service's event loop and returns what it returns, or what it awaits."""
    stop: Callable[[], None] = lambda: None
    """Has the service shut down, and waits for it."""
    process: Process | None = None
    _closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def grpc_target(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def rest_url(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    def channel(self) -> grpc.Channel:
        """A channel that is closed with the service."""
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        return self._closing.enter_context(grpc.insecure_channel(self.grpc_target, options=options))

    def stub(self) -> Any:
        """The gRPC methods, on a channel of their own."""
        return pb_grpc.WindowsStub(self.channel())

    def http(self) -> httpx.Client:
        """An HTTP client that is closed with the service."""
        return self._closing.enter_context(httpx.Client(base_url=self.rest_url, **PLAIN))


@contextlib.contextmanager
def running_service(clock: Clock | None = None, **settings: Any) -> Iterator[Running]:
    """Run a service in this process, on the event loop of a thread; in memory, unless `data` says otherwise."""
    given = Settings(**{"grpc_port": 0, "rest_port": 0, "data": "memory", **settings})
    started: list[tuple[Service, asyncio.AbstractEventLoop, asyncio.Event]] = []
    failed: list[BaseException] = []
    up = threading.Event()

    async def live() -> None:
        service, stop = Service(given, clock), asyncio.Event()
        await service.start()
        started.append((service, asyncio.get_running_loop(), stop))
        up.set()
        await stop.wait()
        await service.stop()

    def body() -> None:
        try:
            uvloop.run(live())
        except BaseException as error:
            failed.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=body, name="service")
    thread.start()
    assert up.wait(WAIT_S)
    if failed:
        thread.join()
        raise failed.pop()
    service, loop, asked_to_stop = started[0]

    def on_loop(call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            found = call()
            return await found if inspect.isawaitable(found) else found

        return asyncio.run_coroutine_threadsafe(run(), loop).result(WAIT_S)

    def stop() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(asked_to_stop.set)
        thread.join(WAIT_S)
        assert not thread.is_alive()

    running = Running(service.grpc_port, service.rest_port, service.plane, on_loop, stop)
    try:
        with running._closing:
            yield running
    finally:
        stop()
    if failed:
        raise failed[0]


EARLY = ("GRPC_", "LD_", "MALLOC_", "PYTHON")
"""Variables with names that begin so are read before a service is forked."""


def serve(
    *arguments: object, under: Sequence[str] = (), env: Mapping[str, str] = {}, forked: bool = True, **files: Any
) -> Process:
    """Start `sash serve` on free ports. It is forked, which saves a second of imports, unless that would differ.

    Args:
        under: a command that runs the command behind it, such as one that sets a limit.
        env: on top of the environment of the tests.
        forked: no for the real command.
        files: `stdout` and `stderr`, as of `subprocess.Popen`.
    """
    given = ["serve", "--grpc-port", "0", "--rest-port", "0", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "SASH_PROFILE"}  # of the tests
    environment |= env
    if under or not forked or any(name.startswith(EARLY) for name in env):
        command = [*under, sys.executable, "-m", "sash.main", *given]
        return subprocess.Popen(command, text=True, env=environment, **files)
    return Forked(given, env=environment, **files)


def refused_start(*arguments: object, **environment: str) -> str:
    """What `sash serve` says that does not start."""
    with serve(*arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    return said


@contextlib.contextmanager
def service_process(
    *arguments: str, under: Sequence[str] = (), forked: bool = True, **environment: str
) -> Iterator[Running]:
    """Run `sash serve` as a process on free ports, in memory unless told otherwise; stopped at the end if it runs.

    Args:
        under, forked: as of `serve`.
    """
    how: dict[str, Any] = {"under": under, "forked": forked, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = serve(*arguments, env={"SASH_DATA": "memory", **environment}, **how)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"gRPC on .*:(\d+), REST and page on https?://.*:(\d+)/", line)
        if found is None:
            process.wait(WAIT_S)
            assert process.stderr is not None
            raise AssertionError(f"no service: {line!r}, {process.stderr.read()}")
        running = Running(int(found[1]), int(found[2]), process=process)
        with running._closing:
            yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)


def problem(response: httpx.Response) -> dict[str, Any]:
    """The problem document of a response, checked for its form."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = json.loads(response.content)
    assert set(document) <= {
        "type",
        "title",
        "status",
        "detail",
        "reason",
        "field",
        "limit",
        "line",
        "applied",
        "request_id",
    }
    assert document["status"] == response.status_code
    assert document["request_id"] == response.headers["x-request-id"]
    if document["type"] == "about:blank":  # of HTTP, but for a defect of the service
        assert document.get("reason") == ("INTERNAL" if document["status"] == 500 else None)
    else:
        reason = document["type"].removeprefix("urn:sash:error:").replace("-", "_").upper()
        assert document["reason"] == reason
    assert document["title"]
    assert document["detail"]
    return document


def json_head(path: str, length: int) -> bytes:
    """The head of a POST request with a body of JSON, for tests that send the body in pieces."""
    lines = (f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", f"content-length: {length}")
    return "\r\n".join((*lines, "", "")).encode()
