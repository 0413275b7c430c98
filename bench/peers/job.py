"""What the systems have in common that are jobs over a file: only the series can be asked of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from bench.peers.system import Cannot, System
from bench.peers.work import Floats, Ints


class Job(System):
    """A job. The entries of a key lie in a file before it starts, and reading it belongs to the job."""

    kept = "nothing: a job over a file"
    suffix = ".parquet"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def file(self, code: int) -> Path:
        """Where the entries of a key are."""
        return self.directory / f"key-{code}{self.suffix}"

    def lay_down(self, code: int, times: Ints, values: Floats) -> None:
        """Write the entries of a key."""
        table = pa.table({"t": times, "v": values})
        if self.suffix == ".csv":
            pa_csv.write_csv(table, self.file(code), pa_csv.WriteOptions(include_header=False))
        else:
            pa_parquet.write_table(table, self.file(code))

    def kill(self) -> None:
        raise Cannot("keeps nothing")
