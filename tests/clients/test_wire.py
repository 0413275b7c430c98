"""Documents become messages and come back; results and errors have all that their messages say, field by field."""

from dataclasses import fields

import numpy as np
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from sash.rpc import translate
from sash_client import Answer, Counts, InvalidArgument, WriteResult
from sash_client.data.wire import from_answer, from_info, from_write, spec_document, to_aggregates, to_spec
from sash_client.errors import described
from sash_engine.windows import answers
from sash_proto.v1 import windows_pb2 as pb
from sash_spark import BatchReport
from sash_wire.values import fill_value, from_value
from tests.support.refused import field_of

SPEC = """
name: departure_delay
time_unit: us
keyed: true
fields: {delay: float64, carrier: string}
aggregates:
  flights:  {function: count}
  p95:      {function: quantile, field: delay, q: 0.95}
  bins:     {function: histogram, field: delay, bounds: [0, 15.5, 60]}
  worst:    {function: arg_max, field: delay, returns: carrier}
slide: {max_age: 6h, max_count: 1000000, clock: wall, when: total.flights > 5}
order: {late: reject, out_of_order: reject, equal_times: last, ahead: 5m, too_far_ahead: reject}
idle_expiry: 30d
algorithm: daba
durability: interval
granularity: 1m
"""


@pytest.mark.parametrize(
    ("write", "counts"),
    [
        (translate.written, ("inserted", "late", "evicted", "duplicates", "ahead", "history")),
        (translate.changed, ("retracted", "corrected", "missing", "evicted")),
        (translate.evicted, ("evicted",)),
        (translate.punctuated, ("evicted",)),
    ],
)
def test_the_counts_of_a_write_come_back(write, counts):
    given = {name: i for i, name in enumerate(counts, 1)}
    assert from_write(write(answers.WriteResult(**given, durability="sync"))) == WriteResult(**given, durability="sync")
    assert from_write(type(write(answers.WriteResult()))()).durability == "memory"  # an early service did not say


def test_a_spec_comes_back_as_it_was():
    document = spec_document(to_spec(SPEC))
    assert document == {
        "name": "departure_delay",
        "time_unit": "us",
        "keyed": True,
        "fields": {"delay": "float64", "carrier": "string"},
        "aggregates": {
            "flights": {"function": "count"},
            "p95": {"function": "quantile", "field": "delay", "q": 0.95},
            "bins": {"function": "histogram", "field": "delay", "bounds": [0, 15.5, 60]},
            "worst": {"function": "arg_max", "field": "delay", "returns": "carrier"},
        },
        "slide": {"max_age": "6h", "max_count": 1_000_000, "clock": "wall", "when": "total.flights > 5"},
        "order": {
            "late": "reject",
            "out_of_order": "reject",
            "equal_times": "last",
            "ahead": "5m",
            "too_far_ahead": "reject",
        },
        "idle_expiry": "30d",
        "algorithm": "daba",
        "durability": "interval",
        "granularity": "1m",
    }
    assert spec_document(to_spec(document)) == document


@pytest.mark.parametrize(("ticks", "text"), [(3, "3"), (0, "0")])
def test_durations_may_be_ticks(ticks, text):
    message = to_spec({"name": "w", "granularity": ticks, "slide": {"max_age": ticks}, "order": {"ahead": ticks}})
    assert (message.granularity, message.slide.max_age, message.order.ahead) == (text, text, text)


def test_rollups_are_lists_of_parts():
    document = {"name": "w", "keys": ["a", "b"], "keyed": True, "rollups": [["a"], []], "aggregates": {}}
    assert spec_document(to_spec(document)).items() >= document.items()


