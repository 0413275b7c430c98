"""What a process asks of its files, noted by strace."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

PAGE = 4096
IGNORED = ("lock.mdb",)
"""LMDB's table of readers: the first process that finds it unused makes it anew."""
TRACED = "trace=openat,lseek,pwrite64,pwritev,write,writev,fsync,fdatasync,ftruncate,rename,renameat,renameat2"


@dataclass(slots=True)
class Event:
    """One call, as it ended.

    Attributes:
        kind: "write", "size", "sync", "name" (a file was created), "move" or "ack".
        path: of what.
        to: of a move, where to.
        at, data: of a write; of "size" the new one.
        synced: it is a write that has reached the disk when it ends.
        began: of a sync: number of events before it began. It covers what ended before.
    """

    kind: str
    path: str
    at: int = 0
    data: bytes = b""
    synced: bool = False
    began: int = 0
    to: str = ""

    @property
    def pages(self) -> range:
        """Of a write to the values, which pages it writes."""
        if self.kind != "write" or self.path != "data.mdb":
            return range(0)
        return range(self.at // PAGE, -(-(self.at + len(self.data)) // PAGE))

    def without(self, page: int) -> list[Event]:
        """A write to the values that leaves one page as it was."""
        first, last = page * PAGE - self.at, (page + 1) * PAGE - self.at
        before, behind = self.data[: max(first, 0)], self.data[last:]
        return [Event("write", self.path, self.at, before), Event("write", self.path, self.at + last, behind)]


_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>)?(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\) += (\d+)(?:<(.*)>)?$")
_FILE = re.compile(r"(\d+)<([^>]*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def events_of(lines: Iterator[str], root: str, acks: str) -> Iterator[Event]:
    begun: dict[str, tuple[str, int]] = {}
    opened = _Opened()
    number = 0
    for line in lines:
        found = _LINE.match(line.rstrip("\n"))
        assert found is not None, line[:200]
        thread, resumed, text = found.groups()
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>"), number
            continue
        began = number
        if resumed:
            head, began = begun.pop(thread)
            text = head + text
        call = _CALL.match(text.strip())
        if call is None:  # it failed, or is the end of the process
            continue
        for event in opened.events(*call.groups()):
            if event.path == acks and event.kind == "write":
                event.kind, event.path = "ack", ""
            elif not (event.path + "/").startswith(root + "/") or event.path.endswith(IGNORED):
                continue
            event.path, event.to = (os.path.relpath(each, root) if each else "" for each in (event.path, event.to))
            event.began = began
            yield event
            number += 1


class _Opened:
    """What is known of open files: which of them sync with every write, and where they are written to next."""

    def __init__(self) -> None:
        self._synced: set[tuple[str, str]] = set()
        self._at: dict[tuple[str, str], int] = {}

    def events(self, name: str, arguments: str, result: str, opened: str | None) -> Iterator[Event]:
        """What a call did."""
        if name.startswith("rename"):
            path, to = map(_text, _TEXT.findall(arguments))
            yield Event("move", path, to=to)
            return
        if name == "openat":
            path = _text(opened or "")
            file = result, path
            if "O_DIRECTORY" in arguments:
                return
            (self._synced.add if "O_DSYNC" in arguments else self._synced.discard)(file)
            self._at[file] = 0
            if "O_CREAT" in arguments:
                yield Event("name", path)
            return
        found = _FILE.match(arguments)
        if found is None:
            return
        path = _text(found[2])
        file = found[1], path
        if name in ("fsync", "fdatasync"):
            yield Event("sync", path)
        elif name == "ftruncate":
            yield Event("size", path, int(arguments.rsplit(",", 1)[1]))
        elif name == "lseek":
            self._at[file] = int(result)
        else:
            data = b"".join(_text(each).encode("latin-1") for each in _TEXT.findall(arguments))
            assert len(data) == int(result), f"{name} of {len(data)} bytes wrote {result}"
            if name in ("write", "writev"):
                at = self._at.get(file, 0)
                self._at[file] = at + len(data)
            else:
                at = int(arguments.rsplit(",", 1)[1])
            yield Event("write", path, at, data, file in self._synced)


def _text(escaped: str) -> str:
    return bytes.fromhex(escaped.replace("\\x", "")).decode("latin-1")
