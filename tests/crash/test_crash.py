"""Kills of the service and of its tier: what was acknowledged is there, once. `make soak` does hundreds of them."""

import os

import pytest

from tests.crash.driver import TIERS, Driver

KILLS = int(os.environ.get("SASH_KILLS", "6"))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.timeout(60 + 20 * KILLS)
def test_nothing_acknowledged_is_lost_or_doubled(tier):
    report = Driver(tier, seed=KILLS).run(KILLS)
    assert report.kills >= KILLS
    assert report.retries, "kills interrupted writes"
