"""Long bodies of JSON, parsed in steps: one parse of a million numbers holds the event loop for 50 ms.

    body   {"time":[ 1,2,3,4,5,6,7,8,9 ],"fields":{"delay":[ 0.5,1.5,… ]},"producer":"p","note":"a long text …"}
                     piece │ piece │ …                       piece │ …                           text
    rest   {"time":"‹0›","fields":{"delay":"‹1›"},"producer":"p","note":"‹2›"}     parsed in one go: it is short

A scan looks for brackets, commas and texts, 64 KiB at a time, with NumPy: 0.5 ms. A long list of plain values becomes a
`LongList`, which is parsed piece by piece when its values are wanted; a long text is parsed by itself. Everything else
is the rest, of which a body may have little. Each byte is read by the parser, so what is no JSON is refused wherever it
is. The parser takes 2 ns for a byte of a text, and 4 ns for one of a number or of white space.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from sash.rest.bodies import not_json, parse_json
from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps

SHORT_BYTES, LONG_BYTES = 1 << 16, 1 << 18
"""A body of up to the first length is parsed in at most 8 ms; so is one of up to the second one with few brackets."""

_BRACKETS = 256

LISTED_MAX = 100_000
"""Values of the long lists of a body that has no columns, all together."""

VALUES_MAX = 16_384
"""Names, values, lists and objects outside of long lists of plain values. A write has a few hundred."""

TEXT_BYTES_MAX = 1 << 22
"""Of a text: 8 ms."""

STRETCH_BYTES_MAX = 1 << 16
"""Of a number, or of white space."""

REST_BYTES_MAX = 1 << 21
"""Of what is no long list and no long text, all together: 8 ms."""

_LONG_TEXT = 1 << 12
"""A shorter text is part of the rest."""

_PIECE_BYTES = 1 << 16

_FEW = 64
"""A list with fewer values is part of the rest."""

_NAMES = re.compile(rb"[ \t\r\n]*:")
"""What stands behind a name."""

_COMMA, _COLON, _BRACKET, _QUOTE = 1, 2, 3, 4
Array = npt.NDArray[Any]
_KINDS = np.zeros(256, np.uint8)
_KINDS[[*b","]], _KINDS[[*b":"]], _KINDS[[*b"[]{}"]], _KINDS[[*b'"']] = _COMMA, _COLON, _BRACKET, _QUOTE


class LongList(Sequence[Any]):
    """A list of plain values that is not parsed yet.

    Args:
        body: of which it is a part, from `start` to `stop`, without the brackets.
        cuts: some of the commas, in order.
        length: how many values it has.
    """

    def __init__(self, body: bytes, start: int, stop: int, cuts: Sequence[int], length: int) -> None:
        self._body = body
        self._bounds = [start - 1, *cuts[bisect_left(cuts, start) : bisect_left(cuts, stop)], stop]
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: Any) -> Any:
        raise TypeError("its values are read piece by piece")

    def pieces(self) -> Iterator[list[Any]]:
        """Parse the values, piece by piece; raises InvalidArgument."""
        for before, end in zip(self._bounds, self._bounds[1:], strict=False):
            piece = b"[" + self._body[before + 1 : end] + b"]"
            try:
                values = orjson.loads(piece)
            except orjson.JSONDecodeError as error:
                raise not_json(piece, error) from None
            if not values:
                raise InvalidArgument("the body is not JSON: a value is missing between commas", field="body")
            yield values


def is_long(body: bytes) -> bool:
    """Whether a body is to be parsed in steps."""
    if len(body) <= SHORT_BYTES:
        return False
    return len(body) > LONG_BYTES or body.count(b"[") + body.count(b"{") > _BRACKETS


def parse_long_json(body: bytes, listed_max: int | None = LISTED_MAX) -> Steps[dict[str, Any]]:
    """Parse a JSON object.

    Args:
        listed_max: how many values its long lists may have together; None: the lists are columns, and `LongList`s.

    Raises:
        InvalidArgument: as `parse_json`, or it has too much beside its long lists. What is wrong within a long list is
            found when it is read.
    """
    found, colons = yield from _long_parts(body)
    mark = secrets.token_hex(8)
    parts, at = [], 0
    for i, (start, stop, _) in enumerate(found):
        parts += [body[at:start], b'"%b%d"' % (mark.encode(), i)]
        at = stop
    parts.append(body[at:])
    if sum(map(len, parts)) > REST_BYTES_MAX:
        raise _too_long("the body has too much beside lists of plain values and long texts", REST_BYTES_MAX)
    document = parse_json(b"".join(parts), colons)
    yield
    lists = [each for _, _, each in found if each is not None]
    if listed_max is not None and sum(map(len, lists)) > listed_max:
        raise InvalidArgument("the body has too many values", field="body", limit=f"{listed_max} values")
    made = dict[str, LongList | list[Any] | str]()
    for i, (start, stop, each) in enumerate(found):
        if each is None:
            made[f"{mark}{i}"] = _text(body[start:stop])
            yield
        else:
            made[f"{mark}{i}"] = each if listed_max is None else (yield from _whole(each))
    _put(document, made)
    return document


def _text(literal: bytes) -> str:
    try:
        return str(orjson.loads(literal))
    except orjson.JSONDecodeError as error:
        raise not_json(literal, error) from None


def _whole(values: LongList) -> Steps[list[Any]]:
    found = list[Any]()
    for some in values.pieces():
        found += some
        yield
    return found


def _put(document: dict[str, Any], parts: dict[str, LongList | list[Any] | str]) -> None:
    """Put the lists and texts in the places of their marks."""
    pending: list[Any] = [document]
    for each in pending:  # grows
        for name, value in each.items() if type(each) is dict else enumerate(each):
            if type(value) is str and value in parts:
                each[name] = parts[value]
            elif type(value) in (dict, list):
                pending.append(value)


def _long_parts(body: bytes) -> Steps[tuple[list[tuple[int, int, LongList | None]], int]]:
    """Find the long lists of plain values, and the long texts outside of them, in order: where they are, with their
    brackets and quotation marks. Count the colons, too."""
    found: list[tuple[int, int, LongList | None]] = []
    texts = _Texts()
    open_lists: list[tuple[int, int] | None] = []
    """Of each list or object that is open: where it begins, and the commas before; None if it is not a plain list."""
    cuts: list[int] = []
    commas = colons = brackets_found = within = 0
    last = -1  # of the characters that mean something
    in_text = False
    at = 0
    while at < len(body):
        stop = _end_of_chunk(body, at)
        chunk = body[at:stop]
        if b"\\" in chunk:  # neither a backslash nor a quotation mark behind one means anything here
            chunk = chunk.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        kinds = _KINDS[np.frombuffer(chunk, np.uint8)]
        places = np.flatnonzero(kinds)
        kinds = kinds[places]
        quotes = places[kinds == _QUOTE]
        outside = (np.searchsorted(quotes, places) + in_text) % 2 == 0
        stretches = np.diff(places + at, prepend=last)[outside]
        if len(stretches) and stretches.max() > STRETCH_BYTES_MAX:
            raise _too_long("the body has a number, or white space, that is too long", STRETCH_BYTES_MAX)
        last = at + int(places[-1]) if len(places) else last
        texts.look(quotes + at, stop)
        comma_places = places[outside & (kinds == _COMMA)]
        brackets = places[outside & (kinds == _BRACKET)]
        colons += int(np.count_nonzero(outside & (kinds == _COLON)))
        brackets_found += len(brackets)
        if colons + brackets_found > VALUES_MAX:
            raise _too_many()
        for place, before in zip(brackets.tolist(), np.searchsorted(comma_places, brackets).tolist(), strict=True):
            bracket = chunk[place]
            if bracket in b"[{":
                if open_lists:
                    open_lists[-1] = None
                open_lists.append((at + place, commas + before) if bracket == ord("[") else None)
            elif not open_lists:
                raise InvalidArgument("the body is not JSON: a bracket closes nothing", field="body")
            elif (opened := open_lists.pop()) is not None:
                if bracket != ord("]"):
                    raise InvalidArgument("the body is not JSON: a list ends with a brace", field="body")
                start, before_it = opened
                inside = commas + before - before_it
                if inside > _FEW:
                    within += inside
                    found.append((start, at + place + 1, LongList(body, start + 1, at + place, cuts, inside + 1)))
        commas += len(comma_places)
        if len(comma_places):
            cuts.append(at + int(comma_places[-1]))
        in_text ^= bool(len(quotes) % 2)
        if not in_text and stop - last > STRETCH_BYTES_MAX:
            raise _too_long("the body has a number, or white space, that is too long", STRETCH_BYTES_MAX)
        at = stop
        yield
    if colons + brackets_found + commas - within > VALUES_MAX:
        raise _too_many()
    return _with(texts.values(body), found), colons


class _Texts:
    """The long texts of a body, as their quotation marks are found."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int]] = []
        self._open = np.empty(0, np.int64)
        """Where the text begins that has not ended."""

    def look(self, quotes: Array, stop: int) -> None:
        """Look at more quotation marks, up to `stop`; raises InvalidArgument where a text is too long."""
        quotes = np.concatenate((self._open, quotes))
        even = len(quotes) // 2 * 2
        starts, ends, self._open = quotes[:even:2], quotes[1:even:2], quotes[even:]
        long = np.flatnonzero(ends - starts > _LONG_TEXT)
        self._found += zip(starts[long].tolist(), (ends[long] + 1).tolist(), strict=True)
        longest = max((end - start for start, end in self._found[-len(long) or len(self._found) :]), default=0)
        if longest > TEXT_BYTES_MAX or (len(self._open) and stop - self._open.item() > TEXT_BYTES_MAX):
            raise _too_long("the body has a text that is too long", TEXT_BYTES_MAX)

    def values(self, body: bytes) -> list[tuple[int, int]]:
        """Those that are values, and no names: where they are."""
        return [(start, end) for start, end in self._found if not _NAMES.match(body, end)]


def _with(
    texts: Sequence[tuple[int, int]], lists: list[tuple[int, int, LongList | None]]
) -> list[tuple[int, int, LongList | None]]:
    """Long lists, and the texts that are in none of them, in order."""
    starts = [start for start, _, _ in lists]
    for start, end in texts:
        before = bisect_left(starts, start) - 1
        if before < 0 or lists[before][1] <= start:
            lists.append((start, end, None))
    return sorted(lists, key=lambda part: part[0])


def _end_of_chunk(body: bytes, at: int) -> int:
    """Where a chunk ends that begins at `at`: not between a backslash and what it escapes."""
    chunk = body[at : at + _PIECE_BYTES]
    odd = (len(chunk) - len(chunk.rstrip(b"\\"))) % 2
    return min(at + len(chunk) + odd, len(body))


def _too_long(wrong: str, most: int) -> InvalidArgument:
    return InvalidArgument(wrong, field="body", limit=f"{most} bytes")


def _too_many() -> InvalidArgument:
    return InvalidArgument(
        "the body has too many values outside of lists of plain values", field="body", limit=f"{VALUES_MAX} values"
    )
