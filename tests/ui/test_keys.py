"""The keys of a window: parts, search, conditions, groups, the first by an aggregate, pages."""

import pytest

from tests.support.playing import a_page, at, create, expect
from tests.support.servers import running_service

SPEC = {
    "name": "delays",
    "time_unit": "s",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64"},
    "aggregates": {"flights": {"function": "count"}, "mean": {"function": "mean", "field": "delay"}},
}
ROWS = [
    ("JFK", "AA", 4.0),
    ("JFK", "B6", 10.0),
    ("LGA", "AA", -2.0),
    ("JFK", "AA", 25.0),
    ("EWR", "B6", 7.0),
    ("", "x|y", 1.0),
]


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        columns = dict(zip(("airport", "carrier", "delay"), zip(*ROWS, strict=True), strict=True))
        create(running, SPEC, {"time": list(range(100, 106)), **columns})
        many = {"name": "many", "time_unit": "s", "keyed": True, "aggregates": {"n": {"function": "count"}}}
        keys = [f"key-{i:03}" for i in range(120)]
        create(running, many, {"time": [1] * 120, "key": keys, "value": [1.0] * 120})
        yield running


def rows(page):
    """The texts of the rows' cells, but for the links to charts."""
    cells = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText).filter(text => text !== 'Chart'))"
    return page.locator("#keys tbody tr").evaluate_all(cells)


def test_keys_are_shown_by_their_parts(service, page):
    page.goto(at(service, "window=delays&tab=keys"))
    expect(page.locator("#keys thead th")).to_have_text(["airport", "carrier", "Entries", "flights", "mean", "Chart"])
    expect(page.locator("#told")).to_have_text("5 keys · 5 keys in the window")
    assert page.locator("#keys thead th.number").all_inner_texts() == ["Entries", "flights", "mean"]
    assert ["JFK", "AA", "2", "2", "14.5"] in rows(page)
    assert ["(empty)", "x|y", "1", "1", "1"] in rows(page)


def test_search_conditions_groups_and_the_first(service, page):
    page.goto(at(service, "window=delays&tab=keys"))
    page.get_by_label("airport", exact=True).first.fill("jf")
    expect(page.locator("#told")).to_have_text("2 keys · 5 keys in the window")
    assert {row[0] for row in rows(page)} == {"JFK"}
    page.get_by_label("airport", exact=True).first.fill("")
    page.get_by_label("Where").fill("carrier in (AA, B6)\nairport!=EWR")
    expect(page.locator("#told")).to_have_text("3 keys · 5 keys in the window")
    page.get_by_role("checkbox", name="carrier").check()
    expect(page.locator("#keys thead th")).to_have_text(["carrier", "Entries", "flights", "mean"])
    page.get_by_label("Order").select_option("mean")
    page.get_by_label("How many").fill("1")
    expect(page.locator("#told")).to_have_text("1 group · 5 keys in the window")
    assert rows(page) == [["B6", "1", "1", "10"]]
    # All of that is in the address.
    page.reload()
    expect(page.locator("#told")).to_have_text("1 group · 5 keys in the window")
    assert rows(page) == [["B6", "1", "1", "10"]]
    # A group leads to its keys.
    page.locator("#keys tbody a").first.click()
    expect(page.locator("#told")).to_have_text("1 key · 5 keys in the window")
    assert rows(page) == [["JFK", "B6", "1", "1", "10"]]


def test_a_key_leads_to_its_answers(service, page):
    page.goto(at(service, "window=delays&tab=keys&find-carrier=x%7C"))
    page.get_by_role("link", name="(empty)").click()
    expect(page.locator("#answers tbody tr").nth(0)).to_contain_text("entries")
    expect(page.get_by_label("carrier")).to_have_value("x|y")
    expect(page.locator("#answers")).to_contain_text("1")


def test_a_wrong_condition_is_named(service, browser):
    with a_page(browser, allowed=("400 (Bad Request)",)) as page:
        page.goto(at(service, "window=delays&tab=keys"))
        page.get_by_label("Where").fill("runway=4L")
        expect(page.locator("#where + .at-field")).to_contain_text("runway")
        expect(page.get_by_label("Where")).to_have_attribute("aria-invalid", "true")
        page.get_by_label("Where").fill("airport=JFK")
        expect(page.locator("#told")).to_have_text("2 keys · 5 keys in the window")
        assert page.get_by_label("Where").get_attribute("aria-invalid") is None


def test_pages(service, page):
    page.goto(at(service, "window=many&tab=keys"))
    expect(page.locator("#told")).to_have_text("50 keys, and there are more · 120 keys in the window")
    first = rows(page)
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#keys")).not_to_contain_text("key-000")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#told")).to_have_text("20 keys · 120 keys in the window")
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Previous").click()
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_role("button", name="Previous")).to_be_disabled()
    expect(page.locator("#keys")).to_contain_text("key-000")
    assert rows(page) == first
