"""Answers the calls of other processes, see `peers.py`."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import grpc

from sash.calls import each
from sash.context import CALL, CallContext
from sash.rpc.errors import end_with
from sash.shards.codec import pack, unpack
from sash.shards.peers import OPTIONS, SERVICE
from sash_engine.errors import InvalidArgument, SashError
from sash_wire import traces

_log = logging.getLogger(__name__)

PEER_SECRET = "sash-peer"
"""The metadata with the deployment's secret."""

_TOGETHER_BYTES = 1 << 20
_GRACE_S = 0.5

Resolve = Callable[[int | None, str], Callable[..., Awaitable[Any]]]


class PeerServer:
    """A gRPC server for other processes of the deployment.

    Args:
        address: where it listens: `unix:/run/…` or `host:port`; port 0 takes a free one.
        resolve: returns the operation of that name on a shard, or on the deployment where the shard is None; raises a
            `SashError` if it is not here.
        secret: what callers must send; nothing where None.
        credentials: for TLS; without it where None.
    """

    def __init__(
        self,
        address: str,
        resolve: Resolve,
        secret: str | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._resolve = resolve
        self._secrets = None if secret is None else {secret}
        self._address = address
        self._credentials = credentials
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = grpc.aio.server(options=[*OPTIONS, ("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    SERVICE,
                    {
                        "Calls": grpc.stream_stream_rpc_method_handler(self._calls),
                        "Read": grpc.unary_stream_rpc_method_handler(self._read),
                        "Restore": grpc.stream_unary_rpc_method_handler(self._restore),
                    },
                )
            ]
        )
        self.port = 0
        """The port it listens on, once started."""

    def also_admit(self, secret: str) -> None:
        """Take calls with another secret, too: the deployment has a new one."""
        if self._secrets is not None:
            self._secrets.add(secret)

    async def start(self) -> None:
        """Listen.

        Raises:
            InvalidArgument: the address cannot be listened on.
        """
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(self._address)
            else:
                self.port = self._server.add_secure_port(self._address, self._credentials)
        except RuntimeError:
            raise InvalidArgument(f"cannot listen on {self._address} for other processes", field="peers") from None
        await self._server.start()

    async def stop(self) -> None:
        """Take no new calls, and wait for those that run."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GRACE_S)
        await self._server.stop(None)

    async def _admit(self, context: Any) -> None:
        if self._secrets is None:
            return
        sent = dict(context.invocation_metadata() or ()).get(PEER_SECRET, "")
        if not any(hmac.compare_digest(str(sent).encode(), secret.encode()) for secret in self._secrets):
            refusal = "only processes of the same deployment may call this"
            await end_with(context, grpc.StatusCode.UNAUTHENTICATED, refusal)

    async def _calls(self, requests: AsyncIterator[bytes], context: Any) -> None:
        await self._admit(context)
        answers: list[bytes] = []
        wake = asyncio.Event()

        async def answer(call: Sequence[Any]) -> None:
            answers.append(await self._answer(*call))
            wake.set()

        async def write() -> None:
            while True:
                await wake.wait()
                wake.clear()
                while answers:
                    some, size = 0, 0
                    while some < len(answers) and size < _TOGETHER_BYTES:
                        size += len(answers[some])
                        some += 1
                    now = answers[:some]
                    del answers[:some]
                    await context.write(pack(now))

        writing = asyncio.create_task(write())
        try:
            async for data in requests:
                for raw in unpack(data):
                    # A write goes on when the process that asked for it has gone.
                    task = asyncio.create_task(answer(unpack(raw)))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            writing.cancel()

    async def _answer(
        self, number: int, shard: int | None, operation: str, args: Sequence[Any], said: Mapping[str, str]
    ) -> bytes:
        """Make a call, in a task of its own; `said` is what the caller says of its request."""
        CALL.set(CallContext(said.items))
        attributes = {} if shard is None else {"sash.shard": str(shard)}
        # A command or a question has a name of its own.
        called = getattr(args[1], "operation", operation) if operation in ("write", "ask") else operation
        with nullcontext() if traces.tracer is None else traces.serving(f"peer {called}", said, attributes):
            try:
                return pack([number, await self._resolve(shard, operation)(*args)])
            except Exception as error:
                return pack([number, _told(error, called)])

    async def _read(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        await self._admit(context)
        try:
            shard, operation, args = unpack(request)
            parts = await self._resolve(shard, operation)(*args)
            yield pack(None)
            async for part in each(parts):
                yield pack(part)
        except Exception as error:
            yield pack(_told(error, "read"))

    async def _restore(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        await self._admit(context)
        try:
            shard, *args = unpack(await anext(requests))
            return pack(await self._resolve(shard, "restore")(requests, *args))
        except Exception as error:
            return pack(_told(error, "restore"))


def _told(error: Exception, operation: str) -> SashError:
    if isinstance(error, SashError):
        return error
    _log.error("%s for another process failed", operation, exc_info=error)
    return SashError(f"{operation} failed in the process that has the shard: {type(error).__name__}")
