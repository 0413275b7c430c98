"""constraints.txt: each package has one version, which the oldest Python that is promised can install."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
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


@pytest.fixture(scope="module")
def here():
    """What is installed, by name. Each process that collects tests would take seconds to read it."""
    return {name_of(found): found for found in distributions() if found.metadata["Name"] != "sash"}


def test_the_oldest_python_can_install_each(here):
    asks = {name: found.metadata["Requires-Python"] for name, found in here.items() if name in PINS}
    assert len(asks) > 150
    assert {name: asked for name, asked in asks.items() if asked and OLDEST not in SpecifierSet(asked)} == {}


def test_all_that_is_installed_is_pinned(here):
    assert {name for name in here if name not in PINS} <= {"pip", "setuptools"}
    assert {name: found.version for name, found in here.items() if name in PINS and found.version != PINS[name]} == {}
