"""The built wheel in fresh environments: client, engine, Spark's executors, server; oldest and newest packages.

Run it with `-s` to see how large each environment is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest

from sash_client.local import LocalService, local_service

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("sash", "sash_engine", "sash_client", "sash_cli", "sash_ingest", "sash_spark", "pyspark_sash", "sash_proto"),
    "sash_wire",
)
OLDEST = [
    *("grpcio==1.62.3", "protobuf==4.25.8", "numpy==2.0.0", "googleapis-common-protos==1.62.0", "xxhash==3.0.0"),
    "pyyaml==6.0",
]
OLDEST_ENGINE = [*OLDEST, "pydantic==2.7.0", "datasketches==5.2.0", "common-expression-language==0.10.0"]
SERVER_PARTS = {"sash", "fastapi", "uvicorn", "lmdb", "redis", "grpc_health", "msgpack", "prometheus_client"}
CLIENT = """
import sys
from sash_client import Client
with Client(sys.argv[1]) as sash:
    window = sash.create_window("{name: %s, keyed: true, fields: {x: float64, s: string}, "
                                "aggregates: {mean: {function: mean, field: x}}}" % sys.argv[2])
    window.bulk_insert([1, 2, 3], {"x": [1.0, 2.0, 6.0], "s": ["a", "b", "a"]}, keys=["k", "k", "l"])
    answers = window.query(keys=["k", "l"], combine=True)
    print(answers[0].aggregates["mean"], [text for bulk in window.entries() for text in bulk.columns["s"]])
    try:
        answers.to_pandas()
    except ModuleNotFoundError as error:
        print(error)
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


