"""What only gRPC says of groups: conditions and comparisons that no text can be."""

import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.rpc.conftest import made
from tests.support.rpc_errors import refuse


@pytest.fixture
def flights(stub):
    spec = pb.WindowSpec(name="flights", time_unit="s", keys=["airport", "carrier"])
    spec.aggregates["n"].function = "count"
    yield from made(stub, spec)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.QueryRequest(where=[pb.Condition(part="key", values=["x"])]), "where"),
        (pb.QueryRequest(where=[pb.Condition(part="carrier")]), "where"),
        (pb.QueryRequest(where=[pb.Condition(part="carrier", op="~", values=["x"])]), "where"),
        (pb.QueryRequest(by=["carrier"], having=[pb.Having(aggregate="n", op="~", value=1)]), "having.op"),
    ],
)
def test_wrong_questions_name_the_field(stub, flights, request_, field):
    request_.window = flights
    refuse(stub.Query, request_, "INVALID_ARGUMENT", field)
