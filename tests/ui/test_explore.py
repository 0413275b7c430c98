"""Explore: aggregates, keys and lookbacks side by side; zoom by mouse and buttons; groups; values as a table."""

import json
import re

import pyarrow
import pyarrow.ipc
import pytest

from tests.support.pictured import END_MS, GROUPED, KINDS, departures, made
from tests.support.playing import a_page, at, create, expect
from tests.support.servers import running_service

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        for name, aggregates in (("delays", GROUPED), ("kinds", KINDS)):
            create(running, departures(name, aggregates), made(2000))
        wide = {f"a{i:02}": {"function": "count"} for i in range(64)}
        many = {"time": list(range(9000, 12000, 5)), "value": [1.0] * 600}
        create(running, {"name": "wide", "time_unit": "s", "aggregates": wide}, many)
        mean = {"mean": {"function": "mean"}}
        odd = {"time": [1, 2, 900], "value": ["NaN", "NaN", "Infinity"]}
        create(running, {"name": "nan", "time_unit": "none", "aggregates": mean}, odd)
        create(running, {"name": "empty", "keyed": True, "aggregates": mean})
        yield running


def titles(page):
    return page.locator("#charts figcaption").all_inner_texts()


def inked(page, i=0):
    """How many of a chart's pixels are neither empty nor of the grid: those with full colour."""
    return (
        page.locator("#charts canvas")
        .nth(i)
        .evaluate(
            """(canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let found = 0;
          for (let p = 0; p < data.length; p += 4) {
            const rgb = [data[p], data[p + 1], data[p + 2]];
            if (data[p + 3] > 120 && Math.max(...rgb) - Math.min(...rgb) > 60) found++;
          }
          return found;
        }"""
        )
    )


def test_aggregates_keys_and_lookbacks_side_by_side(service, page):
    page.goto(at(service, "window=delays&tab=explore&key=JFK%7CAA&aggregate=mean&aggregate=tail&last=3h"))
    expect(page.locator("#charts canvas")).to_have_count(2)
    page.get_by_label("Each point over").fill("10m 1h")
    expect(page.locator("#charts figcaption")).to_have_text(
        [f"{name} · each point over {width}" for name in ("mean", "tail") for width in ("10m", "1h")]
    )
    page.get_by_role("combobox", name="airport").fill("LGA")
    page.get_by_role("combobox", name="carrier").fill("DL")
    page.get_by_role("button", name="Add the key").click()
    expect(page.locator("#charts figure").nth(0).locator(".legend li span")).to_have_text(["JFK · AA", "LGA · DL"])
    tails = page.locator("#charts figure").nth(2).locator(".legend li")
    expect(tails).to_have_count(6)
    # A key has a colour, and its lines differ by dashes.
    drawn = tails.locator("i").evaluate_all("lines => lines.map(({ style }) => style.borderTop.split(' ').slice(1))")
    assert drawn == [[kind, f"var(--c{i})"] for i in (1, 2) for kind in ("solid", "dashed", "dotted")]
    figure = page.locator("#charts figure").nth(0).locator(".legend b").first
    assert float(figure.get_attribute("title")) == pytest.approx(float(figure.inner_text()), rel=1e-3)
    assert len(figure.get_attribute("title")) > len(figure.inner_text())
    assert inked(page) > 300
    page.get_by_text("Aggregates: mean, tail").click()
    page.get_by_role("checkbox", name="tail").uncheck()
    expect(page.locator("#charts figure")).to_have_count(2)
    page.get_by_role("button", name="Remove JFK|AA").click()
    expect(page.locator("#charts figure").nth(0).locator(".legend li span")).to_have_text(["LGA · DL"])
    # All of that is in the address.
    page.reload()
    expect(page.locator("#charts figure")).to_have_count(2)
    expect(page.locator("#charts figure").nth(1).locator(".legend li span")).to_have_text(["LGA · DL"])


