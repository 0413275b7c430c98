"""An upgrade, and the way back, as docs/operations/deploy.md has them: with processes and the commands."""

import shutil
from pathlib import Path

import lmdb
import pytest

from sash.tiers.lmdb_open import FORMAT, FORMAT_KEY
from tests.support.servers import refused_start, service_process

EARLIER = Path(__file__).parents[1] / "fixtures" / "directory"
"""Of a service of an earlier version; tests/durability/test_earlier_directory.py says what is in it."""

WINDOWS = ("keyed", "panes", "late")
"""Those whose answers do not move with the clock."""


def answers(service):
    """Everything that the windows say of all their entries."""
    http = service.http()
    return {
        name: http.get(f"/v1/windows/{name}/query", params={"all_keys": "true"}).raise_for_status().json()
        for name in WINDOWS
    }


def evict(service, name, time):
    return service.http().post(f"/v1/windows/{name}/bulk-evict", json={"time": time}).raise_for_status().json()


def refused(data):
    """What a service says that does not start."""
    return refused_start("--data", data)


@pytest.fixture
def data(tmp_path):
    shutil.copytree(EARLIER, tmp_path / "data", ignore=shutil.ignore_patterns("answers.json"))
    return tmp_path / "data"


def test_an_upgrade_and_the_way_back(sash, tmp_path, data):
    before, after = str(tmp_path / "before.sash"), str(tmp_path / "after.sash")
    with service_process(SASH_DATA=str(data)) as service:
        first = answers(service)
        sash("backup", before, service=service)
        assert evict(service, "late", 50)["evicted"]
        last = answers(service)
        assert last != first
        sash("backup", after, service=service)

    # A newer version has raised the format.
    with lmdb.open(str(data), max_dbs=1) as env, env.begin(write=True) as change:
        change.put(FORMAT_KEY, b"%d" % (FORMAT + 1))
    newer = (data / "data.mdb").read_bytes()
    assert "newer Sash" in refused(data)
    assert (data / "data.mdb").read_bytes() == newer

    empty = tmp_path / "empty"
    with service_process(SASH_DATA=str(empty)) as service:
        sash("restore", after, service=service)
        assert answers(service) == last
        sash("delete", "late", service=service)
        sash("restore", before, "--only", "late", service=service)
        assert answers(service) == {**last, "late": first["late"]}
    with service_process(SASH_DATA=str(empty)) as service:
        assert answers(service) == {**last, "late": first["late"]}


def test_producers_go_on_after_a_restore(sash, tmp_path, data):
    """Their last write is known, so it is not applied twice; the next one is."""
    file = str(tmp_path / "all.sash")
    with service_process(SASH_DATA=str(data)) as service:
        sash("backup", file, service=service)
    with service_process(SASH_DATA=str(tmp_path / "empty")) as service:
        sash("restore", file, service=service)
        evicted = {"time": 0, "producer": "loader", "sequence": 2, "epoch": 7}
        http = service.http()
        again = http.post("/v1/windows/keyed/bulk-evict", json=evicted)
        assert again.json()["reason"] == "SEQUENCE_REUSED"
        next_ = http.post("/v1/windows/keyed/bulk-evict", json={**evicted, "sequence": 3})
        assert next_.status_code == 200, next_.text
