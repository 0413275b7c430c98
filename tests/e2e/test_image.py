"""The image is built and run: it serves, answers every kind of question, starts anew with its volume, and is small.

Its base is made of Debian's packages, under the name that the Dockerfile has, so no registry is asked. A container runs
in namespaces of its own, with the image's user, variables and command. It is skipped where a tool is missing.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from deploy import compile_engine
from tests.support.every_question import asked
from tests.support.servers import PLAIN, WAIT_S

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "image"
"""What takes minutes to make stays there: the image of the base, and the wheels."""

CONTEXT = ("pyproject.toml", "constraints.txt", "README.md", ".dockerignore", "Dockerfile")
FAST = (
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",  # else a package merges it, which brings all of Perl
)
PACKAGES = "passwd,libstdc++6,python3,python3-pip-whl"
# The build finds the engine compiled and calls no compiler, but it looks for one. Of pip there is Debian's wheel alone:
# the package python3-pip, what it needs and their bytecode take a quarter of the time of all.
HOOKS = (
    'ln -s python3 "$1/usr/bin/python"',
    'ln -s /bin/false "$1/usr/bin/gcc"',
    'chroot "$1" sh -c "python3 -m zipfile -e /usr/share/python-wheels/pip-*.whl /usr/lib/python3/dist-packages"',
    r"""printf '#!/bin/sh\nexec python3 -m pip "$@"\n' >"$1/usr/bin/pip" """,
    'chmod 755 "$1/usr/bin/pip"',
)
TOOLS = ("buildah", "mmdebstrap", "unshare", "chroot", "gcc")
MIB_MAX = 300
ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child")

INSIDE = """
set -e
root=$1 volume=$2 user=$3; shift 3
mount --bind "$volume" "$root/data"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
exec chroot --userspec="$user" "$root" env -i "$@"
"""

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        not all(map(shutil.which, TOOLS)),
        reason=f"an image needs {', '.join(tool for tool in TOOLS if not shutil.which(tool))}",
    ),
    pytest.mark.skipif(os.getuid() != 0, reason="an image is built by root"),
]


def done(*command, **given):
    """Run a command to its end; return what it prints."""
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **given)
    assert ran.returncode == 0, f"{' '.join(map(str, command))}: {ran.stdout[-2000:]}{ran.stderr[-4000:]}"
    return ran.stdout


class Images:
    """Images and containers in a store, and the name of the image that is tested."""

    def __init__(self, path, name):
        self.name = name
        self._command = ("buildah", "--root", str(path / "store"), "--runroot", str(path / "run"))

    def __call__(self, *arguments, **given):
        return done(*self._command, *map(str, arguments), **given).strip()

    @contextmanager
    def container(self):
        """A new container of the image: its root."""
        name = self("from", "--pull-never", self.name)
        try:
            yield Path(self("mount", name))
        finally:
            self("umount", name)
            self("rm", name)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """What the image installs, as files: the build sees no index. They are made of what is installed here."""
    wanted = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    kept = KEPT / f"wheels-{hashlib.sha256(wanted).hexdigest()[:16]}"
    if kept.exists():
        return kept
    path = tmp_path_factory.mktemp("wheels")
    missing = []
    for name in needed("sash[server]", "hatchling"):
        try:
            pack(distribution(name), path)
        except PackageNotFoundError:  # only Debian's Python needs it
            missing.append(name)
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", path)
    pinned = ("--constraint", ROOT / "constraints.txt", *missing)
    ran = subprocess.run([*pip, *pinned], capture_output=True, text=True, cwd=path)
    if missing and ran.returncode:
        pytest.skip(f"packages cannot be had: {ran.stderr[-300:]}")
    (path / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n[install]\nno-compile = true\n")
    with contextlib.suppress(OSError):  # another run was faster
        shutil.copytree(path, part := KEPT / f"{kept.name}.{os.getpid()}")
        part.rename(kept)
    return path


def needed(*requirements):
    """The packages that these bring, those of Sash itself left out, where Python is Debian's."""
    wanted, names = [*map(Requirement, requirements)], set()
    for each in wanted:
        names.add(each.name)
        with contextlib.suppress(PackageNotFoundError):
            for further in map(Requirement, distribution(each.name).requires or ()):
                marked = [{"python_full_version": "3.11.2", "extra": extra} for extra in (each.extras or {""})]
                if further not in wanted and (not further.marker or any(map(further.marker.evaluate, marked))):
                    wanted.append(further)
    return sorted(names - {"sash"})


def pack(package, directory):
    """Make the wheel of a package that is installed: to fetch it takes six times as much processor time."""
    tags = (tag.split("-") for tag in re.findall(r"^Tag: (\S+)", package.read_text("WHEEL"), re.MULTILINE))
    fits = (".".join(sorted(set(each))) for each in zip(*tags, strict=True))  # Pythons, ABIs, machines
    name = "-".join([re.sub(r"[-_.]+", "_", package.name), package.version, *fits])
    with zipfile.ZipFile(directory / f"{name}.whl", "w") as wheel:
        for file in package.files:
            if ".." not in file.parts and file.suffix != ".pyc":
                wheel.write(file.locate(), file)


