"""Losses of power, as a disk would be found after them: what was acknowledged must be there, once.

    record     a storage in a process of its own, over LMDB, while strace notes what it asks of its files
               write 40960..45056 │ write 8192..12288 │ sync │ write 0..120, synced │ "a 17" │ write …
                                                                                              ^ writer "a" was answered
    lose       cut the record anywhere; keep what was synced before; of the rest keep, drop or tear each write
    look       start a storage on what is left; do again what was not answered; compare every answer

Of what was not synced a disk may keep any sectors of 512 bytes, of an overwritten one any version. A file whose name
was not synced may be missing.

Then the disk lies: it keeps everything but one page, which it had said to have synced. The right answers are not always
to be had then. What matters is that no answer is a wrong one.

Run ``python -m tests.crash.power --losses 200``.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.runtime.clock import SystemClock
from sash.tiers.lmdb import LmdbTier
from sash_engine.errors import DataLoss, Unavailable
from tests.crash.disk import WRITERS, Disk
from tests.crash.steps import Writer, create_windows
from tests.crash.trace import TRACED, Event, events_of

_LOSSES_PER_RECORD = 50
_BEGINNING = 40
"""A tenth of the losses come within so many events, in which everything is there for the first time."""
_SAID = 3
"""Status of a process that found that something was lost, and was told so."""

OPTIONS = {"cache_bytes": 40_000, "checkpoint_bytes": 30_000, "store_entries": 500, "block": 64}


def missing() -> str | None:
    """Why no losses can be reconstructed here; None where they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-f", "-qq", "--seccomp-bpf", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"strace does not work here: {tried.stderr.strip()}"


# ---------------------------------------------------------------- what is recorded


def storage_at(path: Path) -> Storage:
    """A storage with tiny limits, so that it seals, stores, checkpoints and cuts its journal all the time."""
    return Storage(Catalogue(), SystemClock(), LmdbTier(path), **OPTIONS)  # type: ignore[arg-type]


async def work(path: Path, acks: int, steps: int, lives: int) -> None:
    """Write with several writers at a time, and say of each step that it was answered; stop and start in between."""
    writers = [Writer(name) for name in WRITERS]
    for life in range(lives):
        storage = storage_at(path)
        await storage.start()
        await create_windows(storage)

        async def write(writer: Writer, first: int, storage: Storage = storage) -> None:
            for number in range(first, first + steps):
                await writer.do(storage, writer.next())
                os.write(acks, f"{writer.name} {number}\n".encode())

        await asyncio.gather(*[write(writer, life * steps + 1) for writer in writers])
        await storage.stop()


def record(path: Path, steps: int, lives: int) -> list[Event]:
    """Let the work be done in a process of its own at `path`; what it asked of its files."""
    with tempfile.TemporaryDirectory(prefix="sash-trace-") as place:
        log = Path(place) / "trace"
        trace = ["strace", "-f", "-qq", "-y", "--seccomp-bpf", "-xx", "-s", str(2**26), "-o", log, "-e", TRACED]
        child = [sys.executable, "-m", "tests.crash.power", "--work", path, "--acks", Path(place) / "acks"]
        subprocess.run([*trace, *child, "--steps", str(steps), "--lives", str(lives)], check=True)
        with open(log, encoding="ascii") as lines:
            events = list(events_of(lines, str(path), str(Path(place) / "acks")))
    disk = Disk(events)
    for name, file in disk.files.items():
        file.sync(len(events))
        assert file.content == (path / name).read_bytes(), f"not all that was written to {name} is recorded"
    assert disk.acks == dict.fromkeys(WRITERS, lives * steps), "not all answers are recorded"
    return events


# ---------------------------------------------------------------- what is found


@dataclass(slots=True)
class Report:
    """What a run did.

    Attributes:
        losses: of power.
        torn: those with writes that were not synced.
        steps: that were answered before.
    """

    losses: int = 0
    torn: int = 0
    steps: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.losses} losses of power, {self.torn} of them with writes that were not synced, after {self.steps} "
            f"steps that were answered; {self.seconds:.0f} s in all"
        )


async def look(path: Path, acks: Mapping[str, int]) -> None:
    """Start on what is left; everything that was answered must be there, and all else can be done again."""
    storage = storage_at(path)
    await storage.start()
    try:
        await create_windows(storage)
        for name, answered in acks.items():
            writer = _after(name, answered)
            # The next step was under way, and may be there or not: done again, it is there once.
            step = writer.next()
            await writer.do(storage, step)
            writer.done(step)
            writer.check(storage)
    finally:
        await storage.stop()


