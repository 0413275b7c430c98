"""Keys with parts as one string, and conditions on the parts as text.

    {"airport": "JFK", "carrier": "AA"}   ◀──▶   JFK|AA       the parts, joined with "|"
    {"airport": "a|b", "carrier": ""}     ◀──▶   a\\|b|        "\\" stands before a "|" or a "\\" of a part
    {"airport": ""}                       ◀──▶   \\0           a key is never empty

Every key has one such text, and every text that `split` takes is the one of its key.

    carrier=AA    carrier!=AA    carrier in (AA, DL)    carrier not in (AA, DL)    airport=~J.*    airport!~J.*

A value of a condition may stand in double quotes, as in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sash_wire.errors import WireError

CONDITIONS = ("=", "!=", "in", "not in", "=~", "!~")
"""How a condition compares. `=~` and `!~` take a regular expression (RE2) that fits the whole value."""

COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
"""How `having` compares an answer with a number."""

_SOLE = "\\0"
"""The key of one part that is empty."""
_PIECE = re.compile(r"(?:[^|\\]|\\[|\\])*")
_CONDITION = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*(=~|!~|!=|==?|(?:not\s+)?in\b)\s*(.*)", re.DOTALL)
_DIGITS = 40
"""Longer integers are read as floats. No sum of int64 is as long."""
_HAVING = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*(<=|>=|!=|==?|<|>)\s*(\S.*?)\s*", re.DOTALL)
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_ITEM = re.compile(rf"(\s*{_QUOTED}\s*|[^,()\"]*)(?:,|$)", re.DOTALL)
_NAMES = {"eq": "=", "ne": "!=", "not": "!=", "matches": "=~", "not_matches": "!~", "not_in": "not in"}


def join(values: Sequence[str]) -> str:
    """The key of some parts.

    >>> join(["JFK", "AA"]), join(["a|b", ""]), join([""])
    ('JFK|AA', 'a\\\\|b|', '\\\\0')
    """
    key = "|".join(values)
    if key.count("|") >= len(values) or "\\" in key:
        key = "|".join([value.replace("\\", "\\\\").replace("|", "\\|") for value in values])
    return key or _SOLE


def split(key: str, parts: int) -> tuple[str, ...]:
    """The opposite of `join`.

    Raises:
        WireError: the text is no key of so many parts.

    >>> split("JFK|AA", 2), split("a\\\\|b|", 2)
    (('JFK', 'AA'), ('a|b', ''))
    """
    if "\\" not in key:
        values = tuple(key.split("|"))
    elif key == _SOLE:
        values = ("",)
    else:
        values = _unescaped(key)
    if len(values) != parts or not key:
        raise WireError(
            f"key {key[:100]!r} does not have {parts} part{'s' * (parts > 1)} joined with '|'",
            field="key",
            limit=f"{parts} part{'s' * (parts > 1)}; '\\' stands before a '|' or a '\\' of a part",
        )
    return values


def _unescaped(key: str) -> tuple[str, ...]:
    """The parts of a key with escapes; none where it has a wrong one."""
    values, at = list[str](), 0
    while (piece := _PIECE.match(key, at)) is not None:
        values.append(re.sub(r"\\(.)", r"\1", piece.group(), flags=re.DOTALL))
        at = piece.end()
        if at == len(key):
            return tuple(values)
        if key[at] != "|":
            return ()
        at += 1
    return ()


def read_condition(text: str, field: str = "where") -> tuple[str, str, list[str]]:
    """Read a condition: the part, how it compares, and the values.

    Raises:
        WireError: it is none.

    >>> read_condition("carrier=AA"), read_condition('carrier in (AA, "D,L")')
    (('carrier', '=', ['AA']), ('carrier', 'in', ['AA', 'D,L']))
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise WireError(
            f"{field}: {text[:100]!r} is no condition",
            field=field,
            limit="part=value, part!=value, part in (a, b), part not in (a, b), part=~regex or part!~regex",
        )
    part, operator, rest = found.groups()
    operator = " ".join(operator.split())
    if operator.endswith("in"):
        inner = rest.strip()
        inner = inner[1:-1] if inner.startswith("(") and inner.endswith(")") else inner
        return part, operator, _items(inner, text, field)
    operator = "=" if operator == "==" else operator
    return part, operator, [_value(rest, text, field)]


