"""A client that Connect's own tools generate for TypeScript, run by Node. `make setup` installs them where it may."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import Running

HERE = Path(__file__).parent / "node"
ROOT = HERE.parents[2]
MODULES = ROOT / "build" / "node" / "node_modules"
TIMEOUT_S = 240


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program beside its generated client."""
    node = shutil.which("node")
    if node is None or not (MODULES / "@connectrpc" / "connect-node").is_dir():
        pytest.skip("no Node, or no packages of it: install Node and npm, then run `make setup`")
    shutil.copytree(HERE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "gen").mkdir()
    plugin = MODULES / ".bin" / "protoc-gen-es"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--plugin=protoc-gen-es={plugin}"]
    options = [f"--es_out={tmp_path / 'gen'}", "--es_opt=target=js", "sash_proto/v1/windows.proto"]
    subprocess.run([*command, *options], check=True, timeout=TIMEOUT_S)
    return tmp_path / "calls.js"


def test_a_generated_client(program: Path, service: Running) -> None:
    ran = subprocess.run(
        ["node", str(program), service.rest_url], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(found) == 4
    not_found = {
        "code": "NotFound",
        "message": "there is no window 'nothing'",
        "details": ["google.rpc.ErrorInfo", "google.rpc.BadRequest", "google.rpc.RequestInfo"],
    }
    for seen in found.values():
        assert seen["late"].pop("code") == "DeadlineExceeded"
        del seen["late"]
        assert seen == {
            "totals": [4.0, 6.5],
            "entries": 2,
            "watched": 2,
            "exported": True,
            "unary": not_found,
            "stream": not_found,
        }