def test_each_kind_has_its_chart(service, page):
    names = list(KINDS)
    query = "&".join(f"aggregate={name}" for name in names)
    page.goto(at(service, f"window=kinds&tab=explore&key=JFK%7CAA&last=5h&width=20m&{query}"))
    figures = {name: page.locator("#charts figure").nth(i) for i, name in enumerate(names)}
    for name in ("flights", "mean", "tail", "spread", "causes", "m4", "worst", "reasons", "run", "trend"):
        figures[name].scroll_into_view_if_needed()
        expect(figures[name].locator("canvas")).to_be_visible()
    expect(figures["m4"].locator(".legend li span")).to_have_text(
        ["JFK · AA · max", "JFK · AA · min", "JFK · AA · last"]
    )
    expect(figures["causes"].locator(".legend li span").first).to_have_text("none")
    expect(figures["spread"].locator(".plot")).to_have_attribute(
        "aria-label", re.compile("histograms of .* with 9 bins")
    )
    assert inked(page, names.index("spread")) > 2000
    for name in ("planes", "text"):
        expect(figures[name]).to_contain_text("These answers are no numbers")
    expect(figures["spread"].locator("figcaption")).to_have_text("spread · each point over 20m")
    expect(page.locator("#values tbody tr")).to_have_count(100)
    expect(page.locator("#values thead")).to_contain_text("text · JFK · AA")


def test_zoom_by_mouse_by_buttons_and_by_address(service, page):
    page.goto(at(service, "window=delays&tab=explore&key=JFK%7CAA&aggregate=mean&last=4h"))
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "true")
    plot = page.locator("#charts .u-over").first
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")
    start, end = (int(re.search(rf"{name}=(\d+)", page.url)[1]) for name in ("from", "to"))
    assert abs((end - start) - HOUR_MS) < HOUR_MS / 10
    assert abs(start - (END_MS - 3 * HOUR_MS)) < HOUR_MS / 10
    shared = page.url
    page.get_by_role("button", name="Zoom out").click()
    expect(page).not_to_have_url(shared)
    page.get_by_role("button", name="Earlier").click()
    page.goto("about:blank")
    page.goto(shared)
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")
    expect(page.get_by_label("From", exact=True)).to_have_value(re.compile(r"^2026-11-18 \d\d:\d\d:\d\d(\.\d+)?Z$"))
    page.get_by_role("button", name="Live").click()
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "true")


def test_points_are_read_by_keyboard(service, page):
    page.goto(at(service, "window=delays&tab=explore&key=JFK%7CAA&aggregate=mean&last=4h"))
    expect(page.locator("#charts canvas")).to_be_visible()
    page.locator(".plot").focus()
    page.keyboard.press("Home")
    first = page.locator("#charts .reading").inner_text()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#charts .reading")).not_to_have_text(first)
    expect(page.locator("#charts .reading")).to_have_attribute("aria-live", "polite")


def test_groups(service, page):
    page.goto(at(service, "window=delays&tab=explore&aggregate=mean&last=4h"))
    page.get_by_role("checkbox", name="carrier").check()
    expect(page.locator("#charts .legend li span")).to_have_text(["AA", "B6", "DL", "UA"])
    page.get_by_role("checkbox", name="airport").check()
    expect(page.locator("#charts .legend li")).to_have_count(12)
    expect(page.locator("#charts .legend li span").first).to_have_text("EWR · AA")
    page.get_by_role("checkbox", name="airport").uncheck()
    expect(page.get_by_role("button", name="Add the key")).to_be_hidden()
    page.get_by_label("Where").fill("carrier in (AA, DL)")
    expect(page.locator("#charts .legend li span")).to_have_text(["AA", "DL"])
    page.get_by_label("The first by").select_option("mean")
    page.get_by_label("How many").fill("1")
    expect(page.locator("#charts .legend li")).to_have_count(1)


