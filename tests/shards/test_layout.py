"""How many shards a store has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sash.settings import load_settings
from sash.shards.layout import Share, check_single, is_leased, shards_of_store, store_of
from sash_engine.errors import DataLoss, InvalidArgument
from tests.support.redis_servers import BINARIES, redis_server
from tests.support.refused import refused
from tests.support.servers import running_service


def shards(data: object, processes: int = 1, wanted: int | None = None, **others: Any) -> int:
    return shards_of_store(load_settings(data=str(data), shards=wanted, **others), processes)


def test_a_new_directory_has_as_many_as_it_says_or_as_there_are_processes(tmp_path: Path) -> None:
    assert shards(tmp_path / "a", wanted=6) == 6
    assert shards(tmp_path / "a") == 6
    assert shards(tmp_path / "b", 3) == 3
    assert shards(tmp_path / "b") == 3
    assert shards(tmp_path / "c", 3, wanted=12) == 12
    assert shards(tmp_path / "d") == 1
    assert not (tmp_path / "d").exists()
    assert shards("memory", wanted=4) == 4


def test_a_directory_of_one_shard_stays_one(tmp_path: Path) -> None:
    with running_service(data=str(tmp_path)):
        pass
    assert shards(tmp_path) == shards(tmp_path, wanted=1) == 1
    with pytest.raises(InvalidArgument, match="SASH_SHARDS is 4, and the store has 1") as raised:
        shards(tmp_path, wanted=4)
    assert (raised.value.field, raised.value.limit) == ("shards", "1")
    refused(shards, tmp_path, 2, match="SASH_PROCESSES is 2, and the store has 1")


def test_numbers_that_do_not_fit(tmp_path: Path) -> None:
    shards(tmp_path, wanted=3)
    refused(shards, tmp_path, wanted=2, match="SASH_SHARDS is 2, and the store has 3")
    refused(shards, tmp_path, 4, match="SASH_PROCESSES is 4, and the store has 3")
    refused(shards, tmp_path / "new", 4, wanted=2, match="SASH_PROCESSES is 4, and the store has 2")
    assert not (tmp_path / "new").exists()
    refused(shards, "memory", 2, match="needs a store")
    for wrong in ({"shards": 0}, {"shards": 4097}, {"processes": 0}, {"processes": "many"}):
        refused(load_settings, **wrong, match=f"SASH_{next(iter(wrong)).upper()}")
    assert load_settings(processes="auto").processes >= 1


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"shards": "many"}), json.dumps({"shards": 0})])
def test_a_damaged_number(tmp_path: Path, text: str) -> None:
    (tmp_path / "shards.json").write_text(text)
    refused(shards, tmp_path, error=DataLoss, match=r"shards\.json does not say how many shards")


def test_a_directory_whose_number_is_lost_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    with running_service(data=str(tmp_path), shards=2):
        pass
    (tmp_path / "shards.json").unlink()
    for wanted in (None, 2, 3):
        refused(shards, tmp_path, wanted=wanted, error=DataLoss, match=r"shards\.json is missing")
    (tmp_path / "shards.json").write_text('{"shards": 2}')
    assert shards(tmp_path) == 2


def test_redis_keeps_the_number() -> None:
    with redis_server(BINARIES["valkey"]) as server:
        assert shards(server.url, 2) == 2
        assert shards(server.url, 1, wanted=2) == 2
        refused(shards, server.url, wanted=4, match="SASH_SHARDS is 4, and the store has 2")
        with pytest.raises(InvalidArgument, match="set SASH_SHARDS=2"):
            check_single(load_settings(data=server.url))
        with pytest.raises(InvalidArgument, match="set SASH_SHARDS=2"), running_service(data=server.url):
            pass
        with running_service(data=server.url, redis_prefix="single"):
            pass
        refused(shards, server.url, 2, redis_prefix="single", match="'single' has one shard")


def test_a_prefix_whose_number_is_lost_is_not_taken_for_a_new_one() -> None:
    with redis_server(BINARIES["valkey"], "appendfsync no") as server:
        with running_service(data=server.url, shards=2):
            pass
        server.ask("DEL", "{sash}:shards")
        for wanted in (2, 3):
            refused(shards, server.url, wanted=wanted, error=DataLoss, match=r"\{sash\}:shards is missing")
        with pytest.raises(DataLoss, match=r"\{sash\}:shards is missing"), running_service(data=server.url):
            pass
        assert server.ask("EXISTS", "{sash}:shards") == 0
        server.ask("SET", "{sash}:shards", "2")
        assert shards(server.url, wanted=2) == 2


def test_where_a_shard_is(tmp_path: Path) -> None:
    directory, redis = load_settings(data=str(tmp_path)), load_settings(data="redis://h")
    assert store_of(directory, 1, 0) == (str(tmp_path), "sash")
    assert store_of(directory, 4, 3) == (str(tmp_path / "shard-3"), "sash")
    assert store_of(redis, 1, 0) == ("redis://h", "sash")
    assert store_of(redis, 4, 3) == ("redis://h", "sash/3")
    share = Share(1, 3, 8, "/f")
    assert list(share.mine) == [1, 4, 7]
    assert [share.address(shard) for shard in range(4)] == ["unix:/f/0", "unix:/f/1", "unix:/f/2", "unix:/f/0"]


def test_which_shards_a_process_owns() -> None:
    settings = load_settings(data="redis://h", shards_owned="0-2, 7")
    assert settings.shards_owned == {0, 1, 2, 7}
    assert is_leased(settings, 8)
    assert is_leased(load_settings(data="redis://h"), 8)
    assert not is_leased(load_settings(data="redis://h", standby=True), 8)
    assert not is_leased(load_settings(data="redis://h"), 1)
    assert not is_leased(load_settings(data="some/where"), 8)
    with pytest.raises(InvalidArgument, match="names shard 7, and the store has 7") as raised:
        is_leased(settings, 7)
    assert (raised.value.field, raised.value.limit) == ("shards_owned", "6")
    for others in ({"data": "some/where"}, {"data": "redis://h", "standby": True}):
        with pytest.raises(InvalidArgument, match="SASH_SHARDS_OWNED needs"):
            is_leased(load_settings(shards_owned="0", **others), 8)
    for wrong in ("", "a", "1-", "-1", "1,,2", "12345"):
        refused(load_settings, shards_owned=wrong, match="SASH_SHARDS_OWNED must be numbers of shards")


def test_a_service_with_shards_keeps_its_windows_over_a_restart(tmp_path: Path) -> None:
    spec = {"name": "w", "keyed": True, "aggregates": {"sum": {"function": "sum"}}}
    for data in (str(tmp_path), "redis"):
        with redis_server(BINARIES["valkey"]) as server:
            settings = {"data": server.url if data == "redis" else data, "shards": 4}
            with running_service(**settings) as running:
                http = running.http()
                http.post("/v1/windows", json=spec).raise_for_status()
                for key in "abcdefgh":
                    body = {"time": 1, "key": key, "value": ord(key)}
                    http.post("/v1/windows/w/insert", json=body).raise_for_status()
            with running_service(**settings) as running:
                http = running.http()
                for key in "abcdefgh":
                    (answer,) = (
                        http.get("/v1/windows/w/query", params={"key": key}).raise_for_status().json()["answers"]
                    )
                    assert answer["aggregates"]["sum"] == ord(key)
                assert http.get("/v1/windows/w").json()["entries"] == 8
