"""The libraries document everything public: ruff checks modules, classes and functions, this file checks methods.

A method that overrides another one may inherit its docstring, which ruff cannot see.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.undocumented import undocumented

ROOT = Path(__file__).parents[2]


def test_every_public_method_has_a_docstring():
    path = os.pathsep.join(str(ROOT / room) for room in ("service", "clients", "proto"))
    command = [sys.executable, "-m", "tests.support.undocumented"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    *missing, count = done.stdout.splitlines() or [done.stderr]
    assert missing == []
    assert (found := re.fullmatch(r"(\d+) classes", count)), count
    assert int(found[1]) > 200


class Base:
    def documented(self):
        """It is."""


class Derived(Base):
    def documented(self): ...

    def forgotten(self): ...

    @property
    def overlooked(self): ...


def test_a_method_without_one_is_found():
    names = [name.removeprefix(f"{__name__}.") for name in undocumented(Derived)]
    assert names == ["Derived.forgotten", "Derived.overlooked"]
