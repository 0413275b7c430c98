"""A standalone Spark of a master and two workers on this machine, and drivers of streams that can be killed.

    master ── worker ── executor ── Python worker
        ╰──── worker ── executor ── Python worker
    driver (Python) ── driver (JVM)                 all of them processes of their own

`python -m tests.support.spark_cluster MASTER TARGET DIRECTORY WAY` is the driver. It reads the files of a directory,
one in a micro-batch, writes them to the window `w`, and ends when all are written.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.support.waiting import wait_until

WAYS = ("format", "foreachBatch")
HOST = "127.0.0.1"
SPARK = Path(pyspark.__file__).parent
ENVIRONMENT = {
    "SPARK_HOME": str(SPARK),
    "SPARK_LOCAL_IP": HOST,
    "SPARK_DAEMON_MEMORY": "256m",
    # Spark gives up an application whose executors end ten times; a busy worker answers late.
    "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1 -Dspark.worker.timeout=600",
    # They start twice as fast, and faster with the archive of classes of `make test`.
    "JDK_JAVA_OPTIONS": f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC".strip(),
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}
SETTINGS = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": ENVIRONMENT["PYTHONPATH"],
    "spark.ui.enabled": "false",
    "spark.network.timeout": "600s",
    "spark.task.maxFailures": "20",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_MASTER = re.compile(r"(?:Starting Spark master at|registered with master) (spark://\S+)")


def wait(condition):
    """Wait until a condition holds, however busy the machine is: the time limit of the test ends it."""
    wait_until(condition, 7200, look_s=0.02)


@contextlib.contextmanager
def cluster(directory):
    """Start a master and two workers; yield the master's URL, and the processes of the workers."""
    with contextlib.ExitStack() as daemons:

        def start(name, *arguments):
            return daemons.enter_context(_daemon(directory / f"{name}.log", *arguments))

        _, said = start("master", "org.apache.spark.deploy.master.Master", "--host", HOST, "--port", "0")
        master = said()
        limits = ["--cores", "1", "--memory", "600m", "--host", HOST]
        workers = [
            start(name, "org.apache.spark.deploy.worker.Worker", *limits, "--work-dir", str(directory / name), master)
            for name in ("one", "two")
        ]
        for _, said in workers:
            said()
        yield master, [process for process, _ in workers]


@contextlib.contextmanager
def _daemon(log, kind, *arguments):
    """Run a master or a worker; yield its process, and a function that waits until it says who the master is."""
    command = [str(SPARK / "bin" / "spark-class"), kind, *arguments, "--webui-port", "0"]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT, start_new_session=True
        )

    def said():
        wait(lambda: _MASTER.search(log.read_text()) or process.poll() is not None)
        assert process.poll() is None, log.read_text()[-4000:]
        return _MASTER.search(log.read_text())[1]

    try:
        yield process, said
    finally:
        _kill_all(process)


def kill_executor(workers, driver, which):
    """Kill an executor of a driver, with its Python workers; return whether there was one."""
    mark = _mark(driver.process.pid)
    executors = [pid for worker in workers for pid in _descendants(worker.pid) if _EXECUTOR in _command(pid)]
    running = [pid for pid in executors if mark in _command(pid)]  # those of a killed driver end a little later
    if not running:
        return False
    executor = running[which % len(running)]
    for pid in (executor, *_descendants(executor)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return True


def _mark(driver):
    """An option of Java that executors of the driver with that process id have."""
    return f"-Dsash.driver={driver}."


def _descendants(pid):
    """The processes that a process has started, and those that they have."""
    found = [pid]
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def _command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _kill_all(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Driver:
    """A driver in a process of its own, started again and again; `kill` ends its Python and its JVM at once."""

    def __init__(self, master, target, directory, way):
        self.arguments = [master, target, str(directory), way]
        self.log = directory / "driver.log"
        self.failures = 0
        self.start()

    def start(self):
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark_cluster", *self.arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )

    @property
    def ended(self):
        return self.process.poll() is not None

    def kill(self):
        """Kill it; return whether it was running."""
        was_running = not self.ended
        _kill_all(self.process)
        return was_running

    def finish(self):
        """Wait until all files are written. A driver that fails is started again, as a supervisor does: three times."""
        while self.process.wait():
            self.failures += 1
            assert self.failures <= 3, self.log.read_text()[-8000:]
            self.kill()
            self.start()


def main(master, target, directory, way):
    from pyspark.sql import SparkSession

    from sash_spark import register, sash_sink

    builder = SparkSession.builder.master(master).config("spark.local.dir", directory)
    builder = builder.config("spark.executor.extraJavaOptions", _mark(os.getpid()))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.readStream.schema("at timestamp, k string, v long").option("maxFilesPerTrigger", 1)
    frame = frame.parquet(f"{directory}/in").repartition(2, "v")
    options = {"target": target, "window": "w", "time": "at", "key": "k", "rows_per_call": 20}
    if way == "format":
        register(spark)
        writer = frame.writeStream.format("sash").options(**options)
    else:
        writer = frame.writeStream.foreachBatch(sash_sink(**options))
    query = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
