"""Each view in light, dark and on a phone: rules of accessibility, widths, and pictures to look at.

The pictures are in `build/pictures`, and those of the documentation in `docs/images` come from there.
"""

from io import BytesIO
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

from tests.support.pictured import END_MS, GROUPED, KINDS, departures, made
from tests.support.playing import a_page, at, expect
from tests.support.servers import running_service

PICTURES = Path(__file__).parents[2] / "build" / "pictures"
VIEWS = {
    "overview": ("", "#windows"),
    "answers": ("window=all-kinds&key=JFK%7CAA&lookbacks=30m+6h", "#answers"),
    "charts": (
        "window=departures&tab=charts&key=JFK%7CAA&key=LGA%7CDL&last=6h&width=20m"
        "&aggregate=flights&aggregate=mean&aggregate=tail&aggregate=spread",
        "#charts canvas",
    ),
    "keys": ("window=departures&tab=keys&by=carrier&top=mean&lookback=6h", "#keys"),
    "send": ("window=departures&tab=send", "#made"),
    "manage": ("window=departures&tab=manage", "#spec"),
    "create": ("create", "#create-form"),
    "yaml": ("create=yaml", "#yaml"),
}
LOOKS = {
    "light": {"viewport": {"width": 1200, "height": 800}},
    "dark": {"viewport": {"width": 1200, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}, "is_mobile": True, "has_touch": True},
}


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        http = running.http()
        for name, aggregates in (("departures", GROUPED), ("all-kinds", KINDS)):
            assert http.post("/v1/windows", json=departures(name, aggregates)).status_code == 201
            assert http.post(f"/v1/windows/{name}/bulk-insert", json=made()).status_code == 200
        requests = {"name": "requests", "time_unit": "ms", "keyed": True, "aggregates": {"n": {"function": "count"}}}
        http.post("/v1/windows", json={**requests, "slide": {"max_age": "1h"}})
        times = [END_MS - 100 * i for i in range(500)]
        keys = [f"user-{i % 40}" for i in range(500)]
        http.post("/v1/windows/requests/bulk-insert", json={"time": times, "key": keys, "value": [1.0] * 500})
        late = {"time": [1] * 25, "key": ["user-1"] * 25, "value": [1.0] * 25}
        http.post("/v1/windows/requests/bulk-insert", json=late)
        yield running


def keep(picture, path):
    """Write a picture with few colours, so that it is small enough for the documentation."""
    Image.open(BytesIO(picture)).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < 150_000


@pytest.mark.parametrize("look", LOOKS)
def test_each_view(service, browser, look):
    PICTURES.mkdir(parents=True, exist_ok=True)
    with a_page(browser, **LOOKS[look]) as page:
        wrong = []
        page.clock.set_fixed_time(END_MS + 5000)
        for name, (address, there) in VIEWS.items():
            page.goto("about:blank")
            page.goto(at(service, address))
            expect(page.locator(there.split()[0]).first).to_be_visible()
            for figure in page.locator("figure").all():
                figure.scroll_into_view_if_needed()  # charts are drawn when they are in sight
                expect(figure.locator("canvas")).to_be_visible()
            page.evaluate("scrollTo(0, 0)")
            expect(page.locator("#status")).not_to_have_text("loading …")
            if name == "overview":
                more = {"time": [END_MS] * 40, "key": ["user-1"] * 40, "value": [1.0] * 40}
                service.http().post("/v1/windows/requests/bulk-insert", json=more)
                expect(page.locator(".tile svg").first).to_be_visible()
            keep(page.screenshot(full_page=True), PICTURES / f"{name}-{look}.png")
            # What is wider than the page scrolls in a place of its own.
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, look)
            if look == "phone":
                continue
            # Only colors differ in the dark, and all rules take ten times as long as theirs.
            rules = {"runOnly": ["color-contrast"]} if look == "dark" else None
            found = Axe().run(page, options=rules)
            wrong += [f"{name}: {found.generate_report()}"] if found.violations_count else []
        assert not wrong, "\n".join(wrong)


def test_a_picture_of_each_kind_of_focus(service, page):
    """Whoever goes by keyboard sees where they are, and comes to everything."""
    page.goto(at(service, "window=departures&tab=charts&key=JFK%7CAA"))
    expect(page.locator("#charts canvas").first).to_be_visible()
    page.get_by_label("Refresh").select_option("0")
    page.locator("h1 a").focus()
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        about = page.evaluate(
            """() => {
              const at = document.activeElement;
              if (at === document.body) return null;
              const { outlineStyle, outlineWidth } = getComputedStyle(at);
              return [at.id || at.className || at.tagName, outlineStyle !== "none" && outlineWidth !== "0px"];
            }"""
        )
        if about is None:
            break
        seen.append(about)
    assert all(visible for _, visible in seen), seen
    names = [name for name, _ in seen]
    for wanted in ("every", "add-key-0", "add-key-1", "add", "by", "last", "width", "step", "live", "plot"):
        assert wanted in names, names
