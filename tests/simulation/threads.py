"""Threads of a simulated process: they block on virtual time, one at a time runs, and each dies with its process.

    loop      ─ callback ─ callback ───────────── callback ─ callback ──     what blocks here (a read of Redis) keeps
    heartbeat ─────────── sends … waits 0.3 s ──── goes on, waits ──────     the loop of its process still, and no other
    commit    ───────────────────── sends … waits ────────── answered ──

Each is a greenlet, which a callback of the loop continues. So code that blocks runs as it is: `installed` puts what it
blocks with (`threading`, `time`, executors) into its modules, and chance (`secrets`, `random`).
"""

from __future__ import annotations

import contextlib
import contextvars
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import greenlet

from tests.simulation.loop import Process, SimulatedLoop, running

_LEAST_S = 1e-6
"""A wait lasts so long: less would not change a clock of seconds, and who waits until a moment would do so for ever."""


class Machine:
    """What threads of all processes are made of.

    Args:
        loop: continues them.
        seed: of what processes draw.
    """

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop, self.seed = loop, seed
        self.hub = greenlet.getcurrent()
        self.over = False
        self._threads: list[greenlet.greenlet] = []
        self._chance: dict[int, random.Random] = {}
        loop.in_thread = self.in_thread

    # ---------------------------------------------------------------- time and chance

    def now_s(self) -> float:
        """What the monotonic clock of the process says; what has blocked its loop in this callback has passed."""
        process = running()
        if process is None:
            return self.loop.time()
        late_s = process.blocked_s if greenlet.getcurrent() is self.hub else 0.0
        return self.loop.time() + late_s - process.slept_s

    def sleep(self, seconds: float) -> None:
        """Block the thread, or the loop of the process."""
        if greenlet.getcurrent() is self.hub:
            process = running()
            assert process is not None
            process.blocked_s += max(seconds, 0.0)
            return
        Waiter(self).wait(seconds)

    def chance(self) -> random.Random:
        """What the process draws from."""
        process = running()
        number = 0 if process is None else process.number
        if number not in self._chance:
            self._chance[number] = random.Random(f"{self.seed} chance {number}")
        return self._chance[number]

    # ---------------------------------------------------------------- threads

    def run(self, work: Callable[[], Any]) -> None:
        """Begin a thread of the process that runs."""
        process = running()
        context = contextvars.copy_context()

        def begin() -> None:
            thread.gr_context = context
            thread.switch()

        thread = greenlet.greenlet(work, self.hub)
        self._threads.append(thread)
        self.loop.call_soon(begin, context=self.context(process))

    def in_thread(self, future: Any, call: Callable[[], Any]) -> None:
        """Run a call for a future of the loop."""

        def answer(set_: Callable[[Any], None], result: Any) -> None:
            if not future.done():
                set_(result)

        def work() -> None:
            self.sleep(self.loop.call_s() / 2)
            if future.cancelled():
                return
            try:
                result = call()
            except Exception as error:
                self.sleep(self.loop.call_s() / 2)
                self.loop.call_soon(answer, future.set_exception, error, context=context)
            else:
                self.sleep(self.loop.call_s() / 2)
                self.loop.call_soon(answer, future.set_result, result, context=context)

        context = contextvars.copy_context()
        self.run(work)

    @staticmethod
    def context(process: Process | None) -> contextvars.Context:
        """Of callbacks that continue a thread: the loop of the process may stand still meanwhile."""
        return contextvars.Context() if process is None else process.threads

    def end(self) -> None:
        """Nothing goes on, and what threads have left ends."""
        self.over = True
        for thread in self._threads:
            if thread:  # it has begun, and has not ended
                with contextlib.suppress(BaseException):
                    thread.throw(greenlet.GreenletExit)

    # ---------------------------------------------------------------- what code blocks with

    @property
    def threading(self) -> Any:
        """In place of the module."""
        return SimpleNamespace(
            Thread=lambda **options: _Thread(self, **options),
            Event=lambda: _Event(self),
            Lock=lambda: _Semaphore(self, 1),
            Semaphore=lambda count: _Semaphore(self, count),
        )

    @property
    def time(self) -> Any:
        """In place of the module."""
        return SimpleNamespace(monotonic=self.now_s, sleep=self.sleep)

    @property
    def secrets(self) -> Any:
        """In place of the module."""
        return SimpleNamespace(token_hex=lambda count: self.chance().randbytes(count).hex())

    @property
    def random(self) -> Any:
        """In place of the module."""
        return SimpleNamespace(uniform=lambda low, high: self.chance().uniform(low, high))

    def executor(self, workers: int, name: str) -> _Executor:
        """In place of a `ThreadPoolExecutor`."""
        return _Executor(self, workers)


