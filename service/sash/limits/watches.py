"""Watching: a question that many watch is computed once, and all watching together takes a share of the loop.

    watchers   a  b  c        d
                \\ | /         |
    questions    q1           q2        each is asked every so often, and when somebody joins
                  \\          /
    turns     ──q1──────q2──────q1──▶   after a look of 5 ms, the next one begins no sooner than 25 ms later

A watcher gets the newest answer when it is ready for one, and none that was replaced in between. Where looks take more
than their share, the intervals stretch; nobody is refused for that.

Watchers with different rights share answers. Before each look, each of them is asked whether it may still see the
answer; the look is made as one of those who may. They are asked again before they get an answer that is new: a look
may take a while, and one who joins looks, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from time import perf_counter

from sash.limits.memory import apart, mine
from sash.limits.metered import metered

SHARE = 0.2
"""Of the loop's time, for all looks together."""

Look = Callable[[], Awaitable[bytes]]


@dataclass(slots=True, eq=False)
class _Watcher:
    """Somebody who watches a question."""

    look: Look
    may: Callable[[], object]
    context: Context
    error: Exception | None = None


@dataclass(slots=True)
class _Watched:
    """A question that somebody watches."""

    found: bytes
    cost_s: float
    """Of the last look."""
    news: asyncio.Future[None]
    """Done when there is something new; another one is there then."""
    version: int = 0
    watchers: dict[_Watcher, None] = field(default_factory=dict)
    """In order of arrival."""
    task: asyncio.Task[None] | None = None


class Watches:
    """All that is watched in one service.

    Args:
        share: of the loop's time that looks may take.
        clock_s: measures how long a look holds the loop.
    """

    def __init__(self, share: float = SHARE, clock_s: Callable[[], float] = perf_counter) -> None:
        self._share = share
        self._clock_s = clock_s
        self._questions: dict[Hashable, _Watched] = {}
        self._next_s = 0.0
        """When the next look may begin."""
        self.looks = 0
        self.late_s = 0.0
        """How much later than it was due the last look began."""

    @property
    def questions(self) -> int:
        """How many different questions are watched."""
        return len(self._questions)

    async def changes(
        self,
        key: Hashable,
        look: Look,
        interval_ms: int,
        closing: asyncio.Event,
        quiet_s: float,
        may: Callable[[], object] = lambda: None,
    ) -> AsyncGenerator[bytes | None, None]:
        """Yield what `look` finds: at once, and again whenever it has changed; None after `quiet_s` without a change.

        The service looks every so often instead of being told by every write, so that a write costs the same however
        many are watching, and a burst of writes is one change. Bytes are compared, as a NaN does not equal itself.

        Args:
            key: equal for watchers of the same question at the same interval.
            look: finds out; what it raises ends the watching.
            interval_ms: milliseconds between two looks.
            closing: is set when the service is about to end, which ends the watching at once.
            quiet_s: seconds without a change after which there is a sign of life.
            may: raises where the watcher may not see the answer any more, which ends its watching. It runs before each
                look, in the context of the watcher.
        """
        loop = asyncio.get_running_loop()
        # Each watcher looks first: the answer is of now, and a refusal is the watcher's own.
        found, cost_s = await self._look(look)
        if (reserved := mine()) is not None:
            reserved.need(len(found))
            reserved.arrived(len(found))
        watched = self._questions.get(key)
        if watched is None:
            watched = self._questions[key] = _Watched(found, cost_s, loop.create_future())
        else:
            _publish(watched, found)
        watcher = _Watcher(look, may, copy_context())
        watched.watchers[watcher] = None
        if watched.task is None:
            watched.task = loop.create_task(self._every(key, watched, interval_ms / 1000), context=Context())
        closed = loop.create_task(closing.wait())
        version, said_s = -1, loop.time()
        try:
            while not closing.is_set():
                if watcher.error is not None:
                    raise watcher.error
                if version != watched.version:
                    version, said_s = watched.version, loop.time()
                    yield watched.found
                    continue
                left_s = said_s + quiet_s - loop.time()
                if left_s <= 0:
                    said_s = loop.time()
                    yield None
                else:
                    await asyncio.wait((watched.news, closed), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
            watched.watchers.pop(watcher, None)
            if not watched.watchers:
                watched.task.cancel()
                self._forget(key, watched)

    async def _every(self, key: Hashable, watched: _Watched, interval_s: float) -> None:
        """Look again and again, as long as somebody watches."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + interval_s
        while True:
            await asyncio.sleep(due_s - loop.time())
            begins_s = max(self._next_s, loop.time())
            self._next_s = begins_s + watched.cost_s / self._share
            await asyncio.sleep(begins_s - loop.time())
            _end_those_who_may_not(watched)
            if not watched.watchers:
                break
            self.late_s = loop.time() - due_s
            due_s = loop.time() + interval_s
            watcher = next(iter(watched.watchers))
            looking = loop.create_task(self._look(watcher.look, watched.cost_s), context=watcher.context.copy())
            try:
                found, watched.cost_s = await looking
            except Exception as error:
                _end_those_who_may_not(watched)
                if watcher in watched.watchers:  # else it was refused, and not the question
                    _end(watched, list(watched.watchers), error)
                continue
            _publish(watched, found)
        self._forget(key, watched)

    async def _look(self, look: Look, paid_s: float = 0.0) -> tuple[bytes, float]:
        """Look once, and charge all watching for what is not paid yet; return what was found, and its cost."""
        spent = [0.0]

        def spend(seconds: float) -> None:
            spent[0] += seconds

        try:
            return await metered(_awaited(look), spend, self._clock_s), spent[0]
        finally:
            self.looks += 1
            now_s = asyncio.get_running_loop().time()
            self._next_s = max(self._next_s, now_s) + (spent[0] - paid_s) / self._share

    def _forget(self, key: Hashable, watched: _Watched) -> None:
        if self._questions.get(key) is watched:
            del self._questions[key]


async def _awaited(look: Look) -> bytes:
    return await apart(look())


def _end_those_who_may_not(watched: _Watched) -> None:
    """End the watchers that may not see the answer any more."""
    for watcher in list(watched.watchers):
        try:
            watcher.context.run(watcher.may)
        except Exception as error:
            _end(watched, [watcher], error)


def _end(watched: _Watched, watchers: Sequence[_Watcher], error: Exception) -> None:
    """End some of the watchers with an error."""
    for watcher in watchers:
        watcher.error = error
        del watched.watchers[watcher]
    _wake(watched)


def _publish(watched: _Watched, found: bytes) -> None:
    """Tell the watchers who may see it, if it is something new."""
    if found != watched.found:
        _end_those_who_may_not(watched)
        watched.found = found
        watched.version += 1
        _wake(watched)


def _wake(watched: _Watched) -> None:
    """Have all watchers look what is new."""
    watched.news.set_result(None)
    watched.news = asyncio.get_running_loop().create_future()
