"""Compiles the engine with mypyc, from the Python files that also run as they are.

    service/sash_engine/**.py ──copied──▶ a directory of its own ──mypyc──▶ C ──cc──▶ *.so, beside their *.py

Python imports `x.cpython-….so` rather than the `x.py` beside it, so a wheel has both, and tracebacks show the source.
The modules are listed in pyproject.toml. They are one library: calls between them are calls in C. Beside them lies
`_kernels`, the loops over rows of sash_engine/kernels.py in C: mypyc cannot make a call of NumPy cheaper.

Left out, and why; microseconds of processor time, the lowest of several runs in turns:

    monoids     Plug-ins derive from `Monoid` in Python, class attributes of subclasses have types of their own, and
                layouts tell aggregates apart by `vars(monoid)`, which compiled objects lack. What there is to gain are
                `lift` and `lower`, 0.1 of the 0.75 of a round of one entry; `combine` is a kernel, or operator.add.
    windows     Pages, key tables, readers, writers: tried as one. An insert 2.9 as before, a query 4.3 -> 3.9, of one
                key of many 5.9 -> 5.6, with a lookback 6.3 -> 5.8; only a bulk over 1,000 keys gains: 460 -> 360.
                It takes a third more time to compile, two thirds more memory, and closes classes that others
                derive from; `PageAllocator` refers to a method weakly.

`compiled` keeps what it has built in build/compiled until a source changes. `make run`, `make demo`, `make test`,
benchmarks and the build of a wheel call it.

The compiler is `cc`, or what CC says, or that of the package ziglang. An environment without
mypy, such as that of `make run`, gets it for the time of compiling.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "service"
LIBRARY = "sash_engine"
KERNELS = f"{LIBRARY}/kernels.c"
SETUP = """
import json, sys
import numpy
from mypyc.build import mypycify
from setuptools import Extension, setup

library, out, kernels, paths = json.loads(sys.argv[1])
options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
modules = mypycify([*options, *paths], opt_level="2", debug_level="0", group_name=library)
flags = ["-O3", "-ffp-contract=off"]  # no fused multiply-add: answers are those of Python, bit by bit
modules.append(Extension(library + "._kernels", [kernels], [numpy.get_include()], extra_compile_args=flags))
setup(name=library, packages=[], ext_modules=modules, script_args=["--quiet", "build_ext", "--build-lib", out])
"""


class NoCompiler(Exception):
    """There is no C compiler, or nothing that it could compile for Python with."""


def requires() -> list[str]:
    """Return the packages that compiling needs."""
    return _config()["requires"]


def _config() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return project["tool"]["sash"]["compiled"]


def modules() -> list[str]:
    """Return the files to compile, relative to service/."""
    found = {path.relative_to(SOURCES) for pattern in _config()["modules"] for path in SOURCES.glob(pattern)}
    return sorted(str(path) for path in found if path.name != "__init__.py")


def compiler() -> str:
    """Return the command of a C compiler; raise NoCompiler if there is none that can compile for this Python."""
    given = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not given and importlib.util.find_spec("ziglang"):
        given = f"{sys.executable} -m ziglang cc"
    if not given:
        raise NoCompiler("no C compiler: install gcc, or the package ziglang")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise NoCompiler("no header files of Python: install python3-dev")
    return given


def compile_into(out: Path) -> None:
    """Compile the modules; the libraries lie below `out` as they belong beside the sources."""
    environment = os.environ | {"CC": compiler(), "CFLAGS": os.environ.get("CFLAGS", "-O2 -g0")}
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(SOURCES / LIBRARY, Path(work) / LIBRARY, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        if not importlib.util.find_spec("mypy"):
            environment["PYTHONPATH"] = _fetched(Path(work, "tools"))
        arguments = json.dumps([LIBRARY, str(out), KERNELS, modules()])
        ran = subprocess.run(
            [sys.executable, "-c", SETUP, arguments], cwd=work, env=environment, capture_output=True, text=True
        )
    if ran.returncode:
        raise RuntimeError(f"the engine could not be compiled:\n{ran.stdout}{ran.stderr}")


def _fetched(tools: Path) -> str:
    """Install what compiling needs into a directory, and return its name."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(tools)]
    if subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), *requires()]).returncode:
        raise NoCompiler(f"{' and '.join(requires())} cannot be installed")
    return str(tools)


def kept() -> Path:
    """Return the directory that is for the package `sash_engine`, compiled from these sources; it need not be there."""
    digest = hashlib.sha256(f"{sysconfig.get_config_var('SOABI')} {platform.libc_ver()}".encode())
    digest.update(str(_config()).encode())
    for path in [Path(__file__), *sorted((SOURCES / LIBRARY).rglob("*.py")), SOURCES / KERNELS]:
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return ROOT / "build" / "compiled" / digest.hexdigest()[:16]


def compiled() -> Path:
    """Return a directory with the package `sash_engine`, compiled; it is made where there is none of these sources.

    What one process makes, others wait for.
    """
    return once(kept(), _make)


def once(kept: Path, make: Callable[[Path], None]) -> Path:
    """Make a directory unless it is there; of several processes one makes it, and the others wait."""
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with (kept.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                make(kept)
    return kept


def _make(kept: Path) -> None:
    compiler()
    print("the engine is compiled, which takes about a minute, once", file=sys.stderr)
    for old in kept.parent.glob("[0-9a-f]" * 16):
        shutil.rmtree(old)
    with tempfile.TemporaryDirectory(dir=kept.parent) as part:
        made = Path(part) / "made"
        shutil.copytree(SOURCES / LIBRARY, made / LIBRARY, ignore=shutil.ignore_patterns("__pycache__"))
        compile_into(made)
        made.rename(kept)


def main() -> None:
    """Print the directory; where there is no compiler, print nothing, and say so on standard error."""
    try:
        print(compiled())
    except NoCompiler as missing:
        print(f"the engine is not compiled, and runs as Python: {missing}", file=sys.stderr)


if __name__ == "__main__":
    main()
