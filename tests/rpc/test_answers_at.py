"""Pairs over the wire: gRPC with one message and with a stream, Connect, REST in JSON and Arrow; over shards, too."""

import asyncio
import threading
from io import BytesIO
from typing import Any

import grpc
import httpx
import numpy as np
import pyarrow as pa
import pytest

from sash.durability.records.commands import BulkInsert
from sash.rpc.pipeline import until_closed
from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument, Unavailable
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import AnswersAt, Where
from sash_engine.windows.spec.window import WindowSpec
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.columns import fill_strings
from tests.support.servers import WAIT_S, running_service
from tests.support.sharded import in_process, single
from tests.support.waiting import turns

SPEC = {
    "name": "w",
    "time_unit": "none",
    "keys": ["airport", "carrier"],
    "fields": {"v": "float64"},
    "aggregates": {"sum": {"function": "sum"}, "most": {"function": "max"}, "n": {"function": "count"}},
}
N = 60
KEYS = [f"A{i % 5}|C{i % 3}" for i in range(N)]
TIMES = np.arange(N)
ASKED = [("A1|C1", 30), ("A0|C0", 59), ("nobody|C1", 9), ("A1|C1", -5), ("A4|C2", 59), ("A1|C1", 30)]


def coded(keys):
    return Coded.of(keys)


def batch_of(spec):
    return Batch.of(spec, TIMES.tolist(), {"v": (TIMES / 7).tolist()}, KEYS)


async def asked_of(plane):
    """What a plane answers about the pairs."""
    spec = WindowSpec.parse(SPEC)
    await plane.create(spec)
    await plane.write("w", BulkInsert(batch_of(spec)))
    question = AnswersAt(np.array([time for _, time in ASKED]), coded([key for key, _ in ASKED]), [10, 40])
    found = await plane.ask("w", question)
    some = await plane.ask("w", AnswersAt(question.times, question.keys, (), [Where("airport", "=", ["A1"])], ["n"]))
    with pytest.raises(InvalidArgument):
        await plane.ask("w", AnswersAt(question.times, coded(["A1|C1"])))
    with pytest.raises(InvalidArgument):
        await plane.ask("w", AnswersAt(np.zeros(2**20, np.int64), Coded(["A1|C1"], np.zeros(2**20, np.int64))))
    return [
        (each.lookback, each.entries.tolist(), {name: column.tolist() for name, column in each.aggregates.items()})
        for each in [*found, *some]
    ]


async def test_shards_answer_as_one_does():
    alone = await asked_of(single(ManualClock()))
    assert await asked_of(in_process(3)) == alone
    assert [lookback for lookback, _, _ in alone] == ["10", "40", None]
    assert [each[1] for each in alone] == [[0, 0, 0, 0, 1, 0], [2, 2, 0, 0, 3, 2], [2, 0, 0, 0, 0, 2]]


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        http = running.http()
        assert http.post("/v1/windows", json=SPEC).status_code < 300
        body = {
            "time": TIMES.tolist(),
            "airport": [key.split("|")[0] for key in KEYS],
            "carrier": [key.split("|")[1] for key in KEYS],
            "v": (TIMES / 7).tolist(),
        }
        assert http.post("/v1/windows/w/bulk-insert", json=body).status_code == 200
        yield running


def expected():
    return asyncio.run(asked_of(single(ManualClock())))


def request_of(pairs=ASKED, **question):
    request = pb.AnswersAtRequest(time=np.array([time for _, time in pairs], "<i8").tobytes(), **question)
    fill_strings(request.key, coded([key for key, _ in pairs]))
    return request


def shown(response):
    found = []
    for each in response.answers:
        columns = {}
        for name, column in each.aggregates.items():
            numbers = np.frombuffer(column.float64, "<f8") if column.float64 else np.frombuffer(column.int64, "<i8")
            valid = column.valid or bytes([1] * len(numbers))
            columns[name] = [number if there else None for number, there in zip(numbers.tolist(), valid, strict=True)]
        found.append((each.lookback or None, np.frombuffer(each.entries, "<i8").tolist(), columns))
    return found


def test_grpc(service):
    assert shown(service.stub().AnswersAt(request_of(window="w", lookbacks=["10", "40"]))) == expected()[:2]
    by_parts = pb.AnswersAtRequest(window="w", time=np.array([30], "<i8").tobytes(), lookbacks=["10"])
    fill_strings(by_parts.parts["airport"], coded(["A1"]))
    fill_strings(by_parts.parts["carrier"], coded(["C1"]))
    assert shown(service.stub().AnswersAt(by_parts))[0][1] == [0]


def test_a_stream_of_bulks(service):
    first, *others = [request_of([pair]) for pair in ASKED]
    first.window = "w"
    first.lookbacks.extend(["10", "40"])
    found = [shown(response) for response in service.stub().AnswersAtStream(iter([first, *others]))]
    assert [each[0][1][0] for each in found] == expected()[0][1]
    assert [each[1][2]["sum"][0] for each in found] == expected()[1][2]["sum"]
    alone = pb.AnswersAtRequest(window="w", lookbacks=["10"])
    assert len(list(service.stub().AnswersAtStream(iter([alone, request_of()])))) == 1
    with pytest.raises(grpc.RpcError) as refused:
        list(service.stub().AnswersAtStream(iter([first, first])))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for option in ({"lookbacks": ["1"]}, {"where": [pb.Condition()]}, {"aggregates": ["n"]}, {"partial": "allow"}):
        with pytest.raises(grpc.RpcError) as refused:
            list(service.stub().AnswersAtStream(iter([first, request_of(**option)])))
        assert "only the first request" in refused.value.details()


