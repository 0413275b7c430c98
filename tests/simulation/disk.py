"""A disk, and the tier that a process has on it: commits are all or nothing, and durable when they are synced.

commit   ──▶ written ──▶ synced ──▶ answered          a loss of power takes what is not synced, from some commit on
           ▲           ▲          ▲
           faults: refused, full, lost, dead, torn at any of these

A disk that misdirects writes a value of such a commit in the place of another one, or nowhere.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sash_engine.errors import FailedPrecondition, OutOfRoom, Unavailable
from tests.simulation.loop import Killed

Values = dict[bytes, bytes]

COMMIT_FAULTS = ("refused", "full", "answer lost", "sync failed", "dies before", "dies unsynced", "dies after")
"""What can happen to a commit."""


COMMITS_OF = frozenset(("pointer", "meta", "staged", "block", "deletes"))
"""What commits are about that are rare, and have faults of their own."""


class Disk:
    """Values that outlive processes; what is not synced may be lost with the power.

    Attributes:
        synced: the values that survive everything.
        unsynced: commits that a process sees and the disk has not, in order.
        faults: by number of a commit over all time: what happens to it.
        faults_of: the same by what a commit is about (a kind of key, or "deletes"), and its number among those.
        failing_reads: numbers of reads that fail.
        misdirects: whether the next loss of power leaves a value of an unsynced commit in a wrong place.
        misdirected: how that came out; None while it has not happened.
        synchronous: whether a commit is synced before it is answered. False: a planted fault.
    """

    def __init__(self) -> None:
        self.synced: Values = {}
        self.unsynced: list[tuple[Values, list[bytes]]] = []
        self.values: Values = {}
        self.owner: DiskTier | None = None
        self.faults: dict[int, str] = {}
        self.faults_of: dict[tuple[str, int], str] = {}
        self.failing_reads: set[int] = set()
        self.misdirects = False
        self.misdirected: str | None = None
        self.synchronous = True
        self.commits = 0
        self.commits_of: Counter[str] = Counter()
        self.reads = 0
        self.met: Counter[str] = Counter()

    def lose_power(self, draw: random.Random) -> int:
        """Lose what is not synced, from a commit on that is drawn; return how many commits are lost."""
        kept = draw.randint(0, len(self.unsynced)) if not self.misdirects else len(self.unsynced)
        lost = len(self.unsynced) - kept
        for puts, deletes in self.unsynced[:kept]:
            before = dict(self.synced)
            _apply(self.synced, puts, deletes)
        if self.misdirects and kept and puts:
            self._misdirect(before, puts, draw)
        self.unsynced.clear()
        self.values = dict(self.synced)
        return lost

    def _misdirect(self, before: Values, puts: Values, draw: random.Random) -> None:
        """Write one of these in the place of another value, or in a free place; its own keeps what it had."""
        key, other = _drawn(puts, draw), _drawn(self.synced.keys() - puts, draw)
        self.synced.pop(key)
        if key in before:
            self.synced[key] = before[key]
        if other is not None and draw.random() < 0.8:
            self.synced[other] = puts[key]
        else:
            other = None
        self.misdirects = False
        self.misdirected = f"{_kind(key)} over {'nothing' if other is None else _kind(other)}"
        self.met[f"misdirected | {self.misdirected}"] += 1

    def sync(self) -> None:
        """Make everything survive that was written."""
        for puts, deletes in self.unsynced:
            _apply(self.synced, puts, deletes)
        self.unsynced.clear()

    @property
    def digest(self) -> str:
        """Of all values."""
        found = hashlib.blake2b(digest_size=8)
        for key in sorted(self.values):
            found.update(key + b"\0" + self.values[key] + b"\0")
        return found.hexdigest()


class DiskTier:
    """A `ColdTier` on a disk, for one process.

    Args:
        disk: the disk.
        die: kills the process.
        note: is told what happens.
    """

    name = "disk"
    healthy = True
    limit_bytes = None

    def __init__(self, disk: Disk, die: Callable[[bool], None], note: Callable[[str], None]) -> None:
        self._disk, self._die, self._note = disk, die, note

    @property
    def used_bytes(self) -> int:
        return 0

    def acquire(self) -> None:
        if self._disk.owner is not None:
            raise FailedPrecondition("another process has the disk", field="data")
        self._disk.owner = self

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        disk = self._disk
        self._check_owner()
        disk.reads += 1
        if disk.reads in disk.failing_reads:
            self._met("read failed", keys[0] if keys else b"")
            raise Unavailable("the disk cannot be read", retry_after_s=1.0)
        return [disk.values.get(key) for key in keys]

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        pass

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        disk, values, gone = self._disk, dict(puts), list(deletes)
        assert values.keys().isdisjoint(gone), "a key is both put and deleted"
        self._check_owner()
        disk.commits += 1
        fault = disk.faults.get(disk.commits)
        kinds = {_kind(key) for key in values}
        for kind in COMMITS_OF & (kinds | ({"deletes"} if gone and "group" not in kinds else set())):
            disk.commits_of[kind] += 1
            fault = disk.faults_of.get((kind, disk.commits_of[kind]), fault)
        self._note(f"commit {disk.commits} of {_kinds(values, gone)}{f': {fault}' if fault else ''}")
        if fault is not None:
            self._met(fault, b" ".join(sorted(values)))
        if fault == "refused":
            raise Unavailable("the disk failed (EIO)", retry_after_s=1.0)
        if fault == "full":
            raise OutOfRoom("the disk is full", field="data", limit="the disk")
        if fault == "dies before":
            self._die(False)
            raise Killed
        disk.unsynced.append((values, gone))
        _apply(disk.values, values, gone)
        if fault == "dies unsynced":
            self._die(True)
            raise Killed
        if fault == "sync failed":
            raise Unavailable("the disk could not be synced (EIO)", retry_after_s=1.0)
        if disk.synchronous:
            disk.sync()
        if fault == "dies after":
            self._die(True)
            raise Killed
        if fault == "answer lost":
            raise Unavailable("the disk does not answer", retry_after_s=1.0)

    def close(self) -> None:
        if self._disk.owner is self:
            self._disk.owner = None

    def _check_owner(self) -> None:
        if self._disk.owner is not self:
            raise FailedPrecondition("this process does not have the disk (any more)")

    def _met(self, fault: str, keys: bytes) -> None:
        self._disk.met[f"{fault} | {_of_keys(keys.split())}"] += 1


def _apply(values: Values, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
    for key in deletes:
        values.pop(key, None)
    values.update(puts)


def _drawn(keys: Iterable[bytes], draw: random.Random) -> Any:
    """One of the keys, of a kind that is drawn; None of none."""
    kinds: dict[str, list[bytes]] = {}
    for key in sorted(keys):
        kinds.setdefault(_kind(key), []).append(key)
    return draw.choice(kinds[draw.choice([*kinds])]) if kinds else None


def _kind(key: bytes) -> str:
    """What a key is for."""
    kind, _, rest = key.decode().partition("/")
    return "group" if kind == "journal" and rest not in ("", "last") else kind


def _of_keys(keys: Iterable[bytes]) -> str:
    return " ".join(sorted({_kind(key) for key in keys})) or "nothing"


def _kinds(puts: Mapping[bytes, bytes], deletes: Sequence[bytes]) -> str:
    content = hashlib.blake2b(b"".join(key + puts[key] for key in sorted(puts)), digest_size=4).hexdigest()
    return f"{_of_keys(puts)}; deletes {len(deletes)} {content}"
