"""What an expression may take: lengths of labels, lists of them, what waits, and the text of the answer."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from sash.limits.memory import MemoryBudget
from sash.prometheus import documents
from sash.prometheus import series as prometheus_series
from sash.prometheus.documents import exposed
from sash.promql import values
from sash.promql.errors import Refused
from sash.promql.functions import joined, replaced
from sash.promql.operators import Matching, binary
from sash.promql.times import Times
from sash.promql.values import CHARACTERS_OF_SERIES_MAX, LABELS_BYTES_MAX, Room, Scalar, Text, Vector, bytes_of
from sash_engine.errors import ResourceExhausted
from sash_engine.steps import finished
from sash_engine.windows.questions import KeysQuery, Query
from tests.prometheus.conftest import Ask, T
from tests.prometheus.test_steps import HARD, run
from tests.support.servers import Running


def refused(ask: Ask, query: str, said: str, path: str = "query", **given: Any) -> None:
    answer = ask(path, query=query, **(given or {"time": T + 600}))
    assert answer.status_code == 422, answer.text[:500]
    assert answer.json()["errorType"] == "execution"
    assert said in answer.json()["error"]


def some(count: int, length: int = 1, there: bool = True) -> Vector:
    """Series of an instant, each with a label `a` of its own and a label `long`."""
    labels = [{"a": str(i), "long": "x" * length} for i in range(count)]
    return Vector(labels, np.ones((count, 1)), np.full((count, 1), there))


def peak_of(work: Callable[[], Any]) -> int:
    """How many bytes work takes that is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- labels


def test_labels_that_multiply_are_refused(ask: Ask) -> None:
    replace = join = 'label_replace(vector(1), "b", "xxxxxxxx", "", "")'
    for _ in range(5):  # 8 ** 6 characters
        replace = f'label_replace({replace}, "b", "$1$1$1$1$1$1$1$1", "b", "(.*)")'
        join = f'label_join({join}, "b", "", "b", "b", "b", "b", "b", "b", "b", "b")'
    for query in (replace, join):
        refused(ask, query, "'b', the labels of a series would have 32,769 characters; 16,384 are allowed")


