"""How much memory the service may use, and who is refused when it is nearly used up.

    0 ───────────────────────────── 85 % ── 90 % ── limit
    │ used (asked of the system)  + promised  + needed │
    │ lasting + reserved                      + needed │
         │       │                               └ what this call would add, by an estimate from above
         │       └ by requests under way: for their bodies, what is parsed of them, and their answers; `promised` is
         │         what of that may not be in memory yet
         └ used, when no request had reserved anything, and what was admitted since

Estimates of what windows take would drift, so the system is asked: at most every 100 ms, and again before a refusal.
What was admitted since then is counted by its estimate. Nobody tells when an answer is in memory: it may be used and
promised. So the lower one of the two sums counts, and at least what is used.

Only what adds entries, brings large bodies or asks for large answers is refused: evictions, deletes and questions with
small answers go on. What is large fills the limit up to 85 %.

**Small writes go by what stays, and by nothing else**: what requests, answers and connections of others hold goes
again, and never refuses them. Nobody tells what stays. But it is no more than either of

    used at any time, without what requests had received by then, with what was admitted since: the least of the last
    minute or two; what is evicted, and what was estimated too high, is seen
    used at the start, an eighth of the limit for what is loaded later, what all windows have by an estimate from above,
    staged parts, the cache, pending writes; seen where the others do not let go for minutes

A request has one reservation, for its body, for what is parsed of it, and for its answer until the caller has read it.
All that a caller's requests have reserved is at most half of what is left for all: so the first one may have half of
the room, the next one a quarter, and whoever comes last half of what is left by then.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from sash_engine.errors import OutOfRoom, ResourceExhausted, TooLarge

R = TypeVar("R")

MIB = 2**20

BODIES = "bodies"
"""The part that has what was received of requests."""

FULL = 0.9
"""Of the limit. The rest is for evictions, small requests, and what estimates miss."""

ROOMY = 0.85
"""Of the limit, for what is large."""

SMALL_BYTES = 256 * 2**10
"""What needs no more is no large write."""

_SMALL_SHARE = 1024
"""Nor does what needs more than this part of the limit."""

_LEAST_S = 60.0
"""What stays is no more than the least that was used in so long: answers and bodies come and go within seconds, and
connections within a minute. What grows without being admitted, such as a cache, is seen as late as that."""

SMALL_ANSWER_BYTES = 64 * 2**10
"""A question whose answer takes no more is answered also by a service whose memory is full."""

SHARE = 0.8
"""Of the machine's memory, where no limit is set."""

_LATER = 8
"""The part of the limit that the program may take after its start: modules, and what they keep."""

_STAYING = ("staged", "cache", "writes")
"""Parts that requests do not give back at their end."""

_SAMPLE_S = 0.1
_PAGE = resource.getpagesize()


def available_bytes(root: Path = Path("/")) -> int:
    """How much memory the process may have: the least of the machine's, its cgroup's (v1 or v2) and its rlimits'.

    Args:
        root: where ``proc`` and ``sys`` are mounted.
    """
    found = [os.sysconf("SC_PHYS_PAGES") * _PAGE, *_of_cgroups(root)]
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
        soft = resource.getrlimit(limit)[0]
        if soft != resource.RLIM_INFINITY:
            found.append(soft)
    return min(found)


def _of_cgroups(root: Path) -> Iterator[int]:
    """The limits of the process's memory cgroup and of those around it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container, the path may be the host's: then only the top is there, which is the container's own.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                try:
                    text = (folder / name).read_text().strip()
                except OSError:
                    continue
                if text.isdecimal():  # v2 says "max" where there is none; v1 says a number near 2^63
                    yield int(text)


def used_bytes() -> int:
    """How much memory the process uses, as the limits count it; 0 where the system does not say.

    Pages of files, such as LMDB's, are not counted: the system takes them back when it needs them.
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            size, resident, shared, _, _, data, _ = map(int, file.read().split())
    except OSError:
        return 0
    used = resident - shared
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY:
        used = max(used, data)
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        used = max(used, size)
    return used * _PAGE