def read_having(text: str) -> tuple[str, str, float]:
    """Read a comparison: the aggregate, how it compares, and the number: an integer exactly, of up to 40 digits.

    Raises:
        WireError: it is none.

    >>> read_having("mean >= 1.5")
    ('mean', '>=', 1.5)
    >>> read_having("sum > 9007199254740993")
    ('sum', '>', 9007199254740993)
    """
    found = _HAVING.fullmatch(text)
    try:
        if found is not None:
            is_integer = len(found[3]) <= _DIGITS and found[3].lstrip("+-").isdecimal()
            return found[1], "=" if found[2] == "==" else found[2], int(found[3]) if is_integer else float(found[3])
    except ValueError:
        pass
    raise WireError(
        f"having: {text[:100]!r} is no comparison of an aggregate with a number",
        field="having",
        limit=f"aggregate>number; {', '.join(COMPARISONS)}",
    )


def _items(text: str, whole: str, field: str) -> list[str]:
    values, at = list[str](), 0
    while at < len(text):
        found = _ITEM.match(text, at)
        if found is None:
            raise WireError(f"{field}: {whole[:100]!r} has no list of values", field=field, limit="part in (a, b)")
        values.append(_value(found.group(1).strip(), whole, field))
        at = found.end()
    return values


def _value(text: str, whole: str, field: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, str):
        raise WireError(f"{field}: the quotes of {whole[:100]!r} do not match", field=field, limit="a JSON string")
    return value


def conditions_of(where: Any, field: str = "where") -> list[tuple[str, str, list[str]]]:
    """Read conditions in any of the forms that people write: each of them must hold.

    Args:
        where: a text; a mapping {part: value, part: [values], part: {operator: value or values}}, where an operator is
            one of `CONDITIONS` or its name in JSON (not, not_in, matches, not_matches); or a sequence of these.

    Raises:
        WireError: it is none of them.

    >>> conditions_of({"carrier": ["AA", "DL"], "airport": {"matches": "J.*"}})
    [('carrier', 'in', ['AA', 'DL']), ('airport', '=~', ['J.*'])]
    """
    if isinstance(where, str):
        return [read_condition(where, field)]
    if isinstance(where, Mapping):
        out = list[tuple[str, str, list[str]]]()
        for part, wanted in where.items():
            if isinstance(wanted, Mapping):
                out += [(str(part), _operator(op, field), _texts(value, field)) for op, value in wanted.items()]
            elif isinstance(wanted, str):
                out.append((str(part), "=", [wanted]))
            else:
                out.append((str(part), "in", _texts(wanted, field)))
        return out
    if isinstance(where, Sequence) and not isinstance(where, bytes):
        if len(where) == 3 and where[1] in CONDITIONS and isinstance(where[0], str):  # one that was read already
            return [(where[0], where[1], _texts(where[2], field))]
        return [condition for each in where for condition in conditions_of(each, field)]
    raise WireError(f"{field} must be conditions, not {where!r}"[:200], field=field)


def _operator(name: Any, field: str) -> str:
    operator = _NAMES.get(name, name)
    if operator not in CONDITIONS:
        known = ", ".join([*CONDITIONS, *_NAMES])
        raise WireError(f"{field}: no comparison {str(name)[:40]!r}", field=field, limit=known)
    return str(operator)


def _texts(values: Any, field: str) -> list[str]:
    listed = [values] if isinstance(values, str) else values
    if not isinstance(listed, Sequence) or not all(isinstance(value, str) for value in listed):
        raise WireError(f"{field}: values of parts are strings, not {values!r}"[:200], field=field)
    return list(listed)
