"""The Python that Spark starts in tests: forked from a process that has imported what each took seconds to import.

    test ── directory ─▶ origin: imports, then writes `python` into the directory
    JVM  ── arguments ─▶ python ── arguments, environment, directory, files ─▶ origin ── fork ─▶ `python -m …`

Spark starts a daemon for each kind of worker, and forks workers from it. Its own daemon imports nothing before it
forks, because some packages start threads as they are imported. These do not.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    *(
        f"pyspark.sql.worker.{name}"
        for name in (
            "commit_data_source_write",
            "create_data_source",
            "data_source_pushdown_filters",
            "lookup_data_sources",
            "plan_data_source_read",
            "python_streaming_sink_runner",
            "write_into_data_source",
        )
    ),
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark_sash",
    "sash_engine.windows.window",
    "sash_spark.reading.reader",
    "sash_spark.reading.stream_reader",
    "sash_spark.sliding.stream",
    "sash_spark.writing.preaggregate",
    "sash_spark.writing.stream_writer",
)
"""What workers import, but not what Spark runs by its name."""
MESSAGE_BYTES = 1 << 20
STANDS_IN = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect({place!r})
    told = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(channel, [told], [0, 1, 2])
    channel.recv(1)  # the end, when the forked process has ended
"""
"""The program `python`. It starts in 0.03 s, and is there as long as the process that it stands for."""


@contextlib.contextmanager
def spark_python(directory: Path) -> Iterator[str]:
    """Give the path of an executable that Spark can start as `python -m MODULE …`. The origin ends with its input."""
    command = [sys.executable, "-m", "tests.support.spark_python", str(directory / "origin")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as origin:
        assert origin.stdout is not None
        assert origin.stdout.readline() == b"ready\n"
        program = directory / "python"
        program.write_text(STANDS_IN.format(python=sys.executable, place=str(directory / "origin")))
        program.chmod(0o755)
        yield str(program)


def forked(place: str) -> socket.socket | None:
    """Fork a process for each caller. Returns the connection in a child, None when the tests have ended."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                return None
            channel, _ = listening.accept()
            if os.fork() == 0:
                return channel
            channel.close()


def become(channel: socket.socket) -> None:
    """Have this process run the module that a caller names."""
    message, files, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    (_, module, *arguments), environment, directory = json.loads(message)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.enable()
    status = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    gc.disable()
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()  # a worker collects garbage after each task: 0.1 s, if it looks through all that was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what is forked
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the tests
    connection = forked(sys.argv[1])
    if connection is not None:
        become(connection)
