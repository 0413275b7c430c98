"""A service of two processes: tasks stage the rows of each key where it is, and each batch counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sash_client.direct import DirectClient
from sash_spark import sash_sink
from sash_spark.writing.route import Route
from tests.support.servers import Running, service_process

pytestmark = pytest.mark.spark

SPEC = {
    "name": "w",
    "keyed": True,
    "time_unit": "none",
    "fields": {"v": "int64"},
    "aggregates": {"sum": {"function": "sum"}, "all": {"function": "collect"}},
}
KEYS = [f"k{i}" for i in range(16)]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Running]:
    with service_process("--data", str(tmp_path), "--processes", "2", "--shards", "4") as running:
        yield running


def test_rows_are_staged_where_their_keys_are(spark: Any, processes: Running, tmp_path: Path) -> None:
    with DirectClient(processes.grpc_target, timeout_s=120) as client:
        window = client.create_window(SPEC)
        expected: dict[str, list[int]] = {key: [] for key in KEYS}
        sink = sash_sink(processes.grpc_target, window="w", time="t", key="k", query="q", timeout_s=120)
        for batch in range(2):
            rows = [(1000 * batch + i, KEYS[i * 7 % 16], i) for i in range(400)]
            for _, key, value in rows:
                expected[key].append(value)
            frame = spark.createDataFrame(rows, "t long, k string, v long").repartition(3)
            sink(frame, batch)
            assert sink.total.inserted == 400 * (batch + 1)
            again = sash_sink(processes.grpc_target, window="w", time="t", key="k", query="q", timeout_s=120)
            again(frame, batch)  # as a driver that has lost the answer
            assert again.total.already_applied
        assert {key: window.query(key=key)[0].aggregates["all"] for key in KEYS} == expected
        # Each part that a task stages is on shards of one process.
        route = Route(processes.grpc_target, "w", "t", "k", {"v": "v"}, 100, 120.0)
        frame = spark.createDataFrame([(5000 + i, KEYS[i % 16], i) for i in range(250)], "t long, k string, v long")
        table = frame.coalesce(1).toArrow()
        part = route.stage(iter(table.to_batches()), "q", 2)
        of = {shard: process.number for process in client.topology().processes for shard in process.shards}
        places = Counter[int]()
        for name in part.stages:
            bits = int(name.partition(".")[2], 16)
            (place,) = {of[shard] for shard in range(4) if bits >> shard & 1}
            places[place] += 1
        assert set(places) == {0, 1}
        assert route.commit("q", 2, [part]).inserted == 250
        assert window.describe().entries == 1050
