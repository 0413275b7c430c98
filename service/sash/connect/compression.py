"""Messages that callers compress with gzip, which some clients of Connect do unless they are told otherwise.

| deflated bytes | CRC, 4 bytes | size, 4 bytes |     the size is at the end: what is too large is refused unread
"""

from __future__ import annotations

import zlib

from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps

ENCODING = b"gzip"

SMALL_BYTES = 65_536
"""So many bytes are unpacked in one go."""

_LEAST_BYTES = 18
_WITH_GZIP_HEAD = 31


def unpacked_size(data: bytes) -> int:
    """Return how many bytes a message says that it unpacks to; raises InvalidArgument."""
    if len(data) < _LEAST_BYTES:
        raise _damaged("it is too short")
    return int.from_bytes(data[-4:], "little")


def unpacked(data: bytes, size: int) -> Steps[list[bytes]]:
    """Unpack a message that says that it has `size` bytes, a part in each step; return its parts.

    Raises:
        InvalidArgument: it is damaged, or has another size.
    """
    stream, parts, left = zlib.decompressobj(_WITH_GZIP_HEAD), list[bytes](), size
    try:
        while not stream.eof:
            # One byte more than is left, so that the end of the stream is read.
            part = stream.decompress(data, min(left + 1, SMALL_BYTES))
            data = stream.unconsumed_tail
            left -= len(part)
            if left < 0 or not (part or data or stream.eof):
                raise _damaged("it has another size than it says, or is cut")
            parts.append(part)
            yield
    except zlib.error as error:
        raise _damaged(str(error)) from None
    if left or stream.unused_data:
        raise _damaged("bytes follow its end")
    return parts


def _damaged(why: str) -> InvalidArgument:
    return InvalidArgument(f"a message of the request is no gzip: {why}", field="body")
