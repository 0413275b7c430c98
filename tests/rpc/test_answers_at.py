"""Pairs in a stream, and in the forms that only REST has; tests/edges has what all edges answer."""

import grpc
import numpy as np
import pyarrow as pa
import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.support.arrow import ARROW, batch, stream
from tests.support.edges import coded
from tests.support.servers import running_service
from tests.support.shown import answers_at

SPEC = {
    "name": "w",
    "time_unit": "none",
    "keys": ["airport", "carrier"],
    "fields": {"v": "float64"},
    "aggregates": {"sum": {"function": "sum"}, "most": {"function": "max"}},
}
ROWS = {"time": [1, 16, 59], "airport": ["A1", "A1", "A4"], "carrier": ["C1", "C1", "C2"], "v": [1, 16, 59]}
ASKED = [("A1|C1", 30), ("nobody|C1", 9), ("A4|C2", 59)]
TIMES, KEYS = [time for _, time in ASKED], [key for key, _ in ASKED]
ENTRIES, SUMS, MOST = [[0, 0, 1], [2, 0, 1]], [[0, 0, 59], [17, 0, 59]], [[None, None, 59], [16, None, 59]]
"""The answers with a lookback of 10, and of 40."""


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        http = running.http()
        assert http.post("/v1/windows", json=SPEC).status_code == 201
        assert http.post("/v1/windows/w/bulk-insert", json=ROWS).status_code == 200
        yield running


def request_of(pairs=ASKED, **question):
    times, keys = [time for _, time in pairs], [key for key, _ in pairs]
    return pb.AnswersAtRequest(time=np.array(times, "<i8").tobytes(), key=coded(keys), **question)


def test_a_stream_of_bulks(service):
    first, *others = [request_of([pair]) for pair in ASKED]
    first.window = "w"
    first.lookbacks.extend(["10", "40"])
    found = [answers_at(response) for response in service.stub().AnswersAtStream(iter([first, *others]))]
    for lookback in (0, 1):
        assert [each[lookback]["entries"][0] for each in found] == ENTRIES[lookback]
        assert [each[lookback]["aggregates"]["sum"][0] for each in found] == SUMS[lookback]
    alone = pb.AnswersAtRequest(window="w", lookbacks=["10"])
    assert len(list(service.stub().AnswersAtStream(iter([alone, request_of()])))) == 1
    with pytest.raises(grpc.RpcError) as refused:
        list(service.stub().AnswersAtStream(iter([first, first])))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for option in ({"lookbacks": ["1"]}, {"where": [pb.Condition()]}, {"aggregates": ["n"]}, {"partial": "allow"}):
        with pytest.raises(grpc.RpcError) as refused:
            list(service.stub().AnswersAtStream(iter([first, request_of(**option)])))
        assert "only the first request" in refused.value.details()


PATH, LOOKBACKS = "/v1/windows/w/answers-at", {"lookback": ["10", "40"]}


def test_parts_as_columns_beside_the_times(service):
    columns = {"airport": ["A1", "nobody", "A4"], "carrier": ["C1", "C1", "C2"]}
    answer = service.http().post(PATH, params=LOOKBACKS, json={"time": TIMES, **columns}).json()
    assert [each["entries"] for each in answer["answers"]] == ENTRIES


def test_arrow(service):
    body = stream(batch(time=TIMES, key=KEYS))
    answer = service.http().post(
        PATH, params=LOOKBACKS, content=body, headers=ARROW | {"accept": ARROW["content-type"]}
    )
    found = pa.ipc.open_stream(answer.content).read_all().to_pydict()
    assert list(found) == [f"{name}_{lookback}" for lookback in (10, 40) for name in ("entries", "sum", "most")]
    assert [*found.values()] == [ENTRIES[0], SUMS[0], MOST[0], ENTRIES[1], SUMS[1], MOST[1]]
