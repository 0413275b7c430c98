"""Which features work with which PySpark: the table in docs/howto/spark.md is what `features.py` finds.

`make setup` puts older releases into build/pyspark. For others:

    pip install --no-deps --target /some/where/4.0 pyspark==4.0.1
    SASH_PYSPARKS=/some/where/4.0 pytest tests/spark/test_versions.py

PySpark 3.5 needs py4j 0.10.9.7, in the same directory.
"""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.support.profile import THOROUGH

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PLACES = [str(own.locate_file("")) for own in distributions(name="pyspark")]  # what everything else here runs on
PLACES += [place for place in os.environ.get("SASH_PYSPARKS", "").split(os.pathsep) if place]
PLACES += sorted(map(str, (ROOT / "build" / "pyspark").glob("pyspark==*[0-9]")))
THERE = {
    ".".join(found.version.split(".")[:2]): place
    for place in PLACES
    for found in distributions(name="pyspark", path=[place])
}


def promised():
    """version -> feature -> what the table says of it."""
    lines = (ROOT / "docs" / "howto" / "spark.md").read_text().splitlines()
    (head,) = [i for i, line in enumerate(lines) if re.match(r"\| PySpark +\| 3\.5 ", line)]
    columns = [cell.strip() for cell in lines[head].strip("|").split("|")][1:]
    table = {version: {} for version in columns}
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        feature, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for version, cell in zip(columns, cells, strict=True):
            table[version][feature] = cell
    return table


@pytest.mark.parametrize("version", promised())
def test_the_table_is_what_was_tried(version):
    oldest, *_ = promised()
    if version != oldest and not THOROUGH:
        pytest.skip(f"`make soak` tries PySpark {version}; here the oldest is, and all other tests run on the newest")
    if version not in THERE:
        pytest.skip(f"neither `make setup` nor SASH_PYSPARKS gives PySpark {version}")
    run = subprocess.run(
        [sys.executable, "-m", "tests.spark.features"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([THERE[version], *sys.path])},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["pyspark"].startswith(f"{version}.")
    for feature, cell in promised()[version].items():
        if cell == "not tried":
            continue
        outcome = found["features"][feature]
        if cell in ("yes", "no"):
            assert (outcome == "works") == (cell == "yes"), f"{feature}: {outcome}"
        else:
            assert f"needs Spark {cell.removeprefix('from ')}" in outcome, feature
