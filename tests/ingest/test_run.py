"""A pipeline as a document, over lines of standard input."""

import os
import socket
from threading import Thread

import httpx
import pytest

from sash_ingest.config import IngestConfig
from sash_ingest.run import run
from sash_wire.pipeline import parsed
from tests.ingest.log import SPEC, ids_of, record
from tests.support.waiting import wait_until


@pytest.mark.parametrize(("host", "elsewhere"), [(None, False), ("0.0.0.0", True)])
def test_metrics_listen_on_this_machine_alone_unless_told(client, host, elsewhere):
    more = {} if host is None else {"metrics_host": host}
    document = {"name": f"p{host}", "time": "at", "windows": [{"spec": SPEC}], "metrics_port": 0} | more
    window = client.create_window(SPEC)
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
