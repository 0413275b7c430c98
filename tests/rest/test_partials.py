"""Partials in and out over REST."""

import base64
import math

import pytest

from sash_engine.monoids import Mean
from tests.rest.conftest import made
from tests.support.arrow import ARROW, batch, stream
from tests.support.refusals import refuse

# ---------------------------------------------------------------- partials

PANES = {
    "name": "panes",
    "time_unit": "s",
    "granularity": "10s",
    "aggregates": {"n": {"function": "count"}, "mean": {"function": "mean"}, "all": {"function": "collect"}},
}


@pytest.fixture
def panes(http):
    yield from made(http, **PANES)


BLOBS = [base64.b64encode(text).decode() for text in (b"[0.0,1.0]", b"[3.0]")]
COUNT, SUM = Mean.parts


def test_partials_go_in_as_columns_and_come_out_where_they_are_asked_for(http, panes):
    path = f"/v1/windows/{panes}"
    counts, sums = [2, 1], [1.0, math.inf]
    partials = {"mean": {COUNT: counts, SUM: [1.0, "Infinity"]}, "all": {"blob": BLOBS}, "n": {"entries": counts}}
    document = {"time": [10, 20], "partials": partials, "entries": counts}
    columns = {"time": [30, 40], "entries": counts, "partials.all.blob": [b"[0.0,1.0]", b"[3.0]"]}
    columns |= {f"partials.mean.{COUNT}": counts, f"partials.mean.{SUM}": sums, "partials.n.entries": counts}
    assert http.post(f"{path}/bulk-insert", json=document).json()["inserted"] == 3
    arrow = http.post(f"{path}/bulk-insert", content=stream(batch(**columns)), headers=ARROW)
    assert arrow.json()["inserted"] == 3, arrow.text
    for start, row in ((10, 0), (20, 1), (30, 0), (40, 1)):
        asked = {"start": start, "end": start + 9, "partials": "true"}
        found = http.get(f"{path}/range", params=asked).json()["partials"]
        assert found["mean"] == {COUNT: [counts[row]], SUM: [partials["mean"][SUM][row]]}
        assert found["all"] == {"blob": [BLOBS[row]]}
    assert "partials" in http.get(f"{path}/query?partials=true").json()["answers"][0]
    assert "partials" not in http.get(f"{path}/query").json()["answers"][0]
    refuse(http, "GET", f"{path}/query?partials=yes", 400, "partials")


def test_wrong_partials_in_arrow(http, panes):
    for columns, field in (
        ({f"partials.mean.{COUNT}": [1]}, f"partials.mean.{SUM}"),
        ({"partials.nope.blob": [b"x"]}, "partials.nope.blob"),
        ({"partials.all.blob": ["x"]}, "partials.all.blob"),
        ({"value": [1.0]}, "value"),
    ):
        body = stream(batch(time=[1], entries=[1], **columns))
        refuse(http, "POST", f"/v1/windows/{panes}/bulk-insert", 400, field, content=body, headers=ARROW)


MEAN = {COUNT: [2], SUM: [8.0]}


@pytest.mark.parametrize("name", ["partials", "entries", "partials.mean.sum", "fields", "value"])
def test_a_field_that_is_called_as_a_part_of_a_document(http, name):
    """A field's values are a list, and partials an object; what is not a field is a part."""
    aggregates = {"all": {"function": "collect"}}
    for window in made(http, name=f"field.{name}", fields={name: "float64"}, aggregates=aggregates):
        path = f"/v1/windows/{window}"
        assert http.post(f"{path}/insert", json={"time": 1, name: 1}).json()["inserted"] == 1
        assert http.post(f"{path}/bulk-insert", json={"time": [2, 3], name: [2, 3]}).json()["inserted"] == 2
        arrow = stream(batch(time=[4], **{name: [4.0]}))
        assert http.post(f"{path}/bulk-insert", content=arrow, headers=ARROW).json()["inserted"] == 1
        if name != "fields":
            assert http.post(f"{path}/bulk-insert", json={"time": [5], "fields": {name: [5]}}).json()["inserted"] == 1
        answer = http.get(f"{path}/query").json()["answers"][0]["aggregates"]["all"]
        assert answer == [1, 2, 3, 4, 5][: len(answer)]
        assert len(answer) == 4 + (name != "fields")
        (out,) = http.get(f"{path}/entries").json()["bulks"]
        assert out == {"time": answer} | ({name: answer} if name == "fields" else {"fields": {name: answer}})
        refuse(http, "POST", f"{path}/bulk-insert", 400, name, json={"time": [9], name: {"mean": MEAN}})
        assert http.get(f"{path}/query").json()["answers"][0]["aggregates"]["all"] == answer


@pytest.mark.parametrize("name", ["partials", "entries", "partials.mean.sum"])
def test_partials_of_a_window_with_a_field_that_is_called_as_a_part_of_them(http, name):
    aggregates = {"mean": {"function": "mean", "field": name}}
    spec = {"name": f"panes.{name}", "granularity": "10", "fields": {name: "float64"}, "aggregates": aggregates}
    for window in made(http, **spec):
        path = f"/v1/windows/{window}"
        assert http.post(f"{path}/bulk-insert", json={"time": [10], name: [1]}).json()["inserted"] == 1
        arrow = stream(batch(time=[20], **{name: [1.0]}))
        assert http.post(f"{path}/bulk-insert", content=arrow, headers=ARROW).json()["inserted"] == 1
        document = {"time": [10], "partials": {"mean": MEAN}, "entries": [2]}
        assert http.post(f"{path}/bulk-insert", json=document).json()["inserted"] == 2
        columns = {"time": [20], "entries": [2], f"partials.mean.{COUNT}": [2], f"partials.mean.{SUM}": [8.0]}
        arrow = stream(batch(**columns))
        assert http.post(f"{path}/bulk-insert", content=arrow, headers=ARROW).json()["inserted"] == 2
        for start in (10, 20):
            answer = http.get(f"{path}/range", params={"start": start, "end": start}).json()
            assert (answer["entries"], answer["aggregates"]["mean"]) == (3, 3.0)
        again = http.get(f"{path}/entries", headers={"accept": ARROW["content-type"]}).content
        assert http.post(f"{path}/bulk-insert", content=again, headers=ARROW).json()["inserted"] == 6


# ---------------------------------------------------------------- how many entries

MOST = 20_000


def test_a_write_has_as_many_rows_of_partials_as_it_may_have_entries(http, panes):
    path = f"/v1/windows/{panes}/bulk-insert"
    blob = base64.b64encode(b"[1.0]").decode()
    for n in (MOST, MOST + 1):
        parts = {"mean": {COUNT: [1] * n, SUM: [1] * n}, "all": {"blob": [blob] * n}}
        sent = {"json": {"time": [0] * n, "entries": [1] * n, "partials": parts}}
        if n > MOST:
            refuse(http, "POST", path, 413, "time", f"{MOST} entries", **sent)
        else:
            assert http.post(path, **sent).json()["inserted"] == MOST
    assert http.get(f"/v1/windows/{panes}").json()["entries"] == MOST
