"""Times over REST: as ticks, as ISO 8601, and counted from now; in questions, in entries and in answers."""

import time

import pytest
from pydantic import ValidationError

from sash.rest.routes.reads import Querying, Ranging

ISO = ["1970-01-01T00:00:10Z", "1970-01-01T00:00:20Z", "1970-01-01T00:00:30Z"]


@pytest.fixture
def three(http, window):
    """Entries at 10, 20 and 30 s, written as texts."""
    path = f"/v1/windows/{window}"
    assert http.post(f"{path}/insert", json={"time": ISO[0], "value": 1}).json()["inserted"] == 1
    assert http.post(f"{path}/bulk-insert", json={"time": ISO[1:], "value": [2, 3]}).json()["inserted"] == 2
    return path


@pytest.mark.parametrize(
    ("start", "end"), [(10, 20), (ISO[0], ISO[1]), ("1970-01-01T01:00:10+01:00", 20), ("10", "20")]
)
def test_questions_take_texts(http, three, start, end):
    def asked(route, **more):
        response = http.get(f"{three}/{route}", params={"start": start, "end": end, **more})
        assert response.status_code == 200, response.text
        return response.json()

    assert asked("range")["aggregates"]["all"] == [1, 2]
    assert asked("series", step="5s")["time"] == [10, 15]
    assert asked("entries")["bulks"] == [{"time": [10, 20], "fields": {"value": [1, 2]}}]
    as_of = http.get(f"{three}/query", params={"as_of": end, "lookback": "1m"}).json()
    assert as_of["answers"][0]["aggregates"]["all"] == [1, 2]


def test_a_query_string_is_read_once_and_its_texts_are_times_of_each_request():
    """Requests share what was read, so none may change it: `now` is another time for each, in its window's unit."""
    asked = Querying.read(b"as_of=now&lookback=5s")
    assert Querying.read(b"as_of=now&lookback=5s") is asked
    assert asked.has_times_to_read
    for now_s, unit, ticks in ((7, "s", 7), (8, "ms", 8000)):
        given = asked.with_times(unit, lambda now_s=now_s: now_s * 10**9)
        assert (given.as_of, given.question.as_of, given.question.lookbacks) == (ticks, ticks, ("5s",))
        assert asked.as_of == "now"
    assert not Querying.read(b"as_of=7").has_times_to_read
    assert not Querying.read(b"").has_times_to_read
    question = Querying.read(b"lookback=5s").question
    assert Querying.read(b"lookback=5s").question is question
    with pytest.raises(ValidationError, match="frozen"):
        asked.as_of = 7
    both = b"start=1&end=2"
    assert type(Ranging.read(both)) is Ranging
    longest = b"key=" + b"k" * 252
    assert Querying.read(longest) is Querying.read(longest)
    assert Querying.read(longest + b"k") is not Querying.read(longest + b"k")


def test_a_plus_that_is_not_escaped_is_a_zone(http, three):
    found = http.get(f"{three}/range?start=1970-01-01T01:00:10+01:00&end=1970-01-01T01:00:20+01:00").json()
    assert (found["start"], found["end"]) == (10, 20)


def test_now_is_the_clock_of_the_service(http, three):
    before = int(time.time())
    http.post(f"{three}/insert", json={"time": "now", "value": 4}).raise_for_status()
    newest = http.get(three).json()["newest"]
    assert before <= newest <= time.time()
    found = http.get(f"{three}/range", params={"start": "-1h", "end": "now"}).json()
    assert found["aggregates"]["all"] == [4]
    assert before - 3600 <= found["start"] <= newest - 3600 + 60


def test_answers_are_in_iso_where_asked(http, three):
    def asked(route, **params):
        response = http.get(f"{three}{route}", params={"times": "iso", **params})
        assert response.status_code == 200, response.text
        return response.json()

    (answer,) = asked("/query", as_of=20, lookback="10s")["answers"]
    assert (answer["start"], answer["end"]) == ("1970-01-01T00:00:11Z", ISO[1])
    assert asked("/range", start=10, end=30)["end"] == ISO[2]
    series = asked("/series", start=10, end=30, step="10s")
    assert (series["start"], series["end"], series["time"]) == (ISO[0], ISO[2], ISO[:2])
    sessions = asked("/series", start=0, end=40, gap="15s")
    assert (sessions["time"], sessions["last"]) == ([ISO[0]], [ISO[2]])
    (bulk,) = asked("/entries")["bulks"]
    assert bulk["time"] == ISO
    shown = asked("")
    assert (shown["oldest"], shown["newest"], shown["high_water_mark"]) == (ISO[0], ISO[2], ISO[2])
    with http.stream("GET", f"{three}/watch", params={"times": "iso"}) as response:
        assert ISO[0].encode() in next(response.iter_raw())


def test_long_answers_are_in_iso_where_asked(http, typed):
    n = 3000
    keys = [f"k{i}" for i in range(n)]
    columns = {"time": list(range(n)), "key": keys, "f": [1] * n, "i": [1] * n, "s": ["x"] * n, "b": [True] * n}
    http.post(f"/v1/windows/{typed}/bulk-insert", json=columns).raise_for_status()
    params = {"times": "iso", "all_keys": "true", "aggregate": "n"}
    answers = http.get(f"/v1/windows/{typed}/query", params=params).json()["answers"]
    assert len(answers) == n
    assert answers[1001]["end"] == "1970-01-01T00:00:01.001Z"
    params = {"times": "iso", "key": "k1", "start": 0, "end": n, "step": 1, "aggregate": "n"}
    found = http.get(f"/v1/windows/{typed}/series", params=params).json()["time"]
    assert (len(found), found[2999]) == (n, "1970-01-01T00:00:02.999Z")


def test_entries_in_iso_can_be_inserted_again(http, three):
    (bulk,) = http.get(f"{three}/entries", params={"times": "iso"}).json()["bulks"]
    assert http.post(f"{three}/bulk-evict", json={"start": ISO[0], "end": ISO[2]}).json()["evicted"] == 3
    assert http.post(f"{three}/bulk-insert", json=bulk).json()["inserted"] == 3
    assert http.get(f"{three}/entries").json()["bulks"][0]["time"] == [10, 20, 30]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-ndjson", f'{{"time":"{ISO[0]}","value":1}}\n{{"time":20,"value":2}}\n'),
        ("text/csv", f"time,value\n{ISO[0]},1\n20,2\n"),
        ("text/csv", f"value,time\n1,{ISO[0]}\n2,{ISO[1]}\n"),
    ],
)
def test_lines_take_texts(http, window, kind, body):
    path = f"/v1/windows/{window}"
    done = http.post(f"{path}/bulk-insert", content=body, headers={"content-type": kind})
    assert done.json()["inserted"] == 2, done.text
    assert http.get(f"{path}/entries").json()["bulks"][0]["time"] == [10, 20]


def test_a_line_of_csv_with_a_wrong_time(http, window):
    body = f"time,value\n{ISO[0]},1\nnoon,2\n"
    found = http.post(f"/v1/windows/{window}/bulk-insert", content=body, headers={"content-type": "text/csv"}).json()
    assert (found["line"], found["field"]) == (3, "time")
