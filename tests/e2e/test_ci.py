"""What CI runs, and the table of coverage that it prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_ci_runs_all_with_a_profile_of_its_own(tmp_path):
    """Also where CI is not set, from any directory, and until something fails."""
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "$SASH_PROFILE $* $PWD"\n[ "$1" != "$FAILS" ]\n')
    make.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(**further):
        command = ["bash", str(ROOT / ".ci" / "run")]
        return subprocess.run(command, cwd=tmp_path, env=environment | further, capture_output=True, text=True)

    lines = [f"ci {target} {ROOT}" for target in ("check", "test")]
    done = run()
    assert (done.returncode, done.stdout.splitlines()) == (0, lines)
    failed = run(FAILS="test")
    assert (failed.returncode, failed.stdout.splitlines()) == (1, lines[:2])


@pytest.mark.parametrize(("engine", "passes"), [("/engine", 2), ("", 1)])
def test_tests_run_on_the_compiled_engine_and_those_of_the_engine_as_python_too(tmp_path, engine, passes):
    """Where nothing can be compiled, all run once, as Python."""
    python = tmp_path / "python"
    tests = f'echo "$PYTHONPATH $SASH_PROFILE: $*" >>{tmp_path}/said; [ "$7" != "$FAILS" ]'
    python.write_text(f'#!/bin/sh\nif [ "$2" = deploy.compile_engine ]; then echo {engine}; else {tests}; fi\n')
    python.chmod(0o755)
    (tmp_path / "stamp").touch()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    environment["SASH_PROFILE"] = "ci"

    def said(**further):
        (tmp_path / "said").write_text("")
        command = ["make", "test", f"BIN={tmp_path}", f"CLASSES={tmp_path}/stamp", f"READ={tmp_path}/read", "WORKERS=4"]
        done = subprocess.run(command, cwd=ROOT, env=environment | further, capture_output=True, text=True)
        return done.returncode == 0, (tmp_path / "said").read_text().splitlines()

    all_tests = "-m pytest -n 4 --dist loadfile"
    lines = [
        f" sample: {all_tests} tests/forest tests/windows/test_steps.py tests/windows/test_conformance.py",
        f"{engine} ci: {all_tests}",
    ][-passes:]
    assert said(FAILS="none") == (True, [" ci: -m pytest --collect-only -qq", *lines])  # once in a clone
    assert said(FAILS="none") == (True, lines)
    assert said(FAILS="") == (False, lines)
    if passes == 2:
        assert said(FAILS="tests/forest") == (False, lines[:1])


def test_the_last_line_counts_what_was_skipped_and_what_is_marked_soak_runs_there_only(tmp_path):
    """On a fresh machine it says what is missing."""
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [0, pytest.param(1, marks=pytest.mark.soak)])\n"
        "def test_runs(n): pass\n"
        "@pytest.mark.parametrize('n', range(3))\n"
        "def test_asks(n): pytest.skip('there is no chromium')\n"
        "@pytest.mark.skipif(True, reason='an image needs buildah')\n"
        "def test_image(): pass\n"
    )

    def last_lines(profile, *chosen):
        command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "-p"]
        command += ["no:cacheprovider", f"--confcutdir={tmp_path}", *chosen, str(tmp_path)]
        environment = os.environ | {"SASH_PROFILE": profile}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-2:]

    expected = "4 tests were skipped: 3 there is no chromium; 1 an image needs buildah"
    for profile, chosen, outcome in (("soak", [], "2 passed, 4 skipped"), ("ci", ["-n", "2"], "1 passed, 4 skipped")):
        counted, last = last_lines(profile, *chosen)
        assert outcome in counted
        assert last == expected
    assert "1 passed, 5 deselected" in last_lines("ci", "-k", "test_runs")[-1]


def test_a_table_of_rooms(tmp_path):
    def file(lines, covered, branches, taken):
        counts = {
            "num_statements": lines,
            "covered_lines": covered,
            "num_branches": branches,
            "covered_branches": taken,
        }
        return {"summary": {**counts, "percent_covered_display": "5"}}

    files = {
        "service/sash/plane.py": file(10, 10, 0, 0),
        "service/sash_engine/forest/block.py": file(1500, 1350, 60, 54),
        "service/sash_engine/forest/level.py": file(500, 450, 40, 36),
        "clients/sash_client/wire.py": file(200, 179, 10, 10),
        "clients/sash_spark/sink.py": file(200, 200, 1000, 899),
    }
    (tmp_path / "files.json").write_text(json.dumps({"files": files}))
    command = [sys.executable, "-m", "tests.support.rooms", str(tmp_path / "files.json")]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert table.splitlines() == [
        "room                      lines  line %  branches  branch %",
        "sash                         10   100.0         0     100.0",
        "sash_client                 200    89.5        10     100.0  below 90 %",
        "sash_engine/forest        2,000    90.0       100      90.0",
        "sash_spark                  200   100.0     1,000      89.9  below 90 %",
        "all                       2,410    90.8     1,110      90.0",
    ]
