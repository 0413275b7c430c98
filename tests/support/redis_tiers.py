"""Redis tiers of a test, and calls of tiers that are away."""

import time

import pytest

from sash.tiers.redis import RedisTier
from sash_engine.errors import DataLoss, Unavailable

TIMEOUT_S = 0.3  # where a test waits for it; elsewhere it is long, as this machine may be busy


class Tiers(list):
    def __call__(self, url, prefix="t", **options) -> RedisTier:
        """A tier that has been acquired, closed after the test."""
        tier = RedisTier(url, prefix, **{"timeout_s": 60.0, **options})
        self.append(tier)
        tier.acquire()
        return tier


def patiently(call, within_s=60.0):
    """What the call returns, once the tier is available."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except Unavailable as error:
            if not error.retry_after_s or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def refused(call, error=Unavailable):
    with pytest.raises(error):
        call()


def lost(tier):
    """The tier says so for ever, and writes nothing."""
    for _ in range(2):
        with pytest.raises(DataLoss):
            patiently(lambda: tier.commit({b"k": b"v"}))
        with pytest.raises(DataLoss):
            tier.get_many([b"k"])


def scripts(server) -> int:
    """How many scripts the server has run."""
    lines = server.ask("INFO", "commandstats").decode().split()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_eval:"))
