"""The answers of a window: each kind is drawn as what it is; NaN; 64 aggregates; lookbacks; copies of the question."""

import json
import subprocess
import sys

import pytest

from tests.support.pictured import KINDS, departures, made
from tests.support.playing import a_page, at, create, expect
from tests.support.servers import running_service


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        create(running, departures("delays", KINDS), made(2000))
        wide = {f"a{i:02}": {"function": "count"} for i in range(64)}
        kinds = {"mean": {"function": "mean"}, "most": {"function": "max"}, "least": {"function": "min"}}
        logical = {"time_unit": "none"}
        create(running, {"name": "wide", "aggregates": wide, **logical}, {"time": [7], "value": [1]})
        values = [1.0, "NaN", "Infinity"]
        create(running, {"name": "odd", "aggregates": kinds, **logical}, {"time": [1, 2, 3], "value": values})
        yield running


def row(page, name):
    return page.locator("#answers tbody tr").filter(has=page.locator(f"th:text-is('{name}')"))


def test_each_kind_is_drawn_as_what_it_is(service, page):
    page.goto(at(service, "window=delays&key=JFK%7CAA&lookbacks=1h"))
    expect(row(page, "flights").locator(".figure")).to_have_text("32")
    mean = row(page, "mean").locator("td").last
    assert float(mean.get_attribute("title")) == pytest.approx(float(mean.inner_text()), rel=1e-3)
    assert len(mean.get_attribute("title")) > len(mean.inner_text())
    expect(row(page, "tail").locator("dt")).to_have_text(["p50", "p90", "p99"])
    expect(row(page, "tail").locator("svg circle")).to_have_count(3)
    bars = row(page, "spread").locator("svg rect.bar")
    expect(bars).to_have_count(9)
    row(page, "spread").locator("summary").click()
    expect(row(page, "spread").locator("tbody tr").first).to_contain_text("< -10")
    expect(row(page, "m4").locator("svg circle")).to_have_count(4)
    expect(row(page, "causes").locator("li").first).to_contain_text("none")
    expect(row(page, "worst").locator("td.faint").first).to_contain_text("2026-")
    assert row(page, "reasons").locator(".chips li").count() >= 2
    expect(row(page, "run").locator("dt").first).to_have_text("length")
    expect(row(page, "trend").locator("dt").first).to_have_text("intercept")
    expect(row(page, "planes")).to_contain_text("sketch of")
    assert row(page, "text").locator("summary").count() == 1
    # No cell shows JSON.
    texts = page.locator("#answers tbody td").all_inner_texts()
    assert not [text for text in texts if '{"' in text or '":' in text]


def test_what_is_open_stays_open(service, page):
    page.goto(at(service, "window=delays&key=JFK%7CAA&lookbacks=1h"))
    row(page, "spread").locator("summary").click()
    entry = {
        "time": made(1)["time"][0],
        "airport": "JFK",
        "carrier": "AA",
        "delay": 1.0,
        "distance": 1.0,
        "cause": "none",
    }
    service.http().post("/v1/windows/delays/insert", json=entry)
    expect(row(page, "flights").locator("td")).to_have_class("changed")
    expect(row(page, "spread").locator("details")).to_have_attribute("open", "")
    expect(page.locator("#announcer")).to_contain_text("changed")


def test_a_key_is_asked_for_by_its_parts(service, page):
    page.goto(at(service, "window=delays"))
    expect(page.get_by_label("airport")).not_to_have_value("")
    page.get_by_label("airport").fill("LGA")
    page.get_by_label("carrier").fill("DL")
    expect(page).to_have_url(at(service, "window=delays&key=LGA%7CDL"))
    answered = service.http().get("/v1/windows/delays/query", params={"key": "LGA|DL", "lookback": "1d"}).json()
    count = answered["answers"][0]["entries"]
    expect(row(page, "flights").locator("td").nth(2)).to_have_text(f"{count:,}")
    expect(page.locator("#key-offered-0 option")).to_have_count(1)
    page.get_by_label("carrier").fill("no such")
    expect(page.locator("#told")).to_have_text("There are no entries in this time.")


def test_sixty_four_aggregates_of_logical_time(service, page):
    page.goto(at(service, "window=wide"))
    expect(page.locator("#answers tbody tr")).to_have_count(67)
    page.get_by_label("Find aggregates").fill("a63")
    expect(page.locator("#answers tbody tr")).to_have_count(4)


def test_what_is_no_number(service, page):
    page.goto(at(service, "window=odd"))
    expect(row(page, "mean").locator("td")).to_have_text(["NaN"])
    page.get_by_label("Lookbacks").fill("1")
    expect(row(page, "most").locator("td")).to_have_text(["Infinity"])


def test_a_wrong_lookback_is_named(service, browser):
    with a_page(browser, allowed=("400",)) as page:
        page.goto(at(service, "window=odd&lookbacks=5m"))
        expect(page.locator("#told")).to_contain_text("lookback")
        expect(page.get_by_label("Lookbacks")).to_have_attribute("aria-invalid", "true")


def test_a_question_is_copied_and_runs(service, browser):
    with a_page(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(at(service, "window=delays&key=JFK%7CAA&lookbacks=1h+2h"))
        expect(page.locator("#answers")).to_be_visible()
        page.get_by_text("Copy this question").click()
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.locator("#announcer")).to_have_text("copied")
        curl = page.evaluate("navigator.clipboard.readText()")
        done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True)
        assert [each["lookback"] for each in json.loads(done.stdout)["answers"]] == ["1h", "2h"]
        expect(page.locator("#copy-python")).to_contain_text(f":{service.grpc_port}")
        python = page.locator("#copy-python").inner_text()
        done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "mean" in done.stdout
        promql = page.locator("#copy-promql").inner_text().splitlines()
        assert 'delays:mean{airport="JFK", carrier="AA", __lookback__="1h"}' in promql
        for each in promql:
            answered = service.http().get("/prometheus/api/v1/query", params={"query": each, "time": 1_795_000_000})
            assert answered.status_code == 200, answered.text
