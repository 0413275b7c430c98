"""Sentences of README, docs and what docs show of the code: short, and without constructions that are read twice."""

import re

import pytest

from tests.support.pages import pages, text_of

WORDS_MAX = 40
HARD = {
    "begins with a clause as its subject": r"^(?:What|Who|Whoever|Whatever|Whose|Nor)\b(?!.*\?$)",
    "has its verb before its subject": r"\bso (?:is|are|does|do|has|have) (?:a|an|the|its|their|all|it)\b",
    "has a relative clause that begins with a preposition": (
        r"\b(?:of|from|by|to|with|for|behind|on|under|over|between|about|without) (?:which|whom|whose)\b"
    ),
    "says that there is none, of something": r"\bno \w+ that is known\b|\bor never will\b|\bis refused what\b",
}
NO_PROSE = re.compile(r"^ *```(?:.|\n)*?^ *```$|^ {4,}.*$|^\|.*$|^#.*$|^\s*!\[.*$|<[^>\n]*>", re.MULTILINE)


def sentences(text):
    """The sentences of a page, without its code, tables and titles. What stands in code, or in a link, is one word."""
    text = "# What is\n\nA [link\nof `code`](a.md) is `a b`.\n\n| What | is |\n\n```sh\nWhat\n```\n\n1. One.\n- Two: x"
    assert [each for each in sentences(text) if each] == ["A link of X is X.", "One.", "Two: x"]
