"""The engine compiled by mypyc: forests and windows pass their tests on it, and its answers are the same.

It is compiled into build/compiled once for each state of its sources, which takes a minute. Skipped without a compiler.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import compile_engine

ROOT = Path(__file__).parents[2]
SUITES = (
    "tests/forest",
    *(f"tests/windows/test_{name}.py" for name in ("pages", "panes", "steps", "window")),
)

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def run():
    """Runs Python with the compiled engine, or without."""
    try:
        made = compile_engine.compiled()
    except compile_engine.NoCompiler as missing:
        pytest.skip(str(missing))

    def run(*arguments, pure=False):
        places = [] if pure else [str(made)]
        path = [*places, *(str(ROOT / room) for room in ("service", "clients", "proto"))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "SASH_PROFILE": "coverage"}
        return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)

    return run


def test_it_says_that_it_is_compiled(run):
    program = (
        "import sash_engine; from sash_engine.forest import forest; print(sash_engine.compiled(), forest.__file__)"
    )
    assert re.fullmatch(r"True .+\.so\n", run("-c", program).stdout)
    assert re.fullmatch(r"False .+\.py\n", run("-c", program, pure=True).stdout)


def test_forests_and_windows_pass_their_tests(run):
    done = run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *SUITES)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


def test_it_computes_the_same(run):
    """The digest is of all answers, bit by bit."""
    digests = [run("-m", "bench.engine", "--smoke", pure=pure).stdout.splitlines()[-1] for pure in (True, False)]
    assert digests[0].startswith("digest ")
    assert digests[0] == digests[1]
