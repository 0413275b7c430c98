"""Questions over shards of which some are away: they say which, and answer without them where that is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from sash_client import ALL_KEYS, Client, InvalidArgument
from sash_client.windows import questions
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.columns import fill_strings
from sash_wire.placement import shard_of
from tests.support.servers import Running, running_service

SHARDS, AWAY = 4, 2
KEYS = [f"key-{i}" for i in range(40)]
HERE = [key for key in KEYS if shard_of("w", key, SHARDS) != AWAY]
SPEC = {
    "name": "w",
    "keys": ["k"],
    "time_unit": "s",
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}
TIMES = [i % 7 for i in range(40)]


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running_service(shards=SHARDS) as running:
        with Client(running.grpc_target) as client:
            client.create_window(SPEC).bulk_insert(TIMES, [1.0] * 40, keys=KEYS)
        running.plane._windows.shards.hosted.pop(AWAY)
        yield running


def rest(service: Running, what: str, **params: Any) -> Any:
    return service.http().get(f"/v1/windows/w/{what}", params=params)


QUESTIONS: dict[str, dict[str, Any]] = {
    "query": {},
    "range": {"start": 0, "end": 9},
    "series": {"start": 0, "end": 7, "step": "1s"},
}


def test_a_question_says_which_shards_are_away(service: Running) -> None:
    """Over REST: the client for Python asks again and again."""
    for what, params in (*QUESTIONS.items(), ("query", {"combine": True})):
        refused = rest(service, what, all_keys=True, **params)
        assert refused.status_code == 503
        assert "1 of the 4 shards that are asked do not answer (2)" in refused.json()["detail"]
    away = next(key for key in KEYS if key not in HERE)
    refused = rest(service, "query", key=away, partial="allow")  # nothing is left of this answer
    assert (refused.status_code, "shard 2" in refused.json()["detail"]) == (503, True)
    with Client(service.grpc_target) as client:
        assert client.window("w").query(key=HERE[0]).missing_shards == []


def test_a_question_is_answered_without_them_where_that_is_allowed(service: Running) -> None:
    with Client(service.grpc_target, timeout_s=60) as client:
        window = client.window("w")
        answers = window.query(keys=KEYS, partial="allow")
        assert [answer.key for answer in answers] == HERE
        assert answers.missing_shards == [AWAY]
        assert {answer.key for answer in window.query(keys=ALL_KEYS, partial="allow")} == set(HERE)
        (together,) = window.query(keys=KEYS, combine=True, lookbacks=["3s"], partial="allow")
        assert together.entries == sum(TIMES[KEYS.index(key)] > 3 for key in HERE)
        groups = window.query(by=["k"], lookbacks=["7s"], partial="allow")
        assert {answer.key for answer in groups} == set(HERE)
        assert groups.missing_shards == [AWAY]
        answer = window.range_query(0, 9, keys=ALL_KEYS, partial="allow")
        assert (answer.entries, answer.missing_shards) == (len(HERE), (AWAY,))
        # A client that does not know the window's unit cannot learn it now: a description needs all shards.
        window._message = pb.WindowSpec(name="w", time_unit="s")
        series = window.series(0, 7, step="1s", keys=ALL_KEYS, partial="allow")
        assert (int(series.entries.sum()), series.missing_shards) == (len(HERE), (AWAY,))
        with pytest.raises(InvalidArgument, match="partial") as raised:
            window.query(keys=KEYS, partial="yes")
        assert raised.value.field == "partial"


def test_pairs_of_what_is_away_have_no_values(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [3] * len(KEYS)
    entries = [int(TIMES[i] <= 3) if key in HERE else None for i, key in enumerate(KEYS)]
    sums = [None if some is None else float(some) for some in entries]
    with Client(service.grpc_target, timeout_s=60) as client:
        window = client.window("w")
        window._message = pb.WindowSpec(name="w", time_unit="s", keyed=True, keys=["k"])
        window._message.aggregates["sum"].function = "sum"
        monkeypatch.setattr(questions, "_PAIR_ANSWERS", 11)
        found = window.answers_at(times, keys=KEYS, partial="allow")
        assert {name: column.tolist() for name, column in found.columns.items()} == {"entries": entries, "sum": sums}
        assert found.missing_shards == (AWAY,)
        assert found.to_arrow()["entries"].to_pylist() == entries
        whole = window.answers_at(times[: len(HERE)], keys=HERE, partial="allow")
        assert (whole.missing_shards, whole.columns["entries"].dtype) == ((), np.dtype("int64"))
        with pytest.raises(InvalidArgument, match="partial"):
            window.answers_at(times, keys=KEYS, partial="yes")
        request = pb.AnswersAtRequest(window="w", partial="allow", time=np.array(times).tobytes())
        fill_strings(request.key, Coded.of(KEYS))
        (answer,) = service.stub().AnswersAtStream(iter([request]))
        assert list(answer.missing_shards) == [AWAY]
    body = {"time": times, "key": KEYS}
    http, path = service.http(), "/v1/windows/w/answers-at"
    answer = http.post(path, params={"partial": "allow", "aggregate": "sum"}, json=body).raise_for_status().json()
    assert answer == {"answers": [{"entries": entries, "aggregates": {"sum": sums}}], "missing_shards": [AWAY]}
    kind = "application/vnd.apache.arrow.stream"
    content = http.post(path, params={"partial": "allow"}, json=body, headers={"accept": kind}).content
    assert pa.ipc.open_stream(content).read_all()["entries"].to_pylist() == entries
    assert http.post(path, json=body).status_code == 503
    assert http.post(path, params={"partial": "yes"}, json=body).json()["field"] == "partial"
    some = {"time": times[: len(HERE)], "key": HERE}
    assert "missing_shards" not in http.post(path, params={"partial": "allow"}, json=some).raise_for_status().json()


def test_pages_leave_out_what_is_away_and_say_so(service: Running) -> None:
    def pages(**params: Any) -> tuple[list[str], list[int]]:
        found, missing, position = [], [], ""
        while True:
            page = rest(service, "query", all_keys=True, limit=7, position=position, **params).raise_for_status().json()
            found += [answer["key"] for answer in page["answers"]]
            missing += page.get("missing_shards", [])
            if (position := page.get("next", "")) == "":
                return found, missing

    found, missing = pages(partial="allow")
    assert (sorted(found), missing) == (sorted(HERE), [AWAY])
    with pytest.raises(httpx.HTTPStatusError, match="503"):
        pages()


def test_over_rest(service: Running) -> None:
    counted: dict[str, Any] = {"query": lambda found: len(found["answers"]), "range": lambda found: found["entries"]}
    counted["series"] = lambda found: sum(found["entries"])
    for what, params in QUESTIONS.items():
        found = rest(service, what, all_keys=True, partial="allow", **params).raise_for_status().json()
        assert (counted[what](found), found["missing_shards"]) == (len(HERE), [AWAY])
    for what in ("range", "series"):
        found = rest(service, what, by="k", partial="allow", **QUESTIONS[what]).raise_for_status().json()
        assert (len(found["groups"]), found["missing_shards"]) == (len(HERE), [AWAY])
    assert "missing_shards" not in rest(service, "query", key=HERE[0], partial="allow").raise_for_status().json()
    refused = rest(service, "query", all_keys=True, partial="yes")
    assert (refused.status_code, refused.json()["field"]) == (400, "partial")
