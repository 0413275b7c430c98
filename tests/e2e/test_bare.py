"""`make demo` on a machine where nothing was installed by hand: a minimal Debian with what the README asks for.

It installs everything anew, so `make soak` does it. `make test` runs the demo here, and the image in a Debian.

Each is a directory with Debian's packages in which a clone of this checkout is made. It reaches the registries of pip,
npm and Debian as this machine does: with its configuration, certificates and directories of packages.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RELEASES = ["trixie", "bookworm"]
KEPT = ROOT / "build" / "bare"
"""Minimal Debians, which take half a minute each to make, stay there."""
PACKAGES = "python3,python3-venv,make,ca-certificates,git"
TOOLS = ("mmdebstrap", "unshare", "chroot")
OF_THE_HOST = (
    "etc/resolv.conf",
    "etc/hosts",
    "etc/pip.conf",
    "etc/ssl/certs/ca-certificates.crt",
    "root/.config/pip/pip.conf",
    "root/.npmrc",
)
"""How this machine reaches its registries."""
VARIABLES = ("PIP_", "npm_config_", "NPM_CONFIG_", "SSL_CERT_", "NODE_EXTRA_", "http_proxy", "https_proxy", "no_proxy")

INSIDE = """
set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
for packages in /opt/wheels /opt/pypi /opt/pypi-more; do
    [ ! -d "$packages" ] || { mkdir -p "$root$packages"; mount --bind "$packages" "$root$packages"; }
done
exec chroot "$root" env -i "$@"
"""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"a bare Debian is made by {', '.join(TOOLS)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="a bare Debian is made by root"),
]


def debian(release):
    """The root file system of a minimal Debian, as a file."""
    tar = KEPT / f"{release}.tar"
    if not tar.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        part = KEPT / f"{release}.{os.getpid()}.tar"
        command = ["mmdebstrap", "--variant=minbase", "--dpkgopt=force-unsafe-io", f"--include={PACKAGES}"]
        ran = subprocess.run([*command, release, part], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if ran.returncode:
            part.unlink(missing_ok=True)
            pytest.skip(f"Debian's packages cannot be had: {ran.stderr[-300:]}")
        part.rename(tar)
    return tar


@pytest.fixture
def machine(request, tmp_path):
    """A bare machine of a release of Debian: the directory that is its root."""
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["tar", "-xf", debian(request.param), "-C", root], check=True)
    for each in OF_THE_HOST:
        there = Path("/") / each
        if there.exists():
            (root / each).parent.mkdir(parents=True, exist_ok=True)
            (root / each).unlink(missing_ok=True)
            shutil.copy(there, root / each)
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, root / "root" / "sash"], check=True)
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("machine", RELEASES, indirect=True)
def test_the_demo_runs(machine):
    """It installs what it needs, and neither linters, tests nor documentation."""
    variables = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(VARIABLES)]
    variables += ["HOME=/root", "LANG=C.UTF-8", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    isolated = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", INSIDE, "inside")
    ran = subprocess.run(
        [*isolated, machine, *variables, "make", "-C", "/root/sash", "demo"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert "equal the fold that pandas computed" in ran.stdout
    (installed,) = (machine / "root" / "sash" / ".venv" / "lib").glob("python3.*/site-packages")
    names = {path.name.partition("-")[0].lower() for path in installed.glob("*-info")}
    assert names > {"sash", "pyspark", "fastapi_offline"}
    assert not names & {"pytest", "mypy", "ruff", "mkdocs", "locust", "playwright", "opentelemetry_sdk"}
