"""Keys that are given by their parts: one by one, and as columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from sash_wire.coded import Coded
from sash_wire.errors import WireError
from sash_wire.labels import join, split
from sash_wire.meant import instead, misspelt


def check_named(given: Collection[str], parts: Sequence[str], what: str, beside: Iterable[str] = ()) -> None:
    """Check that each part is given, and nothing else.

    Args:
        given: the names that are given.
        parts: the names of the parts of the window's keys.
        what: has the keys, for the message.
        beside: other names that are given, none of which is known: a part may be among them, misspelt.

    Raises:
        WireError: a part is missing, or a name is none of a part.
    """
    for name in given:
        if name not in parts:
            path = f"parts.{name[:140]}"
            raise WireError(
                f"keys of {what} have no part {name[:140]!r}{instead(name, parts, 'they have')}", field=path
            )
    for name in parts:
        if name not in given:
            raise WireError(f"part {name!r} of the key is missing{misspelt(name, beside)}", field=f"parts.{name}")


def key_of_parts(given: Mapping[str, str], parts: Sequence[str], what: str, beside: Iterable[str] = ()) -> str:
    """The key of an entry whose parts are given by name; raises as `check_named`."""
    check_named(given.keys(), parts, what, beside)
    values = [given[name] for name in parts]
    for name, value in zip(parts, values, strict=True):
        if not isinstance(value, str):
            raise WireError(f"part {name!r} of the key must be a string, not {value!r:.80}", field=f"parts.{name}")
    return join(values)


def joined(columns: Mapping[str, Coded]) -> Coded:
    """The keys of n rows, from a column of values for each part, in order; only distinct keys are joined.

    Raises:
        WireError: the columns differ in length, or have a code outside their dictionary.

    >>> joined({"a": Coded.of(["x", "y", "x"]), "b": Coded.of(["1", "1", "1"])}).decode().tolist()
    ['x|1', 'y|1', 'x|1']
    """
    first = next(iter(columns.values()))
    n, of, size = len(first.codes), np.zeros(len(first.codes), np.int64), 1
    for name, column in columns.items():
        codes, values = column.codes, len(column.dictionary)
        if len(codes) != n:
            raise WireError(
                f"part {name!r} has {len(codes)} values where others have {n}", field=f"parts.{name}", limit=str(n)
            )
        if n and not 0 <= int(codes.min()) <= int(codes.max()) < values:
            raise WireError(
                f"part {name!r} has a code outside its dictionary", field=f"parts.{name}", limit=f"0 to {values - 1}"
            )
        if size * max(values, 1) >= 2**62:
            _, of = np.unique(of, return_inverse=True)
            size = n
        of = of * values + codes
        size *= max(values, 1)
    _, rows, codes = np.unique(of, return_index=True, return_inverse=True)
    order = np.argsort(rows)  # distinct keys in the order of their first rows
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows, codes = rows[order], place[codes]
    texts = [[column.dictionary[code] for code in column.codes[rows].tolist()] for column in columns.values()]
    return Coded([join(values) for values in zip(*texts, strict=True)], codes)


def key_columns(keys: Coded, parts: Sequence[str]) -> dict[str, Coded]:
    """The columns of n keys: one for each part, or `key` where keys have none; the opposite of `joined`."""
    if not parts:
        return {"key": keys}
    columns = zip(*[split(key, len(parts)) for key in keys.dictionary], strict=True)
    texts = [list(column) for column in columns] or [[] for _ in parts]
    return {name: _coded(values, keys) for name, values in zip(parts, texts, strict=True)}


def _coded(values: list[str], keys: Coded) -> Coded:
    """The values of one part, of each distinct key, as a column."""
    of_keys = Coded.of(values)
    return Coded(of_keys.dictionary, of_keys.codes[keys.codes] if len(values) else keys.codes)
