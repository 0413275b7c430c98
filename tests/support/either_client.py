"""Both Python clients behind the methods of the one that blocks: a scenario is written once, and runs with each."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sash_client import Client
from sash_client.aio import AsyncClient, AsyncProducer, AsyncWindow
from sash_client.direct import AsyncDirectClient, DirectClient

CLIENTS = ("blocking", "awaited")
ASYNCHRONOUS = (AsyncClient, AsyncWindow, AsyncProducer)


class Awaited:
    """The client for asyncio, or something of it: what it would have awaited is returned, streams are iterators."""

    def __init__(self, of: Any, runner: asyncio.Runner) -> None:
        self._of, self._runner = of, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        return (lambda *given, **named: self._called(found, *given, **named)) if callable(found) else found

    def __enter__(self) -> Any:
        return self._called(self._of.__aenter__)

    def __exit__(self, *error: Any) -> None:
        self._called(self._of.__aexit__, *error)

    def _called(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        async def call() -> Any:
            found = method(*given, **named)
            return await found if inspect.isawaitable(found) else found

        found = self._runner.run(call())
        if hasattr(found, "__anext__"):
            return self._items(found)
        return Awaited(found, self._runner) if isinstance(found, ASYNCHRONOUS) else found

    def _items(self, stream: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._called(stream.__anext__)
            except StopAsyncIteration:
                return


@contextmanager
def opened(kind: str, *target: str, direct: bool = False, **options: Any) -> Iterator[Any]:
    """A client of one of the kinds; closed at the end.

    Args:
        target: and `options`, of the client.
        direct: whether it goes to the processes that have the keys.
    """
    if kind == "blocking":
        with (DirectClient if direct else Client)(*target, **options) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        made = Awaited(None, runner)._called(AsyncDirectClient if direct else AsyncClient, *target, **options)
        with made as client:
            yield client
