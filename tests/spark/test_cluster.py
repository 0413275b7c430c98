"""A standalone cluster of two workers: drivers and executors are killed, and every row is in the window once.

Kills come as soon as the service has been sent a part (before the commit), or has committed a micro-batch (before
Spark notes it). `make soak` kills 15 drivers and 10 executors in each of two ways of writing, and prints how many it
killed. SASH_SPARK_KILLS=6,4 kills 6 drivers and 4 executors. A kill counts if the process was running.

`make test` has the same accidents in one process: tasks that die in `test_exactly_once.py`, and drivers that die before
the service's commit and before Spark's in `test_format.py`.
"""

import os
import random
import time
from collections import Counter

import pandas as pd
import pytest

from tests.support.clients import client_of
from tests.support.servers import running_service
from tests.support.spark_cluster import WAYS, Driver, cluster, kill_executor, wait
from tests.support.spark_streams import KEYED, Stream, assert_fold, rows, staged_bytes, staged_parts

pytestmark = [pytest.mark.spark, pytest.mark.soak]

DRIVERS, EXECUTORS = map(int, os.environ.get("SASH_SPARK_KILLS", "15,10").split(","))
ROWS_PER_FILE = 400


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", WAYS)
def test_killed_drivers_and_executors_lose_and_double_nothing(tmp_path, way):
    rng = random.Random(11)
    accidents = ["driver"] * DRIVERS + ["executor"] * EXECUTORS
    rng.shuffle(accidents)
    stream = Stream(None, tmp_path)

    def fed():
        return len(stream.fed) * ROWS_PER_FILE

    def feed():
        for _ in range(2):
            stream.feed(rows(fed(), fed() + ROWS_PER_FILE))

    began, killed = time.monotonic(), Counter()
    with (
        running_service(data=str(tmp_path / "data")) as service,
        client_of(service.grpc_target) as client,
        cluster(tmp_path) as (master, workers),
    ):
        window = client.create_window(KEYED)

        def inserted():
            return window.describe().counts.inserted

        def kill(accident):
            """Kill; return whether the process was still running."""
            if accident == "driver":
                was_running = driver.kill()
                driver.start()
                return was_running
            which = rng.randrange(2)
            wait(lambda: driver.ended or kill_executor(workers, driver, which))
            return not driver.ended  # it needs the executor for its commit

        counts = [staged_parts(service.rest_url), inserted]
        feed()
        driver = Driver(master, service.grpc_target, tmp_path, way)
        try:
            for accident in accidents:
                feed()
                count = rng.choice(counts)
                # The driver may be faster than this process: then it gets more files.
                while not (grew(count, driver) and kill(accident)):
                    driver.finish()
                    feed()
                    driver.start()
                killed[accident] += 1
            driver.finish()
            if inserted() < fed():  # a driver reads the files that were there when it started
                driver.start()
                driver.finish()
        finally:
            driver.kill()
        assert_fold(window, pd.concat(stream.fed))
        assert staged_bytes(service.rest_url)() == 0  # the last commit has dropped what killed tasks had sent
    kills = f"{killed['driver']} drivers and {killed['executor']} executors killed"
    print(f"\n{way}: {kills}, {fed()} rows once each, {time.monotonic() - began:.0f} s, {driver.failures} failures")


def grew(count, driver):
    """Wait until a count has grown; return False if the driver ends first."""
    before = count()
    wait(lambda: count() > before or driver.ended)
    return not driver.ended
