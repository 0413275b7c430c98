"""Windows in files: whole or not there, and back; many of them in one archive."""

import io
import json
import os
import zipfile

import grpc
import pytest

from sash_client import (
    AlreadyExists,
    Client,
    DataLoss,
    InvalidArgument,
    NotFound,
    SashClientError,
    Unavailable,
    backup,
    restore,
)
from sash_client.backups.archive import backed_up
from tests.support.numbered import Numbered, serving
from tests.support.recorder import status

LOST = ("before", status(grpc.StatusCode.DATA_LOSS, "block 7 is damaged"))


@pytest.fixture
def service():
    servicer = Numbered()
    servicer.files = {"small": b"abc", "empty": b"", "large": bytes(range(256)) * 10_000}
    with serving(servicer) as port, Client(f"127.0.0.1:{port}", timeout_s=60) as client:
        yield servicer, client


@pytest.mark.parametrize("name", ["small", "empty", "large"])
def test_there_and_back(service, tmp_path, name):
    servicer, client = service
    path, data = tmp_path / "window", servicer.files[name]
    assert client.export_window(name, path) == len(data)
    assert path.read_bytes() == data
    assert client.import_window(path, "again").name == "again"
    out = io.BytesIO()
    assert client.export_window("again", out) == len(data)
    assert out.getvalue() == servicer.files["again"] == data
    client.import_window(io.BytesIO(data))
    assert servicer.files["w"] == data
    with pytest.raises(AlreadyExists):
        client.import_window(path, name)
    with pytest.raises(InvalidArgument, match="name is empty"):
        client.import_window(path, "")
    assert os.listdir(tmp_path) == ["window"]


def test_a_file_that_is_not_whole_is_not_there(service, tmp_path):
    servicer, client = service
    path = tmp_path / "window"
    servicer.script += [None, LOST]
    with pytest.raises(DataLoss, match="block 7"):
        client.export_window("large", path)
    assert os.listdir(tmp_path) == []
    path.write_bytes(b"older")
    with pytest.raises(NotFound):
        client.export_window("nope", path)
    assert (os.listdir(tmp_path), path.read_bytes()) == (["window"], b"older")
    with pytest.raises(FileNotFoundError):
        client.export_window("small", tmp_path / "nowhere" / "window")
    with pytest.raises(FileNotFoundError):
        client.import_window(tmp_path / "nowhere")
    assert client.export_window("small", os.devnull) == 3  # a device is written to, not replaced
    assert not os.path.isfile(os.devnull)


def test_a_source_that_fails_raises_its_own_error(service):
    _, client = service

    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell():
                raise OSError("the disk is broken")
            return super().read(10)

    with pytest.raises(OSError, match="the disk is broken"):
        client.import_window(Broken(b"x" * 100), "new")
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        client.import_window(io.BytesIO(b""))


def test_all_windows_in_one_file(service, tmp_path):
    servicer, client = service
    path, windows, seen = tmp_path / "all", dict(servicer.files), {}
    assert backup(client, path, seen.__setitem__) == ["small", "empty", "large"]
    assert seen == {"small": 3, "large": 2_560_000}
    assert os.listdir(tmp_path) == ["all"]
    assert backed_up(path) == ["small", "empty", "large"]
    with zipfile.ZipFile(path) as archive:  # any tool can read it
        assert archive.read("windows/large") == windows["large"]
        assert archive.testzip() is None
    del servicer.files["small"], servicer.files["large"]
    done = restore(client, path)
    assert (done["small"], done["large"]) == (None, None)
    assert isinstance(done["empty"], AlreadyExists)
    assert servicer.files == windows
    servicer.files.clear()
    assert restore(client, path, only=["small"]) == {"small": None}
    assert servicer.files == {"small": b"abc"}
    with pytest.raises(InvalidArgument, match="'nope' is not in"):
        restore(client, path, only=["small", "nope"])


def test_a_window_that_goes_meanwhile_is_left_out(service, tmp_path):
    servicer, client = service
    path = tmp_path / "all"
    names = backup(client, path, lambda name, size: servicer.files.pop("large", None))
    assert names == backed_up(path) == ["small", "empty"]


def test_a_backup_that_fails_is_not_there(service, tmp_path):
    servicer, client = service
    servicer.script.append(LOST)
    with pytest.raises(DataLoss):
        backup(client, tmp_path / "all")
    assert os.listdir(tmp_path) == []


def test_a_damaged_backup_restores_what_is_whole(service, tmp_path):
    servicer, client = service
    path = tmp_path / "all"
    backup(client, path)
    data = bytearray(path.read_bytes())
    data[data.index(b"abc")] ^= 1
    path.write_bytes(data)
    servicer.files.clear()
    done = restore(client, path)
    assert isinstance(done.pop("small"), DataLoss)
    assert set(done.values()) == {None}
    assert set(servicer.files) == {"empty", "large"}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"no zip", {"format": "other", "version": 1, "windows": []}, {"format": "sash admin backup"}, []),
        *({"format": "sash admin backup", "version": 1, "windows": windows} for windows in (5, "abc", [5], None)),
    ],
)
def test_another_file_is_no_backup(service, tmp_path, content):
    _, client = service
    path = tmp_path / "all"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("manifest.json", json.dumps(content))
    with pytest.raises(SashClientError) as caught:
        restore(client, path)
    assert (type(caught.value), caught.value.field) == (InvalidArgument, "path")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(InvalidArgument, match="manifest"):
        restore(client, path)
