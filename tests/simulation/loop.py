"""A loop on virtual time that runs one callback at a time, in an order that a seed draws, of processes that may die.

    ready   [world: client 2] [process 3: commit] [process 2: tidy, dead]     one is drawn, and run; of the dead, none
    due     12.031 s process 3: …                                             nothing is ready: it is 12.031 s

Each callback belongs to the process in whose context it was made; the world (clients, network, faults) has none. A
process that is dead runs nothing more, not even a `finally`: what it was about to do has not happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.support.virtual_time import VirtualLoop

T = TypeVar("T")

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
_THREAD: contextvars.ContextVar[bool] = contextvars.ContextVar("thread", default=False)


class Killed(BaseException):
    """Ends a call on the machine's side of a process that was killed in it."""


class Stuck(AssertionError):
    """Nothing is ready and nothing is due: whoever waits, waits for ever."""


class Process:
    """What runs in one context, until it is killed."""

    def __init__(self, loop: SimulatedLoop, number: int, machine: int = 0) -> None:
        self.number, self.machine = number, machine
        self.alive = True
        self.callbacks = 0
        self.stopped = False
        """As by SIGSTOP: nothing of it runs."""
        self.stopped_until_s = 0.0
        self.sleeps_s = 0.0
        """How much of that its monotonic clock will not have seen, as on a machine that was suspended."""
        self.slept_s = 0.0
        """How far its monotonic clock is behind."""
        self.strike: tuple[int, str] | None = None
        """After so many callbacks more, what happens to it."""
        self.held: list[_Handle] = []
        """What it will run then."""
        self.blocked_s = 0.0
        """How long the callback that runs has blocked the loop."""
        self.blocked_until_s = 0.0
        """Until then nothing of it runs but its threads."""
        self.waiting: list[_Handle] = []
        """What its loop will run then."""
        self._loop = loop
        self._tasks: list[asyncio.Task[Any]] = []
        self._context = contextvars.Context()
        self._context.run(_PROCESS.set, self)
        self.threads = self._context.copy()
        """Of callbacks that continue its threads."""
        self.threads.run(_THREAD.set, True)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task of the process."""
        return self._context.run(asyncio.create_task, work)

    def judges(self, what: Callable[[], T]) -> T:
        """Look at something as the process does, by its clocks."""
        return self._context.run(what)

    def kill(self) -> None:
        """Let nothing of it run again."""
        self.alive = False
        self._loop.dead.append(self)


def running() -> Process | None:
    """The process that runs; None: the world."""
    return _PROCESS.get()


class _Handle:
    """A callback that is to run; for timers, too."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_loop", "_process")

    def __init__(self, loop: SimulatedLoop, callback: Any, args: tuple[Any, ...], context: contextvars.Context) -> None:
        self._loop, self._callback, self._args, self._context = loop, callback, args, context
        self._process: Process | None = context.get(_PROCESS)
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]

    def cancelled(self) -> bool:
        return self._cancelled

    def _run(self) -> None:
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {"message": f"exception in {self._callback}", "exception": error, "handle": self}
            )