def test_a_line_of_the_legend_is_seen_alone(service, browser):
    with a_page(browser, allowed=("willReadFrequently",)) as page:
        page.goto(at(service, "window=delays&tab=explore&by=carrier&aggregate=mean&last=4h&width=1h"))
        expect(page.locator("#charts .legend li")).to_have_count(4)
        expect(page.get_by_role("button", name="Add the key")).to_be_hidden()
        page.get_by_label("Refresh").select_option("0")
        whole = inked(page)
        page.locator("#charts .legend li").first.hover()
        while not 0 < inked(page) < whole / 2:
            page.wait_for_timeout(50)
        page.locator("#window").hover()
        while inked(page) < whole * 0.9:
            page.wait_for_timeout(50)


def test_values_are_a_table_and_files(service, page):
    page.goto(at(service, "window=delays&tab=charts&key=JFK%7CAA&key=LGA%7CDL&aggregate=flights&last=1h&step=10m"))
    expect(page.locator("#values tbody tr")).to_have_count(6)
    expect(page.locator("#values thead th")).to_have_text(["Up to", "flights · JFK · AA", "flights · LGA · DL"])

    def saved(kind):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save as {kind}").click()
        return download.value.suggested_filename, download.value.path().read_bytes()

    name, csv = saved("CSV")
    lines = csv.decode().splitlines()
    assert (name, lines[0], len(lines)) == ("delays.csv", "line,start,end,entries,flights", 13)
    counted = sum(int(line.rpartition(",")[2]) for line in lines[1:7])
    question = {"key": "JFK|AA", "start": END_MS - HOUR_MS + 1, "end": END_MS}
    assert counted == service.http().get("/v1/windows/delays/range", params=question).json()["entries"]
    name, text = saved("JSON")
    assert [line["label"] for line in json.loads(text)[0]["lines"]] == ["JFK · AA", "LGA · DL"]
    page.get_by_role("checkbox", name="carrier").check()
    expect(page.locator("#values thead th")).to_have_count(5)
    name, arrow = saved("Arrow")
    table = pyarrow.ipc.open_stream(arrow).read_all()
    assert name == "delays.arrow"
    assert {"time", "carrier", "aggregates.flights"} <= set(table.column_names)


def test_spans_to_choose(service, page):
    page.goto(at(service, "window=delays&tab=explore&key=JFK%7CAA&aggregate=flights"))
    page.get_by_role("button", name="15m", exact=True).click()
    expect(page.get_by_role("button", name="15m", exact=True)).to_have_attribute("aria-pressed", "true")
    start, end = page.get_by_label("From", exact=True), page.get_by_label("To", exact=True)
    expect(start).to_have_attribute("placeholder", "2026-11-18 10:51:40.001Z")
    expect(end).to_have_attribute("placeholder", "2026-11-18 11:06:40Z")
    page.get_by_role("button", name="today").click()
    expect(start).to_have_attribute("placeholder", "2026-11-18 00:00:00Z")
    # Either end alone makes a span with the other one as it is.
    end.fill("2026-11-18T09:00Z")
    end.press("Enter")
    expect(page.locator("#span")).to_have_text("9h")
    start.fill("2026-11-18 08:00")
    page.get_by_label("Step").focus()
    expect(page.locator("#span")).to_have_text("1h")
    expect(end).to_have_value("2026-11-18 09:00:00Z")
    page.reload()
    expect(start).to_have_value("2026-11-18 08:00:00Z")
    expect(page.locator("#values tbody th").first).to_have_text("2026-11-18 09:00:00Z")
    start.fill("yesterday")
    page.get_by_label("Step").focus()
    expect(page.locator("#from + .at-field")).to_contain_text("Write an instant")
    expect(start).to_have_attribute("aria-invalid", "true")
    # What was shown stays, faded, until the question is right; and what is wrong is said once.
    page.locator("#from + .at-field").evaluate("element => (element.dataset.mine = 'yes')")
    with page.expect_response("**/v1/windows/delays"):
        pass
    with page.expect_response("**/v1/windows/delays"):
        pass
    expect(page.locator("#charts.stale canvas")).to_be_visible()
    expect(page.locator("#from + .at-field[data-mine]")).to_be_visible()
    expect(page.get_by_label("Step")).to_be_focused()
    start.fill("")
    page.get_by_label("Step").focus()
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".at-field")).to_have_count(0)
    expect(page.locator(".stale")).to_have_count(0)


