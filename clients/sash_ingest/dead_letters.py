"""Records that do not fit, put aside with the reason: in a file, or where a connector keeps them.

A letter is stored before the write that leaves its record out. A process that dies in between stores it once more;
its origin says that it is the same.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson


class Letter(NamedTuple):
    """A record that does not fit.

    Args:
        origin: what says where it came from: topic, partition, offset; or stream and number.
        window: that it does not fit; None: it fits none.
        field: which value; None: the record itself.
        reason: what is wrong.
        value: its bytes.
    """

    origin: Mapping[str, Any]
    window: str | None
    field: str | None
    reason: str
    value: bytes | None


class DeadLetters(Protocol):
    """Where they are kept."""

    def put(self, letters: Sequence[Letter]) -> None:
        """Store letters, and return when they are."""

    def close(self) -> None:
        """End."""


def fields_of(letter: Letter) -> dict[str, Any]:
    """Return all of a letter but the record."""
    found = {**letter.origin, "window": letter.window, "field": letter.field, "reason": letter.reason}
    return {name: value for name, value in found.items() if value is not None}


class FileLetters:
    """A file of JSON objects, one a line; a record that is no UTF-8 is there in base64.

    Args:
        path: what is appended to.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def put(self, letters: Sequence[Letter]) -> None:
        for letter in letters:
            record: dict[str, Any] = {}
            try:
                record["record"] = None if letter.value is None else letter.value.decode()
            except UnicodeDecodeError:
                record["record_base64"] = base64.b64encode(letter.value or b"").decode()
            self._file.write(orjson.dumps(fields_of(letter) | record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
