"""Addresses that somebody else made: they break nothing, run nothing, and put nothing into programs to copy."""

from urllib.parse import urlencode

import pytest

from tests.support.playing import at, create, expect
from tests.support.servers import running_service

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def service():
    spec = {"name": "w", "time_unit": "s", "keyed": True, "aggregates": {"n": {"function": "count"}}}
    with running_service() as running:
        create(running, spec, {"time": [1, 1], "value": [1, 1], "key": [HOSTILE, "k"]})
        yield running


@pytest.mark.parametrize("tab", ["constructor", "__proto__", HOSTILE])
def test_a_tab_that_there_is_not(service, page, tab):
    page.goto(at(service, urlencode({"window": "w", "tab": tab, "key": HOSTILE})))
    expect(page.locator("#answers")).to_be_visible()
    expect(page.locator(".tabs a[data-tab=answers]")).to_have_attribute("aria-current", "page")
    expect(page.locator("#view img")).to_have_count(0)


def test_an_order_that_there_is_not(service, page):
    service.http().post("/v1/windows", json={"name": "v", "aggregates": {"n": {"function": "count"}}})
    page.goto(at(service, "order=__defineGetter__"))
    expect(page.get_by_role("link", name="w", exact=True)).to_be_visible()
    expect(page.locator("#status.bad")).to_have_count(0)


@pytest.mark.parametrize("state", ["from=1e308&to=1e309", "from=-1e308&to=1e308", "from=a&to=b"])
def test_a_time_without_end(service, page, state):
    page.goto(at(service, f"window=w&tab=explore&key=k&{state}"))
    expect(page.locator("#from + .at-field")).to_have_text("from must be before to")
    expect(page.locator("#status.bad")).to_have_count(0)


def test_a_program_to_copy_asks_what_the_page_asks(service, page):
    state = {"window": "w", "tab": "explore", "key": "k", "top": "entries", "n": "5)\nimport os; os.abort("}
    page.goto(at(service, urlencode(state)))
    expect(page.locator("#copy-python")).to_contain_text("window.series(")
    for kind in ("python", "promql", "curl"):
        expect(page.locator(f"#copy-{kind}")).not_to_contain_text("abort")
        expect(page.locator(f"#copy-{kind}")).to_contain_text("k")
    expect(page.locator("#copy-python")).to_contain_text('key="k"')
