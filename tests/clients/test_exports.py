"""The public surface, pinned: a change here is a change for every user."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sash_client
import sash_spark

CLIENT = """
ALL_KEYS Admission AlreadyExists Answer Answers BloomFilter Bulk Client CountMin Counts DataLoss DeadlineExceeded
Entries FailedPrecondition Features InvalidArgument LastWrite Limit LimitAnswers NaiveBayes NotFound PermissionDenied
Producer RangeAnswer ResourceExhausted SashClientError Series Staged TLS ThetaSketch Unauthenticated Unavailable
Unsupported Window WindowInfo WriteResult backup request_id restore trace_calls
"""
SPARK = "BatchReport Login SashDataSource SashSink answers_at answers_offline register sash_sink"
METHODS = {
    sash_client.Client: """
        answers_at close create_window delete_window export_window import_window list_windows move_shard topology
        wait_until_ready window
    """,
    sash_client.Window: """
        add_aggregates admit answers_at bulk_admit bulk_evict bulk_insert commit describe entries insert insert_stream
        keys last_write name producer punctuate query range_groups range_query retract series series_groups spec stage
        update watch
    """,
    sash_client.Producer: "acknowledged bulk_insert close flush insert result",
}


def test_what_packages_export():
    assert sash_client.__all__ == CLIENT.split()
    assert all(hasattr(sash_client, name) for name in sash_client.__all__)
    assert sash_spark.__all__ == SPARK.split()


@pytest.mark.parametrize("cls", METHODS)
def test_methods(cls):
    assert [name for name in dir(cls) if not name.startswith("_")] == METHODS[cls].split()
    assert all(inspect.getdoc(getattr(cls, name)) for name in METHODS[cls].split())


@pytest.mark.parametrize("package", [sash_client, sash_spark])
def test_the_clients_do_not_import_the_service(package):
    for path in sorted(Path(package.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert "sash" not in [str(name).partition(".")[0] for name in names], path


def test_a_client_loads_no_more_than_it_needs():
    others = {"pandas", "polars", "pyarrow", "pyspark", "sash", "sash_engine", "yaml"}
    code = f"import sys, sash_client; assert not {others} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
