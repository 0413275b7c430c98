"""Large answers as JSON in steps: the same bytes as in one go, and a bounded number of values in each step.

Those that are made part by part are made in the task of their call, and no further than the client reads.
"""

import asyncio
import math
from types import SimpleNamespace

import numpy as np
import orjson
import pytest

from sash.rest.answers import answer_document, answers_json, json_bytes, series_steps
from sash.rest.connection import ANSWERS
from sash.rest.routes.common import streamed
from sash_engine.windows.answers import Answer, Series
from tests.support.counted import counted


async def never(steps):
    raise AssertionError("it is short")


def answers(count):
    return [Answer(f"k{i}", 0, i, i, {"n": i, "mean": math.nan, "all": [i, "a,]"]}) for i in range(count)]


def whole(found):
    return json_bytes({"answers": [answer_document(answer) for answer in found]})


@pytest.mark.parametrize("count", [5, 8, 9, 31])
async def test_many_answers_are_written_some_at_a_time(count, monkeypatch):
    monkeypatch.setattr("sash.rest.answers._VALUES", 16)
    taken, given = [], answers(count)

    async def run(steps):
        number, found = counted(steps)
        taken.append(number)
        return found

    assert await answers_json(given, None, run) == whole(answers(count))
    assert taken == [-(-count // 4)]
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
def test_a_long_series_is_written_column_by_column(buckets, monkeypatch):
    whole, _ = written(series(buckets))
    monkeypatch.setattr("sash.rest.answers._VALUES", 4)
    monkeypatch.setattr("sash.rest.answers._NUMBERS", 8)
    assert written(series(buckets)) == (whole, 5 * -(-buckets // 8) + -(-buckets // 4))


def test_a_series_has_its_parts_and_its_columns():
    found = series(3)
    found.parts = {"a": "b"}
    document, _ = written(found)
    assert orjson.loads(document) == {
        "key": "k",
        "parts": {"a": "b"},
        "start": 0,
        "end": 30,
        "step": 10,
        "width": 10,
        "time": [0, 10, 20],
        "entries": [0, 1, 2],
        "aggregates": {
            "n": [0, 1, 2],
            "mean": ["NaN", 1.5, 1.5],
            "all": [[1, "]"], [1, "]"], None],
            "odd name]": [0, 1 / 7, 2 / 7],
        },
    }


def written(found):
    """The document of a series, and how many steps it took."""
    count, parts = counted(series_steps(found, 0, len(found.times) * 10, 10))
    return b"".join(parts), count


# ---------------------------------------------------------------- part by part


async def sent(gone_after=None):
    """Which tasks made the parts, what was sent, and whether the parts were closed."""
    made, bodies, closed = [], [], []
    exchange = SimpleNamespace(gone=False)

    async def parts():
        try:
            for number in range(5):
                made.append(asyncio.current_task())
                yield b"%d" % number
        finally:
            closed.append(True)

    async def send(message):
        if "body" in message:
            bodies.append(message["body"])
            exchange.gone = len(bodies) == gone_after

    await streamed(parts(), "text/plain")({"type": "http", ANSWERS: exchange}, None, send)
    return made, bodies, closed


async def test_its_parts_are_made_in_the_task_of_the_call():
    made, bodies, closed = await sent()
    assert set(made) == {asyncio.current_task()}
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b""]
    assert closed


async def test_no_more_parts_are_made_for_a_client_that_has_gone():
    made, bodies, closed = await sent(gone_after=2)
    assert len(made) == 3
    assert bodies == [b"0", b"1", b""]
    assert closed == [True]
