"""Finds out whether many requests have arrived at once, without a look at the bytes of a long body.

    POST / content-length: 262144, and a part of the body    its length says that nothing follows in this read
    the next part of the body                                nor in this one
    GET / GET / GET / GET / GET / GET / GET / GET /          these are counted

To look through 256 KiB takes 0.1 ms, a sixth of what a bulk of that size takes.
"""

from __future__ import annotations

import re

__all__ = ["HEAD_BYTES_MAX", "PART_BYTES", "Ahead"]

HEAD_BYTES_MAX = 65_536

PART_BYTES = 4096
"""A read that is not longer may have any requests."""

_PIPELINED_MAX = 64
"""What arrives at once with more requests than this is received in small parts, and no part while a request waits for
the one before it. A request that waits takes 8 KB, and there may be 10,000 in what arrives at once."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)


class Ahead:
    """Looks at what arrives on one connection, before it is received."""

    def __init__(self) -> None:
        self._left = 0
        """Bytes of a body that have not arrived."""

    def has_many(self, data: bytes, begins: bool) -> bool:
        """Return whether a read has many requests.

        Args:
            begins: a request begins with it.
        """
        left, size = 0 if begins else self._left, len(data)
        self._left = max(left - size, 0)
        if size <= PART_BYTES or left >= size or (begins and self.expect(data)):
            return False
        # The parser takes no head that ends otherwise. What is in front of it varies: GET / RTSP/1.0 is a request, too.
        return data.count(b"\r\n\r\n") > _PIPELINED_MAX

    def expect(self, data: bytes) -> bool:
        """Note how much of its body is missing behind a read with which a request begins.

        Returns:
            whether the read has nothing else: all of it is this request, as far as its length says.
        """
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        length = None if end < 0 else _LENGTH.search(data, 0, end + 2)
        missing = -1 if length is None else end + 4 + int(length[1]) - len(data)
        self._left = max(missing, 0)
        return missing >= 0
