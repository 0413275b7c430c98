"""Answers of a service that are logged are given again as they were known, on every edge, over shards and restarts."""

import io
import random

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sash_client import Client, InvalidArgument, Unsupported, backup, restore
from tests.support.servers import running_service, service_process

KEYS = [f"card{i}" for i in range(12)]
SPEC = {
    "name": "cards",
    "time_unit": "s",
    "keyed": True,
    "fields": {"amount": "int64", "id": "int64", "shop": "string"},
    "aggregates": {
        "n": {"function": "count"},
        "sum": {"function": "sum", "field": "amount"},
        "most": {"function": "max", "field": "amount"},
        "shops": {"function": "distinct_count", "field": "shop"},
        "last": {"function": "last", "field": "shop"},
    },
    "identity": "id",
    "slide": {"max_age": "1h"},
    "history": "400d",
    "known": "arrival",
}
LOOKBACKS = ["1m", "30m"]


def live(window, rng, steps, start, logged):
    """Write, with late entries, retractions and corrections, and log answers."""
    for step in range(start, start + steps):
        now, n = 1_000_000 + step * 7, rng.randrange(1, 6)
        rows = [(rng.choice(KEYS), now - (rng.randrange(3000) if rng.random() < 0.2 else 0)) for _ in range(n)]
        ids = [step * 10 + i for i in range(n)]
        keys, times = [key for key, _ in rows], [time for _, time in rows]
        columns = {
            "amount": [rng.randrange(100) for _ in rows],
            "id": ids,
            "shop": [rng.choice("abcdefg") for _ in rows],
        }
        window.bulk_insert(times, columns, keys=keys)
        if rng.random() < 0.3:
            window.retract([times[0]], [ids[0]], keys=[keys[0]])
        if rng.random() < 0.3 and n > 1:
            window.update(times[1:2], {"amount": [500], "id": ids[1:2], "shop": ["z"]}, keys=keys[1:2])
        key = rng.choice(KEYS)
        logged += window.query(key=key, lookbacks=LOOKBACKS)


def reproduced(window, logged):
    """Ask for logged answers again: in one table, and some one by one."""
    some = [each for each in logged if each.end is not None]
    assert len(some) > len(logged) // 2
    for place, lookback in enumerate(LOOKBACKS):
        mine = [each for each in some if each.lookback == lookback]
        frame = pd.DataFrame({name: [getattr(each, name) for each in mine] for name in ("key", "end", "known_at")})
        found = window.answers_at(frame, time="end", known_at="known_at", lookbacks=LOOKBACKS)
        for i, answer in enumerate(mine):
            for name, value in answer.aggregates.items():
                again = found[f"{name}_{lookback}"].iloc[i]
                assert again == value or (value is None and pd.isna(again)), (answer, name, again)
        for answer in mine[place::9]:
            (again,) = window.query(key=answer.key, lookbacks=[lookback], as_of=answer.end, known_at=answer.known_at)
            assert again == answer


def numbered(service, window):
    """The entries of each key with their numbers, and what was removed: each has counted once."""
    http, removed, ends = service.http(), 0, set()

    def rows(key, **more):
        asked = {"key": key, "reverse": True, **more}
        found = http.get("/v1/windows/cards/entries", params=asked).json()["bulks"]
        return [
            dict(zip(bulk["fields"], row, strict=True), time=time)
            for bulk in found
            for time, *row in zip(bulk["time"], *bulk["fields"].values(), strict=True)
        ]

    for key in KEYS:
        kept = rows(key, known="kept")
        arrivals = [row.pop("arrival!") for row in kept]
        assert kept == rows(key)
        assert len(set(arrivals)) == len(arrivals)
        gone = rows(key, known="removed")
        removed += len(gone)
        assert all(row["placed!"] <= row["arrival!"] < row["removed!"] for row in gone)
        ends |= {(row["time"], row["id"]) for row in gone}
        for known, shown in (("kept", kept), ("removed", gone)):
            table = window.entries(key=key, known=known, reverse=True).to_arrow()
            assert table["id"].to_pylist() == [row["id"] for row in shown]
            if shown:
                assert table["arrival!"].to_pylist() == (
                    arrivals if known == "kept" else [row["arrival!"] for row in gone]
                )
                assert ("removed!" in table.column_names) == (known == "removed")
        times = [row["time"] for row in gone]
        assert times == sorted(times, reverse=True)
    counts = http.get("/v1/windows/cards").json()["counts"]
    http.close()
    assert removed == counts["retracted"] + counts["corrected"] > 20
    assert len(ends) > 20


@pytest.mark.parametrize("shards", [1, 3])
def test_logged_answers_are_given_again_after_restarts(shards, tmp_path):
    rng, logged = random.Random(shards), []
    for part in range(2):
        settings = {"data": str(tmp_path), "shards": shards, "checkpoint_bytes": 20_000}
        with running_service(**settings) as service, Client(service.grpc_target) as client:
            window = client.create_window(SPEC)
            live(window, rng, 60, part * 60, logged)
            reproduced(window, logged)
            numbered(service, window)
    assert len({each.known_at for each in logged}) > 50


