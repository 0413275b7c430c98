"""An event loop whose time is a number: it goes on only where nothing is ready, and then at once to the next timer.

in_virtual_time(main())     runs a coroutine to its end; hours take milliseconds, and each run is the same
@virtual                    runs a test so
now_s()                     what time it is
await passes(3600)          lets so many seconds pass, and all that is due in them happen

What is handed to threads runs on the loop: at once what goes to the loop's own executor (`to_thread`), and `call_s`
later what goes to another one. So nothing that runs there may wait for the loop.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Waits for no time at all, and says how long it was asked to."""

    def __init__(self, skip: Callable[[float], None]) -> None:
        super().__init__()
        self._skip = skip

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing is ready, nothing is due: whoever waits, waits for ever"
            self._skip(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time.

    Attributes:
        call_s: how long a call takes that is handed to an executor.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self.call_s: Callable[[], float] = lambda: 0.0
        super().__init__(_Selector(self._pass))

    def time(self) -> float:
        return self._now_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(0.0 if executor is None else self.call_s(), call)
        return future

    def _pass(self, seconds: float) -> None:
        self._now_s += max(seconds, 0.0)


def in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run it, on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Have a test run in virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        in_virtual_time(test(*args, **fixtures))

    return run


def now_s() -> float:
    """Seconds since the loop began."""
    return asyncio.get_running_loop().time()


async def passes(seconds: float) -> None:
    """Let time pass; none is spent."""
    await asyncio.sleep(seconds)