def test_what_a_spec_does_not_say_is_not_sent():
    message = to_spec({"name": "w", "aggregates": {"n": {"function": "count"}}, "slide": {"max_age": 90}})
    assert message == pb.WindowSpec(
        name="w", aggregates={"n": pb.AggregateSpec(function="count")}, slide=pb.SlidePolicy(max_age="90")
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("a: [", "spec"),
        ("just text", "spec"),
        (None, "spec"),
        ({"name": 5}, "name"),
        ({"name": "w", "keyed": "yes"}, "keyed"),
        ({"name": "w", "time": "us"}, "time"),
        ({"name": "w", "fields": ["delay"]}, "fields"),
        ({"name": "w", "fields": {"delay": 8}}, "fields.delay"),
        ({"name": "w", "aggregates": {"n": "count"}}, "aggregates.n"),
        ({"name": "w", "aggregates": {"n": {"function": 1}}}, "aggregates.n.function"),
        ({"name": "w", "aggregates": {"n": {"function": "f", "q": object()}}}, "aggregates.n.q"),
        ({"name": "w", "slide": {"max_count": "many"}}, "slide.max_count"),
        ({"name": "w", "slide": {"max_count": 2**63}}, "slide.max_count"),
        ({"name": "w", "slide": {"max_size": 1}}, "slide.max_size"),
        ({"name": "w", "slide": "6h"}, "slide"),
        ({"name": "w", "slide": {"clock": 1}}, "slide.clock"),
        ({"name": "w", "slide": {"when": True}}, "slide.when"),
        ({"name": "w", "order": {"late": True}}, "order.late"),
        ({"name": "w", "order": {"equal_times": 1}}, "order.equal_times"),
        ({"name": "w", "idle_expiry": 30}, "idle_expiry"),
        ({"name": "w", "algorithm": ["daba"]}, "algorithm"),
        ({"name": "w", "durability": True}, "durability"),
        ({"name": "w", "granularity": 1.5}, "granularity"),
        ({"name": "w", "rollups": "carrier"}, "rollups"),
        ({"name": "w", "rollups": []}, "rollups"),
        ({"name": "w", "rollups": [["a"], "b"]}, "rollups.1"),
        ({"name": "w", "rollups": [[1]]}, "rollups.0"),
        ({"name": "w", "from": "requests"}, "from"),
        ({"name": "w", "from": {"window": 1}}, "from.window"),
        ({"name": "w", "from": {"step": "1m"}}, "from.step"),
    ],
)
def test_a_spec_that_no_message_can_carry_is_refused(spec, field):
    assert field_of(to_spec, spec) == field


SURROGATE = "\ud800"
NAMED = {"name": "w"}


@pytest.mark.parametrize(
    "text",
    [
        "name: 2020-99-99",
        "name: 0b_",
        "name: !!int x",
        "name: !!float zz",
        "name: !!timestamp x",
        "name: !!bool maybe",
        "name: " + "1" * 5000,
        "[" * 3000,
        "a: &a {x: 1}\nb: &b {<<: [*a, *a]}",
        'name: w\naggregates: {"\\uD800": {function: sum}}',
        "a: " + "x" * 2**16,
    ],
    ids=lambda text: text[:20],
)
def test_a_text_that_cannot_be_read_is_refused(text):
    """Whatever its reader raises: values of a type that they are not, and what is nested too deep or too long."""
    with pytest.raises(InvalidArgument) as caught:
        to_spec(text)
    assert caught.value.field in ("spec", "aggregates")
    with pytest.raises(InvalidArgument):
        to_aggregates(text)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"name": SURROGATE}, "name"),
        (NAMED | {"fields": {SURROGATE: "int64"}}, "spec"),
        (NAMED | {"fields": {"x": SURROGATE}}, "spec"),
        (NAMED | {"aggregates": {SURROGATE: {"function": "sum"}}}, "aggregates"),
        (NAMED | {"aggregates": {"a": {"function": "sum", SURROGATE: 1}}}, "aggregates"),
        (NAMED | {"aggregates": {"a": {"function": "sum", "x": [SURROGATE]}}}, "aggregates"),
    ],
)
def test_half_a_surrogate_pair_is_no_text(spec, field):
    assert field_of(to_spec, spec) == field


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_values_come_back_with_their_types(value):
    message = pb.Value()
    fill_value(message, value)
    found = from_value(pb.Value.FromString(message.SerializeToString()))
    assert found == value
    assert type(found) is type(value)


def test_nan_and_none_are_different_answers():
    message = pb.Answer(aggregates={"mean": pb.Value(float64=np.nan), "max": pb.Value()}, entries=2, start=0, end=0)
    answer = from_answer(message)
    assert np.isnan(answer.aggregates["mean"])
    assert answer.aggregates["max"] is None
    assert (answer.start, answer.end, answer.key, answer.lookback) == (0, 0, None, None)


# ---------------------------------------------------------------- results and errors

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
