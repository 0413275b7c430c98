"""A pipeline as a document, over lines of standard input."""

import json
import os
import socket
import subprocess
from collections import Counter
from threading import Thread

import httpx
import pytest
import yaml

from sash_ingest.config import IngestConfig
from sash_ingest.run import run
from sash_wire.pipeline import parsed
from tests.ingest.log import SPEC, ids_of, record
from tests.support.forked import command
from tests.support.waiting import wait_until


@pytest.mark.parametrize(("host", "elsewhere"), [(None, False), ("0.0.0.0", True)])
def test_metrics_listen_on_this_machine_alone_unless_told(client, window, host, elsewhere):
    more = {} if host is None else {"metrics_host": host}
    document = {"name": f"p{host}", "time": "at", "windows": [{"spec": SPEC}], "metrics_port": 0} | more
    said, (to_read, to_write) = [], os.pipe()
    with open(to_read, "rb") as lines, open(to_write, "wb", buffering=0) as pipe:
        task = (client, parsed(IngestConfig, document), False, lines, None, said.append, lambda stop: None)
        thread = Thread(target=run, args=task)
        thread.start()
        try:
            pipe.write(record(1) + b"\n")
            wait_until(lambda: ids_of(window)[1])
            (line,) = said
            assert line.startswith(f"metrics on http://{host or '127.0.0.1'}:")
            url = httpx.URL(line.removeprefix("metrics on "))
            text = httpx.get(url.copy_with(host="127.0.0.1"), trust_env=False).text
            assert f'sash_ingest_records_total{{pipeline="p{host}"}} 1.0' in text
            with socket.socket() as other:
                assert (other.connect_ex(("127.0.0.2", url.port)) == 0) is elsewhere
        finally:
            pipe.close()
            thread.join()
        with socket.socket() as after:
            assert after.connect_ex(("127.0.0.1", url.port)) != 0


@pytest.mark.parametrize("strict", [False, True])
def test_strict_ends_at_the_first_record_that_does_not_fit(client, service, tmp_path, strict):
    """Also where there is a place for such records; what came before it is written, and is not written again."""
    (tmp_path / "p.yaml").write_text(
        yaml.safe_dump({
            "name": "strict", "service": service.grpc_target, "time": "at", "windows": [{"spec": SPEC}],
            "bad_records": {"path": str(tmp_path / "bad")}, "records_per_write": 2,
        })
    )  # fmt: skip
    lines = b"\r\n".join([record(1), record(2), record(3, id="x"), record(4)])
    forks, words = command(tmp_path), ["ingest", "-", tmp_path / "p.yaml", "--name", "again", *["--strict"] * strict]
    for _ in range(2):
        done = subprocess.run([tmp_path / "sash", *words], input=lines, capture_output=True, pass_fds=[forks])
        told = done.stderr.decode()
        assert done.returncode == (1 if strict else 0), told
        assert ("line 3: id is 'x', a str, and no int64 (window log)" in told) == strict
    assert ids_of(client.window("log")) == Counter([1, 2] if strict else [1, 2, 4])
    assert (tmp_path / "bad").exists() is not strict
    if not strict:
        (letter,) = (tmp_path / "bad").read_text().splitlines()
        assert json.loads(letter)["record"] == record(3, id="x").decode()
