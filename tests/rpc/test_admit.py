"""Writes that decide, over gRPC: what a request says, and what its answer does."""

import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.rpc.conftest import made
from tests.support.messages import bulk, strings
from tests.support.rpc_errors import refuse

TWO = pb.Limit(aggregate="n", lookback="10", value=2)


@pytest.fixture
def limited(stub):
    spec = pb.WindowSpec(name="limited", keys=["tenant", "user"], time_unit="none")
    spec.aggregates["n"].function = "count"
    spec.aggregates["sum"].function = "sum"
    yield from made(stub, spec)


def one(window, at, value=1.0, **more):
    return pb.AdmitRequest(**({"window": window, "key": "a|x", "time": at, "value": value, "limits": [TWO]} | more))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"limits": [pb.Limit(aggregate="n")]}, "limits.lookback"),
        ({"limits": [pb.Limit(aggregate="n", lookback="10", by=["user"], all_keys=True)]}, "limits.all_keys"),
        ({"entries": pb.BulkInsertRequest()}, "key"),
        ({"key": None}, "key"),
        ({"value": None}, "value"),
    ],
)
def test_what_is_wrong_is_named(stub, limited, change, field):
    refuse(stub.Admit, one(limited, 1, **change), "INVALID_ARGUMENT", field)
    assert stub.GetWindow(pb.GetWindowRequest(name=limited)).entries == 0


def test_several_rows_bring_neither_a_window_nor_a_producer_of_their_own(stub, limited):
    entries = bulk("other", [1], [1])
    entries.key.CopyFrom(strings(["a|x"], 0))
    refuse(stub.Admit, pb.AdmitRequest(window=limited, entries=entries, limits=[TWO]), "INVALID_ARGUMENT",
           "entries.window")  # fmt: skip
    entries.window, entries.producer, entries.sequence = limited, "p", 1
    refuse(stub.Admit, pb.AdmitRequest(window=limited, entries=entries, limits=[TWO]), "INVALID_ARGUMENT",
           "entries.producer")  # fmt: skip