def test_a_series_has_as_many_characters_as_are_allowed() -> None:
    name, length = "b", CHARACTERS_OF_SERIES_MAX - 2 - 8_000
    vector = Vector([{"c": "y" * 8_000}], np.ones((1, 1)), np.ones((1, 1), np.bool_))
    assert len(finished(replaced(vector, name, "x" * length, "", "")).labels[0][name]) == length
    with pytest.raises(Refused, match="16,385 characters"):
        finished(replaced(vector, name, "x" * (length + 1), "", ""))
    # What a label had before does not count.
    assert finished(replaced(vector, "c", "x" * (CHARACTERS_OF_SERIES_MAX - 1), "", ""))
    assert finished(joined(vector, name, "x" * (length // 2), ["no", "nor", "neither"])).labels[0][name]
    with pytest.raises(Refused, match="16,385 characters"):
        finished(joined(vector, name, "x" * (length + 1), ["no", "nor"]))


@pytest.mark.parametrize(
    "work",
    [
        lambda vector: replaced(vector, "b", "$1$1$1$1$1$1$1$1", "long", "(.*)"),
        lambda vector: joined(vector, "b", "", ["long"] * 8),
        lambda vector: binary("+", vector, one(), Matching(("no",), on=True, many="left", include=("long",))),
    ],
)
def test_the_labels_of_all_series_are_bounded_as_they_grow(work: Any) -> None:
    vector = some(10_000, 2_000)
    assert peak_of(lambda: finished(work(vector))) < 2 * LABELS_BYTES_MAX


def one() -> Vector:
    return Vector([{"long": "x" * 16_000}], np.ones((1, 1)), np.ones((1, 1), np.bool_))


def test_labels_that_a_result_gets_are_bounded_for_each_series() -> None:
    matching = Matching(("no",), on=True, many="left", include=("b", "long"))
    many = Vector([{"a": "y" * 2_001}], np.ones((1, 1)), np.ones((1, 1), np.bool_))
    with pytest.raises(Refused, match=r"group_left.*'long', the labels of a series would have 18,006 characters"):
        finished(binary("+", many, one(), matching))


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("sum by ({}) (w:n)", "sum"),
        ("sum without ({}) (w:n)", "sum"),
        ("topk by ({}) (1, w:n)", "topk"),
        ("w:n + on ({}) w:n", "on() or ignoring()"),
        ("w:n and ignoring ({}) w:n", "on() or ignoring()"),
        ("w:n + on (key) group_left ({}) w:n", "group_left()"),
        ("w:n + on (key) group_right ({}) w:n", "group_right()"),
    ],
)
def test_lists_of_labels_are_bounded(ask: Ask, query: str, where: str) -> None:
    refused(ask, query.format(",".join(f"l{i}" for i in range(101))), f"{where}: 101 labels are listed; 100 are")
    answer = ask("query", query=query.format(",".join(f"l{i}" for i in range(100))), time=T + 600)
    assert answer.status_code == 200 or "labels are listed" not in answer.text


def test_lists_of_labels_that_are_joined_are_bounded(ask: Ask) -> None:
    refused(ask, f'label_join(w:n, "b", ""{101 * ", `a`"})', "label_join(): 101 labels are listed")
    assert ask("query", query=f'label_join(w:n, "b", ""{100 * ", `a`"})', time=T + 600).status_code == 200


def test_groups_of_a_pattern_are_bounded(ask: Ask) -> None:
    query = 'label_replace(w:n, "b", "$1${100}$101$99999999999999999999$$", "key", "%s.*%s")'
    (first, _) = ask("query", query=query % (100 * "(", 100 * ")"), time=T + 600).json()["data"]["result"]
    assert first["metric"]["b"] == "aa$"
    refused(ask, query % (101 * "(", 101 * ")"), "101 groups; 100 are allowed")


def test_a_pattern_that_is_too_hard_for_a_long_label_is_refused() -> None:
    short, long = some(1, 500), some(1, 15_000)
    assert finished(replaced(short, "b", "$1", "long", HARD))
    with pytest.raises(Refused, match="too hard for a label of 15,000 characters"):
        finished(replaced(long, "b", "$1", "long", HARD))
    assert finished(replaced(long, "b", "y", "long", "(.*)")).labels[0]["b"] == "y"


def test_long_templates_and_lists_take_steps() -> None:
    count, found = run(replaced(some(100), "b", "$1" * 8_000, "no", "(.*)"))
    assert count > 50
    assert "b" not in found.labels[0]
    count, _ = run(joined(some(1_000), "b", "", ["a"] * 100))
    assert count > 10


# ---------------------------------------------------------------- series that match


def test_what_has_no_samples_matches_nothing_and_costs_nothing() -> None:
    nothing, all_ = some(5_000, there=False), some(5_000)
    matching = Matching(("no",), on=True, many="left")
    for left, right in ((nothing, all_), (all_, nothing), (nothing, nothing)):
        assert finished(binary("+", left, right, matching)).labels == []


def test_pairs_are_counted_before_they_are_made() -> None:
    series = 1_000
    there = np.eye(series, dtype=np.bool_)  # each at a time of its own
    labels = [{"a": str(i)} for i in range(series)]
    few, ones = Vector(labels, there * 1.0, there), Vector(labels, there * 1.0, there)
    matching = Matching(("no",), on=True, many="left", include=("a",))
    assert peak_of(lambda: finished(binary("+", few, ones, matching))) < 40 * 2**20
    # Without labels of theirs, the others are one series.
    found = finished(binary("+", few, ones, Matching(("no",), on=True, many="left")))
    assert found.there.sum() == series
    assert found.values[found.there].tolist() == [2.0] * series


# ---------------------------------------------------------------- what waits


def test_what_waits_is_bounded(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    nested = "w:n"
    for _ in range(20):
        nested = f"(w:n + {nested})"
    form = {"start": T, "end": T + 600, "step": 1}
    assert ask("query_range", query=nested, **form).status_code == 200
    monkeypatch.setattr(values, "HELD_BYTES_MAX", 10 * 2 * 601 * 9)
    refused(ask, nested, "the parts of the expression that wait for others take more than", "query_range", **form)
    refused(ask, f"clamp(w:n, scalar({nested}), 1)", "that wait for others", "query_range", **form)
    flat = " + ".join(["w:n"] * 21)  # only one of them waits at a time
    assert ask("query_range", query=flat, **form).status_code == 200


def test_held_values_are_counted_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    value = some(100)
    size = bytes_of(value)
    monkeypatch.setattr(values, "HELD_BYTES_MAX", 2 * size)
    taken = Room(MemoryBudget(2**40))
    for _ in range(3):
        with taken.held(value), taken.held(value), pytest.raises(Refused, match="wait"), taken.held(Scalar(np.ones(1))):
            pass


def test_bytes_are_those_of_the_values_and_labels() -> None:
    assert bytes_of(Scalar(np.ones(100))) == 800
    assert bytes_of(Text("x" * 1000)) > 1000
    vector = some(10, 1_000)
    assert 10_000 < bytes_of(vector) < 20_000
    vector.times_ms = np.zeros((10, 1), np.int64)
    assert bytes_of(vector) - bytes_of(some(10, 1_000)) == 80


def test_what_an_operation_makes_is_promised() -> None:
    budget = MemoryBudget(100 * 2**20, used=lambda: 0)
    taken = Room(budget)
    with taken.promised(50 * 2**20), pytest.raises(ResourceExhausted), taken.promised(50 * 2**20):
        pass
    with taken.promised(50 * 2**20), taken.promised(1000):  # what is small is not counted
        assert budget._promised == 50 * 2**20
    assert budget._promised == 0


def test_few_answers_are_kept_for_other_selectors(ask: Ask, service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    plane: Any = service.plane
    asked, original = list[Any](), plane.ask

    async def ask_plane(name: str, question: Any) -> Any:
        if isinstance(question, Query):
            asked.append(question.selection.aggregates)
        return await original(name, question)

    monkeypatch.setattr(plane, "ask", ask_plane)
    assert ask("query", query="w:n + w:total / w:n", time=T + 600).status_code == 200
    assert [sorted(names) for names in asked] == [["n", "total"]]
    asked.clear()
    monkeypatch.setattr(prometheus_series, "_KEPT_CELLS", 4)  # two series: the numbers of entries, and one aggregate
    assert ask("query", query="w:n + w:n + w:total / w:n", time=T + 600).status_code == 200
    assert asked == [["n"], ["total"], ["n"]]


# ---------------------------------------------------------------- answers


def test_answers_are_bounded(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    form: dict[str, Any] = {"start": T, "end": T + 600, "step": 1}
    asks: list[Callable[[], httpx.Response]] = [
        lambda: ask("query", query=f'label_replace(w:n, "b", "{1000 * "x"}", "", "")', time=T + 600),
        lambda: ask("query_range", query="w:n * 1e300", **form),
        lambda: ask("query", query="w:v[10m]", time=T + 600),
    ]
    assert [each().status_code for each in asks] == [200] * 3
    monkeypatch.setattr(documents, "ANSWER_BYTES_MAX", 1000)
    for each in asks:
        answer = each()
        assert answer.status_code == 422
        assert "the answer has more than" in answer.json()["error"]


def test_a_text_that_is_scraped_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = Vector(
        [{"__name__": "w:n", "a": str(i)} for i in range(2_000)], np.ones((2_000, 1)), np.ones((2_000, 1), bool)
    )
    count, found = run(exposed([vector], Times(0, 1, 1)))
    assert count > 4
    text = b"".join(found)
    assert text.startswith(b'# TYPE w:n untyped\nw:n{a="0"} 1 0\nw:n{a="1"} 1 0\n')
    assert text.count(b"\n") == 2_001
    monkeypatch.setattr(documents, "ANSWER_BYTES_MAX", len(text) - 1)
    with pytest.raises(Refused, match="answer"):
        run(exposed([vector], Times(0, 1, 1)))


@pytest.mark.parametrize("count", [1, 499, 501, 1_999, 2_000, 2_001, 4_000, 9_999])
def test_a_series_has_each_of_its_samples_once(count: int) -> None:
    ms, values = np.arange(count) * 7, np.arange(count) / 4
    series = [({"a": "0"}, ms, values), ({"a": "1"}, ms[:0], values[:0]), ({"a": "2"}, ms[:3], values[:3])]
    steps, found = run(documents.entries_steps(series, []))
    assert steps > count // 2_000
    assert in_document(found) == [
        {"metric": labels, "values": [[at / 1000, documents.number(each)] for at, each in zip(some, of, strict=True)]}
        for labels, some, of in ((labels, some.tolist(), of.tolist()) for labels, some, of in series if len(some))
    ]
    there = np.ones((2, count), np.bool_)
    there[1] = np.arange(count) % 3 == 0
    vector = Vector([{"a": "1"}, {"a": "0"}], np.stack((values, -values - 1)), there)
    steps, found = run(documents.range_steps(vector, Times(0, 7, count), ["a warning"]))
    assert steps > count // 2_000
    assert in_document(found) == [
        {
            "metric": vector.labels[row],
            "values": [
                [at / 1000, documents.number(value)]
                for at, value, here in zip(ms.tolist(), vector.values[row].tolist(), there[row].tolist(), strict=True)
                if here
            ],
        }
        for row in (1, 0)
    ]


def in_document(parts: list[bytes]) -> Any:
    document = orjson.loads(b"".join(parts))
    assert (document["status"], document["data"]["resultType"]) == ("success", "matrix")
    return document["data"]["result"]


def test_many_short_series_take_steps() -> None:
    one = np.ones(1)
    series = [({"a": str(i)}, np.zeros(1, np.int64), one) for i in range(1_000)]
    steps, found = run(documents.entries_steps(series, []))
    assert steps > 500
    assert len(in_document(found)) == 1_000
    vector = Vector([{"a": str(i)} for i in range(1_000)], np.ones((1_000, 1)), np.ones((1_000, 1), np.bool_))
    assert run(documents.range_steps(vector, Times(0, 1, 1), []))[0] > 10
    assert run(documents.instant_steps(vector, Times(0, 1, 1), []))[0] > 2
    long = some(20, 5_000)  # each of them is a step
    assert run(documents.range_steps(long, Times(0, 1, 1), []))[0] > 20
    assert run(documents.instant_steps(long, Times(0, 1, 1), []))[0] > 20


# ---------------------------------------------------------------- names


def test_names_and_series_read_as_many_keys_as_are_asked_for(
    http: httpx.Client, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane: Any = service.plane
    asked, original = list[int](), plane.ask

    async def keys(*given: Any) -> Any:
        found = await original(*given)
        if isinstance(given[1], KeysQuery):
            asked.append(len(found[0]))
        return found

    monkeypatch.setattr(plane, "ask", keys)

    def get(path: str, **parameters: Any) -> Any:
        asked.clear()
        return http.get(f"/prometheus/api/v1/{path}", params=parameters).json()

    everything = {"match[]": '{__name__=~"w:.+"}'}
    assert len(get("series", **everything)["data"]) == 8
    assert len(asked) == 4
    found = get("series", limit=1, **everything)
    assert (len(found["data"]), found["warnings"]) == (1, ["results truncated due to limit"])
    assert len(asked) == 1
