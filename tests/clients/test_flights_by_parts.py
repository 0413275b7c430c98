"""A year's flights by airport and carrier: pandas says the same for every grouping."""

import itertools

import numpy as np
import pandas as pd
import pytest

from sash_client import Client
from sash_spark.flights import load_flights
from tests.support.servers import running_service

PARTS = ["origin", "carrier", "dest"]
SPEC = {
    "name": "flights",
    "time_unit": "s",
    "keys": PARTS,
    "fields": {"delay": "float64"},
    "aggregates": {
        "flights": {"function": "count"},
        "mean": {"function": "mean"},
        "worst": {"function": "max"},
        "spread": {"function": "stddev"},
    },
}


@pytest.fixture(scope="module")
def flights():
    found = load_flights().dropna(subset=["dep_delay"])
    found["time"] = pd.to_datetime(found["time_hour"], utc=True) + pd.to_timedelta(found["minute"], unit="min")
    return found.rename(columns={"dep_delay": "delay"})[["time", *PARTS, "delay"]].iloc[::7]


@pytest.fixture(scope="module")
def window(flights):
    with running_service() as service, Client(service.grpc_target) as sash:
        window = sash.create_window(SPEC)
        assert window.bulk_insert(flights).inserted == len(flights)
        yield window


BYS = [list(by) for n in (1, 2, 3) for by in itertools.combinations(PARTS, n)]


@pytest.mark.parametrize("by", BYS, ids="-".join)
@pytest.mark.parametrize("where", [{}, {"carrier": ["UA", "B6"]}, {"dest": {"matches": "[A-M].*"}, "origin": "JFK"}])
def test_pandas_says_the_same(flights, window, by, where):
    if "carrier" in where:
        flights = flights[flights["carrier"].isin(["UA", "B6"])]
    elif where:
        flights = flights[(flights["dest"] < "N") & (flights["origin"] == "JFK")]
    expected = flights.groupby(by)["delay"].agg(["count", "mean", "max", "std"]).reset_index()
    found = window.query(by=by, where=where).to_pandas()
    assert found[by].values.tolist() == expected[by].values.tolist()
    for name, column in (("flights", "count"), ("mean", "mean"), ("worst", "max"), ("spread", "std")):
        theirs = expected[column].fillna(-1).to_numpy(np.float64)
        np.testing.assert_allclose(found[name].astype("float64").fillna(-1).to_numpy(), theirs, rtol=1e-9)
    late = window.query(by=by, where=where, top="flights", n=5, having="mean>5")
    worst = expected[expected["mean"] > 5].sort_values("count", ascending=False, kind="stable").head(5)
    assert [list(answer.parts.values()) for answer in late] == [
        [row[name] for name in sorted(by)] for _, row in worst.iterrows()
    ]