def test_an_idle_stream_does_not_hold_the_service_up():
    """Its caller is told; so is one that has sent nothing yet."""
    more = threading.Event()
    with running_service(shutdown_grace_s=WAIT_S * 2) as running:
        assert running.http().post("/v1/windows", json=SPEC).status_code < 300
        first = request_of(window="w", lookbacks=["10"])

        def requests(some):
            yield from some
            more.wait(WAIT_S)

        answers, silent = (running.stub().AnswersAtStream(requests(some)) for some in ([first], []))
        assert len(next(answers).answers) == 1
        running.stub().AnswersAt(first)  # behind this call, the service knows of the silent one
        running.stop()  # asserts that it ends within WAIT_S, which is less than the grace
        for stream in (answers, silent):
            with pytest.raises(grpc.RpcError) as ended:
                next(stream)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        more.set()


async def test_requests_end_when_the_service_closes():
    closing, more = asyncio.Event(), asyncio.Queue()

    async def requests():
        while (found := await more.get()) is not None:
            yield found

    open_ = until_closed(requests(), closing)
    more.put_nowait(1)
    assert await anext(open_) == 1
    waits = asyncio.create_task(anext(open_))
    await turns(1)
    more.put_nowait(2)
    assert await waits == 2  # the same task waits again
    closing.set()
    more.put_nowait(3)
    with pytest.raises(Unavailable):
        await anext(open_)  # what comes later is not begun


async def test_requests_end_while_none_comes():
    closing, task = asyncio.Event(), asyncio.current_task()

    async def requests():
        yield 1
        await asyncio.Event().wait()

    open_ = until_closed(requests(), closing)
    assert await anext(open_) == 1
    asyncio.get_running_loop().call_soon(closing.set)
    with pytest.raises(Unavailable) as ended:
        await anext(open_)
    assert ended.value.retry_after_s == 1.0
    assert task.cancelling() == 0


async def test_a_request_that_is_served_when_the_service_closes_is_served():
    closing, served = asyncio.Event(), []

    async def requests():
        yield 1
        yield 2

    watching = set[asyncio.Task[Any]]()

    async def serve():
        async for request in until_closed(requests(), closing):
            watching.update(asyncio.all_tasks() - {asyncio.current_task()})
            closing.set()
            await turns(5)
            served.append(request)

    with pytest.raises(Unavailable):
        await serve()
    assert served == [1]
    assert [task.exception() for task in watching] == [None]


async def test_requests_end_with_their_own_end_and_errors():
    async def requests(error=None):
        yield 1
        if error is not None:
            raise error

    assert [found async for found in until_closed(requests(), asyncio.Event())] == [1]
    for error in (TimeoutError("theirs"), InvalidArgument("no")):
        with pytest.raises(type(error)):
            assert [found async for found in until_closed(requests(error), asyncio.Event())] == []
    await turns(1)
    assert asyncio.all_tasks() == {asyncio.current_task()}  # none waits for a close any more


def test_connect(service):
    url = f"{service.rest_url}/sash.v1.Windows/AnswersAt"
    sent = request_of(window="w", lookbacks=["10", "40"]).SerializeToString()
    response = httpx.post(url, content=sent, headers={"content-type": "application/proto"})
    assert response.status_code == 200, response.text
    assert shown(pb.AnswersAtResponse.FromString(response.content)) == expected()[:2]


PATH = "/v1/windows/w/answers-at"


def test_json(service):
    parts = [key.split("|") for key, _ in ASKED]
    times = [time for _, time in ASKED]
    bodies = [
        {"time": times, "key": [key for key, _ in ASKED]},
        {"time": times, "key": {"airport": [a for a, _ in parts], "carrier": [c for _, c in parts]}},
        {"time": times, "airport": [a for a, _ in parts], "carrier": [c for _, c in parts]},
    ]
    http = service.http()
    for body in bodies:
        answer = http.post(PATH, params={"lookback": ["10", "40"]}, json=body)
        assert answer.status_code == 200, answer.text
        found = [(each["lookback"], each["entries"], each["aggregates"]) for each in answer.json()["answers"]]
        assert found == expected()[:2]
    (one,) = http.post(PATH, params={"where": "airport=A1", "aggregate": "n"}, json=bodies[0]).json()["answers"]
    assert (one.get("lookback"), one["entries"], one["aggregates"]) == expected()[2]


def test_arrow(service):
    table = pa.table({"time": [time for _, time in ASKED], "key": [key for key, _ in ASKED]})
    sink = BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    kind = "application/vnd.apache.arrow.stream"
    http = service.http()
    answer = http.post(
        PATH,
        params={"lookback": ["10", "40"]},
        content=sink.getvalue(),
        headers={"content-type": kind, "accept": kind},
    )
    assert answer.status_code == 200, answer.text
    found = pa.ipc.open_stream(answer.content).read_all()
    assert found.column_names == [
        name
        for lookback in ("10", "40")
        for name in (f"entries_{lookback}", f"sum_{lookback}", f"most_{lookback}", f"n_{lookback}")
    ]
    assert found["sum_40"].to_pylist() == expected()[1][2]["sum"]
    assert found["most_10"].to_pylist() == expected()[0][2]["most"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"key": ["A1|C1"]}, "time"),
        ({"time": [1], "key": ["A1|C1"], "v": [1.0]}, "v"),
        ({"time": [1, 2], "key": ["A1|C1"]}, "keys"),
        ({"time": ["a"], "key": ["A1|C1"]}, "time[0]"),
        ({"time": [1]}, "keys"),
    ],
)
def test_refused(service, body, field):
    http = service.http()
    answer = http.post(PATH, json=body)
    assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text
