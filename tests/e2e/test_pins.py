"""constraints.txt: each package has one version, which the oldest Python that is promised can install."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROMISED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
OLDEST = PROMISED.removeprefix(">=") + ".0"
"""Debian 12 has a release of Python 3.11 that is a few months younger."""
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)


def name_of(distribution):
    """As constraints.txt spells it."""
    return re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()


HERE = {name_of(found): found for found in distributions() if found.metadata["Name"] != "sash"}


def test_the_oldest_python_can_install_each():
    asks = {name: found.metadata["Requires-Python"] for name, found in HERE.items() if name in PINS}
    assert len(asks) > 150
    assert {name: asked for name, asked in asks.items() if asked and OLDEST not in SpecifierSet(asked)} == {}


def test_all_that_is_installed_is_pinned():
    assert {name for name in HERE if name not in PINS} <= {"pip", "setuptools"}
    assert {name: found.version for name, found in HERE.items() if name in PINS and found.version != PINS[name]} == {}
