"""Rows that one core of the service takes: NDJSON and CSV over REST, and Parquet by `sash data load`.

    bodies ──▶ POST …/bulk-insert ──▶ service      processor time of the service for a row
    Parquet ──▶ sash data load ──▶ gRPC ──▶ service     and of the client

The service is a process of its own and keeps the windows in memory. Only processor time is measured, so what else the
machine does matters little. The printed digest is of the windows' final answers.

Does not show: a tier, other machines, TLS.

Run ``python -m bench.load`` (about a minute; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import hashlib
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

from sash_client import Client
from tests.support.servers import Running, service_process

KEYS = 100
SUM = {"s": {"function": "sum", "field": "delay"}}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {"time_unit": "us", "fields": {"delay": "float64"}, "aggregates": SUM},
    "keyed": {"time_unit": "us", "keyed": True, "fields": {"delay": "float64"}, "aggregates": SUM},
    "shuffled": {"time_unit": "us", "fields": {"delay": "float64"}, "aggregates": SUM},
}


def cpu_s(pid: int) -> float:
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--smoke", action="store_true", help="few rows; figures mean nothing")
    smoke = parser.parse_args().smoke
    lines, rows = (2_000, 5_000) if smoke else (1_000_000, 5_000_000)
    digest = hashlib.sha256()
    print(f"{'from':10} {'window':10} {'service ns/row':>15} {'rows/s of a core':>17} {'client ns/row':>14}")
    with service_process() as service, Client(service.grpc_target) as client, tempfile.TemporaryDirectory() as where:
        assert service.process is not None
        for source in ("NDJSON", "CSV", "Parquet"):
            for name, spec in SPECS.items():
                count = rows if source == "Parquet" else lines
                table, path = table_of(name, count), Path(where) / f"{name}.parquet"
                window = client.create_window({"name": name, **spec})
                client_s = None
                if source == "Parquet":
                    pa_parquet.write_table(table, path)
                    before_s = cpu_s(service.process.pid)
                    client_s = loaded(service, name, path)
                else:
                    kind, make = ("application/x-ndjson", ndjson_of) if source == "NDJSON" else ("text/csv", csv_of)
                    body = make(table)
                    before_s = cpu_s(service.process.pid)
                    post(service, name, kind, body)
                used_s = max(cpu_s(service.process.pid) - before_s, 1e-9)
                assert window.describe().entries == count
                for answer in window.query(**({"keys": ["K001", "K002"]} if name == "keyed" else {})):
                    digest.update(f"{answer.entries} {answer.aggregates['s']:.9g}".encode())
                client.delete_window(name)
                theirs = "" if client_s is None else f"{1e9 * client_s / count:14,.0f}"
                print(f"{source:10} {name:10} {1e9 * used_s / count:15,.0f} {count / used_s:17,.0f} {theirs:>14}")
    print(f"digest {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
