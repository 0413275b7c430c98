"""The entries of a key, the newest first, page by page; also where many have the same time."""

import pytest

from tests.support.playing import at, expect
from tests.support.servers import running_service

COUNT = {"n": {"function": "count"}}


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        http = running.http()
        spec = {"name": "w", "time_unit": "ns", "keys": ["a"], "fields": {"x": "float64", "s": "string"}}
        assert http.post("/v1/windows", json={**spec, "aggregates": COUNT}).status_code == 201
        start = 1_795_000_000_000_000_001
        times = [start] * 70 + [start + i for i in range(1, 51)]
        bulk = {
            "time": times,
            "a": ["k"] * 120,
            "x": [i + 1 / 3 for i in range(120)],
            "s": [f"s{i}" for i in range(120)],
        }
        assert http.post("/v1/windows/w/bulk-insert", json=bulk).status_code == 200
        panes = {"name": "panes", "time_unit": "s", "granularity": "1m", "aggregates": COUNT}
        assert http.post("/v1/windows", json=panes).status_code == 201
        http.post("/v1/windows/panes/bulk-insert", json={"time": [60, 61, 130], "value": [1.0] * 3})
        yield running


def strings(page):
    return page.locator("#entries tbody tr td:last-child").all_inner_texts()


def test_pages_of_the_newest(service, page):
    page.goto(at(service, "window=w&tab=entries"))
    expect(page.locator("#entries tbody tr")).to_have_count(50)
    assert strings(page) == [f"s{i}" for i in range(119, 69, -1)]
    expect(page.locator("#entries tbody td").first).to_have_text("119.3")
    expect(page.locator("#entries tbody td").first).to_have_attribute("title", "119.33333333333333")
    page.get_by_role("button", name="Older").click()
    expect(page.locator("#entries tbody td").nth(1)).to_have_text("s69")
    assert strings(page) == [f"s{i}" for i in range(69, 19, -1)]
    page.get_by_role("button", name="Older").click()
    expect(page.locator("#entries tbody tr")).to_have_count(20)
    assert strings(page) == [f"s{i}" for i in range(19, -1, -1)]
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    shared = page.url
    page.get_by_role("button", name="Newer").click()
    expect(page.locator("#entries tbody td").nth(1)).to_have_text("s69")
    page.goto("about:blank")
    page.goto(shared)
    expect(page.locator("#entries tbody tr")).to_have_count(20)
    page.get_by_role("button", name="Newest").click()
    expect(page.locator("#entries tbody td").nth(1)).to_have_text("s119")


def test_panes_and_keys_without_entries(service, page):
    page.goto(at(service, "window=panes&tab=entries"))
    expect(page.locator("#entries tbody td")).to_have_text(["1", "2"])
    page.goto(at(service, "window=w&tab=entries&key=other"))
    expect(page.locator("#told")).to_have_text("There are no entries.")