@pytest.fixture(scope="module")
def images(tmp_path_factory, wheels):
    """The image, built as the Dockerfile says."""
    path = tmp_path_factory.mktemp("images")
    made = Images(KEPT, f"sash-{os.getpid()}")
    # The image's Python loads what this one compiles, so the build finds the engine compiled.
    compiled = path / "compiled"
    kept = compile_engine.compiled()
    shutil.copytree(kept, compiled / kept.name)
    (name,) = set(re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    if not made("images", "--quiet", "--filter", f"reference=docker.io/library/{name}"):
        debian(made, f"docker.io/library/{name}")
    context = path / "context"
    context.mkdir()
    for each in CONTEXT:
        shutil.copy(ROOT / each, context)
    for each in ("proto", "clients", "service", "deploy"):
        shutil.copytree(ROOT / each, context / each, ignore=shutil.ignore_patterns("__pycache__"))
    volumes = [f"{wheels}:/wheels:ro", f"{wheels / 'pip.conf'}:/etc/pip.conf:ro", f"{compiled}:/src/build/compiled"]
    options = ("--isolation", "chroot", "--network", "host", "--format", "docker", "--pull-never")
    made("bud", *options, *(f"--volume={each}" for each in volumes), "-t", made.name, context)
    yield made
    made("rmi", "--force", made.name)
    made("rmi", "--prune", "--force")


def debian(images, name):
    """Make an image of a Debian with Python."""
    new = images("from", "scratch")
    hooks = (f"--customize-hook={hook}" for hook in HOOKS)
    made = subprocess.run(
        ["mmdebstrap", "--variant=essential", *FAST, f"--include={PACKAGES}", *hooks, "bookworm", images("mount", new)],
        capture_output=True,
        text=True,
    )
    if not made.returncode:
        images("commit", "--format", "docker", new, name)
    images("rm", new)
    if made.returncode:
        pytest.skip(f"Debian's packages cannot be had: {made.stderr[-300:]}")


@pytest.fixture(scope="module")
def config(images):
    return json.loads(images("inspect", "--type", "image", images.name))["Docker"]["config"]


@contextmanager
def served(images, config, volume):
    """Run a container with a volume, as an engine would: yields a client of it, its gRPC target, and what stops it."""
    with images.container() as root:
        (user,) = [
            line.split(":")
            for line in (root / "etc/passwd").read_text().splitlines()
            if line.startswith(config["User"] + ":")
        ]
        os.chown(volume, int(user[2]), int(user[3]))
        variables = [*config["Env"], "SASH_INSECURE=1"]
        command = [*config["Entrypoint"], *config["Cmd"], "--grpc-port", "0", "--rest-port", "0"]
        process = subprocess.Popen(
            [*ISOLATED, "sh", "-c", INSIDE, "inside", root, volume, f"{user[2]}:{user[3]}", *variables, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

        def stop():
            (inside,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(inside), signal.Signals[config["StopSignal"]])
            assert process.wait(WAIT_S) == 0, process.stderr.read()

        try:
            line = process.stdout.readline()
            found = re.search(r"gRPC on 0\.0\.0\.0:(\d+), REST and page on http://0\.0\.0\.0:(\d+)/", line)
            assert found, line + process.stderr.read()
            with httpx.Client(base_url=f"http://127.0.0.1:{found[2]}", **PLAIN) as http:
                yield http, f"127.0.0.1:{found[1]}", stop
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=WAIT_S)


def test_it_answers_every_question_on_every_edge_stops_and_starts_with_what_it_stored(images, config, tmp_path):
    """Its engine is compiled."""
    volume = tmp_path / "data"
    volume.mkdir()
    spec = {"name": "w", "time_unit": "s", "fields": {"value": "float64"}, "aggregates": {"n": {"function": "count"}}}
    with served(images, config, volume) as (http, grpc_target, stop):
        assert 'engine="compiled"' in http.get("/metrics").text
        assert asked(grpc_target, str(http.base_url)) > 1_000
        assert http.post("/v1/windows", json=spec).status_code == 201
        for time in range(3):
            assert http.post("/v1/windows/w/insert", json={"time": time, "value": 1.0}).status_code == 200
        assert http.get("/").headers["content-type"].startswith("text/html")
        assert http.get("/docs").status_code == 200
        stop()
    with served(images, config, volume) as (http, _, stop):
        assert http.get("/v1/windows/w/query").json()["answers"][0]["aggregates"] == {"n": 3}
        stop()


def test_its_other_commands_run(images):
    with images.container() as root:
        for command in (["sash", "--version"], ["sash", "load", "--help"], ["sash", "check", "--help"]):
            done("chroot", root, "env", "PATH=/opt/sash/bin:/usr/bin:/bin", *command)


def test_it_is_small_and_has_no_sources(images):
    with images.container() as root:
        opt = root / "opt/sash"
        size = sum(path.stat().st_size for path in opt.rglob("*") if path.is_file() and not path.is_symlink())
        assert size >> 20 < MIB_MAX
        # Where the build finds the engine compiled is a directory that buildah leaves.
        assert not [path for path in (root / "src").rglob("*") if not path.is_dir()]
        assert not list(opt.glob("bin/pip*"))
