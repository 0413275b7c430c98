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
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", NO_PROSE.sub("", text))
    text = re.sub(r"(`+)(?!`).*?\1", "X", text, flags=re.DOTALL).replace("*", "")
    for paragraph in re.split(r"\n\s*\n|^\s*(?:-|\d+\.) ", text, flags=re.MULTILINE):
        yield from re.split(r"(?<=[.:?!])\s+(?=[A-Z\"(])", " ".join(paragraph.split()))


def wrong(sentence):
    found = [name for name, pattern in HARD.items() if re.search(pattern, sentence)]
    return found + [f"has more than {WORDS_MAX} words"] * (len(sentence.split()) > WORDS_MAX)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_page_has_no_hard_sentences(page):
    assert not {sentence: found for sentence in sentences(text_of(page)) if (found := wrong(sentence))}


@pytest.mark.parametrize(
    ("sentence", "hard"),
    [
        ("A refused request changes nothing.", 0),
        ("What is wrong comes back as a problem document.", 1),
        ("What is a window?", 0),
        ("Inserting is cheap, so is a query.", 1),
        ("It is so large that it is refused.", 0),
        ("A mark by which a server is refused.", 1),
        ("There is no window that is known here.", 1),
        (" ".join(["word"] * 41), 1),
        (" ".join(["word"] * 40), 0),
    ],
)
def test_hard_sentences_are_found(sentence, hard):
    assert len(wrong(sentence)) == hard


def test_code_and_links_are_no_words():
    text = "# What\n\nA [link\nof `code`](a.md) is `a b`.\n\n| What | is |\n\n```sh\nWhat\n```\n\n1. One.\n- Two: x"
    assert [each for each in sentences(text) if each] == ["A link of X is X.", "One.", "Two: x"]