class Waiter:
    """A thread that waits until it is woken, or for so many seconds."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._thread = greenlet.getcurrent()
        self._process = running()
        self.woken = False
        self._waits = False

    def wait(self, seconds: float | None) -> bool:
        """Return whether it was woken."""
        machine = self._machine
        if self._thread is machine.hub:
            # Nothing that could wake it happens before its time is over. Who waits without limit waits for a thread
            # that is told to end, and does so soon.
            machine.sleep(0.0 if self.woken else seconds or 0.0)
            return self.woken or seconds is None
        if self.woken:
            return True
        timer = None
        context = machine.context(self._process)
        if seconds is not None:
            least_s = _LEAST_S if seconds > 0.0 else 0.0
            timer = machine.loop.call_later(max(seconds, least_s), self._go_on, context=context)
        self._waits = True
        machine.hub.switch()
        if machine.over:
            raise greenlet.GreenletExit
        if timer is not None:
            timer.cancel()
        return self.woken

    def wake(self) -> None:
        """Have it go on."""
        if not self.woken:
            self.woken = True
            if self._waits and not self._machine.over:
                self._machine.loop.call_soon(self._go_on, context=self._machine.context(self._process))

    def _go_on(self) -> None:
        if self._waits:
            self._waits = False
            self._thread.switch()


class _Event:
    def __init__(self, machine: Machine) -> None:
        self._machine, self._set = machine, False
        self._waiters: list[Waiter] = []

    def set(self) -> None:
        self._set = True
        for waiter in self._waiters:
            waiter.wake()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        waiter = Waiter(self._machine)
        self._waiters.append(waiter)
        try:
            return waiter.wait(timeout)
        finally:
            self._waiters.remove(waiter)


class _Semaphore:
    def __init__(self, machine: Machine, count: int) -> None:
        self._machine, self._count = machine, count
        self._waiters: deque[Waiter] = deque()

    def acquire(self, timeout: float | None = None) -> bool:
        if self._count == 0:
            waiter = Waiter(self._machine)
            self._waiters.append(waiter)
            if not waiter.wait(timeout):
                self._waiters.remove(waiter)
                return False
            return True
        self._count -= 1
        return True

    def release(self) -> None:
        if self._waiters:
            self._waiters.popleft().wake()  # it has what is released
        else:
            self._count += 1

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Thread:
    def __init__(self, machine: Machine, target: Callable[[], Any], name: str, daemon: bool) -> None:
        self._machine, self._target = machine, target
        self._ended = _Event(machine)
        self._began = False

    def start(self) -> None:
        self._began = True
        self._machine.run(self._run)

    def _run(self) -> None:
        self._target()
        self._ended.set()

    def is_alive(self) -> bool:
        return self._began and not self._ended.is_set()

    def join(self) -> None:
        self._ended.wait()


class _Executor:
    def __init__(self, machine: Machine, workers: int) -> None:
        self._machine, self._free = machine, workers
        self._waiting: deque[Callable[[], Any]] = deque()
        self._idle = _Event(machine)
        self._idle.set()
        self._running = 0

    def submit(self, work: Callable[[], Any]) -> None:
        self._waiting.append(work)
        self._begin()

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._running += 1
            self._idle.clear()
            work = self._waiting.popleft()

            def run(work: Callable[[], Any] = work) -> None:
                self._machine.sleep(self._machine.loop.call_s() / 8)
                work()
                self._free += 1
                self._running -= 1
                if self._waiting:
                    self._begin()
                elif not self._running:
                    self._idle.set()

            self._machine.run(run)

    def shutdown(self) -> None:
        self._idle.wait()
