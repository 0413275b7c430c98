"""Large answers as JSON in steps: the same bytes as in one go, and a bounded number of values in each step."""

import math

import numpy as np
import pytest

from sash.rest.answers import answer_document, answers_json, json_bytes, series_document, series_json
from sash_engine.steps import finished
from sash_engine.windows.answers import Answer, Series


async def never(steps):
    raise AssertionError("it is short")


def counted():
    """Takes all steps, and counts them."""

    async def run(steps):
        def each():
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
                run.steps += 1
                yield

        return finished(each())

    run.steps = 0
    return run


def answers(count):
    return [Answer(f"k{i}", 0, i, i, {"n": i, "mean": math.nan, "all": [i, "a,]"]}) for i in range(count)]


def whole(found):
    return json_bytes({"answers": [answer_document(answer) for answer in found]})


@pytest.mark.parametrize("count", [5, 8, 9, 31])
async def test_many_answers_are_written_some_at_a_time(count, monkeypatch):
    monkeypatch.setattr("sash.rest.answers._VALUES", 16)
    run, given = counted(), answers(count)
    assert await answers_json(given, None, run) == whole(answers(count))
    assert run.steps == -(-count // 4)
    assert not given, "they are freed on the way"


async def test_few_answers_are_written_at_once():
    assert await answers_json([], None, never) == whole([])
    assert await answers_json(answers(5), None, never) == whole(answers(5))


def series(buckets):
    columns = {
        "n": np.arange(buckets),
        "mean": np.where(np.arange(buckets) % 3, 1.5, np.nan),
        "all": np.array([*([[1, "]"]] * (buckets - 1)), None, None], object)[:buckets],
        "odd name]": np.arange(buckets) / 7,
    }
    return Series("k", np.arange(buckets) * 10, 10, np.arange(buckets), columns)


@pytest.mark.parametrize("buckets", [7, 16, 33])
async def test_a_long_series_is_written_column_by_column(buckets, monkeypatch):
    monkeypatch.setattr("sash.rest.answers._VALUES", 4)
    monkeypatch.setattr("sash.rest.answers._NUMBERS", 8)
    run = counted()
    expected = json_bytes(series_document(series(buckets), 0, buckets * 10, 10))
    assert await series_json(series(buckets), 0, buckets * 10, 10, run) == expected
    assert run.steps == 5 * -(-buckets // 8) + -(-buckets // 4)


async def test_a_short_series_is_written_at_once():
    assert await series_json(series(9), 0, 90, 10, never) == json_bytes(series_document(series(9), 0, 90, 10))
