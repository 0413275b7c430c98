"""Reads LMDB's file page by page. The file may be damaged: LMDB itself trusts its pages and would end the process.

    page        number | pad | flags | lower | upper | places of nodes … | free | … nodes     lower: behind the places
    overflow    number | pad | flags | pages         | a value that is too long for a node …
    node        size or child, 32 bits | flags or child | length of key | key | value, or the number of its page
    meta        magic, version | … | two trees: free pages, and the unnamed one | last page | transaction

    tree        pad, flags, depth | pages of each kind | entries | root           as a value, of a named database

Numbers are little-endian, pages are numbered from 0. The first two are metas, and the one with the later transaction
counts. This is version 1, which LMDB 0.9 writes; see its `mdb.c`.

A page that is damaged, or has the wrong number, is a problem: the pages below it cannot be read, all others can. This
module does not know whether a value is whole.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PAGE = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_META = struct.Struct("<IIQQ")
_TREE = struct.Struct("<IHHQQQQQ")
_TAIL = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE, _DIRTY = 1, 2, 4, 8, 16
_BIG, _NAMED = 1, 2
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32
_PAGES_KEPT = 256
_SIZES = [1 << n for n in range(9, 17)]


class PageError(Exception):
    """A page is not what it should be."""


class _Page(NamedTuple):
    number: int
    data: bytes
    leaf: bool
    places: tuple[int, ...]
    """Offsets of its nodes."""

    def key(self, at: int) -> bytes:
        """The key of the node at an offset; arbitrary bytes if there is no node."""
        data = self.data
        return data[at + 8 : at + 8 + int.from_bytes(data[at + 6 : at + 8], "little")]


class _Node(NamedTuple):
    key: bytes
    child: int
    """In a branch: the page below."""
    size: int
    flags: int
    data: bytes
    """In a leaf: the value, or the number of its page."""


class LmdbFile:
    """A file of LMDB, read-only; nothing else may write to it meanwhile.

    Args:
        path: the file.

    Attributes:
        transaction: number of the last transaction.

    Raises:
        PageError: it is not a file of LMDB, or both metas are damaged.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = 0
            self._pages: dict[int, _Page] = {}
            self._root, self.transaction = self._meta()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def root(self, name: bytes | None = None) -> int | None:
        """The root page of a named database, or of the unnamed one; None if there is none.

        Raises:
            PageError: a page on the way is damaged.
        """
        if name is None:
            return self._root
        found = self._find(self._root, name)
        if found is None or not found.flags & _NAMED or len(found.data) != _TREE.size:
            return None
        return int(_TREE.unpack(found.data)[-1])

    def get(self, root: int | None, key: bytes) -> bytes | None:
        """The value of a key in the tree below a root; None if there is none.

        Raises:
            PageError: a page on the way is damaged.
        """
        found = self._find(root, key)
        return None if found is None else self._value(found)

    def keys(self, root: int | None, problems: list[str]) -> Iterator[bytes]:
        """Iterate over all keys below a root, in order. Pages that cannot be read are added to `problems`."""
        if root is None or root == _NO_PAGE:
            return
        ways: list[tuple[int, int]] = [(root, 1)]
        while ways:
            number, depth = ways.pop()
            try:
                page = self._page(number)
                if depth > _DEPTH_MAX:
                    raise PageError(f"page {number} is below itself")
                nodes = [self._node(page, at) for at in page.places]
            except PageError as error:
                problems.append(f"{error}: the values below it cannot be read")
                continue
            if page.leaf:
                yield from (node.key for node in nodes)
            else:
                ways += [(node.child, depth + 1) for node in reversed(nodes)]

    # ---------------------------------------------------------------- pages

    def _meta(self) -> tuple[int, int]:
        """The root of the unnamed database, and the last transaction."""
        found = []
        for size in _SIZES:
            for at in (0, size):
                head = self._read(at, _PAGE.size + _META.size + 2 * _TREE.size + _TAIL.size)
                if len(head) < _PAGE.size + _META.size + 2 * _TREE.size + _TAIL.size:
                    continue
                flags = _PAGE.unpack_from(head)[2]
                magic, version, *_ = _META.unpack_from(head, _PAGE.size)
                free, main = (_TREE.unpack_from(head, _PAGE.size + _META.size + i * _TREE.size) for i in range(2))
                if flags & _META_PAGE and (magic, version, free[0]) == (_MAGIC, _VERSION, size):
                    _, transaction = _TAIL.unpack_from(head, _PAGE.size + _META.size + 2 * _TREE.size)
                    found.append((transaction, size, main[-1]))
        if not found:
            raise PageError("it is not an LMDB database, or of another version")
        transaction, self._size, root = max(found)
        return root, transaction

    def _page(self, number: int) -> _Page:
        """A page of a tree."""
        found = self._pages.get(number)
        if found is None:
            data = self._read(number * self._size, self._size)
            if len(data) < self._size:
                raise PageError(f"page {number} is behind the end of the file")
            told, _, flags, lower, upper = _PAGE.unpack_from(data)
            kind = flags & ~_DIRTY
            if told != number or kind not in (_BRANCH, _LEAF) or not _PAGE.size <= lower <= upper <= len(data):
                raise PageError(f"page {number} is no page of a tree")
            places = struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", data, _PAGE.size)
            if len(self._pages) == _PAGES_KEPT:
                self._pages.clear()
            found = self._pages[number] = _Page(number, data, bool(flags & _LEAF), places)
        return found

    def _node(self, page: _Page, at: int) -> _Node:
        data = page.data
        if at + _NODE.size > len(data):
            raise PageError(f"page {page.number} has a node behind its end")
        low, high, flags, length = _NODE.unpack_from(data, at)
        start = at + _NODE.size + length
        size = low | high << 16
        stop = start + (_NUMBER.size if flags & _BIG else size)
        return _Node(data[at + _NODE.size : start], size | flags << 32, size, flags, data[start:stop])

    def _find(self, number: int | None, key: bytes) -> _Node | None:
        """The node of a key below a page."""
        if number is None or number == _NO_PAGE:
            return None
        for _ in range(_DEPTH_MAX):
            page = self._page(number)
            if page.leaf:
                at = bisect_left(page.places, key, key=page.key)
                found = self._node(page, page.places[at]) if at < len(page.places) else None
                return found if found is not None and found.key == key else None
            if not page.places:
                raise PageError(f"page {number} leads nowhere")
            # The first node's key does not count: the node leads to all keys before the second one.
            at = bisect_right(page.places, key, 1, key=page.key)
            number = self._node(page, page.places[at - 1]).child
        raise PageError(f"page {number} is below itself")

    def _value(self, node: _Node) -> bytes:
        if not node.flags & _BIG:
            if len(node.data) < node.size:
                raise PageError("a value goes on behind its page")
            return node.data
        if len(node.data) < _NUMBER.size:
            raise PageError("a value goes on behind its page")
        (number,) = _NUMBER.unpack(node.data)
        data = self._read(number * self._size, _PAGE.size + node.size)
        if len(data) < _PAGE.size or _PAGE.unpack_from(data)[:3:2] != (number, _OVERFLOW):
            raise PageError(f"page {number} is no page of a value")
        return data[_PAGE.size :]

    def _read(self, at: int, size: int) -> bytes:
        try:
            return os.pread(self._file, size, at)
        except OverflowError:
            return b""
