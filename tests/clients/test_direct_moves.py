"""Direct producers while shards move and replies are lost: each entry counts once, and those of a key keep their order.

DirectProducer ── BulkInsert, sash-shard ──▶ p0 │ p1 │ p2        each has some shards; shards move at any time
               ── GetTopology ─────────────▶ any of them
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client.calls.owners import Owners
from sash_client.calls.plans import Ask, Plan, performed
from sash_client.data.bulks import from_bulk
from sash_client.direct import DirectProducer
from sash_client.errors import FailedPrecondition, Unavailable, unreachable
from sash_client.windows import producer as producer_module
from sash_client.windows.handle import Handle
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.placement import shard_of

SHARDS, PROCESSES = 5, 3
KEYS = [f"k{i}" for i in range(12)]
SPEC = pb.WindowSpec(name="w", keyed=True, time_unit="none", fields={"value": "float64"})

keys = st.sampled_from(KEYS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), keys),
        st.tuples(st.just("bulk"), st.lists(keys, min_size=1, max_size=20)),
        st.tuples(st.just("move"), st.integers(0, SHARDS - 1), st.integers(0, PROCESSES - 1)),
        st.tuples(st.just("fault"), st.sampled_from(["before", "after", "unreachable"]), st.integers(1, 3)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


class Deployment:
    """Shards that move between processes; each notes the last number of a producer, as the service does."""

    def __init__(self) -> None:
        self.owner = [shard % PROCESSES for shard in range(SHARDS)]
        self.faults: list[str] = []
        self.last: dict[tuple[int, str], int] = defaultdict(int)
        self.entries: dict[str, list[int]] = defaultdict(list)
        self.lock = threading.Lock()

    def call(self, ask: Ask) -> Any:
        with self.lock:
            process = int((ask.target or "p0:1")[1])
            if ask.method == "GetTopology":
                processes = [
                    pb.Process(
                        number=i, up=True, address=f"p{i}:1", shards=[s for s in range(SHARDS) if self.owner[s] == i]
                    )
                    for i in range(PROCESSES)
                ]
                return pb.Topology(shards=SHARDS, processes=processes)
            assert ask.method == "BulkInsert"
            assert ask.alone
            fault = self.faults.pop() if self.faults else ""
            if fault == "unreachable":
                raise unreachable("refused")
            if fault == "before":
                raise Unavailable("it did not arrive")
            if ask.owner is None or self.owner[ask.owner] != process:
                raise Unavailable("the shard is elsewhere")
            done = self._written(ask.owner, ask.request)
            if fault == "after":
                raise Unavailable("the reply is lost")
            return done

    def _written(self, shard: int, message: pb.BulkInsertRequest) -> pb.InsertResponse:
        bulk = from_bulk(message)
        assert {shard_of("w", key, SHARDS) for key in bulk.keys.tolist()} <= {shard}
        last = self.last[shard, message.producer]
        if message.sequence > last + 1:
            raise FailedPrecondition("a gap", limit=str(last + 1))
        if message.sequence <= last:
            return pb.InsertResponse(already_applied=True)
        self.last[shard, message.producer] = message.sequence
        for time, key in zip(bulk.times.tolist(), bulk.keys.tolist(), strict=True):
            self.entries[key].append(time)
        return pb.InsertResponse(inserted=len(bulk))


class FakeClient:
    """What a direct producer needs of its client, over a deployment that is not real."""

    timeout_s = 1e6
    bulk_entries_max, bulk_bytes_max = 7, 2**20
    _is_closed = False

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._owners = Owners("p0:1", self.timeout_s, itertools.count().__next__)  # a map is never too new

    def _check_process(self) -> None:
        pass

    def _perform(self, plan: Plan[Any]) -> Any:
        return performed(self._owners.routed(plan), self._deployment.call)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "pauses_s", lambda: itertools.repeat(0.0))


def numbered(history: list[Any]) -> Iterator[tuple[Any, list[tuple[int, str]]]]:
    """Each step with its entries: their times are the order in which they were taken."""
    times = itertools.count()
    for step in history:
        taken = [step[1]] if step[0] == "insert" else step[1] if step[0] == "bulk" else []
        yield step, [(next(times), key) for key in taken]


@given(steps)
def test_each_entry_counts_once_and_in_its_order(history: list[Any]) -> None:
    deployment = Deployment()
    handle = Handle(FakeClient(deployment), "w", SPEC)
    name = "p"
    producer = DirectProducer(handle, name, linger_s=0, bulk_entries=3)
    expected: dict[str, list[int]] = defaultdict(list)
    for step, entries in numbered(history):
        for time, key in entries:
            expected[key].append(time)
        if step[0] == "insert":
            producer.insert(entries[0][0], 1.0, key=entries[0][1])
        elif step[0] == "bulk":
            producer.bulk_insert([time for time, _ in entries], [1.0] * len(entries), keys=[key for _, key in entries])
        elif step[0] == "move":
            with deployment.lock:
                deployment.owner[step[1]] = step[2]
        elif step[0] == "fault":
            with deployment.lock:
                deployment.faults += [step[1]] * step[2]
        elif step[0] == "flush":
            producer.flush()
            assert deployment.entries == expected
        else:
            producer.close()
            name += "'"
            producer = DirectProducer(handle, name, linger_s=0, bulk_entries=3)
    producer.close()
    assert deployment.entries == expected
    assert producer.acknowledged == {shard: n for (shard, of), n in deployment.last.items() if of == name}


def test_many_threads_while_shards_move() -> None:
    deployment = Deployment()
    handle = Handle(FakeClient(deployment), "w", SPEC)
    with DirectProducer(handle, "p", linger_s=0, bulk_entries=5) as producer:

        def write(key: str) -> None:
            for time in range(100):
                producer.insert(time, 1.0, key=key)

        writers = [threading.Thread(target=write, args=(key,)) for key in KEYS]
        for writer in writers:
            writer.start()
        for move in range(200):
            with deployment.lock:
                deployment.owner[move % SHARDS] = move % PROCESSES
                deployment.faults += [("before", "after", "unreachable")[move % 3]]
        for writer in writers:
            writer.join()
    assert deployment.entries == {key: list(range(100)) for key in KEYS}
    assert producer.result.inserted <= 100 * len(KEYS)  # what was applied without a reply is not counted twice
