"""Rows that one core of the service takes: NDJSON and CSV over REST, and Parquet by `sash data load`.

    bodies ──▶ POST …/bulk-insert ──▶ service      processor time of the service for a row
    Parquet ──▶ sash data load ──▶ gRPC ──▶ service     and of the client

The service is a process of its own and keeps the windows in memory. Only processor time is measured, so what else the
machine does matters little. The printed digest is of the windows' final answers.

Does not show: a tier, other machines, TLS.

Run ``python -m bench.load`` (about a minute; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from bench.harness import arguments, digest, head, pid_of, processor_s, row, service
from sash_client import Client
from tests.support.servers import Running

KEYS = 100
SUM = {"s": {"function": "sum", "field": "delay"}}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {"time_unit": "us", "fields": {"delay": "float64"}, "aggregates": SUM},
    "keyed": {"time_unit": "us", "keyed": True, "fields": {"delay": "float64"}, "aggregates": SUM},
    "shuffled": {"time_unit": "us", "fields": {"delay": "float64"}, "aggregates": SUM},
}


def table_of(name: str, rows: int) -> Any:
    random = np.random.default_rng(1)
    times = np.arange(rows)
    columns = {"time": random.permutation(times) if name == "shuffled" else times, "delay": random.random(rows)}
    if name == "keyed":
        codes = random.integers(0, KEYS, rows).astype(np.int32)
        columns["key"] = pa.DictionaryArray.from_arrays(codes, [f"K{i:03}" for i in range(KEYS)]).cast(pa.string())
    return pa.table(columns)


def ndjson_of(table: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()


def csv_of(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(table, sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def post(service: Running, window: str, kind: str, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.rest_port)
    connection.request("POST", f"/v1/windows/{window}/bulk-insert", body, {"content-type": kind})
    response = connection.getresponse()
    text = response.read()
    assert response.status == 200, text
    connection.close()


def loaded(service: Running, window: str, path: Path) -> float:
    """Run `sash data load`; return its processor time."""
    command = [sys.executable, "-m", "sash.main", "load", window, str(path), "-t", service.grpc_target]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def main() -> None:
    smoke = arguments(__doc__).smoke
    lines, rows = (2_000, 5_000) if smoke else (1_000_000, 5_000_000)
    answers = []
    head("from", "window", "service, ns a row", "rows a second of one core", "client, ns a row")
    with service() as running, Client(running.grpc_target) as client, tempfile.TemporaryDirectory() as where:
        for source in ("NDJSON", "CSV", "Parquet"):
            for name, spec in SPECS.items():
                count = rows if source == "Parquet" else lines
                table, path = table_of(name, count), Path(where) / f"{name}.parquet"
                window, client_s = client.create_window({"name": name, **spec}), None
                if source == "Parquet":
                    pa_parquet.write_table(table, path)
                    before_s = processor_s(pid_of(running))
                    client_s = loaded(running, name, path)
                else:
                    kind, make = ("application/x-ndjson", ndjson_of) if source == "NDJSON" else ("text/csv", csv_of)
                    body = make(table)
                    before_s = processor_s(pid_of(running))
                    post(running, name, kind, body)
                used_s = processor_s(pid_of(running)) - before_s
                assert window.describe().entries == count
                found = window.query(**({"keys": ["K001", "K002"]} if name == "keyed" else {}))
                answers.append([(answer.entries, f"{answer.aggregates['s']:.9g}") for answer in found])
                client.delete_window(name)
                theirs = "" if client_s is None else f"{1e9 * client_s / count:,.0f}"
                row(source, name, f"{1e9 * used_s / count:,.0f}", f"{count / used_s:,.0f}", theirs)
    print(f"\ndigest {digest(answers)}")


if __name__ == "__main__":
    main()