def test_groups_where_an_aggregate_needs_order(service, page):
    """m4, worst and run depend on the order of entries: the page asks for the others."""
    page.goto(at(service, "window=kinds&tab=explore&by=carrier&last=4h"))
    expect(page.locator("#charts .legend").first.locator("li span")).to_have_text(["AA", "B6", "DL", "UA"])
    page.goto(at(service, "window=kinds&tab=keys&by=carrier"))
    expect(page.locator("#told")).to_contain_text("4 groups")


def test_promql(service, browser):
    with a_page(browser, allowed=("400",)) as page:
        page.goto(at(service, "window=delays&tab=explore&key=JFK%7CAA&aggregate=mean&last=3h&width=1h"))
        expect(page.locator("#charts canvas")).to_be_visible()
        page.get_by_role("button", name="PromQL", exact=True).click()
        box = page.get_by_label("Expression")
        expect(box).to_have_value('delays:mean{airport="JFK", carrier="AA", __lookback__="1h"}')
        expect(page.locator("#values thead th")).to_have_text(["Up to", "value · delays:mean · JFK · AA"])
        box.fill("sum by (carrier) (")
        expect(page.locator("#expr + .at-field")).to_have_text(re.compile("^parse error"))
        expect(page.locator("#export-arrow")).to_be_hidden()
        expect(page.locator("#export-csv")).to_be_visible()
        expect(box).to_have_attribute("aria-invalid", "true")
        box.press("End")
        box.press_sequentially("delays:fli")
        page.get_by_role("button", name="delays:flights").click()
        box.press("End")
        box.press_sequentially(")")
        expect(page.locator("#charts .legend li span")).to_have_text(["AA", "B6", "DL", "UA"])
        expect(box).to_have_value("sum by (carrier) (delays:flights)")
        page.reload()
        expect(box).to_have_value("sum by (carrier) (delays:flights)")
        page.get_by_text("Copy this question").click()
        expect(page.locator("#copy-promql")).to_have_text("sum by (carrier) (delays:flights)")
        expect(page.locator("#copy-curl")).to_be_visible()
        expect(page.locator("#copy-python")).to_be_hidden()


def test_without_the_package_values_are_tables(service, browser):
    with a_page(browser, allowed=("404", "MIME", "ERR_FAILED")) as page:
        page.route("**/uPlot.esm.js", lambda route: route.abort())
        page.goto(at(service, "window=delays&tab=explore&key=JFK%7CAA&aggregate=flights&last=1h&step=10m"))
        expect(page.locator("#charts")).to_contain_text("Charts need the package uPlot")
        expect(page.locator("#values tbody tr")).to_have_count(6)


def test_sixty_four_charts(service, page):
    page.goto(at(service, "window=wide&tab=explore&last=50m"))
    page.get_by_text("Aggregates: a00, a01, a02, a03").click()
    page.get_by_role("button", name="All").click()
    expect(page.locator("#charts figure")).to_have_count(64)
    page.locator("#charts figure").last.scroll_into_view_if_needed()
    expect(page.locator("#charts figure").last.locator("canvas")).to_be_visible()


def test_what_cannot_be_drawn(service, browser):
    with a_page(browser, allowed=("400",)) as page:
        page.goto(at(service, "window=nan&tab=explore&last=900&step=300"))
        expect(page.locator("#charts")).to_contain_text("Every answer is NaN, which has no place in a chart.")
        page.get_by_label("Step").fill("1s")
        expect(page.locator("#step + .at-field")).to_contain_text("a number of ticks")
        expect(page.get_by_label("Step")).to_have_attribute("aria-invalid", "true")
        page.reload()
        expect(page.locator("#step + .at-field")).to_contain_text("a number of ticks")
        expect(page.get_by_label("Step")).not_to_be_focused()  # nobody was there
        page.goto(at(service, "window=empty&tab=explore"))
        expect(page.locator("#chart-told")).to_have_text("The window has no entries.")
