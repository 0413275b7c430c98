"""A disk as a loss of power leaves it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.trace import Event

SECTOR = 512
WRITERS = "abc"


@dataclass(slots=True)
class _File:
    """A file, as it would be found.

    Attributes:
        content: what was synced.
        loose: writes and sizes that were not.
        named: whether its name was synced.
    """

    content: bytearray = field(default_factory=bytearray)
    loose: list[tuple[int, Event]] = field(default_factory=list)
    named: bool = False

    def settle(self, event: Event) -> None:
        if event.kind == "size":
            del self.content[event.at :]
            self.content.extend(bytes(event.at - len(self.content)))
        else:
            self.content.extend(bytes(max(0, event.at + len(event.data) - len(self.content))))
            self.content[event.at : event.at + len(event.data)] = event.data

    def sync(self, before: int) -> None:
        """What ended before event `before` is on the disk."""
        for _, event in [each for each in self.loose if each[0] < before]:
            self.settle(event)
        self.loose = [each for each in self.loose if each[0] >= before]

    def tear(self, chance: random.Random) -> None:
        """Lose power: of each loose write all, nothing or some sectors reach the disk."""
        mood = chance.choice(("all", "none", "some", "some"))
        for _, event in self.loose:
            if event.kind == "size" or mood in ("all", "none"):
                if mood == "all" or (mood == "some" and chance.random() < 0.5):
                    self.settle(event)
                continue
            share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
            at = event.at
            while at < event.at + len(event.data):
                stop = min((at // SECTOR + 1) * SECTOR, event.at + len(event.data))
                if chance.random() < share:
                    self.settle(Event("write", "", at, event.data[at - event.at : stop - event.at]))
                at = stop


class Disk:
    """The files of a directory, as events change them."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.files: dict[str, _File] = {}
        self.acks: dict[str, int] = dict.fromkeys(WRITERS, 0)
        for number, event in enumerate(events):
            self._apply(number, event)

    def _apply(self, number: int, event: Event) -> None:
        """An event has ended."""
        if event.kind == "ack":
            name, step = event.data.decode().split()
            self.acks[name] = int(step)
        elif event.kind == "name":
            self._file(event.path)
        elif event.kind == "move":
            self.files[event.to] = self.files.pop(event.path)
            self.files[event.to].named = False
        elif event.kind == "sync":
            for name, file in self.files.items():
                file.named |= os.path.dirname(name) == event.path.rstrip(".")
            if event.path in self.files:
                self.files[event.path].sync(event.began)
        else:
            file = self._file(event.path)
            file.loose.append((number, event))
            if event.synced:
                file.loose.pop()
                file.settle(event)

    def _file(self, name: str) -> _File:
        return self.files.setdefault(name, _File())

    def tear(self, chance: random.Random) -> None:
        """Lose power."""
        for name in [name for name, file in self.files.items() if not file.named]:
            if chance.random() < 0.5:
                del self.files[name]
        for file in self.files.values():
            file.tear(chance)

    def write(self, path: Path) -> None:
        """Make a directory of it."""
        path.mkdir()
        for name, file in self.files.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(file.content)
