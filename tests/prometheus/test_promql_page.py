"""The page about PromQL: each expression is answered as it says, and it lists every function that the code names."""

from __future__ import annotations

import re
from typing import Any

import httpx
import promql_parser
import pytest

from sash.prometheus.documents import ANSWER_BYTES_MAX
from sash.prometheus.queryable import ENTRIES_MAX
from sash.promql.aggregations import AGGREGATIONS, PARAMETERS
from sash.promql.evaluate import SERVED
from sash.promql.functions import DATES, GROUPS_MAX, INSTEAD, OF_VALUES
from sash.promql.matchers import MATCHERS_MAX
from sash.promql.parsing import CHARACTERS_MAX, OPERATORS_MAX, PATTERNS_MAX
from sash.promql.ranges import RANGES
from sash.promql.times import POINTS_MAX
from sash.promql.values import (
    CELLS_MAX,
    CHARACTERS_OF_SERIES_MAX,
    HELD_BYTES_MAX,
    LABELS_BYTES_MAX,
    LABELS_LISTED_MAX,
    SERIES_MAX,
)
from tests.prometheus.conftest import T
from tests.support.pages import DOCS, names_in, table_of

PAGE = (DOCS / "reference" / "promql.md").read_text()
EXPRESSIONS = [(cells[0].strip("`"), cells[1]) for cells in table_of(PAGE, "expression")]
FUNCTIONS = [(name, row[1]) for row in table_of(PAGE, "functions") for name in names_in(row[0])]

VECTOR, RANGE = "w:n", "w:v[5m]"


@pytest.mark.parametrize(("query", "verdict"), EXPRESSIONS)
def test_an_expression_is_answered_as_the_page_says(http: httpx.Client, query: str, verdict: str) -> None:
    answer = http.post("/prometheus/api/v1/query", data={"query": query, "time": T + 600})
    assert str(answer.status_code) == verdict.replace("served", "200"), answer.text
    if answer.status_code == 200:
        assert answer.json()["data"]["result"]


@pytest.mark.parametrize(("name", "verdict"), FUNCTIONS)
def test_a_function_is_served_as_the_page_says_or_its_refusal_says_what_to_use(
    http: httpx.Client, name: str, verdict: str
) -> None:
    assert (name in SERVED) == verdict.startswith("served")
    for query in filter(parses, (f"{name}({arguments})" for arguments in ARGUMENTS)):
        answer = http.post("/prometheus/api/v1/query", data={"query": query, "time": T + 600})
        if name not in SERVED:
            hint = INSTEAD.get(name, "the documentation lists the functions that are")
            assert answer.json()["error"].removeprefix("aggregation ") == f"{name} is not supported; {hint}"
            assert answer.status_code == 422
            return
        assert "is not supported" not in answer.text
        if answer.status_code == 200:
            return
    assert name in INSTEAD, f"{name} takes other arguments"


def parses(query: str) -> bool:
    try:
        promql_parser.parse(query)
    except ValueError:
        return False
    return True


ARGUMENTS = (
    *(VECTOR, RANGE, "", "1", f"{VECTOR}, 1", f"1, {VECTOR}", f"0.5, {RANGE}", f"{RANGE}, 1", f"{RANGE}, 0.5, 0.5"),
    *(f'{VECTOR}, "key"', f"{VECTOR}, 1, 2", f"1, 2, {VECTOR}", f'{VECTOR}, "a", "$1", "key", "(.*)"', "1, 2"),
    *(f'{VECTOR}, "a", "-", "key"', f'{VECTOR}, "a", 1'),
)


def test_the_page_lists_what_the_code_names() -> None:
    operators = {"count_values", "limitk", "limit_ratio"}
    assert {*RANGES, *OF_VALUES, *DATES, *INSTEAD} - operators <= {name for name, _ in FUNCTIONS}


def test_the_page_has_the_operators_and_limits() -> None:
    sentence = re.search(r"Aggregation operators that are served: (.*?)\.", PAGE, re.DOTALL)
    assert sentence is not None
    assert set(names_in(sentence[1])) == {*AGGREGATIONS, *PARAMETERS}
    limits: dict[str, Any] = {row[0]: row[1] for row in table_of(PAGE, "of", "limit")}
    assert limits["points of a series"] == f"{POINTS_MAX:,}"
    assert limits["series of a selector, and of a result"] == f"{SERIES_MAX:,}"
    assert limits["values of a result"] == f"{CELLS_MAX:,}"
    assert limits["entries that a selector reads"] == f"{ENTRIES_MAX:,}"
    assert limits["matchers of a selector"] == str(MATCHERS_MAX)
    assert limits["labels of a series, where the expression sets one"] == f"{CHARACTERS_OF_SERIES_MAX:,} characters"
    assert limits["labels of a vector, where the expression sets some"] == f"{LABELS_BYTES_MAX >> 20} MiB"
    assert limits["labels that one list names: `by`, `on`, `group_left`, `label_join`"] == str(LABELS_LISTED_MAX)
    assert limits["groups in the pattern of `label_replace`"] == str(GROUPS_MAX)
    assert limits["parts of an expression that wait for others"] == f"{HELD_BYTES_MAX >> 20} MiB"
    assert limits["an answer"] == f"{ANSWER_BYTES_MAX >> 20} MiB"
    assert limits["an expression"] == (
        f"{CHARACTERS_MAX:,} characters, {OPERATORS_MAX} operators, calls and parentheses, "
        f"{PATTERNS_MAX} regular expressions"
    )
