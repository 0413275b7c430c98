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


def test_one_row(stub, limited):
    first, second = stub.Admit(one(limited, 1)), stub.Admit(one(limited, 1))
    third = stub.Admit(one(limited, 5))
    assert [list(each.admitted) for each in (first, second, third)] == [[True], [True], [False]]
    assert [each.inserted for each in (first, second, third)] == [1, 1, 0]
    assert (third.refused, list(third.retry_after), list(first.retry_after)) == (1, [6], [])
    (limit,) = third.limits
    assert (limit.answers[0].int64, limit.remaining[0].float64, list(limit.holds)) == (2, 0.0, [False])
    assert stub.Admit(one(limited, 11)).inserted == 1
    assert stub.GetWindow(pb.GetWindowRequest(name=limited)).entries == 3


def test_rows_as_columns_and_groups(stub, limited):
    entries = bulk("", [1, 2, 3, 4], [1, 1, 1, 1])
    entries.parts["tenant"].CopyFrom(strings(["a", "b"], 0, 0, 1, 0))
    entries.parts["user"].CopyFrom(strings(["x", "y"], 0, 1, 0, 0))
    by_tenant = pb.Limit(aggregate="sum", lookback="10", op="<", integer=3, by=["tenant"])
    told = stub.Admit(pb.AdmitRequest(window=limited, entries=entries, limits=[by_tenant]))
    assert list(told.admitted) == [True, True, True, False]
    assert list(told.retry_after) == [-1, -1, -1, 7]
    everybody = pb.Limit(aggregate="entries", lookback="10", all_keys=True, value=3)
    assert not stub.Admit(one(limited, 5, limits=[everybody])).inserted
    never = pb.Limit(aggregate="sum", lookback="10", value=4)
    assert list(stub.Admit(one(limited, 5, value=5.0, limits=[never])).retry_after) == [-1]


def test_a_number_has_one_decision(stub, limited):
    requests = [one(limited, 1, producer="p", sequence=sequence) for sequence in (1, 2, 3)]
    first = [stub.Admit(each) for each in requests]
    again = [stub.Admit(each) for each in requests]
    assert (
        [list(each.admitted) for each in again] == [list(each.admitted) for each in first] == [[True], [True], [False]]
    )
    assert all(each.already_applied and not each.limits and not each.retry_after for each in again)
    requests[2].limits[0].value = 3
    refuse(stub.Admit, requests[2], "FAILED_PRECONDITION", "sequence", "4", "SEQUENCE_REUSED")


@pytest.mark.parametrize(
    ("change", "field", "limit"),
    [
        ({"limits": []}, "limits", "1 to 16 limits"),
        ({"limits": [TWO] * 17}, "limits", "1 to 16 limits"),
        ({"limits": [pb.Limit(aggregate="m", lookback="10")]}, "limits.aggregate", None),
        ({"limits": [pb.Limit(aggregate="n")]}, "limits.lookback", None),
        ({"limits": [pb.Limit(aggregate="n", lookback="10", op="=")]}, "limits.op", "<=, <, >=, >"),
        ({"limits": [pb.Limit(aggregate="n", lookback="10", value=float("nan"))]}, "limits.value", None),
        ({"limits": [pb.Limit(aggregate="n", lookback="10", by=["x"])]}, "by", None),
        ({"limits": [pb.Limit(aggregate="n", lookback="10", by=["user"], all_keys=True)]}, "limits.all_keys", None),
        ({"entries": pb.BulkInsertRequest()}, "key", None),
        ({"time": None}, "time", None),
        ({"key": None}, "key", None),
        ({"value": None}, "value", None),
        ({"producer": "p"}, "sequence", None),
    ],
)
def test_what_is_wrong_is_named(stub, limited, change, field, limit):
    refuse(stub.Admit, one(limited, 1, **change), "INVALID_ARGUMENT", field, limit)
    assert stub.GetWindow(pb.GetWindowRequest(name=limited)).entries == 0


def test_several_rows_bring_neither_a_window_nor_a_producer_of_their_own(stub, limited):
    entries = bulk("other", [1], [1])
    entries.key.CopyFrom(strings(["a|x"], 0))
    refuse(stub.Admit, pb.AdmitRequest(window=limited, entries=entries, limits=[TWO]), "INVALID_ARGUMENT",
           "entries.window")  # fmt: skip
    entries.window, entries.producer, entries.sequence = limited, "p", 1
    refuse(stub.Admit, pb.AdmitRequest(window=limited, entries=entries, limits=[TWO]), "INVALID_ARGUMENT",
           "entries.producer")  # fmt: skip
