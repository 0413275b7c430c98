"""What the build of a wheel does beside copying files; hatchling calls it, as pyproject.toml says.

always, and for `pip install --editable`       puts the packages of the page in their place, see page/hook.py
for a wheel, where there is a C compiler       compiles the engine, see compile_engine.py

COMPILE_SASH=1 in the environment fails where the engine cannot be compiled, and COMPILE_SASH=0 leaves it as Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from deploy import compile_engine
from deploy.page import hook as page


class Build(BuildHookInterface[Any]):
    """Called by hatchling before it collects the files of the wheel."""

    def dependencies(self) -> list[str]:
        """What pip installs for the build."""
        compiles = self._compiles() and not compile_engine.kept().exists()
        return page.dependencies() + (compile_engine.requires() if compiles else [])

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch what the page lacks; compile, and name the libraries to hatchling."""
        page.prepare(self.app, version)
        if not self._compiles() or version == "editable":
            if version != "editable" and self.target_name == "wheel":
                self.app.display_warning(f"the engine is not compiled, and runs as Python: {self._missing()}")
            return
        made = compile_engine.compiled()
        for library in sorted(made.rglob("*.so")):
            build_data["force_include"][str(library)] = str(library.relative_to(made))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True  # this kind of machine, and this version of Python

    def _compiles(self) -> bool:
        return self.target_name == "wheel" and (os.environ.get("COMPILE_SASH") == "1" or not self._missing())

    def _missing(self) -> str:
        """Why the engine is not compiled; empty where it is."""
        if os.environ.get("COMPILE_SASH") == "0":
            return "COMPILE_SASH=0"
        try:
            compile_engine.compiler()
        except compile_engine.NoCompiler as missing:
            return str(missing)
        return ""
