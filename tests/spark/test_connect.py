"""The sink over Spark Connect, which does not tell a sink whose micro-batch it writes.

Connect runs in a process of its own: one Python process has either a classic session or a remote one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from sash_client import Client
from tests.support.servers import running_service
from tests.support.spark_python import spark_python
from tests.support.spark_streams import KEYED, rows

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


@pytest.fixture
def service(tmp_path):
    with running_service(data=str(tmp_path / "data")) as service:
        yield service


def test_no_run_is_dropped_in_silence(service, tmp_path):
    with Client(service.grpc_target) as client:
        windows = {name: client.create_window(KEYED | {"name": name}) for name in ("named", "unnamed")}
        with spark_python(tmp_path) as python:
            arguments = service.grpc_target, str(tmp_path), python
            run = subprocess.run(
                [sys.executable, "-m", "tests.support.connect_stream", *arguments],
                cwd=ROOT,
                capture_output=True,
                text=True,
            )
        assert run.returncode == 0, run.stdout + run.stderr[-4000:]
        entries = {name: window.describe().counts.inserted for name, window in windows.items()}
    once = len(rows(0, 60))
    assert run.stdout.splitlines()[-4:] == [
        "replay: ok",
        "new checkpoint: ok",
        "new checkpoint, which the sink does not know: pass checkpoint=",
        "no checkpoint there: does not tell the query's id",
    ]
    # The first run and its replay wrote everything once; the new checkpoint is another query, which wrote it again.
    assert entries == {"named": 2 * once, "unnamed": once}
