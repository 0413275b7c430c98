"""What the build of a wheel does beside copying files; hatchling calls it, as pyproject.toml says.

always, and for `pip install --editable`       puts the packages of the page in their place, see page/hook.py
with COMPILE_SASH=1 in the environment         compiles the engine, see compile_engine.py
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
        return page.dependencies() + (compile_engine.requires() if self._compiles() else [])

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch what the page lacks; compile, and name the libraries to hatchling."""
        page.prepare(self.app, version)
        if not self._compiles() or version == "editable":
            return
        made = compile_engine.compiled()
        for library in sorted(made.rglob("*.so")):
            build_data["force_include"][str(library)] = str(library.relative_to(made))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True  # this kind of machine, and this version of Python

    def _compiles(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("COMPILE_SASH") == "1"
