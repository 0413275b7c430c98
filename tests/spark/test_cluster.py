"""A standalone cluster of two workers: drivers and executors are killed, and every row is in the window once.

Kills come as soon as the service has been sent a part (before the commit), or has committed a micro-batch (before
Spark notes it). SASH_PROFILE=soak kills 30 drivers and 20 executors.
"""

import os
import random

import pandas as pd
import pytest

from tests.support.clients import client_of
from tests.support.servers import running_service
from tests.support.spark_cluster import WAYS, Driver, cluster, kill_executor, wait
from tests.support.spark_streams import KEYED, Stream, assert_fold, rows, staged_parts

pytestmark = pytest.mark.spark

IS_SOAK = os.environ.get("SASH_PROFILE") == "soak"
DRIVERS, EXECUTORS = (15, 10) if IS_SOAK else (1, 1)
ROWS_PER_FILE = 400


@pytest.mark.timeout(7200 if IS_SOAK else 1200)
@pytest.mark.parametrize("way", WAYS if IS_SOAK else WAYS[:1])
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

    with (
        running_service(data=str(tmp_path / "data")) as service,
        client_of(service.grpc_target) as client,
        cluster(tmp_path) as (master, workers),
    ):
        window = client.create_window(KEYED)

        def inserted():
            return window.describe().counts.inserted

        counts = [staged_parts(service.rest_url), inserted]
        feed()
        driver = Driver(master, service.grpc_target, tmp_path, way)
        try:
            for accident in accidents:
                feed()
                count = rng.choice(counts)
                while not grew(count, driver):  # the driver was faster than this process
                    driver.finish()
                    feed()
                    driver.start()
                if accident == "driver":
                    driver.kill()
                    driver.start()
                else:
                    wait(lambda: kill_executor(workers, rng.randrange(2)) or driver.ended)
            driver.finish()
            if inserted() < fed():  # a driver reads the files that were there when it started
                driver.start()
                driver.finish()
        finally:
            driver.kill()
        assert_fold(window, pd.concat(stream.fed))


def grew(count, driver):
    """Wait until a count has grown; return False if the driver ends first."""
    before = count()
    wait(lambda: count() > before or driver.ended)
    return not driver.ended
