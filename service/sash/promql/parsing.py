"""Expressions of PromQL, parsed by `promql-parser`, the binding of a parser in Rust.

The parser takes time that grows with the square of how deep an expression is, and whoever walks the tree calls itself.
So an expression has a bounded number of operators, calls and parentheses, which are counted ahead.

The parser also compiles regular expressions, and takes up to 0.2 seconds for each. So it gets them as hexadecimal
digits, which `pattern_of` turns back.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import orjson
import promql_parser

from sash.promql.errors import BadData
from sash_wire.meant import meant

CHARACTERS_MAX = 16_384
OPERATORS_MAX = 150
PATTERNS_MAX = 30

_TEXT = re.compile(r"""#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`""")
_PATTERN = re.compile(rf"([=!]~(?:\s|#[^\n]*\n)*)?({_TEXT.pattern})")
_HIDDEN = re.compile(r'([=!]~)"([0-9a-f]*)"')
_BRACES = re.compile(r"\{[^{}]*\}")
_OPERATORS = re.compile(r"[(\[{]|[-+*/%^<>]|[=!]=|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)


def parsed(text: str, field: str = "query", known: Collection[str] = ()) -> Any:
    """Parse an expression.

    Args:
        known: names of functions, one of which may be meant by one that is unknown.

    Raises:
        BadData: it is none, or too long.
    """
    if not text.strip():
        raise BadData(f'invalid parameter "{field}": no expression found in input', field=field)
    if len(text) > CHARACTERS_MAX:
        raise BadData(
            f'invalid parameter "{field}": {len(text)} characters',
            field=field,
            limit=f"{CHARACTERS_MAX} characters",
        )
    bare = _BRACES.sub(" ", _TEXT.sub(" ", text))
    operators = len(_OPERATORS.findall(bare))
    if operators > OPERATORS_MAX:
        raise BadData(
            f'invalid parameter "{field}": {operators} operators, calls and parentheses; at most {OPERATORS_MAX} are '
            "taken",
            field=field,
            limit=f"{OPERATORS_MAX} operators",
        )
    patterns = sum(1 for found in _PATTERN.finditer(text) if found[1])
    if patterns > PATTERNS_MAX:
        raise BadData(
            f'invalid parameter "{field}": {patterns} regular expressions; at most {PATTERNS_MAX} are taken',
            field=field,
            limit=f"{PATTERNS_MAX} regular expressions",
        )
    try:
        return promql_parser.parse(_PATTERN.sub(_hidden, text))
    except ValueError as error:
        said = str(error)
        if (unknown := re.match(r"unknown function with name '(\w+)'", said)) is not None:
            name = f"{unknown[1]!r}{meant(unknown[1], known)}"
            raise BadData(f'invalid parameter "{field}": unknown function {name}', field=field) from None
        raise BadData(f'invalid parameter "{field}": parse error: {said[:300]}', field=field) from None


def parsed_selector(text: str, field: str = "match[]") -> promql_parser.VectorSelector:
    """Parse a selector, as `match[]` has.

    Raises:
        BadData: it is none.
    """
    found = parsed(text, field)
    if not isinstance(found, promql_parser.VectorSelector):
        raise BadData(f'invalid parameter "{field}": {text[:80]!r} is no selector of series', field=field)
    return found


def pretty(text: str) -> str:
    """Return an expression as it is written by convention; raises as `parsed`."""
    shown = str(parsed(text).prettify())
    return _HIDDEN.sub(lambda found: found[1] + orjson.dumps(pattern_of(found[2])).decode(), shown)


def pattern_of(digits: str) -> str:
    """Return a regular expression that `parsed` has hidden from the parser."""
    return bytes.fromhex(digits).decode()


def _hidden(found: re.Match[str]) -> str:
    before, literal = found[1] or "", found[2]
    if literal.startswith("`"):  # the parser takes escapes in it, and there are none
        literal = orjson.dumps(literal[1:-1]).decode()
    if not before or literal.startswith("#"):
        return before + literal
    try:
        return f'{before}"{_literal(literal).encode().hex()}"'
    except ValueError:
        return found[0]  # the parser says what is wrong with it


def _literal(text: str) -> str:
    found: Any = promql_parser.parse(text)
    return str(found.val)
