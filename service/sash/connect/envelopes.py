"""Messages of a stream, each in an envelope.

| flags, 1 byte | length, 4 bytes, big-endian | message |     flags: 1 compressed; 2 the last one, in JSON
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from struct import Struct

from sash_engine.errors import InvalidArgument, TooLarge

__all__ = ["END", "opened", "sealed"]

END = 2
_COMPRESSED = 1
_HEAD = Struct(">BI")


def sealed(message: bytes, flags: int = 0) -> bytes:
    """Put a message into an envelope."""
    return _HEAD.pack(flags, len(message)) + message


async def opened(parts: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[bytes]:
    """Yield the messages of a request. At most one of them is in memory.

    Raises:
        InvalidArgument: an envelope is compressed, has unknown flags, or ends too early.
        TooLarge: a message has more than `bytes_max` bytes.
    """
    held = bytearray()
    async for part in parts:
        held += part
        at = 0
        while len(held) - at >= _HEAD.size:
            flags, length = _HEAD.unpack_from(held, at)
            if flags:
                what = (
                    "is compressed, which this service does not read" if flags == _COMPRESSED else "has unknown flags"
                )
                raise InvalidArgument(f"an envelope of the request {what}", field="body")
            if length > bytes_max:
                raise TooLarge(f"a message of {length:,} bytes", field="body", limit=f"{bytes_max:,} bytes")
            if len(held) - at < _HEAD.size + length:
                break
            at += _HEAD.size
            yield bytes(held[at : at + length])
            at += length
        del held[:at]
    if held:
        raise InvalidArgument("the request ends inside an envelope", field="body")
