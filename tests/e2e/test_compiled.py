"""The engine compiled by mypyc: its answers are the same, and processes that tests start run it as the tests do.

`make test` runs all tests on it. It is compiled into build/compiled once for each state of its sources, which takes a
minute. Skipped without a compiler.
"""

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import sash_engine
from deploy import compile_engine
from sash_engine import version
from tests.support.every_question import asked
from tests.support.servers import PLAIN, service_process

ROOT = Path(__file__).parents[2]

HISTORY = """
import hashlib
import numpy as np
from bench.engine import TEN
from sash_engine.forest import Forest, Layout
random = np.random.default_rng(5)
forest = Forest(Layout({"value": "float64"}, {f"a{i}": (one(), ["value"]) for i, one in enumerate(TEN)}, 64))
seen, newest = hashlib.sha256(), 0
for step in range(1500):
    m = int(random.integers(1, 200 if step % 7 == 0 else 4))
    late = 0 if step % 3 else 500
    times = newest + random.integers(-late, 40, m)
    if m == 1:
        forest.insert(times.item(0), (random.normal(),))
    else:
        forest.bulk_insert(times, [random.normal(size=m)])
    newest = forest.newest
    if step % 5 == 0:
        forest.evict(int(random.integers(0, 30)))
    a, b = sorted(random.integers(forest.oldest or 0, newest + 1, 2).tolist())
    seen.update(repr((forest.query(), forest.range_query(a, b), len(forest))).encode())
    if step % 50 == 0:
        starts = np.arange(a, b, max((b - a) // 10, 1))
        seen.update(repr(forest.series(starts, starts + 77)).encode())
        forest.bulk_evict(a - 300)
print(seen.hexdigest())
"""

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture(scope="module")
def made():
    """The directory with the compiled engine."""
    try:
        return compile_engine.compiled()
    except compile_engine.NoCompiler as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def run(made):
    """Runs Python with the compiled engine, or without."""

    def run(*arguments, pure=False):
        places = [] if pure else [str(made)]
        path = [*places, *(str(ROOT / room) for room in ("service", "clients", "proto"))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "SASH_PROFILE": "coverage"}
        return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)

    return run


def test_it_is_compiled_once_for_all_who_ask_at_the_same_time(tmp_path):
    kept, made, both = tmp_path / "compiled" / "digest", [], threading.Barrier(2)

    def make(path):
        made.append(path)
        path.mkdir()

    def ask(_):
        both.wait(60)
        return compile_engine.once(kept, make)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == [kept, kept]
    assert made == [kept]


def test_it_says_that_it_is_compiled(run):
    program = (
        "import sash_engine; from sash_engine import kernels; from sash_engine.forest import forest; "
        "print(sash_engine.compiled(), type(kernels.total).__name__, forest.__file__)"
    )
    assert re.fullmatch(r"True builtin_function_or_method .+\.so\n", run("-c", program).stdout)
    assert re.fullmatch(r"False function .+\.py\n", run("-c", program, pure=True).stdout)


def test_every_kind_of_question_on_every_edge_with_the_other_engine(made):
    """The one that the other tests do not run on."""
    path = [str(made)] * (not sash_engine.compiled()) + [str(ROOT / room) for room in ("service", "clients", "proto")]
    with service_process(PYTHONPATH=os.pathsep.join(path)) as running:
        metrics = httpx.get(f"{running.rest_url}/metrics", **PLAIN).text
        assert f'engine="{"pure Python" if sash_engine.compiled() else "compiled"}"' in metrics
        assert asked(running.grpc_target, running.rest_url) > 1_000


@pytest.mark.parametrize(
    ("lacks", "words"), [("which", "no C compiler: install gcc"), ("headers", "no header files of Python")]
)
def test_without_a_compiler_there_is_none_and_one_line_says_so(monkeypatch, capsys, tmp_path, lacks, words):
    monkeypatch.setattr(compile_engine, "once", lambda kept, make: make(kept))
    monkeypatch.delenv("CC", raising=False)
    if lacks == "which":
        monkeypatch.setattr(compile_engine.shutil, "which", lambda name: None)
        monkeypatch.setattr(compile_engine.importlib.util, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(compile_engine.shutil, "which", lambda name: "/usr/bin/cc")
        monkeypatch.setattr(compile_engine.sysconfig, "get_path", lambda name: str(tmp_path))
    compile_engine.main()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"the engine is not compiled, and runs as Python: {words}")
    assert said.err.count("\n") == 1


def test_what_compiles_is_fetched_where_it_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(compile_engine, "once", lambda _, make: make(tmp_path / "compiled"))
    monkeypatch.setattr(compile_engine, "compiler", lambda: "cc")
    monkeypatch.setattr(compile_engine.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # as without a network
    compile_engine.main()
    said = capsys.readouterr()
    assert said.out == ""
    assert re.search(r"runs as Python: mypy.* and setuptools.* cannot be installed\n$", said.err)
    assert not (tmp_path / "compiled").exists()


def test_processes_run_the_engine_that_the_tests_run(tmp_path):
    """Wherever they start, and with all that `service_process` gives them."""
    program = "import sash_engine; print(sash_engine.compiled(), sash_engine.__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{sash_engine.compiled()} {sash_engine.__file__}\n"
    with service_process() as running:
        engine = httpx.get(f"{running.rest_url}/metrics", **PLAIN).text
    assert f'engine="{version.engine()}"' in engine


def test_it_computes_the_same(run):
    """Answers of a long history, bit by bit: floats round in the same way."""
    said = [run("-c", HISTORY, pure=pure) for pure in (True, False)]
    assert [done.returncode for done in said] == [0, 0], said
    assert said[0].stdout == said[1].stdout
    assert len(said[0].stdout) == 65


def test_the_benchmark_of_both_runs(run):
    done = run("-m", "bench.engine_both", "--smoke", "--runs", "1", "--only", "ranges", pure=True)
    assert done.returncode == 0, done.stderr
    assert "range query, random, n = 32,768, stddev" in done.stdout