async def look_closely(path: Path, acks: Mapping[str, int]) -> bool:
    """Start on what a disk kept that lost a write; whether all is there. What is not there must be said to be lost."""
    storage, whole = storage_at(path), True
    try:
        await storage.start()
    except DataLoss:
        return False
    for name, answered in acks.items():
        writer = _after(name, answered)
        for check in writer.checks(storage):
            try:
                check()
            except DataLoss:
                whole = False
        try:
            await writer.do(storage, writer.next())
        except DataLoss:
            whole = False
        except Unavailable as error:  # what damages a commit is found when the write is applied already
            if "is damaged" not in error.message:
                raise
            whole = False
    return whole


def _after(name: str, steps: int) -> Writer:
    """A writer that has done so many steps."""
    writer = Writer(name)
    for _ in range(steps):
        writer.done(writer.next())
    return writer


def lose_power(losses: int, seed: int = 0, steps: int = 40, lives: int = 2) -> Report:
    """Reconstruct so many losses of power; raises AssertionError where an answer is wrong."""
    report, chance, began = Report(), random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sash-power-") as place:
        events: list[Event] = []
        for loss in range(losses):
            if loss % _LOSSES_PER_RECORD == 0:
                events = record(Path(place) / f"recorded {loss}", steps, lives)
            cut = chance.randrange(len(events) + 1 if chance.random() < 0.9 else _BEGINNING)
            disk = Disk(events[:cut])
            report.torn += any(file.loose for file in disk.files.values())
            report.steps += sum(disk.acks.values())
            disk.tear(chance)
            path = Path(place) / f"left {loss}"
            disk.write(path)
            try:
                asyncio.run(look(path, disk.acks))
            except BaseException as error:
                error.add_note(f"loss {loss} of seed {seed}, cut behind event {cut} of {len(events)}: {_kept(path)}")
                raise
            shutil.rmtree(path)
            report.losses += 1
    report.seconds = time.monotonic() - began
    return report


def lose_writes(losses: int, seed: int = 0, steps: int = 40, lives: int = 2) -> collections.Counter[str]:
    """Have a disk lose a write that it said to have synced, so many times; raises AssertionError for a wrong answer.

    Returns:
        how often everything was there, how often what was not was said to be lost, and how often the process died:
        LMDB trusts its pages.
    """
    found: collections.Counter[str] = collections.Counter()
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="sash-lost-") as place:
        events = record(Path(place) / "recorded", steps, lives)
        # When all writers had just been answered: then nothing is under way.
        cut = max(i for i, event in enumerate(events, 1) if event.kind == "ack")
        last = {page: i for i, event in enumerate(events[:cut]) for page in event.pages}
        for loss in range(losses):
            page = chance.choice([page for page in last if page > 1])  # the first two are written anew by each commit
            disk = Disk([*events[: last[page]], *events[last[page]].without(page), *events[last[page] + 1 : cut]])
            path = Path(place) / f"left {loss}"
            for file in disk.files.values():
                file.sync(cut + 1)
            disk.write(path)
            looking = [sys.executable, "-m", "tests.crash.power", "--look", path, "--acks", json.dumps(disk.acks)]
            done = subprocess.run(looking, capture_output=True, text=True)
            assert done.returncode in (0, _SAID, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS), (
                f"loss {loss} of seed {seed}, of page {page}: {done.stderr}; see {_kept(path)}"
            )
            found["whole" if not done.returncode else "said" if done.returncode == _SAID else "died"] += 1
            shutil.rmtree(path)
    return found


def _kept(path: Path) -> Path:
    """A copy of what was found, to look into it."""
    return Path(shutil.copytree(path, Path(tempfile.mkdtemp(prefix="sash-power-failed-")) / "data"))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.power", description="Lose power, often.")
    parser.add_argument("--losses", type=int, default=200, help="of power (%(default)s)")
    parser.add_argument("--lost", type=int, default=50, help="writes that the disk loses (%(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFF, help="where (random)")
    parser.add_argument("--steps", type=int, default=40, help="of each writer, in each life (%(default)s)")
    parser.add_argument("--lives", type=int, default=2, help="of the storage (%(default)s)")
    for used_here in ("--work", "--look", "--acks"):
        parser.add_argument(used_here, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        acks = os.open(options.acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        asyncio.run(work(Path(options.work), acks, options.steps, options.lives))
    elif options.look:
        whole = asyncio.run(look_closely(Path(options.look), json.loads(options.acks)))
        os._exit(0 if whole else _SAID)  # what the disk does not take any more is not waited for
    elif why := missing():
        sys.exit(f"no loss of power can be reconstructed: {why}")
    else:
        print(f"seed {options.seed}: ", end="", flush=True)
        print(lose_power(options.losses, options.seed, options.steps, options.lives), flush=True)
        found = lose_writes(options.lost, options.seed, options.steps, options.lives)
        print(
            f"{options.lost} writes lost by the disk: " + ", ".join(f"{found[key]} {key}" for key in found), flush=True
        )


if __name__ == "__main__":
    main()
