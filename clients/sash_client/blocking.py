"""Calls that block until they are answered, and the handle of a window that makes them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any, TypeVar

import grpc

from sash_client.calls import Patience, received
from sash_client.connect_blocking import BlockingCalls
from sash_client.connection import READS, Connection
from sash_client.errors import SashClientError, from_rpc
from sash_client.handle import Handle, known
from sash_client.plans import Ask, Plan, Restarts, Together
from sash_client.targets import Endpoint
from sash_proto.v1 import windows_pb2 as pb
from sash_wire import traces

__all__ = ["BlockingConnection", "BlockingHandle"]

R = TypeVar("R")


class BlockingConnection(Connection):
    """A connection whose calls block; `Client` is one."""

    def _opened(self, target: str, options: list[tuple[str, Any]]) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, self._credentials, options=options)

    def _connected(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> BlockingCalls:
        return BlockingCalls(endpoint, context, name)

    def _perform(self, plan: Plan[R]) -> R:
        """Make the calls of a plan, one after the other; return what it returns."""
        if self._owners is not None:
            plan = self._owners.routed(plan)
        try:
            step = next(plan)
            while True:
                if isinstance(step, Ask):
                    try:
                        shard = step.owner if step.alone else None
                        answer = self._call(step.method, step.request, step.timeout_s, step.target, shard)
                    except SashClientError as error:
                        step = plan.throw(error)
                    else:
                        step = plan.send(answer)
                elif isinstance(step, Together):
                    step = plan.send(self._perform_together(step.plans))
                else:
                    time.sleep(step.seconds)
                    step = next(plan)
        except StopIteration as end:
            done: R = end.value
            return done

    def _perform_together(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Perform plans, each in a thread; return what each returned, or the error that it raised."""

        def perform(plan: Plan[Any]) -> Any:
            try:
                return self._perform(plan)
            except SashClientError as error:
                return error

        with ThreadPoolExecutor(len(plans), "sash call") as threads:
            calls = [threads.submit(copy_context().run, perform, plan) for plan in plans]
            return [call.result() for call in calls]

    def _call(
        self,
        method: str,
        request: Any,
        timeout_s: float | None = None,
        target: str | None = None,
        shard: int | None = None,
    ) -> Any:
        """Make a call; `target` and `shard` as of `_started`."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if self._http is not None and target is None:
            return self._over_connect(method, request, timeout_s)
        try:
            return self._started(method, request, timeout=timeout_s, target=target, shard=shard)
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    def _over_connect(self, method: str, request: Any, timeout_s: float) -> Any:
        """Make a call over Connect, and a read again as `Restarts` allows."""
        said = self._said()
        with nullcontext(said) if traces.tracer is None else traces.calling(method, self.target, said) as metadata:
            if method not in READS:
                return self._http.call(method, request, timeout_s, metadata)
            restarts = Restarts(self)
            while True:
                try:
                    return self._http.call(method, request, restarts.left_s, metadata)
                except SashClientError as error:
                    pause_s = restarts.pause_s(error)
                time.sleep(pause_s)

    def _stream(self, method: str, request: Any, patience: Patience) -> Iterator[Any]:
        """Make a read that answers with a stream, and retry it as `Restarts` allows; yield its messages."""
        restarts = Restarts(self)
        while True:
            try:
                for message in received(self._started(method, request), patience):
                    restarts.messages += 1
                    yield message
                return
            except SashClientError as error:
                pause_s = restarts.pause_s(error)
            time.sleep(pause_s)


class BlockingHandle(Handle):
    """A handle whose calls block; `Window` is one."""

    _client: BlockingConnection

    def _spec(self) -> pb.WindowSpec:
        """Return the window's spec, which is fetched once."""
        return self._client._perform(known(self)) if self._message is None else self._message