class SimulatedLoop(VirtualLoop):
    """See above.

    Args:
        random_: draws the order of ready callbacks, and how long calls in threads take.
        shuffled: whether the order is drawn; else it is asyncio's own.

    Attributes:
        after_each: called after each callback of a process.
        dead: the processes that were killed. They are kept: what is collected would still run its `finally`.
        ran: how many callbacks were run.
    """

    def __init__(self, random_: random.Random, shuffled: bool) -> None:
        self._todo: list[_Handle] = []
        self._timers: list[tuple[float, int, _Handle]] = []
        self._made_timers = 0
        super().__init__()
        self._random, self._shuffled = random_, shuffled
        self.after_each: Callable[[Process], None] = lambda process: None
        self.in_thread: Callable[[asyncio.Future[Any], Callable[[], Any]], None] | None = None
        """Runs a call in a thread that can wait; None: calls take place at one moment."""
        self.dead: list[Process] = []
        self._kept: list[_Handle] = []
        self.ran = 0
        self.late_until_s = 0.0
        """Until then something that was held back may still happen."""
        self.set_task_factory(self._made)

    def _made(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        process = _PROCESS.get()
        if process is not None:
            process._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """A call takes place at one moment, and is heard of at a later one; the process may die before either."""
        future: asyncio.Future[T] = self.create_future()
        if self.in_thread is not None:
            self.in_thread(future, lambda: func(*args))
            return future

        def answer(set_: Callable[[Any], None], result: Any) -> None:
            if not future.done():
                set_(result)

        def call() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Killed:
                return
            except Exception as error:
                self.call_later(self.call_s() / 2, answer, future.set_exception, error)
            else:
                self.call_later(self.call_s() / 2, answer, future.set_result, result)

        self.call_later(self.call_s() / 2, call)
        return future

    def _run_once(self) -> None:
        todo, timers = self._todo, self._timers
        while not self._stopping:  # type: ignore[attr-defined]
            while timers and (timers[0][2]._cancelled or timers[0][0] <= self._now_s or not todo):
                when_s, _, timer = heapq.heappop(timers)
                if not timer._cancelled:
                    process = timer._process
                    if process is None or process.alive:
                        self._now_s = max(self._now_s, when_s)
                        todo.append(timer)
            if not todo:
                raise Stuck("nothing is ready and nothing is due: whoever waits, waits for ever")
            # As `randrange`, in a tenth of the time.
            handle = todo.pop(int(self._random.random() * len(todo)) if self._shuffled and len(todo) > 1 else 0)
            if not handle._cancelled:
                self._step(handle)

    def _step(self, handle: _Handle) -> None:
        process = handle._process
        if process is None:
            self.ran += 1
            handle._run()
        elif not process.alive:
            self._kept.append(handle)
        elif process.stopped:
            process.held.append(handle)
        elif process.blocked_until_s > self._now_s and not handle._context.get(_THREAD, False):
            if not process.waiting:
                self.call_at(process.blocked_until_s, self._free, process, context=contextvars.Context())
            process.waiting.append(handle)
        else:
            self.ran += 1
            process.callbacks += 1
            handle._run()
            if process.blocked_s:
                process.blocked_until_s, process.blocked_s = self._now_s + process.blocked_s, 0.0
            if process.alive:
                self.after_each(process)

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        """See `asyncio`: without its checks, which cost as much as the callbacks of a simulation."""
        handle = _Handle(self, callback, args, contextvars.copy_context() if context is None else context)
        self._todo.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        """See `asyncio`."""
        handle = _Handle(self, callback, args, contextvars.copy_context() if context is None else context)
        self._made_timers += 1
        heapq.heappush(self._timers, (when, self._made_timers, handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        """See `asyncio`."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def stop_process(self, process: Process, seconds: float, sleeps: bool = False) -> None:
        """Let nothing of a process run for so long; its monotonic clock does not go on meanwhile if it sleeps."""
        process.stopped, process.stopped_until_s = True, self._now_s + seconds
        process.sleeps_s = seconds if sleeps else 0.0
        self.call_at(process.stopped_until_s, self._go_on, process, context=contextvars.Context())

    def _go_on(self, process: Process) -> None:
        process.stopped = False
        process.slept_s, process.sleeps_s = process.slept_s + process.sleeps_s, 0.0
        self._todo.extend(process.held)
        process.held = []

    def _free(self, process: Process) -> None:
        self._todo.extend(process.waiting)
        process.waiting = []

    def late(self, seconds: float) -> float:
        """Take note that something is held back for so long."""
        self.late_until_s = max(self.late_until_s, self._now_s + seconds)
        return seconds

    def passes(self, seconds: float) -> None:
        """Let time pass while the loop stands still: something blocks it."""
        self._pass(seconds)

    def bury(self) -> None:
        """Close what the dead have left; call this when the loop is closed."""
        for process in self.dead:
            for task in process._tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
