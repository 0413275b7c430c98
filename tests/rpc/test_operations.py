"""What each method does when all is well."""

from sash_proto.v1 import windows_pb2 as pb
from tests.support.messages import aggregates, float64, int64, strings


def test_one_string_under_two_codes_is_one_key(stub, typed):
    columns = {
        "f": pb.Column(float64=float64(1, 2, 3)),
        "i": pb.Column(int64=int64(1, 2, 3)),
        "s": pb.Column(string=strings(["x", "x"], 0, 1, 0)),
        "b": pb.Column(bool=b"\x00\x00\x00"),
    }
    keys = strings(["k", "other", "k"], 0, 2, 0)
    request = pb.BulkInsertRequest(window=typed, time=int64(1, 1, 1), fields=columns, key=keys)
    assert stub.BulkInsert(request).inserted == 3
    (answer,) = stub.Query(pb.QueryRequest(window=typed, key="k")).answers
    assert aggregates(answer)["i"] == [1, 2, 3]  # equal times keep arrival order