def test_logged_answers_are_given_again_by_two_processes_and_from_their_backup(tmp_path):
    rng, logged = random.Random(7), []
    with (
        service_process("--data", str(tmp_path), "--processes", "2", "--shards", "4") as service,
        Client(service.grpc_target) as client,
    ):
        window = client.create_window(SPEC)
        live(window, rng, 90, 0, logged)
        reproduced(window, logged)
        numbered(service, window)
        assert backup(client, tmp_path / "backup") == ["cards"]
    with running_service() as other, Client(other.grpc_target) as client:
        assert restore(client, tmp_path / "backup") == {"cards": None}
        restored = client.window("cards")
        reproduced(restored, logged)
        numbered(other, restored)
        live(restored, rng, 60, 90, logged)
        reproduced(restored, logged)
        numbered(other, restored)


@pytest.fixture(scope="module")
def service():
    with running_service() as running, Client(running.grpc_target) as client:
        live(client.create_window(SPEC), random.Random(5), 40, 0, LOGGED)
        client.create_window({**SPEC, "name": "plain", "known": None, "history": None})
        yield running


LOGGED = []


def test_rest(service):
    url = f"{service.rest_url}/v1/windows/cards"
    mine = [each for each in LOGGED if each.end is not None and each.lookback == "30m"]
    body = {
        "time": [each.end for each in mine],
        "key": [each.key for each in mine],
        "known_at": [each.known_at for each in mine],
    }
    found = httpx.post(f"{url}/answers-at", params={"lookback": "30m"}, json=body).json()["answers"][0]
    assert found["entries"] == [each.entries for each in mine]
    assert found["aggregates"]["sum"] == [each.aggregates["sum"] for each in mine]
    one = mine[-3]
    asked = {"key": one.key, "lookback": "30m", "as_of": one.end, "known_at": one.known_at}
    (answer,) = httpx.get(f"{url}/query", params=asked).json()["answers"]
    assert (answer["entries"], answer["aggregates"]["sum"]) == (one.entries, one.aggregates["sum"])
    assert answer["known_at"] == one.known_at
    sink = io.BytesIO()
    table = pa.table(body)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    kind = {"content-type": "application/vnd.apache.arrow.stream", "accept": "application/vnd.apache.arrow.stream"}
    response = httpx.post(f"{url}/answers-at", params={"lookback": "30m"}, content=sink.getvalue(), headers=kind)
    columns = pa.ipc.open_stream(response.content).read_all()
    assert columns["entries_30m"].to_pylist() == [each.entries for each in mine]


def test_what_cannot_be_is_refused(service):
    with Client(service.grpc_target) as client:
        window = client.window("cards")
        for wrong, field in (
            ({"key": "card1", "known_at": 5}, "known_at"),
            ({"keys": ["card1", "card2"], "known_at": 5, "as_of": 9}, "known_at"),
            ({"key": "card1", "known_at": -1, "as_of": 9}, "known_at"),
            ({"key": "card1", "known_at": 2**40, "as_of": 9}, "known_at"),
        ):
            with pytest.raises(InvalidArgument) as refused:
                window.query(**wrong)
            assert refused.value.field == field
        with pytest.raises(InvalidArgument, match="known_at"):
            window.answers_at(np.array([9, 9]), keys=["card1"] * 2, known_at=[1])
        with pytest.raises(InvalidArgument, match="known_at"):
            window.answers_at(np.array([9, 9]), keys=["card1"] * 2, known_at=[1, -1])
        with pytest.raises(InvalidArgument, match="known_at"):
            window.answers_at(pd.DataFrame({"time": [9], "key": ["card1"]}), known_at="nothing")
        plain = client.window("plain")
        assert plain.query(key="card1")[0].known_at is None
        with pytest.raises(Unsupported):
            plain.query(key="card1", known_at=0, as_of=9)
        with pytest.raises(Unsupported):
            plain.answers_at([9], keys=["card1"], known_at=0)
        for name, wrong in (
            ("slide", {"max_count": 5}),
            ("granularity", "1m"),
            ("idle_expiry", "1h"),
            ("rollups", [[]]),
            ("known", "departure"),
        ):
            with pytest.raises(InvalidArgument) as refused:
                client.create_window({**SPEC, "name": "other", "history": None, "identity": None, name: wrong})
            assert refused.value.field.startswith(name)
        with pytest.raises(InvalidArgument) as refused:
            client.create_window({"name": "other", "of": "cards", "aggregates": {"n": {"function": "count"}}})
        assert refused.value.field == "of"
        derived = {"name": "other", "from": {"window": "cards", "granularity": "1m"}, "keyed": True, "time_unit": "s"}
        with pytest.raises(InvalidArgument) as refused:
            client.create_window({**derived, "fields": SPEC["fields"], "aggregates": {"n": {"function": "count"}}})
        assert refused.value.field == "from.window"
