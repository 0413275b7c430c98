"""One local Spark and one real service for all tests of this directory that ask for them."""

import contextlib
import sys

import pytest

from sash_client.local import LocalService
from sash_spark.session import local_session
from tests.support.clients import client_of
from tests.support.servers import running_service
from tests.support.spark_python import spark_python

SETTINGS = {
    # Else plans of a thousand queries are kept for a page that nobody opens, and fill the driver's memory.
    "spark.sql.ui.retainedExecutions": 1,
    "spark.ui.retainedJobs": 1,
    "spark.ui.retainedStages": 1,
    # Hadoop, without its libraries in C, asks `readlink` and `chmod` about files: 36 processes for a micro-batch. The
    # other way to write checkpoints asks ten times.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("spark")
    with spark_python(scratch) as python:
        with pytest.MonkeyPatch.context() as patch:
            said = " ".join(f"--conf {name}={value}" for name, value in SETTINGS.items())
            patch.setenv("PYSPARK_SUBMIT_ARGS", f"{said} pyspark-shell")
            patch.setattr(sys, "executable", python)  # what `local_session` gives to Spark
            session = local_session("sash tests", scratch, attempts=3)
        yield session
        session.stop()


@contextlib.contextmanager
def service_here(**settings):
    """As `local_service`, in this process: another one takes two seconds to start."""
    with running_service(**settings) as running:
        yield LocalService(running.grpc_target, running.rest_url)


@pytest.fixture(scope="session")
def service():
    with service_here() as service:
        yield service


@pytest.fixture(scope="session")
def target(service):
    return service.target


@pytest.fixture
def client(target):
    with client_of(target) as client:
        yield client


@contextlib.contextmanager
def set_in(spark, settings):
    """Settings of the session, as long as a block runs; it may change those that are None."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        if value is not None:
            spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.fixture
def large_batches(spark):
    """Rows come in Arrow batches that Spark does not keep back in its buffers until there are more."""
    arrow = "spark.sql.execution.arrow"
    # Many rows come from pandas, in no time.
    with set_in(spark, {f"{arrow}.maxRecordsPerBatch": "5000", f"{arrow}.pyspark.enabled": "true"}):
        yield


@pytest.fixture
def sliding_state(spark):
    """What streams of sliding windows need, as their page says; a partition costs two processes per micro-batch."""
    store, rocks_db = "spark.sql.streaming.stateStore", "org.apache.spark.sql.execution.streaming.state.RocksDB"
    settings = {
        f"{store}.providerClass": f"{rocks_db}StateStoreProvider",
        f"{store}.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": "1",
    }
    with set_in(spark, settings):
        yield
