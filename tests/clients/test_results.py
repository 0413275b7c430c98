"""Results and errors have all that their messages say, field by field."""

from dataclasses import fields

import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.rpc import error_details_pb2

from sash_client import Answer, Counts, WriteResult
from sash_client.data.wire import from_info
from sash_client.errors import described
from sash_proto.v1 import windows_pb2 as pb
from sash_spark import BatchReport

COUNTS = [each.name for each in fields(WriteResult) if each.type == "int"]


@pytest.mark.parametrize("name", COUNTS)
def test_counts_add_up(name):
    assert WriteResult(**{name: 2}) + WriteResult(**{name: 3}) == WriteResult(**{name: 5})


@pytest.mark.parametrize(("one", "other", "both"), [(False, True, True), (True, False, True), (False, False, False)])
def test_a_part_that_was_applied_before_shows(one, other, both):
    assert (WriteResult(already_applied=one) + WriteResult(already_applied=other)).already_applied is both
    report = BatchReport(already_applied=one).plus(BatchReport(batch_id=7, already_applied=other))
    assert (report.already_applied, report.batch_id) == (both, 7)


def test_answers_follow_one_another_and_the_weaker_durability_counts():
    first, second = (Answer(key, None, None, 0, {}) for key in "ab")
    both = WriteResult(answers=(first,), durability="sync") + WriteResult(answers=(second,), durability="interval")
    assert (both.answers, both.durability) == ((first, second), "interval")


@pytest.mark.parametrize("name", [each.name for each in fields(BatchReport) if each.type in ("int", "float")])
def test_reports_add_up(name):
    both = BatchReport(**{name: 2}).plus(BatchReport(**{name: 3}))
    assert getattr(both, name) == (3 if name == "batch_id" else 5)


def test_a_window_is_described_with_all_that_is_known_of_it():
    known = {"oldest": 1, "newest": 2, "problem": "lost", "punctuated": 3, "evicted_through": 4, "high_water_mark": 5}
    message = pb.WindowInfo(spec=pb.WindowSpec(name="w"), **known)
    for i, each in enumerate(fields(Counts)):
        setattr(message.counts, each.name, i + 1)
    info = from_info(message)
    assert {name: getattr(info, name) for name in known} == known
    assert info.counts == Counts(*range(1, len(fields(Counts)) + 1))
    nothing = from_info(pb.WindowInfo(spec=pb.WindowSpec(name="w")))
    assert {getattr(nothing, name) for name in known} == {None}


def packed(detail):
    found = Packed()
    found.Pack(detail)
    return found


def test_the_field_of_a_bad_request_stays_where_the_reason_names_none():
    violation = error_details_pb2.BadRequest.FieldViolation(field="aggregates.p95.q")
    details = [
        error_details_pb2.BadRequest(field_violations=[violation]),
        error_details_pb2.ErrorInfo(domain="sash", reason="TOO_LARGE", metadata={"limit": "1"}),
    ]
    error = described("INVALID_ARGUMENT", "wrong", map(packed, details))
    assert (error.field, error.reason, error.limit, error.unchanged) == ("aggregates.p95.q", "TOO_LARGE", "1", False)
