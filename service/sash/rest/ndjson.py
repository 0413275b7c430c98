"""Entries as NDJSON: a JSON object a line, as `POST …/insert` takes it.

    {"time": 17, "key": "JFK", "delay": 4.5}
    {"time": 18, "key": "LGA", "delay": -2}

Parts of keys stand beside the time, each by its name, or in the key: `{"time": 17, "carrier": "AA", "delay": 4.5}`.

Cost: 1 µs an entry of three members: a block is parsed as one JSON array, and its columns are taken out together. That
needs lines that all have the same members. Where a block has others, or an error, each line is parsed alone, in 5 µs.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import orjson

from sash.rest.bodies import parse_json
from sash.rest.columns import entry_of, texts
from sash.rest.lines import LineError
from sash.rest.lists import nullable_steps, tick_steps
from sash.rest.scalars import NowNs
from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps, finished
from sash_engine.windows.batches.batch import Batch, Coded, check_key
from sash_engine.windows.batches.values import no_field
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.key_parts import joined

_STEP_LINES = 256
"""Lines of a step, if each line is parsed alone: 1 to 2 ms."""


_COLONS = (b'":', b" :", b"\t:", b"\r:", b"\n:")
"""What a colon behind a name looks like; those in texts mostly look otherwise."""


class NdjsonReader:
    """Reads the lines of one body.

    Args:
        spec: the window's.
        now_ns: tells wall time.
    """

    block_bytes = 65_536

    def __init__(self, spec: WindowSpec, now_ns: NowNs) -> None:
        self._spec = spec
        self._now_ns = now_ns
        self._names = ["time", *(["key"] if spec.keyed else []), *spec.fields]
        self._members = [self._names]
        if spec.parts:
            self._members.append(["time", *spec.parts, *spec.fields])
        if len(spec.fields) == 1 and "value" not in spec.fields:
            self._members += [[*names[:-1], "value"] for names in self._members]  # whatever the field's name is

    def read(self, block: bytes, line: int) -> Steps[Batch]:
        """Parse whole lines; see `LineReader.read`."""
        yield
        columns = self._together(block) if block else None
        if columns is not None:
            try:
                return self._batch(columns)
            except InvalidArgument:
                pass  # find the line
        rows: list[tuple[Any, ...]] = []
        for number, text in enumerate(block.split(b"\n")[:-1], line):
            if text and not text.isspace():
                rows.append(self._row(text, number))
            if number % _STEP_LINES == 0:
                yield
        return self._batch([list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in self._names])

    def _together(self, block: bytes) -> list[Any] | None:
        """Return the columns of a block, unchecked; None if the lines differ, or something is wrong with them.

        The lines become items of an array: ``,`` comes behind each line break. A string cannot contain a line break,
        and each line starts with ``{``. So there is one item for each line, unless a member is a list; `_batch` refuses
        those. The number of colons shows whether an object has a name twice.
        """
        lines = block.count(b"\n")
        if not block.startswith(b"{") or block.count(b"\n{") != lines - 1:
            return None
        try:
            documents = orjson.loads(b"[" + block[:-1].replace(b"\n", b"\n,") + b"]")
        except orjson.JSONDecodeError:
            return None
        if len(documents) != lines or set(map(type, documents)) != {dict}:
            return None
        each = next((names for names in self._members if documents[0].keys() == set(names)), None)
        if each is None or set(map(len, documents)) != {len(each)}:
            return None
        names = lines * len(each)
        if block.count(b":") != names and sum(map(block.count, _COLONS)) != names:
            return None
        try:
            columns: list[Any] = [list(map(itemgetter(name), documents)) for name in each]
            if "key" not in each and self._spec.parts:
                keys = {name: Coded.of(texts(columns.pop(1), name)) for name in self._spec.parts}
                columns.insert(1, joined(keys))
        except (KeyError, InvalidArgument):
            return None
        return columns

    def _row(self, text: bytes, line: int) -> tuple[Any, ...]:
        """Return the values of one entry, checked."""
        try:
            time, fields, key = entry_of(parse_json(text), self._spec, self._now_ns)
            if self._spec.keyed and key is None:
                raise InvalidArgument("key is missing: the window is keyed", field="key")
            if key is not None:
                check_key(key)
                if not self._spec.keyed:
                    raise InvalidArgument(f"window {self._spec.name!r} is not keyed", field="key")
            for name in fields:
                if name not in self._spec.fields:
                    raise no_field(self._spec.name, name, self._spec.fields)
            for name in self._spec.fields:
                if name not in fields and name not in (self._spec.nullable or ()):
                    raise InvalidArgument(f"field {name!r} is missing", field=name)
        except InvalidArgument as error:
            raise LineError.of(line, error) from None
        return (time, *([key] if self._spec.keyed else []), *(fields.get(name) for name in self._spec.fields))

    def _batch(self, columns: list[Any]) -> Batch:
        """Return the columns as a batch; raises InvalidArgument if a value is of another type."""
        by_name = dict(zip(self._names, columns, strict=True))
        times = finished(tick_steps(by_name.pop("time"), "time", self._spec.time_unit, self._now_ns))
        keys = None
        if self._spec.keyed:
            given = by_name.pop("key")
            keys = given if isinstance(given, Coded) else Coded.of(texts(given, "key"))
            for key in keys.dictionary:
                check_key(key)
        fields: dict[str, Any] = {}
        for name, values in by_name.items():
            fields |= finished(nullable_steps(values, self._spec, name))
        return Batch(times, fields, keys)
