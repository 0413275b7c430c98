"""Which tier an address stands for."""

import subprocess
import sys
from pathlib import Path

import pytest

from sash.tiers import open_tier
from sash.tiers.lmdb import LmdbTier
from sash.tiers.redis import RedisTier
from sash_engine.errors import InvalidArgument


def test_a_directory(tmp_path):
    tier = open_tier(str(tmp_path / "data"), max_bytes=2**20)
    assert isinstance(tier, LmdbTier)
    tier.acquire()
    tier.close()
    assert (tmp_path / "data" / "data.mdb").exists()


@pytest.mark.parametrize("name", ["memory", "redis:6379"])
def test_a_directory_of_any_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_tier(f"./{name}"), LmdbTier)


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1/0", "rediss://user:secret@127.0.0.1:1"])
def test_redis(address):
    assert isinstance(open_tier(address, "windows"), RedisTier)


def test_memory_is_no_tier():
    assert open_tier("memory") is None


@pytest.mark.parametrize("address", ["", "http://127.0.0.1", "reddis://127.0.0.1", "file:///var/sash"])
def test_anything_else(address):
    with pytest.raises(InvalidArgument, match="not a place to store windows") as caught:
        open_tier(address)
    assert caught.value.field == "data"


def test_only_redis_needs_redis():
    code = "import sys, sash.tiers; sash.tiers.open_tier('data'); print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert not Path("data").exists()
