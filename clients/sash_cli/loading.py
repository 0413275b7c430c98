"""Loads files of entries into a window, each row once.

    file ──▶ chunks 1, 2, 3, …  ──▶ bulk-insert, with a producer's name and the chunk's number

The service has the number of the last chunk. So the command goes on where it was stopped, and a second run changes
nothing. The service also has digests of the first chunk and of the last ones. The command sends these again, so that a
file that has changed is refused.

With `--history` every row must be older than the slide, as it is when the command begins. So no key gets an entry that
moves its now into the slide. Rows from a time on are left out with `--before`. The rows of each key are put together
before they are sent, see `load_files.by_key`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from sash_cli.load_files import Chunk, Mapped
from sash_cli.output import fail
from sash_cli.wrong_rows import BadRows, WrongFile
from sash_client import FailedPrecondition, Window, WriteResult
from sash_client.data.times import TimeLike, to_tick, to_ticks
from sash_wire.documents import read_yaml
from sash_wire.durations import NANOSECONDS, parse_duration
from sash_wire.errors import WireError
from sash_wire.mapping import quoted, source_of, sources

_OTHERWISE = "To load it beside what is there, give another name: --producer"
_CHECKED = 127
"""So many of the last chunks are sent again: the service keeps the digests of a producer's last 128 writes."""


@dataclass(frozen=True)
class Past:
    """Which rows `--history` takes.

    Args:
        unit: the window's time unit.
        before: rows of this time and later are left out; None: none are.
        through: rows of this time and older are older than the slide; None: the window has no now yet.
    """

    unit: str
    before: int | None
    through: int | None

    def of(self, table: Any) -> Any:
        """The rows of a table that are not left out."""
        if self.before is None:
            return table
        taken = to_ticks(table["time"], self.unit) < self.before
        return table if taken.all() else table.filter(taken)

    def check(self, table: Any) -> None:
        """Check that all rows are older than the slide; raises WrongFile."""
        if self.through is not None and table.num_rows:
            newest = int(to_ticks(table["time"], self.unit).max())
            if newest > self.through:
                raise WrongFile(
                    f"a row is of {newest}, and the slide begins behind {self.through}: --before {self.through + 1} "
                    "leaves out what is in the slide; without --history all rows are loaded"
                )


class Load:
    """One sequence of chunks, under one producer's name.

    Args:
        window: where they go.
        producer: the name.
        mapped: where the window's columns come from.
        bad: what becomes of wrong rows.
        past: which rows are taken; None: all.
    """

    def __init__(self, window: Window, producer: str, mapped: Mapped, bad: BadRows, past: Past | None = None) -> None:
        self._window, self._producer, self._mapped, self._bad = window, producer, mapped, bad
        self._past = past
        self.file = ""
        """The file that is being read."""
        self.rows = 0
        """Rows read so far."""
        self._before = 0
        self._rejected = 0
        self._left_out = 0
        self._result = WriteResult()

    def chunks(self, files: Sequence[tuple[str, str]]) -> Iterator[tuple[float | None, str]]:
        """Load files, with their formats, as one sequence; yield after each chunk.

        Yields:
            how much of the file has been read, and the file.

        Raises:
            SashClientError: a chunk is refused.
            WrongFile: a file cannot be read, or is not the one that was loaded before.
        """
        from sash_cli.load_files import by_key, chunks

        self.file = files[0][0]
        next_ = self._window.last_write(self._producer).number + 1
        number = 0
        for self.file, kind in files:
            found = chunks(self.file, kind, self._mapped, self._bad)
            for chunk in by_key(found) if self._past is not None and "key" in self._mapped.types else found:
                if not chunk.rows:
                    yield chunk.done, self.file
                    continue
                number += 1
                if self._past is not None and number >= next_:
                    self._past.check(self._past.of(chunk.table))
                if number == 1 or number >= next_ - _CHECKED:
                    self._send(chunk, number)
                else:
                    self._before += chunk.rows
                self.rows += chunk.rows
                yield chunk.done, self.file
        if number < next_ - 1:
            raise WrongFile(
                f"{next_ - 1} chunks of it were loaded before, and it has {number}: it has changed. {_OTHERWISE}"
            )

    def summary(self) -> str:
        """Say what has become of the rows."""
        done = self._result
        counts = {
            "inserted": done.inserted,
            "evicted": done.evicted,
            "late": done.late,
            "duplicates": done.duplicates,
            "too far ahead": done.ahead,
            "rejected": self._rejected,
            "loaded before": self._before,
        }
        if self._past is not None:
            counts["left out"] = self._left_out
        if done.history:
            counts["only in the history"] = done.history
        return f"{self.file}: {self.rows:,} rows: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())

    def _send(self, chunk: Chunk, number: int) -> None:
        table = chunk.table if self._past is None else self._past.of(chunk.table)
        try:
            done = self._window.bulk_insert(table, time="time", producer=self._producer, sequence=number)
        except FailedPrecondition as error:
            if error.reason != "SEQUENCE_REUSED":
                raise
            raise WrongFile(
                f"chunk {number} was loaded before, with other data: the file or an option has changed. {_OTHERWISE}"
            ) from None
        assert done.sequences == 1  # a chunk is one message
        if done.already_applied:
            self._before += chunk.rows
        else:
            self._rejected += chunk.rows - chunk.table.num_rows
            self._left_out += chunk.table.num_rows - table.num_rows
            self._result += done


