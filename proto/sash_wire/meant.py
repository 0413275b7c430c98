"""The ends of errors about names: which one may be meant."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_KNOWN_MAX, _LENGTH_MAX = 256, 64
"""So many names of up to so many characters are compared with one that is unknown: 1 ms."""


def meant(name: object, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: which one may be meant; empty where none is like it.

    >>> meant("qauntile", ["quantile", "count"]), meant("x", ["quantile"])
    ("; did you mean 'quantile'?", '')
    """
    found = near(str(name), known)
    return "" if found is None else f"; did you mean {found!r}?"


def instead(name: object, known: Iterable[str], there: str) -> str:
    """The end of an error about an unknown name: which one may be meant, before the list of all, which may be cut off.

    >>> instead("maen", ["mean", "n"], "it has"), instead("x", [], "it has")
    ("; did you mean 'mean'? It has mean, n", '; it has none')
    """
    names = list(known)
    found, listed = near(str(name), names), f"{there} {', '.join(names) or 'none'}"
    return f"; {listed}" if found is None else f"; did you mean {found!r}? {listed[0].upper()}{listed[1:]}"


def no_field(window: str, name: str, fields: Iterable[str]) -> str:
    """The error about a name that is no field of a window, which has these."""
    return f"window {window!r} has no field {name[:200]!r}{instead(name, fields, 'it has')}"


def misspelt(name: str, given: Iterable[str]) -> str:
    """The end of an error about a missing name: which of the unknown ones that are given is like it.

    >>> misspelt("time", ["tme", "delay"]), misspelt("time", ["delay"])
    ("; 'tme' is unknown: is it misspelt?", '')
    """
    found = near(name, given)
    return "" if found is None else f"; {found!r} is unknown: is it misspelt?"


def near(name: str, known: Iterable[str]) -> str | None:
    """The name that is most like another one; None where none is like it."""
    from difflib import get_close_matches  # only errors need it

    names = [each for each in islice(known, _KNOWN_MAX) if len(each) <= _LENGTH_MAX]
    found = get_close_matches(name, names, 1, 0.7) if len(name) <= _LENGTH_MAX else []
    return found[0] if found else None
