"""How much memory the service may use, and who is refused when it is nearly used up.

    0 ────────────────────────────── 90 % ──────── limit
    │ used (asked of the system)  + promised  + needed │
                                     │           └ what this call would add, by an estimate from above
                                     └ what requests under way may still add: bodies that have not arrived

Estimates of what windows take would drift, so the system is asked: at most every 100 ms, and again before a refusal.
What was admitted since then is counted by its estimate. Only what adds entries or brings large bodies is refused:
evictions, deletes and questions with small answers go on.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from sash_engine.errors import OutOfRoom, ResourceExhausted, TooLarge

__all__ = ["SHARE", "MemoryBudget", "Reservation", "StagedBytes", "available_bytes", "unlimited", "used_bytes"]

MIB = 2**20

FULL = 0.9
"""Of the limit. The rest is for evictions, small requests, and what estimates miss."""

SHARE = 0.8
"""Of the machine's memory, where no limit is set."""

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
    """Memory that one request may still take; `release` gives back what is left."""

    __slots__ = ("_budget", "_held", "_part", "promised")

    def __init__(self, budget: MemoryBudget, part: str) -> None:
        self._budget = budget
        self._part = part
        self._held = 0
        self.promised = 0

    def take(self, promised: int, held: int = 0) -> None:
        """Promise so many bytes more, of which `held` count for the part; raises as `MemoryBudget.check`."""
        self._budget.check_part(self._part, held)
        self._budget.check(promised + self.promised, transient=True)
        self.promised += promised
        self._held += held
        self._budget.promise(promised)
        self._budget.hold(self._part, held)

    def arrived(self, count: int) -> None:
        """So many bytes are in memory now; the system counts them from now on."""
        count = min(count, self.promised)
        self.promised -= count
        self._budget.promise(-count)

    def release(self) -> None:
        """Give everything back."""
        self._budget.promise(-self.promised)
        self._budget.hold(self._part, -self._held)
        self.promised = self._held = 0
        if _mine.get() is self:
            _mine.set(None)


_mine: ContextVar[Reservation | None] = ContextVar("reservation", default=None)
"""The reservation of the request that is served: what it promised is not counted against its own writes."""


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
        self._full_bytes = int(limit_bytes * FULL)
        self._parts_max = dict(parts_max or {})
        self._ask = used
        self._monotonic_s = monotonic_s
        self._asked_s = float("-inf")
        self._used = 0
        self._admitted = 0  # since the system was asked
        self._promised = 0
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

    def problem(self) -> str | None:
        """Why new entries are refused; None where they are taken."""
        if self.used <= self._full_bytes:
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
        promised = self._promised - (0 if mine is None else mine.promised)
        if self._used + self._admitted + promised + needed > self._full_bytes:
            self._sample(now_s)
            if self._used + promised + needed > self._full_bytes:
                raise self._refusal(needed, promised, transient)
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

    def hold(self, part: str, count: int) -> None:
        """Note that a part holds so many bytes more, or fewer."""
        self._held[part] += count

    def promise(self, count: int) -> None:
        """Note that requests under way may take so many bytes more, or fewer."""
        self._promised += count

    @contextmanager
    def promised(self, count: int) -> Iterator[None]:
        """Promise so many bytes inside the `with` block."""
        self.promise(count)
        try:
            yield
        finally:
            self.promise(-count)

    def reservation(self, part: str) -> Reservation:
        """A reservation for the request that this task serves, to be released at its end."""
        made = Reservation(self, part)
        _mine.set(made)
        return made

    @property
    def _limit(self) -> str:
        return f"SASH_MEMORY_BYTES: {_mib(self.limit_bytes)}"

    def _sample(self, now_s: float) -> None:
        self._asked_s, self._used, self._admitted = now_s, self._ask(), 0

    def _refusal(self, needed: int, promised: int, transient: bool) -> ResourceExhausted | TooLarge:
        if needed > self._full_bytes:
            return TooLarge(
                f"this takes up to {_mib(needed)} of memory, more than the service ever has: send it in parts",
                field="body",
                limit=self._limit,
            )
        kind = ResourceExhausted if transient else OutOfRoom
        way_out = "" if transient else "; evict entries or delete windows"
        return kind(
            f"this takes up to {_mib(needed)} of memory; the service uses {_mib(self._used)}, has promised "
            f"{_mib(promised)} to requests under way, and fills no more than {FULL:.0%} of its limit{way_out}",
            field="memory",
            limit=self._limit,
            retry_after_s=1.0,
        )


def unlimited() -> MemoryBudget:
    """A budget that refuses nothing."""
    return MemoryBudget(sys.maxsize, {"bodies": (sys.maxsize, ""), "staged": (sys.maxsize, "")}, used=lambda: 0)


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
