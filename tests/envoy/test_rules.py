"""The file of limits: which rule a descriptor has, and what is wrong with a file."""

from pathlib import Path

import pytest

from sash.envoy.rules import Limit, rules_of
from sash_engine.errors import InvalidArgument

PATH = Path("limits.yaml")
FILE = """
domain: shop
window: requests
descriptors:
  - key: user
    rate_limit: {unit: MINUTE, requests_per_unit: 100, name: users}
  - key: user
    value: root
    rate_limit: {unlimited: true}
  - key: user
    value: robot-*
    rate_limit: {lookback: 90s, requests_per_unit: 10}
  - key: user
    value: robot-good-*
    shadow_mode: true
    rate_limit: {unit: hour, unit_multiplier: 6, requests_per_unit: 20}
  - key: code
    value: 404
    rate_limit: {unit: week, requests_per_unit: 0, replaces: [{name: users}]}
  - key: cached
    value: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: tenant
    descriptors:
      - key: model
        rate_limits:
          - {unit: second, requests_per_unit: 5}
          - {unit: day, requests_per_unit: 5000}
      - key: model
        value: small*
        rate_limit: {unit: month, requests_per_unit: 7}
---
domain: other
window: w
parts: {who: user}
response_headers: true
"""


@pytest.fixture(scope="module")
def rules():
    return rules_of(FILE.encode(), PATH)


@pytest.mark.parametrize(
    ("entries", "place", "limits"),
    [
        ([("user", "ann")], "user", [Limit(100, "60s", "minute", name="users")]),
        ([("user", "root")], "user_root", []),
        ([("user", "rooty")], "user", [Limit(100, "60s", "minute", name="users")]),
        ([("user", "robot-7")], "user_robot-*", [Limit(10, "90s")]),
        ([("user", "robot-good-7")], "user_robot-good-*", [Limit(20, "21600s", "hour", 6)]),
        ([("user", "robot-")], "user_robot-*", [Limit(10, "90s")]),
        ([("code", "404")], "code_404", [Limit(0, "604800s", "week")]),
        ([("cached", "true")], "cached_true", [Limit(1, "86400s", "day")]),
        ([("tenant", "a"), ("model", "x")], "tenant.model", [Limit(5, "1s", "second"), Limit(5000, "86400s", "day")]),
        ([("tenant", "a"), ("model", "smaller")], "tenant.model_small*", [Limit(7, "2592000s", "month")]),
    ],
)
def test_the_most_specific_rule_holds(rules, entries, place, limits):
    found = rules.find("shop", entries)
    assert (found.place, list(found.limits), found.window, found.domain) == (place, limits, "requests", "shop")
    assert found.in_shadow == (place == "user_robot-good-*")
    assert found.replaces == ({"users"} if place == "code_404" else set())


@pytest.mark.parametrize(
    ("domain", "entries"),
    [
        ("shop", [("tenant", "a")]),  # has no limit of its own
        ("shop", [("user", "ann"), ("model", "x")]),  # goes further than the file
        ("shop", [("model", "x")]),
        ("shop", [("model", "x"), ("tenant", "a")]),
        ("shop", [("code", "405")]),
        ("other", [("user", "ann")]),
        ("nowhere", [("user", "ann")]),
    ],
)
def test_what_no_rule_is_about_has_none(rules, domain, entries):
    assert rules.find(domain, entries) is None


def test_a_domain_says_where_its_requests_are(rules):
    plain = rules.plain("other")
    assert (plain.window, plain.parts, list(plain.limits)) == ("w", {"who": "user"}, [])
    assert rules.plain("nowhere") is None
    assert [rules.response_headers(each) for each in ("shop", "other", "nowhere")] == [False, True, False]


def test_a_file_may_be_empty_of_rules():
    assert rules_of(b"{domain: a, window: w}", PATH).find("a", [("x", "y")]) is None


