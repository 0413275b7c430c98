"""A local Spark for the demo, the tests and first steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def local_session(name: str, scratch: Path, *, cores: int = 2, attempts: int = 1) -> SparkSession:
    """Start Spark in this process, or return the session that runs already.

    Args:
        name: shown by Spark.
        scratch: directory for its files.
        cores: tasks at a time.
        attempts: how often a task may run before its job fails.
    """
    # The executors are Python workers on this machine: they must be this interpreter, which has sash_client.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    session = (
        SparkSession.builder.master(f"local[{cores},{attempts}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j.as_uri()}")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.ansi.enabled", "true")
        # Otherwise Spark starts extra Python workers for stateful operators.
        .config("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "false")
        # Otherwise Spark adds up the sizes of all columns after each row that goes to Python.
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
        .config("spark.sql.shuffle.partitions", str(cores))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


# Spark prints start-up messages before a session can change its log level.
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
