"""Lines of standard input as records: ``… | sash data ingest - CONFIG.yaml``.

The line's number is the record's. By default each run is a stream of its own. Under a name, it is the same stream
again: lines that the windows have are left out, so the input has to begin with the same lines.
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO
from uuid import uuid4

from sash_ingest.connector import Records, SourceError, Streams

_READ_BYTES = 1 << 20


class Lines:
    """Reads lines. It is a `Connector`.

    Args:
        file: what is read; a pipe, a file or a terminal.
        name: of the stream; None: a new one.
    """

    def __init__(self, file: BinaryIO, name: str | None = None) -> None:
        self._file, self._stream = file, name or f"- {uuid4().hex}"
        self._number = 0
        self._rest, self._ended, self._held = b"", False, False

    def open(self, streams: Streams) -> None:
        streams.begin(self._stream)  # lines that the windows have are read again, and not written

    def poll(self, timeout_s: float) -> Sequence[Records] | None:
        if self._ended:
            return None
        if self._held or not select.select([self._file], [], [], timeout_s)[0]:
            if self._held:
                select.select([], [], [], timeout_s)
            return ()
        block = os.read(self._file.fileno(), _READ_BYTES)
        self._ended = not block
        *lines, self._rest = (self._rest + block).split(b"\n")
        if self._ended and self._rest:
            lines.append(self._rest)
        first, self._number = self._number + 1, self._number + len(lines)
        values: list[bytes | None] = [line.removesuffix(b"\r") for line in lines]
        return [Records(self._stream, list(range(first, first + len(lines))), values)] if values else ()

    def applied(self, stream: str, number: int) -> None:
        pass

    def seek(self, stream: str, number: int) -> None:
        raise SourceError(f"{stream}: another process writes under the same name, and lines are not read twice")

    def hold(self, stream: str, held: bool) -> None:
        self._held = held

    def lag(self) -> Mapping[str, int]:
        return {}

    def origin(self, stream: str, number: int) -> Mapping[str, Any]:
        return {"line": number}

    def close(self) -> None:
        pass
