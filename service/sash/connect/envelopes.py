"""Messages of a stream, each in an envelope.

| flags, 1 byte | length, 4 bytes, big-endian | message |     flags: 1 compressed; 2 the last one, in JSON
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from struct import Struct

from sash.connect.errors import BadEnvelope
from sash_engine.errors import InvalidArgument, TooLarge

END = 2
_COMPRESSED = 1
_HEAD = Struct(">BI")


def sealed(message: bytes, flags: int = 0) -> bytes:
    """Put a message into an envelope."""
    return _HEAD.pack(flags, len(message)) + message


async def opened(
    parts: AsyncIterator[bytes], bytes_max: int, may_be_packed: bool = False
) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield the messages of a request, and whether they are compressed. At most one of them is in memory.

    Args:
        parts: of the body.
        bytes_max: most bytes of a message.
        may_be_packed: whether the request says how messages are compressed.

    Raises:
        BadEnvelope: an envelope is compressed against what the request says, or has unknown flags.
        InvalidArgument: an envelope ends too early.
        TooLarge: a message has more than `bytes_max` bytes.
    """
    held = bytearray()
    async for part in parts:
        held += part
        at = 0
        while len(held) - at >= _HEAD.size:
            flags, length = _HEAD.unpack_from(held, at)
            if flags and not (flags == _COMPRESSED and may_be_packed):
                what = (
                    "is compressed, and connect-content-encoding does not say how"
                    if flags == _COMPRESSED
                    else "has unknown flags"
                )
                raise BadEnvelope(f"an envelope of the request {what}", field="body")
            if length > bytes_max:
                raise TooLarge(f"a message of {length:,} bytes", field="body", limit=f"{bytes_max:,} bytes")
            if len(held) - at < _HEAD.size + length:
                break
            at += _HEAD.size
            yield bytes(held[at : at + length]), flags == _COMPRESSED
            at += length
        del held[:at]
    if held:
        raise InvalidArgument("the request ends inside an envelope", field="body")