def descriptor(text):
    return f"domain: d\nwindow: w\ndescriptors:\n- key: k\n{text}"


@pytest.mark.parametrize(
    ("text", "line", "wrong"),
    [
        ("", 1, "the file must be a mapping"),
        ("domain: d", 1, "window is missing"),
        ("window: w", 1, "domain is missing"),
        ("{domain: d, window: w}\n---\n{domain: d, window: v}", 3, "domain 'd' is there twice"),
        ("a: [", 2, "is not YAML"),
        (descriptor("  valeu: 1"), 5, "descriptors.0.valeu is unknown"),
        (descriptor("  rate_limit: {unit: fortnight, requests_per_unit: 1}"), 5, "descriptors.0.rate_limit.unit must"),
        (descriptor("  rate_limit: {unit: day}"), 5, "rate_limit.requests_per_unit is missing"),
        (descriptor("  rate_limit: {requests_per_unit: 5}"), 5, "must have either unit or lookback"),
        (descriptor("  rate_limit: {unit: day, lookback: 1d, requests_per_unit: 5}"), 5, "either unit or lookback"),
        (descriptor("  rate_limit: {lookback: 1x, requests_per_unit: 5}"), 5, "is not a duration"),
        (descriptor("  rate_limit: {lookback: 90, requests_per_unit: 5}"), 5, "must be text"),
        (descriptor("  rate_limit: {lookback: '90', requests_per_unit: 5}"), 5, "lookback needs a unit"),
        (descriptor("  rate_limit: {lookback: 1s, unit_multiplier: 2, requests_per_unit: 5}"), 5, "is for a unit"),
        (descriptor("  rate_limit: {unit: day, requests_per_unit: -1}"), 5, "must be at least 0"),
        (descriptor("  rate_limit: {unit: day, requests_per_unit: 4294967296}"), 5, "must be at most"),
        (descriptor("  rate_limit: {unit: day, unit_multiplier: 0, requests_per_unit: 1}"), 5, "must be at least 1"),
        (descriptor("  rate_limit: {unlimited: true, unit: day}"), 5, "is unlimited, and has a limit"),
        (descriptor("  rate_limit: {unlimited: true, lookback: 1d}"), 5, "is unlimited, and has a limit"),
        (descriptor("  rate_limit: {unlimited: true, requests_per_unit: 1}"), 5, "is unlimited, and has a limit"),
        (descriptor("  rate_limits: [{unlimited: true}]"), 5, "rate_limits.0.unlimited is for rate_limit"),
        (
            descriptor("  rate_limit: {unlimited: true}\n  rate_limits: [{unit: day, requests_per_unit: 1}]"),
            6,
            "give either rate_limit or rate_limits",
        ),
        (descriptor("  rate_limits:\n  - {unit: day, requests_per_unit: 1}\n  - {}"), 7, "rate_limits.1.requests_per"),
        (
            descriptor("  rate_limit: {unit: day, requests_per_unit: 1, name: a, replaces: [{name: a}]}"),
            4,
            "'k' replaces itself",
        ),
        (descriptor("- key: k"), 5, "'k' is there twice"),
        (descriptor("  value: v\n- key: k\n  value: v"), 6, "'k_v' is there twice"),
        (descriptor("  value: v*\n- key: k\n  value: v*"), 6, "'k_v*' is there twice"),
        (descriptor("  descriptors: [{key: a}, {key: a}]"), 5, "'k.a' is there twice"),
        (descriptor("  descriptors: [{key: ''}]"), 5, "descriptors.0.descriptors.0.key must have 1 or more"),
    ],
)
def test_a_wrong_file_says_what_is_wrong_and_where(text, line, wrong):
    with pytest.raises(InvalidArgument) as caught:
        rules_of(text.encode(), PATH)
    assert str(caught.value).startswith(f"SASH_RATE_LIMITS: limits.yaml, line {line}: ")
    assert wrong in str(caught.value)
    assert caught.value.field == "rate_limits"
