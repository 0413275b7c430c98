"""Kills of the service and of its tier, losses of power and of writes: what was acknowledged is there, once.

`make soak` does hundreds of each, and `tests/simulation` thousands. A few show here that the simulation is honest.
"""

import os

import pytest

from tests.crash import power
from tests.crash.driver import TIERS, Driver

KILLS = int(os.environ.get("SASH_KILLS", "1"))
LOSSES = int(os.environ.get("SASH_LOSSES", "2"))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.timeout(600 + 60 * KILLS)
def test_nothing_acknowledged_is_lost_or_doubled(tier):
    report = Driver(tier, seed=KILLS).run(KILLS)
    assert report.kills >= KILLS
    assert report.retries or KILLS < 6, "kills interrupted writes"


@pytest.mark.skipif(power.missing() is not None, reason=str(power.missing()))
def test_no_loss_of_power_loses_or_doubles_what_was_acknowledged():
    report = power.lose_power(LOSSES, seed=LOSSES, steps=8)
    assert report.losses == LOSSES
    assert report.torn or LOSSES < 8, "there was something to be lost"


@pytest.mark.skipif(power.missing() is not None, reason=str(power.missing()))
def test_a_write_that_the_disk_lost_is_never_a_wrong_answer():
    losses = LOSSES // 2
    found = power.lose_writes(losses, seed=LOSSES, steps=8)
    assert found.total() == losses
