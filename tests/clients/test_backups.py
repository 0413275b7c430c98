"""Backups of windows that are derived from others: they are restored as what they were."""

import io
import json
import zipfile

import pytest

from sash_client import (
    AlreadyExists,
    Client,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unsupported,
    backup,
    restore,
)
from sash_client.backups.archive import backed_up
from tests.support.servers import running_service

COMMON = {
    "time_unit": "none",
    "keyed": True,
    "fields": {"value": "float64"},
    "aggregates": {"n": {"function": "count"}, "p": {"function": "quantile", "q": 0.5}, "max": {"function": "max"}},
}
LEAN = {"n": {"function": "count"}}
SPECS = {
    "z_requests": {**COMMON, "slide": {"max_age": 50}},
    "minutes": {**COMMON, "from": {"window": "z_requests", "granularity": 5}},
    "a_hours": {**COMMON, "from": {"window": "minutes", "granularity": 20}, "slide": {"max_age": 100}},
    "days": {**COMMON, "from": {"window": "z_requests", "granularity": 10}},
    "a_lately": {"of": "z_requests", "slide": {"max_age": 20}, "aggregates": LEAN},
    "b_recent": {"of": "minutes", "slide": {"max_age": 30}, "aggregates": LEAN},
    "other": COMMON,
}
FED = {"minutes", "a_hours", "days"}


def fill(client):
    for name, spec in SPECS.items():
        client.create_window({"name": name, **spec})
    for name in ("z_requests", "other"):
        with client.window(name).producer("p") as producer:
            for time in range(200):
                producer.insert(time, float(time), key=f"k{time % 3}")


