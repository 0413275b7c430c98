"""Both Python clients behind the methods of the one that blocks: a scenario is written once, and runs with each."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sash_client import Client
from sash_client.aio import AsyncClient

__all__ = ["CLIENTS", "opened"]

CLIENTS = ("blocking", "awaited")


class Awaited:
    """The client for asyncio, or something of it: what it would have awaited is returned, streams are iterators."""

    def __init__(self, of: Any, runner: asyncio.Runner) -> None:
        self._of, self._runner = of, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        return (lambda *given, **named: self._called(found, *given, **named)) if callable(found) else found

    def _called(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        async def call() -> Any:
            found = method(*given, **named)
            return await found if inspect.isawaitable(found) else found

        found = self._runner.run(call())
        if hasattr(found, "__anext__"):
            return self._items(found)
        return Awaited(found, self._runner) if type(found).__module__.startswith("sash_client.aio") else found

    def _items(self, stream: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._called(stream.__anext__)
            except StopAsyncIteration:
                return


@contextmanager
def opened(kind: str, *target: str, **options: Any) -> Iterator[Any]:
    """A client of one of the kinds; closed at the end.

    Args:
        target: and `options`, of the client.
    """
    if kind == "blocking":
        with Client(*target, **options) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        client = Awaited(None, runner)._called(AsyncClient, *target, **options)
        try:
            yield client
        finally:
            client.close()
