"""Calls that are awaited, for the client for asyncio; `blocking` is the same for calls that block."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any, TypeVar

import grpc

from sash_client.calls import Patience, stood_still
from sash_client.connect_aio import AsyncCalls
from sash_client.connection import READS, Connection
from sash_client.errors import SashClientError, Unavailable, from_rpc
from sash_client.plans import Ask, Plan, Restarts, Together, pauses_s
from sash_client.targets import Endpoint
from sash_wire import traces

__all__ = ["AwaitingConnection"]

R = TypeVar("R")


class AwaitingConnection(Connection):
    """A connection whose calls are awaited; `AsyncClient` is one."""

    def _connected(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> AsyncCalls:
        asyncio.get_running_loop()
        return AsyncCalls(endpoint, context, name)

    async def _perform(self, plan: Plan[R]) -> R:
        """Make the calls of a plan, one after the other; return what it returns."""
        if self._owners is not None:
            plan = self._owners.routed(plan)
        try:
            step = next(plan)
            while True:
                if isinstance(step, Ask):
                    try:
                        shard = step.owner if step.alone else None
                        answer = await self._call(step.method, step.request, step.timeout_s, step.target, shard)
                    except SashClientError as error:
                        step = plan.throw(error)
                    else:
                        step = plan.send(answer)
                elif isinstance(step, Together):
                    step = plan.send(await self._perform_together(step.plans))
                else:
                    await asyncio.sleep(step.seconds)
                    step = next(plan)
        except StopIteration as end:
            done: R = end.value
            return done

    async def _perform_together(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Perform plans, each in a task; return what each returned, or the error that it raised."""

        async def perform(plan: Plan[Any]) -> Any:
            try:
                return await self._perform(plan)
            except SashClientError as error:
                return error

        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(perform(plan)) for plan in plans]
        return [call.result() for call in calls]

    async def _call(
        self,
        method: str,
        request: Any,
        timeout_s: float | None,
        target: str | None = None,
        shard: int | None = None,
    ) -> Any:
        """Make a call; `target` and `shard` as of `_started`."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if self._http is not None and target is None:
            return await self._over_connect(method, request, timeout_s)
        async with self._mapped():
            return await self._started(method, request, timeout=timeout_s, target=target, shard=shard)

    async def _over_connect(self, method: str, request: Any, timeout_s: float) -> Any:
        """Make a call over Connect, and a read again as `Restarts` allows."""
        said = self._said()
        with nullcontext(said) if traces.tracer is None else traces.calling(method, self.target, said) as metadata:
            if method not in READS:
                return await self._http.call(method, request, timeout_s, metadata)
            restarts = Restarts(self)
            while True:
                try:
                    return await self._http.call(method, request, restarts.left_s, metadata)
                except SashClientError as error:
                    pause_s = restarts.pause_s(error)
                await asyncio.sleep(pause_s)

    async def _stream(self, method: str, request: Any, patience: Patience) -> AsyncGenerator[Any, None]:
        """Make a read that answers with a stream, and retry it as `Restarts` allows; yield its messages."""
        restarts = Restarts(self)
        while True:
            try:
                async with aclosing(self._received(self._started(method, request), patience)) as messages:
                    async for message in messages:
                        restarts.messages += 1
                        yield message
                return
            except SashClientError as error:
                pause_s = restarts.pause_s(error)
            await asyncio.sleep(pause_s)

    async def _received(self, call: Any, patience: Patience) -> AsyncGenerator[Any, None]:
        """Yield the messages of a call; cancel it when the caller stops, or when one takes too long."""
        look_s = None if patience.timeout_s is None else patience.timeout_s / 4
        try:
            while True:
                patience.wait()
                reading = asyncio.ensure_future(call.read())
                try:
                    while not (await asyncio.wait({reading}, timeout=look_s))[0]:
                        if patience.is_over:
                            raise stood_still(patience.timeout_s)
                    async with self._mapped():
                        message = reading.result()
                finally:
                    reading.cancel()
                patience.rest()
                if message is grpc.aio.EOF:
                    return
                yield message
        finally:
            call.cancel()

    @asynccontextmanager
    async def _mapped(self) -> AsyncIterator[None]:
        """Raise what gRPC does as a `SashClientError`."""
        try:
            yield
        except grpc.RpcError as error:
            raise from_rpc(error) from None
        except asyncio.CancelledError:
            # Closing cancels the calls, which is not to look as if somebody had cancelled the task.
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                raise Unavailable("the client is closed") from None
            raise

    @asynccontextmanager
    async def _patient(self) -> AsyncIterator[None]:
        """As `_mapped`, of one step of a stream, which may take `timeout_s`."""
        try:
            async with asyncio.timeout(self.timeout_s), self._mapped():
                yield
        except TimeoutError:
            raise stood_still(self.timeout_s) from None

    async def _wait_for_connect(self) -> None:
        """Wait for the HTTP port, without end."""
        for pause_s in pauses_s():
            self._said()
            with suppress(Unavailable):
                await self._http.connect()
                return
            await asyncio.sleep(pause_s)