class Reservation:
    """Memory that one request takes, from before it takes it until its caller has read the answer.

    Attributes:
        promised: what it may still take. The system does not count it yet.
        held: all that it has reserved.
    """

    __slots__ = ("_asked", "_budget", "_caller", "_is_over", "_unread", "held", "promised")

    def __init__(self, budget: MemoryBudget, caller: str) -> None:
        self._budget = budget
        self._caller = caller
        self._unread = self._asked = 0
        self._is_over = False
        self.promised = self.held = 0

    def take(self, count: int, unread: int = 0) -> None:
        """Reserve so many bytes more, of which `unread` are of a body; raises as `MemoryBudget.check`."""
        budget = self._budget
        budget.check_part(BODIES, unread)
        budget.check_share(self._caller, count)
        budget.check(count, transient=True)
        if self._is_over:
            return  # a write goes on whose caller has gone, and nobody would give it back
        self._add(count, count)
        self._unread += unread
        budget.hold(BODIES, unread)

    def need(self, count: int) -> None:
        """As `take`, for a part of an answer: many small ones are reserved together, and few of them not at all."""
        self._asked += count
        if self._asked > SMALL_ANSWER_BYTES:
            count, self._asked = self._asked, 0
            self.take(count)

    def arrived(self, count: int) -> None:
        """So many bytes are in memory now; the system counts them from now on."""
        self._add(-min(count, self.promised), 0)

    def keep(self, count: int) -> None:
        """The answer is made, and has so many bytes: nothing else is needed any more."""
        self._asked = 0
        self._budget.let_go(self.promised)
        self._add(-self.promised, min(count, self.held) - self.held)

    def release(self) -> None:
        """Give everything back."""
        self._is_over = True
        if self.held:
            self.keep(0)
            self._budget.hold(BODIES, -self._unread)
            self._unread = 0
        if _mine.get() is self:
            _mine.set(None)

    @contextmanager
    def apart(self) -> Iterator[Reservation]:
        """Inside the `with` block, the request has another reservation: for one of many messages, or answers."""
        made = self._budget.reservation(self._caller)
        try:
            yield made
        finally:
            made.release()
            _mine.set(self)

    def _add(self, promised: int, held: int) -> None:
        self.promised += promised
        self.held += held
        self._budget.promise(promised)
        self._budget.hold_for(self._caller, held)


_mine: ContextVar[Reservation | None] = ContextVar("reservation", default=None)
"""The reservation of the request that is served: what it promised is not counted against its own writes."""


def mine() -> Reservation | None:
    """The reservation of the request that is served."""
    return _mine.get()


async def apart(work: Awaitable[R]) -> R:
    """Await one of many answers of a request, which has a reservation of its own."""
    reserved = _mine.get()
    if reserved is None:
        return await work
    with reserved.apart():
        return await work