def producer_of(file: str) -> str:
    """The producer's name of a file: that of its path. Standard input has a new one each time."""
    if file == "-":
        return f"load - {uuid4().hex}"
    path = Path(file).resolve()
    return f"load {re.sub('[^A-Za-z0-9_.-]', '_', path.name)[:80]} {sha256(bytes(path)).hexdigest()[:16]}"


def past_of(window: Window, before: TimeLike | None) -> Past:
    """Which rows belong to the history of a window; ends with a message where it takes none."""
    info = window.describe()
    spec, slide = info.spec, info.spec.get("slide", {})
    unit = spec.get("time_unit", "us")
    if not spec.get("history"):
        fail(f"window {window.name} has no history: its spec says how long it keeps what is older than the slide")
    if info.punctuated is not None:
        fail(f"window {window.name} is final through {info.punctuated}: older entries would be late")
    now = time.time_ns() // NANOSECONDS[unit] if slide.get("clock") == "wall" else info.high_water_mark
    through = None if now is None else now - parse_duration(slide["max_age"], unit, "slide.max_age")
    return Past(unit, None if before is None else to_tick(before, unit, "--before"), through)


def mapped_of(
    window: Window,
    file: Path | None,
    time: str | None,
    key: str | None,
    fields: Sequence[str],
    parts: Sequence[str],
) -> Mapped:
    spec = window.spec
    if key is not None and not spec["keyed"]:
        fail(f"window {window.name} is not keyed; leave out --key")
    named = _given("--field", "a field", fields, sorted(spec["fields"]))
    of_keys = _given("--part", "a part of keys", parts, spec.get("keys") or ())
    written = _read(file) if file is not None else {}
    key = quoted(key) if key is not None else None if of_keys else written.get("key")
    of_keys = (written.get("parts") or {}) | of_keys if key is None else {}
    if spec["keyed"] and key is None and not of_keys and "parts" not in written:
        key = "key"
    try:
        found = sources(
            spec,
            written.get("time", "time") if time is None else quoted(time),
            key,
            of_keys if key is None and spec.get("keys") else None,
            (written.get("fields") or {}) | named,
        )
        columns = {"time": source_of(found.time, "time")}
        columns |= {name: source_of(text, f"parts.{name}") for name, text in found.parts.items()}
        if found.key is not None:
            columns["key"] = source_of(found.key, "key")
        columns |= {name: source_of(text, f"fields.{name}") for name, text in sorted(found.fields.items())}
    except WireError as error:
        fail(error.message)
    for name, source in columns.items():
        if len(source.path) > 1 or (source.unit is not None and name != "time"):
            fail(f"{name}: {source} is no column; a file has columns")
    kinds = {name: "string" for name in columns if name == "key" or name in found.parts} | spec["fields"]
    return Mapped(
        {name: kinds[name] for name in columns if name != "time"},
        {name: source.path[0] for name, source in columns.items()},
        frozenset(spec.get("nullable") or ()),
        columns["time"].unit,
        spec["time_unit"],
        frozenset(columns) - {"time", *spec["fields"]},
    )


def _given(option: str, what: str, given: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Read options of the form NAME=COLUMN."""
    found = {}
    for each in given:
        name, equals, column = each.partition("=")
        if not equals or name not in known:
            kind = option[2:].upper()
            fail(f"{option} {each}: write {kind}=COLUMN, with {what} of the window: {', '.join(known)}")
        found[name] = quoted(column)
    return found


def _read(file: Path) -> dict[str, Any]:
    """Read a mapping: the members of a pipeline's document that `sources` takes."""
    try:
        document = read_yaml(file.read_text(), str(file))
    except WireError as error:
        fail(error.message)
    except UnicodeDecodeError as error:
        fail(f"{file} is not UTF-8: {error}")
    wanted: dict[str, type] = {"time": str, "key": str, "parts": dict, "fields": dict}
    if not isinstance(document, dict):
        fail(f"{file}: write a mapping with time, key, parts and fields")
    for name, value in document.items():
        if name not in wanted or not isinstance(value, wanted[name]):
            fail(f"{file}: {name}: write time and key as texts, parts and fields as mappings")
        if isinstance(value, dict) and not all(isinstance(each, str) for each in (*value, *value.values())):
            fail(f"{file}: {name}: write a text for each name")
    return document
