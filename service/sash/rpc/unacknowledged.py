"""Clients of gRPC that do not acknowledge the settings of their connection, and so have headers of any length.

    call ──▶ its headers are longer than the limit ──▶ refused at once
                       └──▶ its connection is shut down, and for ten seconds each new one from its address

gRPC limits the headers of a call to 16 KiB, once the client has acknowledged the limit. Until then, for five seconds,
they may have 16 MiB, which are less than half a megabyte to send: 400,000 headers of two bytes take 100 MiB, and hold
the event loop for 250 ms, where gRPC makes Python objects of them before anything of the service sees the call. No
option changes that. But whoever sends such a call has shown that it does not acknowledge. 60 clients, each of which
sent 600 KB of headers on one connection after the other, made a service of 92 MiB use 1,040 MiB, and 191 MiB with this.

gRPC has nothing that closes a connection, so its socket is looked for among the files of the process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import Callable, Collection
from typing import Any

import grpc

from sash.calls import start
from sash.limits.open_calls import address_of_peer
from sash.rpc.errors import end_with
from sash.runtime.memory import give_back
from sash.runtime.metrics import Metrics

_BYTES_MAX = 16_384
_EACH_BYTES = 32
"""gRPC's limit of the headers of a call, and what it counts for each beside its name and value."""

_BARRED_S = 10.0
"""For so long after such a call new connections from its address are shut down."""

_EVERY_S = 0.05
"""So often they are looked for: each time costs a millisecond of a thread with a thousand connections."""

_FILES = "/proc/self/fd"

_MAPPED = "::ffff:"


class Unacknowledged(grpc.GenericRpcHandler):
    """Refuses calls with headers that nobody may have, and shuts down the connections that they come from.

    As a handler of gRPC, it handles these calls and no others.

    Args:
        ports: those that gRPC listens on.
        closing: is set when the server closes.
        metrics: counts refusals.
    """

    def __init__(self, ports: Callable[[], Collection[int]], closing: asyncio.Event, metrics: Metrics) -> None:
        self._ports = ports
        self._closing = closing
        self._metrics = metrics
        self._barred: dict[str, float] = {}
        """Addresses, and until when."""
        self._caught: set[tuple[str, int]] = set()
        """Connections that are to be shut down, by address and port."""
        self._is_cutting = False

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        if not _is_long(handler_call_details.invocation_metadata or ()):
            return None
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _: Any, context: Any) -> None:
        self._bar(context.peer())
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        self._metrics.count_rejected("grpc", code.name)
        await end_with(context, code, f"headers take more than {_BYTES_MAX} bytes")

    def _bar(self, peer: str) -> None:
        address = address_of_peer(peer)
        self._barred[address] = time.monotonic() + _BARRED_S
        port = peer.rpartition(":")[2]
        if port.isdecimal():
            self._caught.add((address, int(port)))
        if not self._is_cutting:
            self._is_cutting = True
            start(self._cut())

    async def _cut(self) -> None:
        """Shut connections down until no address is barred."""
        known: set[int] | None = None
        while (self._barred or self._caught) and not self._closing.is_set():
            caught, self._caught = self._caught, set()
            known = await asyncio.to_thread(_cut, set(self._ports()), caught, set(self._barred), known)
            if caught:
                await asyncio.to_thread(give_back)  # 100 MiB for each, which the allocator would keep
            await asyncio.sleep(_EVERY_S)
            now_s = time.monotonic()
            self._barred = {address: until_s for address, until_s in self._barred.items() if until_s > now_s}
        self._is_cutting = False


def _is_long(headers: Collection[tuple[str, str | bytes]]) -> bool:
    return len(headers) * _EACH_BYTES > _BYTES_MAX or sum([len(value) for _, value in headers]) > _BYTES_MAX


def _cut(
    ports: Collection[int], caught: Collection[tuple[str, int]], barred: Collection[str], known: Collection[int] | None
) -> set[int]:
    """Shut down the connections to `ports` that were caught, and those from barred addresses that are new.

    Args:
        known: the sockets that were there the last time; None at the first time, when none counts as new.

    Returns:
        The sockets that are there, by their numbers in the system.
    """
    found: set[int] = set()
    try:
        files = os.listdir(_FILES)
    except OSError:  # another system: calls are refused, and gRPC closes their connections after its five seconds
        return found
    for name in files:
        try:
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode):
                continue
            found.add(status.st_ino)
            is_new = known is not None and status.st_ino not in known
            if not (is_new or caught):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:  # the number may be another file's by now
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if connection.getsockname()[1] not in ports:
                    continue
                address, port = connection.getpeername()[:2]
                address = address.removeprefix(_MAPPED)
                if (address, port) in caught or (is_new and address in barred):
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it was closed meanwhile, or listens
            continue
    return found