class MemoryBudget:
    """The memory of one service.

    Args:
        limit_bytes: how much it may use.
        parts_max: how many bytes each of some parts may hold, and the setting that says so, by part.
        used: how much it uses.
        monotonic_s: tells when that was asked last.
    """

    def __init__(
        self,
        limit_bytes: int,
        parts_max: Mapping[str, tuple[int, str]] | None = None,
        used: Callable[[], int] = used_bytes,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._full_bytes, self._roomy_bytes = int(limit_bytes * FULL), int(limit_bytes * ROOMY)
        self._parts_max = dict(parts_max or {})
        self._ask = used
        self._monotonic_s = monotonic_s
        self._asked_s = float("-inf")
        self._used = 0
        self._admitted = self._let_go = 0  # since the system was asked
        self._lasting = 0
        """What is used and not by requests, at least; see above."""
        self._least = self._least_before = float("inf")
        """No more than this stays: by the samples of at most a minute, and by those of the minute before."""
        self._least_since_s = float("-inf")
        self._windows: Callable[[], int] | None = None
        self._program = 0
        self._counted, self._counted_s = 0, float("-inf")
        """What stays by what windows have, and of which sample that is."""
        self._small_bytes = min(SMALL_BYTES, limit_bytes // _SMALL_SHARE)
        self._promised = 0
        self._apart = 0
        """What of it no request has reserved: what long writes may take."""
        self._reserved = 0
        """By all requests; what has been promised to them, and what has become of it."""
        self._callers: dict[str, int] = {}
        """How much of that is each caller's."""
        self._held: dict[str, int] = dict.fromkeys(self._parts_max, 0)
        self._gauges: dict[str, Callable[[], int]] = {}

    # ---------------------------------------------------------------- what is used

    @property
    def used(self) -> int:
        """How many bytes the process used when it was asked, at most 100 ms ago."""
        now_s = self._monotonic_s()
        if now_s - self._asked_s >= _SAMPLE_S:
            self._sample(now_s)
        return self._used

    def watch(self, part: str, gauge: Callable[[], int]) -> None:
        """Have `gauge` say how many bytes a part takes."""
        self._gauges[part] = gauge

    def watch_windows(self, gauge: Callable[[], int]) -> None:
        """Have `gauge` say how many bytes all windows have, at most. None of them has any yet."""
        self._windows, self._program = gauge, self._ask() + self.limit_bytes // _LATER

    def most(self, part: str) -> int:
        """How many bytes a part may hold."""
        return self._parts_max[part][0]

    def parts(self) -> dict[str, int]:
        """Bytes by part; `rest` is what no other part counts: windows, and the program itself."""
        found = {**self._held, **{part: gauge() for part, gauge in self._gauges.items()}}
        found["rest"] = max(self.used - sum(found.values()), 0)
        return found

    @property
    def is_scarce(self) -> bool:
        """Whether more than half of the limit is used."""
        return self.used > self.limit_bytes // 2

    @property
    def is_tight(self) -> bool:
        """Whether so much is used that nothing large is taken, whatever it is used for."""
        return self.used > self._roomy_bytes

    def problem(self) -> str | None:
        """Why new entries are refused; None where they are taken."""
        if self.used <= self._full_bytes or self._stays <= self._full_bytes:
            return None
        return f"the service uses {_mib(self._used)} of memory, more than {FULL:.0%} of {self._limit}"

    # ---------------------------------------------------------------- who is admitted

    def check(self, needed: int, *, transient: bool = False) -> None:
        """Check that so many bytes more can be used.

        Args:
            needed: an estimate from above.
            transient: they are given back when the request ends.

        Raises:
            TooLarge: the service never has so much.
            ResourceExhausted: it has not now; OutOfRoom where the bytes are for entries, which stay.
        """
        now_s = self._monotonic_s()
        if now_s - self._asked_s >= _SAMPLE_S:
            self._sample(now_s)
        mine = _mine.get()
        own = mine.promised if mine is not None and mine._budget is self else 0
        most = self._full_bytes if needed <= SMALL_BYTES else self._roomy_bytes
        if needed <= self._small_bytes and not transient and self._stays + needed <= most:
            self._admitted += needed
            return
        if self._after(needed, own) > most:
            self._sample(now_s)
            if self._after(needed, own) > most:
                raise self._refusal(needed, self._promised - own, most, transient)
        if not transient:
            self._admitted += needed

    def check_part(self, part: str, needed: int) -> None:
        """Check that a part may hold so many bytes more.

        Raises:
            TooLarge: it may never hold so much.
            ResourceExhausted: it may not now.
        """
        most, setting = self._parts_max[part]
        if self._held[part] + needed <= most:
            return
        limit = f"{setting}: {_mib(most)}"
        if needed > most:
            raise TooLarge(f"the request has {_mib(needed)}; {part} may have {_mib(most)}", field="body", limit=limit)
        raise ResourceExhausted(
            f"{part} hold {_mib(self._held[part])}, and {_mib(needed)} more are too much",
            field="body",
            limit=limit,
            retry_after_s=1.0,
        )

    def check_share(self, caller: str, needed: int) -> None:
        """Check that the requests of a caller may reserve so many bytes more: together half of what others leave.

        Raises:
            TooLarge: nobody may ever have so much.
            ResourceExhausted: the caller may not now.
        """
        most = self._roomy_bytes // 2
        if needed > most:
            raise TooLarge(
                f"this takes up to {_mib(needed)} of memory, and one caller may have {_mib(most)}: ask for less, or "
                "send it in parts",
                field="body",
                limit=self._limit,
            )
        has = self._callers.get(caller, 0)
        now_s = self._monotonic_s()
        if now_s - self._asked_s >= _SAMPLE_S or has + needed > self._share(has):
            self._sample(now_s)
        most = self._share(has)
        if has + needed > most:
            raise ResourceExhausted(
                f"this takes up to {_mib(needed)} of memory; the requests of {caller or 'this caller'} hold "
                f"{_mib(has)}, and may have {_mib(max(most, 0))}, half of what others leave",
                field="memory",
                limit=self._limit,
                retry_after_s=1.0,
            )

    def _share(self, has: int) -> int:
        """What a caller may reserve who has so much."""
        return (self._roomy_bytes - self._lasting - (self._reserved - has)) // 2

    def hold_for(self, caller: str, count: int) -> None:
        """Note that the requests of a caller hold so many bytes more, or fewer."""
        if not count:
            return
        self._reserved += count
        held = self._callers.get(caller, 0) + count
        if held:
            self._callers[caller] = held
        else:
            self._callers.pop(caller, None)

    def let_go(self, count: int) -> None:
        """Note that so many bytes are promised no more. Whether they are in memory, the system says when asked."""
        self._let_go += count

    def hold(self, part: str, count: int) -> None:
        """Note that a part holds so many bytes more, or fewer."""
        self._held[part] += count

    def promise(self, count: int) -> None:
        """Note that requests under way may take so many bytes more, or fewer."""
        self._promised += count

    @contextmanager
    def promised(self, count: int) -> Iterator[None]:
        """Promise so many bytes inside the `with` block, beside what the request has reserved."""
        self._apart += count
        self.promise(count)
        try:
            yield
        finally:
            self.promise(-count)
            self._apart -= count

    def reservation(self, caller: str) -> Reservation:
        """A reservation for the request that this task serves, to be released at its end."""
        made = Reservation(self, caller)
        _mine.set(made)
        return made

    def need(self, count: int) -> None:
        """Reserve so many bytes for the answer of the request that is served; raises as `check`."""
        mine = _mine.get()
        if mine is not None:
            mine.need(count)
        elif count > SMALL_ANSWER_BYTES:
            self.check(count, transient=True)

    @property
    def _limit(self) -> str:
        return f"SASH_MEMORY_BYTES: {_mib(self.limit_bytes)}"

    def _sample(self, now_s: float) -> None:
        self._asked_s, self._used = now_s, self._ask()
        lasting = min(self._lasting + self._admitted, self._used) if self._reserved else self._used
        self._lasting = max(lasting, self._used - self._reserved)
        received = max(self._reserved - self._promised + self._apart, 0)
        self._least = min(self._least + self._admitted, self._used - received)
        self._least_before += self._admitted
        passed_s = now_s - self._least_since_s
        if passed_s >= _LEAST_S:
            recent = passed_s < 2 * _LEAST_S
            self._least_since_s, self._least_before = now_s, self._least if recent else self._used - received
            self._least = self._used - received
        self._admitted = self._let_go = 0

    @property
    def _stays(self) -> float:
        """What is used and not by requests, at most."""
        least = min(self._least, self._least_before)
        if self._windows is not None and least + self._admitted + self._small_bytes > self._full_bytes:
            if self._counted_s != self._asked_s:
                parts = self._held | {part: gauge() for part, gauge in self._gauges.items()}
                staying = sum(parts.get(part, 0) for part in _STAYING)
                self._counted_s, self._counted = self._asked_s, self._program + self._windows() + staying
            least = min(least, self._counted)
        return least + self._admitted

    def _after(self, needed: int, own: int) -> int:
        """What may be used if so much is admitted; what is promised to the same request, `own`, is for this."""
        new = self._admitted + self._let_go + needed
        by_promises = self._used + self._promised - own + new
        by_requests = self._lasting + self._reserved + self._apart - own + new
        return min(by_promises, max(by_requests, self._used + needed))

    def _refusal(self, needed: int, promised: int, most: int, transient: bool) -> ResourceExhausted | TooLarge:
        if needed > most:
            return TooLarge(
                f"this takes up to {_mib(needed)} of memory, more than the service ever has: send it in parts",
                field="body",
                limit=self._limit,
            )
        kind = ResourceExhausted if transient else OutOfRoom
        way_out = "" if transient else "; evict entries or delete windows"
        return kind(
            f"this takes up to {_mib(needed)} of memory; the service uses {_mib(self._used)}, has promised "
            f"{_mib(promised)} to requests under way, and fills no more than {most / self.limit_bytes:.0%} of its limit"
            f"{way_out}",
            field="memory",
            limit=self._limit,
            retry_after_s=1.0,
        )


def unlimited() -> MemoryBudget:
    """A budget that refuses nothing."""
    return MemoryBudget(sys.maxsize, {BODIES: (sys.maxsize, ""), "staged": (sys.maxsize, "")}, used=lambda: 0)


class StagedBytes:
    """How many bytes the staged parts of all windows have, as far as this process staged them.

    Args:
        budget: bounds them.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._sizes: dict[str, dict[int, int]] = {}

    def check(self, size: int) -> None:
        """Check that a part of so many bytes may be staged; raises as `MemoryBudget.check_part`."""
        self._budget.check_part("staged", size)

    def add(self, window: str, number: int, size: int) -> None:
        """Note a part that was staged."""
        self._sizes.setdefault(window, {})[number] = size
        self._budget.hold("staged", size)

    def keep(self, window: str, numbers: Iterable[int]) -> None:
        """Note that a window has these parts and no others: the others were committed, or have expired."""
        sizes = self._sizes.get(window)
        if sizes:
            for number in sizes.keys() - set(numbers):
                self._budget.hold("staged", -sizes.pop(number))

    def forget(self, window: str) -> None:
        """Note that a window was deleted."""
        self._budget.hold("staged", -sum(self._sizes.pop(window, {}).values()))


def _mib(count: int) -> str:
    return f"{count / MIB:.1f} MiB"