def state(client, names=tuple(SPECS)):
    """By window, its spec, what it counts and what it answers."""
    found = {}
    for name in names:
        window = client.window(name)
        info = window.describe()
        asked = [str(window.query(key=f"k{i}", lookbacks=lookbacks)) for i in range(3) for lookbacks in ([], ["40"])]
        found[name] = info.spec, info.entries, info.counts, info.high_water_mark, asked
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A backup, what its windows answered, and what they answer after a further write."""
    path = tmp_path_factory.mktemp("saved") / "all.sash"
    with running_service() as service, Client(service.grpc_target) as client:
        fill(client)
        before = state(client)
        names = backup(client, path)
        assert sorted(names) == sorted(SPECS)
        write_more(client)
        return path, before, state(client)


def write_more(client):
    client.window("z_requests").bulk_insert([201, 160, 230], [1.0, 2.0, 3.0], keys=["k0", "k1", "new"])


@pytest.mark.parametrize("stored", [False, True])
def test_all_is_restored_as_what_it_was_and_goes_on(saved, tmp_path, stored):
    path, before, after = saved
    settings = {"data": str(tmp_path / "data")} if stored else {}
    with running_service(**settings) as service, Client(service.grpc_target) as client:
        done = restore(client, path)
        assert done == dict.fromkeys(SPECS)
        assert state(client) == before
        if not stored:
            write_more(client)
            assert state(client) == after
    if stored:
        with running_service(**settings) as service, Client(service.grpc_target) as client:
            assert state(client) == before
            write_more(client)
            assert state(client) == after
            # What producers have sent is remembered, too.
            with (
                pytest.raises(FailedPrecondition, match="'p' has sent 1 before"),
                client.window("z_requests").producer("p") as producer,
            ):
                producer.insert(240, 1.0, key="k0")
            assert state(client) == after


def test_what_is_there_stays_and_its_family_is_not_restored(saved):
    path, _, _ = saved
    with running_service() as service, Client(service.grpc_target) as client:
        client.create_window({"name": "days", **COMMON})
        client.create_window({"name": "other", **COMMON})
        done = restore(client, path)
        assert {name for name, error in done.items() if isinstance(error, AlreadyExists)} == {
            *("z_requests", "minutes", "a_hours", "days", "other")
        }
        assert {name for name, error in done.items() if isinstance(error, NotFound)} == {"a_lately", "b_recent"}
        assert {window.name for window in client.list_windows()} == {"days", "other"}
        client.delete_window("days")
        assert restore(client, path, only=["z_requests"]) == dict.fromkeys(["z_requests", *FED])
        assert restore(client, path, only=["a_lately"]) == {"a_lately": None}
        [again] = restore(client, path, only=["a_lately"]).values()
        assert isinstance(again, AlreadyExists)
        for name in FED:
            with pytest.raises(InvalidArgument, match=rf"{name}.*restored with 'z_requests'"):
                restore(client, path, only=[name])


def test_a_service_of_several_shards_says_what_it_cannot_have(saved):
    path, before, _ = saved
    with running_service(shards=2) as service, Client(service.grpc_target) as client:
        done = restore(client, path)
        assert {name for name, error in done.items() if isinstance(error, Unsupported)} == FED
        assert {name for name, error in done.items() if error is None} == {"z_requests", "a_lately", "other"}
        assert isinstance(done["b_recent"], NotFound)
        there = ("z_requests", "a_lately")
        assert state(client, there) == {name: before[name] for name in there}


def test_a_member_is_a_window_of_its_own_and_the_manifest_says_what_it_was(saved):
    path, before, _ = saved
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert (manifest["version"], manifest["fed"]) == (2, dict.fromkeys(FED, "z_requests"))
        assert {name: spec["of"] for name, spec in manifest["views"].items()} == {
            "a_lately": "z_requests",
            "b_recent": "minutes",
        }
        members = {name.removeprefix("windows/") for name in archive.namelist()} - {"manifest.json"}
        assert members == SPECS.keys() - manifest["views"].keys()
        hours = archive.read("windows/a_hours")
    assert sorted(backed_up(path)) == sorted(SPECS)
    with running_service() as service, Client(service.grpc_target) as client:
        client.import_window(io.BytesIO(hours), "alone")
        info = client.window("alone").describe()
        assert "from" not in info.spec
        assert info.entries == before["a_hours"][1]


@pytest.mark.parametrize(
    "change",
    [
        {"fed": {"minutes": "nobody"}},
        {"fed": {"nobody": "z_requests"}},
        {"fed": {"minutes": "a_hours", "a_hours": "z_requests"}},
        {"fed": {"minutes": "a_lately"}},
        {"fed": {"a_lately": "z_requests"}},
        {"fed": []},
        {"views": {"a_lately": {"name": "b"}}},
        {"views": {"nobody": {"name": "nobody"}}},
        {"views": {"a_lately": 5}},
        {"views": "a"},
        {"version": 3},
    ],
)
def test_a_manifest_that_cannot_be_is_no_backup(saved, tmp_path, change):
    path, _, _ = saved
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    with zipfile.ZipFile(tmp_path / "wrong", "w") as wrong:
        wrong.writestr("manifest.json", json.dumps(manifest | change))
    with pytest.raises(InvalidArgument, match=r"is no backup|of version 3"):
        backed_up(tmp_path / "wrong")


def test_files_that_do_not_belong_together_leave_nothing(saved):
    path, _, _ = saved
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(f"windows/{name}") for name in ("z_requests", *FED, "other")}
    with running_service() as service, Client(service.grpc_target) as client:
        for names, derived, said in (
            (["z_requests", "minutes"], [], "it was written as frame 0"),
            (["z_requests"], ["minutes"], "'minutes' is missing"),
            (["z_requests", "minutes"], ["minutes", "days"], "'days' is missing"),
            (["z_requests", "minutes"], ["days"], "not the export of window 'days'"),
            (["z_requests", "a_hours"], ["a_hours"], "no window before it feeds 'a_hours'"),
            (["z_requests", "other"], ["other"], "no window before it feeds 'other'"),
            (["z_requests", "minutes", "minutes"], ["minutes", "minutes"], "two windows 'minutes'"),
            (["minutes", "a_hours"], ["a_hours"], None),
        ):
            parts = iter([b"".join(files[name] for name in names)])
            if said is None:  # a window that nobody feeds may feed others
                client._imported(parts, "", derived)
                assert {window.name for window in client.list_windows()} == {"minutes", "a_hours"}
                continue
            with pytest.raises(InvalidArgument, match=said):
                client._imported(parts, "", derived)
            assert client.list_windows() == [], names
        with pytest.raises(InvalidArgument, match="two windows 'days'"):
            client._imported(iter([files["z_requests"] + files["days"]]), "days", ["days"])
        client._imported(iter([files["z_requests"] + files["days"]]), "renamed", ["days"])
        assert client.window("days").describe().spec["from"]["window"] == "renamed"


def test_a_window_that_goes_meanwhile_is_left_out_with_its_views(tmp_path):
    path = tmp_path / "all"
    with running_service() as service, Client(service.grpc_target) as client:
        fill(client)
        gone = ["a_hours"]

        def progress(name, size):
            if gone and name == "other":
                client.delete_window(gone.pop())

        assert sorted(backup(client, path, progress)) == sorted(SPECS.keys() - {"a_hours"})


def test_more_windows_than_there_may_be_are_not_restored(saved):
    path, _, _ = saved
    with running_service(max_windows=3) as service, Client(service.grpc_target) as client:
        with pytest.raises(ResourceExhausted, match="there are 0 windows already, and 4 are to come"):
            raise restore(client, path, only=["z_requests"])["days"]
        assert client.list_windows() == []
