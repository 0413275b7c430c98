"""The built wheel in fresh environments: the client alone, the engine alone, the server; oldest and newest packages."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from sash_client.local import local_service

ROOT = Path(__file__).parents[2]
OLDEST = ["grpcio==1.62.3", "protobuf==4.25.8", "numpy==2.0.0", "googleapis-common-protos==1.62.0", "xxhash==3.0.0"]
CLIENT = """
import sys
from sash_client import Client
with Client(sys.argv[1]) as sash:
    window = sash.create_window({"name": sys.argv[2], "aggregates": {"mean": {"function": "mean"}}})
    window.bulk_insert([1, 2, 3], [1.0, 2.0, 6.0])
    print(window.query()[0].aggregates["mean"], sum(len(bulk.times) for bulk in window.entries()))
    sash.delete_window(sys.argv[2])
    print(*sorted({name.split(".")[0] for name in sys.modules}))
"""
ENGINE = """
from sash_engine import Batch, Window, WindowSpec
spec = WindowSpec.parse({"name": "w", "aggregates": {"q": {"function": "quantile"}}, "slide": {"when": "old.q < 0.0"}})
window = Window(spec)
window.bulk_insert(Batch.of(spec, [1, 2, 3], {"value": [1, 5, 9]}))
print(window.query()[0].aggregates["q"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], cwd=ROOT, check=True)
    (found,) = out.glob("*.whl")
    return found


class Environment:
    """A fresh environment with the wheel, and nothing of this checkout."""

    def __init__(self, path: Path, wheel: Path, extra: str = "", *versions: str) -> None:
        self.path = path
        venv.create(path, with_pip=True)
        wanted = [f"{wheel}[{extra}]" if extra else str(wheel), *versions]
        done = self.run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
        if done.returncode and "Could not find a version" in done.stderr:
            pytest.skip(f"packages cannot be installed here: {done.stderr[-500:]}")
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(self.path / "bin" / "python"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.path, env=environment)

    def packages(self) -> set[str]:
        listed = self.run("-m", "pip", "list", "--format=freeze", "--disable-pip-version-check").stdout
        return {line.partition("==")[0].lower() for line in listed.splitlines()} - {"pip", "setuptools"}


@pytest.mark.parametrize("versions", [[], OLDEST], ids=["newest", "oldest"])
def test_the_client_alone(tmp_path, wheel, versions):
    client = Environment(tmp_path / "env", wheel, "", *versions)
    assert client.packages() <= {
        *("sash", "numpy", "grpcio", "protobuf", "googleapis-common-protos", "pyyaml", "xxhash", "typing_extensions"),
    }
    with local_service(data="memory") as service:
        done = client.run("-W", "error", "-c", CLIENT, service.target, f"client-{len(versions)}")
    assert done.returncode == 0, done.stderr
    answer, imported = done.stdout.splitlines()
    assert answer == "3.0 3"
    assert {"sash_client", "grpc"} <= set(imported.split())
    command = subprocess.run([str(client.path / "bin" / "sash"), "list"], capture_output=True, text=True)
    assert command.returncode == 1
    assert "pip install 'sash[cli]'" in command.stderr


def test_the_command_line_without_a_server(tmp_path, wheel):
    cli = Environment(tmp_path / "env", wheel, "cli")
    with local_service(data="memory") as service:
        done = cli.run("-m", "sash.main", "list", "--target", service.target)
        assert done.returncode == 0, done.stderr
    for command in ("serve", "check"):
        done = cli.run("-m", "sash.main", command, *([str(tmp_path)] if command == "check" else []))
        assert done.returncode == 1
        assert "pip install 'sash[server]'" in done.stderr


def test_the_engine_alone(tmp_path, wheel):
    engine = Environment(tmp_path / "env", wheel, "engine")
    done = engine.run("-W", "error", "-c", ENGINE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5.0\n"
    assert not engine.packages() & {"fastapi", "uvicorn", "lmdb", "redis", "pyarrow"}


def test_the_server(tmp_path, wheel):
    server = Environment(tmp_path / "env", wheel, "server")
    program = "from sash_client.local import local_service\nwith local_service(data='data') as s: print(s.target)"
    done = server.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")