EXECUTOR = """
import sys
sys.path.append(sys.argv[1])
import sash_spark.writing.sink, sash_spark.reading.reader, sash_spark.sliding.operator, sash_spark.source
from sash_client import Client
from sash_engine import Batch, Window, WindowSpec
import pandas as pd
spec = {"name": "executor", "aggregates": {"median": {"function": "quantile", "q": 0.5}}}
window = Window(WindowSpec.parse(spec))
window.bulk_insert(Batch.of(window.spec, [1, 2, 3], {"value": [1, 5, 9]}))
with Client(sys.argv[2]) as sash:
    sash.create_window(spec).bulk_insert(pd.DataFrame({"time": [1, 2, 3], "value": [1.0, 2.0, 6.0]}))
    print(window.query()[0].aggregates["median"], len(sash.window("executor").entries().to_arrow()))
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], cwd=ROOT, check=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Callable[..., Environment]:
    """Makes environments with what an extra brings, at its newest or its oldest; each is made once."""
    path = tmp_path_factory.mktemp("environments")
    return cache(lambda extra, *versions: Environment(path / f"{extra}{len(versions)}", wheel, extra, *versions))


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(wait_s=600) as running:
        yield running


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class Environment:
    """A fresh environment with the wheel, and nothing of this checkout."""

    def __init__(self, path: Path, wheel: Path, extra: str, *versions: str) -> None:
        self.path = path
        venv.create(path)
        python, wanted = path / "bin" / "python", [f"{wheel}[{extra}]" if extra else wheel, *versions]
        uv = ("uv", "pip", "install", "--quiet", "--python", python)
        pip = ("pip", "--disable-pip-version-check", "--python", python, "install", "--quiet", "--no-compile")
        for tool in (uv, pip):  # uv takes a tenth of the time, and does not know what indexes pip is told to use
            done = subprocess.run(
                [sys.executable, "-m", *tool, *wanted], capture_output=True, text=True, cwd=path, env=_environment()
            )
            if done.returncode == 0:
                break
        if "Could not find a version" in done.stderr:
            pytest.skip(f"packages cannot be installed here: {done.stderr[-500:]}")
        assert done.returncode == 0, done.stderr
        print(f"{extra or 'client'}: {self.megabytes():.0f} MB, {len(self.packages())} packages")

    @property
    def _site(self) -> Path:
        (site,) = self.path.glob("lib/python*/site-packages")
        return site

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.path / "bin" / "python"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.path, env=_environment())

    def packages(self) -> set[str]:
        return {found.name.lower() for found in distributions(path=[str(self._site)])}

    def megabytes(self) -> float:
        """What was installed takes, without bytecode."""
        files = [file for file in self._site.rglob("*") if file.is_file() and not file.is_symlink()]
        return sum(file.stat().st_size for file in files if file.suffix != ".pyc") / 1e6


def test_every_package_is_in_the_wheel_with_its_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {name.partition("/")[0] for name in names if not name.startswith(("sash-", "sash_engine__mypyc."))} == set(
        PACKAGES
    )


def test_the_wheel_has_the_packages_of_the_page_and_the_repository_has_not(wheel):
    assert {"sash/ui/page.html", "sash/ui/packages/uPlot.esm.js"} <= set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files", "*.js"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    for name in listed.stdout.split():
        lines = (ROOT / name).read_text().splitlines()
        assert len(lines) <= 600, name
        assert max(map(len, lines)) <= 120, name


@pytest.mark.parametrize("age", ["newest", "oldest"])
def test_the_client_alone(environment, service, age):
    client = environment("", *(OLDEST if age == "oldest" else ()))
    assert client.packages() <= {
        *("sash", "numpy", "grpcio", "protobuf", "googleapis-common-protos", "pyyaml", "xxhash", "typing_extensions"),
    }
    done = client.run("-W", "error", "-c", CLIENT, service.target, f"client-{age}")
    assert done.returncode == 0, done.stderr
    answer, missing, imported = done.stdout.splitlines()
    assert answer == "3.0 ['a', 'b', 'a']"
    assert missing == "to_pandas needs pandas: pip install pandas"
    assert not set(imported.split()) & {"sash", "sash_engine", "pandas", "polars", "pyarrow"}
    assert {"sash_client", "grpc"} <= set(imported.split())
    command = subprocess.run([str(client.path / "bin" / "sash"), "list"], capture_output=True, text=True)
    assert command.returncode == 1
    assert "pip install 'sash[cli]'" in command.stderr


def test_the_command_line_without_a_server(tmp_path, environment, service):
    cli = environment("cli")
    done = cli.run("-m", "sash.main", "list", "--target", service.target)
    assert done.returncode == 0, done.stderr
    for command in ("serve", "check"):
        done = cli.run("-m", "sash.main", command, *([str(tmp_path)] if command == "check" else []))
        assert done.returncode == 1
        assert "pip install 'sash[server]'" in done.stderr
    done = cli.run("-m", "sash.main", "load", "w", "a.csv")
    assert done.returncode == 1
    assert "pip install 'sash[load]'" in done.stderr


@pytest.mark.parametrize("age", ["newest", "oldest"])
def test_the_engine_alone(environment, age):
    engine = environment("engine", *(OLDEST_ENGINE if age == "oldest" else ()))
    done = engine.run("-W", "error", "-c", ENGINE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5.0\n"
    assert not engine.packages() & {"fastapi", "uvicorn", "lmdb", "redis", "pyarrow"}


def test_executors_of_spark_need_no_server(tmp_path, environment, service):
    """A cluster has pyspark itself, on the path of its workers."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = [each for each in extras["spark"] if not each.startswith(("sash", "pyspark"))]
    executor = environment("engine", *brought)
    without = executor.run("-c", "import sash_spark; sash_spark.register")
    assert "No module named 'pyspark'" in without.stderr
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    for package in ("pyspark", "py4j"):
        (cluster / package).symlink_to(Path(sysconfig.get_path("purelib")) / package)
    done = executor.run("-c", EXECUTOR, str(cluster), service.target)
    assert done.returncode == 0, done.stderr
    answer, imported = done.stdout.splitlines()
    assert answer == "5.0 3"
    assert not set(imported.split()) & SERVER_PARTS
    assert not executor.packages() & (SERVER_PARTS - {"sash"})


def test_the_server(environment):
    server = environment("server")
    program = (
        "from sash_client.local import local_service\nwith local_service(data='data', wait_s=600) as s: print(s.target)"
    )
    done = server.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")
