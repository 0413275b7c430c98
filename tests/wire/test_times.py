"""Times as people write them, in ticks of a window."""

import pytest

from sash_wire.errors import WireError
from sash_wire.times import parse_time

HOUR = 3600
NOW_S = 10 * HOUR


def parsed(text, unit="s"):
    return parse_time(text, unit, "start", lambda: NOW_S * 10**9 + 999_999_999)


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("17", 17),
        ("-17", -17),
        (" +17 ", 17),
        ("now", NOW_S),
        ("now-1h", NOW_S - HOUR),
        ("now+1h30m", NOW_S + HOUR + HOUR // 2),
        ("now 1h", NOW_S + HOUR),  # an unescaped + in an address
        ("-1h", NOW_S - HOUR),
        ("now-90", NOW_S - 90),
        ("1970-01-02", 24 * HOUR),
        ("1970-01-01T01:00", HOUR),
        ("1970-01-01 01:00:00Z", HOUR),
        ("1970-01-01T01:00+01:00", 0),
        ("1970-01-01T01:00:00 01:00", 0),
        ("1969-12-31T23:59:59", -1),
    ],
)
def test_a_time(text, ticks):
    assert parsed(text) == ticks


@pytest.mark.parametrize(
    ("text", "unit", "ticks"),
    [
        ("1970-01-01T00:00:01.123456789Z", "ns", 1_123_456_789),
        ("1970-01-01T00:00:01,5+00:00", "ms", 1500),
        ("1970-01-01T00:00:01.000001", "us", 1_000_001),
        ("1969-12-31T23:59:59.5", "ms", -500),
        ("now", "ns", NOW_S * 10**9 + 999_999_999),
        ("now-1.5s", "ms", NOW_S * 1000 + 999 - 1500),
        (str(2**63 - 1), "none", 2**63 - 1),
        (str(-(2**63)), "none", -(2**63)),
    ],
)
def test_a_time_in_a_unit_is_exact(text, unit, ticks):
    assert parsed(text, unit) == ticks


@pytest.mark.parametrize("text", ["", "noon", "5m", "now-", "now-x", "now5m", "--1h", "1.5", "2013-13-01", "1" * 31])
def test_what_is_no_time_names_the_unit_and_shows_one(text):
    with pytest.raises(WireError, match=r"^start: .* is not a time: write ticks \(us\), such as 1357018200000000,"):
        parsed(text, "us")


@pytest.mark.parametrize("text", ["now", "-1h", "1970-01-01"])
def test_logical_ticks_have_no_instants(text):
    with pytest.raises(WireError, match="but the window counts logical ticks"):
        parsed(text, "none")


@pytest.mark.parametrize(
    ("text", "unit", "says"),
    [
        ("1970-01-01T00:00:01.5", "s", "not a whole number of ticks"),
        (str(2**63), "s", "out of range"),
        (str(-(2**63) - 1), "s", "out of range"),
        ("9999-12-31", "ns", "out of range"),
    ],
)
def test_a_time_that_has_no_tick(text, unit, says):
    with pytest.raises(WireError, match=says) as refused:
        parsed(text, unit)
    assert refused.value.field == "start"
