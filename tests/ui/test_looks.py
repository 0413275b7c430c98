"""Each view in light and dark, wide and on a phone, with real flights: accessibility, widths, sizes, and pictures.

With the profile `soak`, pictures are in `build/pictures`; those of the documentation in `docs/images` come from there.
"""

import os
import re
from io import BytesIO
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

import sash.ui
from sash_client import Client
from sash_spark.demo import departures_of
from sash_spark.flights import load_flights
from tests.support.pictured import HOSTILE
from tests.support.playing import a_page, at, expect
from tests.support.profile import THOROUGH
from tests.support.servers import running_service

UI = Path(sash.ui.__file__).parent
PICTURES = Path(__file__).parents[2] / "build" / "pictures"
FLIGHTS = 30_000
BUDGET = 150 * 1024
"""Bytes of the first view, compressed."""
KEYS = "key=JFK%7CAA&key=LGA%7CDL"
CHOSEN = "aggregate=flights&aggregate=mean&aggregate=tail&aggregate=spread"
VIEWS = {
    "overview": ("", "#windows"),
    "answers": ("window=departures&key=JFK%7CAA&lookbacks=6h+1d", "#answers"),
    "explore": (f"window=departures&tab=explore&{KEYS}&last=3d&width=1h&{CHOSEN}", "#charts canvas"),
    "groups": ("window=departures&tab=explore&by=carrier&top=mean&last=3d&width=6h&aggregate=mean", "#charts canvas"),
    "promql": (
        "window=departures&tab=explore&lang=promql&last=3d"
        "&expr=sum+by+(airport)+(departures:flights{__lookback__%3D%226h%22})",
        "#charts canvas",
    ),
    "keys": ("window=departures&tab=keys&by=carrier&top=mean&lookback=1d", "#keys"),
    "entries": ("window=departures&tab=entries&key=JFK%7CAA", "#entries"),
    "send": ("window=departures&tab=send", "#made"),
    "manage": ("window=departures&tab=manage", "#spec"),
    "names": ("window=names&tab=explore", "#charts canvas"),
    "names-keys": ("window=names&tab=keys", "#keys"),
    "create": ("create", "#create-form"),
    "yaml": ("create=yaml", "#yaml"),
}
RATES = (40, 55, 62, 38, 47, 71) if THOROUGH else (40, 55)
"""Entries before each refresh, a second apart; a line needs two, and a picture some more."""
WIDE, PHONE = {"viewport": {"width": 1366, "height": 800}}, {"viewport": {"width": 390, "height": 800}}
TOUCHED = {"is_mobile": True, "has_touch": True}
SLOW_PHONE = {"offline": False, "latency": 150, "downloadThroughput": 204_800, "uploadThroughput": 96_000}
"""Of Lighthouse: milliseconds, and bytes a second."""
WHEN_SHOWN = """
new MutationObserver((_, watching) => {
  if (document.querySelector("#windows") === null) return;
  window.shownAt = performance.now();
  watching.disconnect();
}).observe(document, { childList: true, subtree: true });
"""
LOOKS = {
    "light": WIDE,
    "dark": WIDE | {"color_scheme": "dark"},
    "phone": PHONE | TOUCHED,
    "phone-dark": PHONE | TOUCHED | {"color_scheme": "dark"},
}
SPEC = {
    "name": "departures",
    "time_unit": "us",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64", "dest": "string"},
    "aggregates": {
        "flights": {"function": "count"},
        "mean": {"function": "mean", "field": "delay"},
        "tail": {"function": "quantile", "field": "delay", "q": [0.5, 0.9, 0.99]},
        "spread": {"function": "histogram", "field": "delay", "bounds": [-10, -5, 0, 5, 10, 20, 40, 80]},
        "destinations": {"function": "frequent_items", "field": "dest"},
        "m4": {"function": "m4", "field": "delay"},
        "worst": {"function": "largest", "field": "delay", "n": 3},
    },
    "slide": {"max_age": "7d"},
}

NAMES = {
    "name": "names",
    "time_unit": "s",
    "keys": ["a", "b"],
    "fields": {"s": "string", "x": "float64"},
    "aggregates": {
        "top": {"function": "frequent_items", "field": "s"},
        "mean_of_what_was_measured_in_the_furnace_of_the_second_hall": {"function": "mean", "field": "x"},
    },
}


@pytest.fixture(scope="module")
def service():
    """Departures from New York's airports in December 2013, in the order in which they landed."""
    flown = departures_of(load_flights()).tail(FLIGHTS)
    with running_service() as running, Client(running.grpc_target) as sash:
        keys = {part: flown[part].tolist() for part in ("airport", "carrier")}
        times = flown["departure"].to_numpy("datetime64[us]")
        columns = {"delay": flown["delay"].to_numpy(), "dest": flown["dest"].tolist()}
        sash.create_window(SPEC).bulk_insert(times, columns, keys=keys)
        short = {"name": "departures_of_six_hours", "slide": {"max_age": "6h"}}
        sash.create_window({**SPEC, **short}).bulk_insert(times, columns, keys=keys)
        count = {"aggregates": {"n": {"function": "count"}}, "slide": {"max_age": "1h"}}
        requests = sash.create_window({"name": "requests", "time_unit": "ms", **count})
        requests.bulk_insert([10_000_000, 1, 2, 3], [1.0] * 4)  # three of them late
        names = sash.create_window(NAMES)
        hostile = {"a": [HOSTILE, "x" * 180] * 15, "b": ['"|\\', ""] * 15}
        texts = {"s": [HOSTILE, HOSTILE * 2] * 15, "x": [2e9 / 3] * 30}
        names.bulk_insert(range(1_795_000_000, 1_795_001_800, 60), texts, keys=hostile)
        yield running


def keep(picture, path):
    """Write a picture with few colours, so that it is small enough for the documentation."""
    Image.open(BytesIO(picture)).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < 250_000


@pytest.mark.parametrize(
    "look", ["light", "phone-dark", *(pytest.param(each, marks=pytest.mark.soak) for each in ("dark", "phone"))]
)
def test_each_view(service, browser, look):
    PICTURES.mkdir(parents=True, exist_ok=True)
    with a_page(browser, **LOOKS[look]) as page:
        wrong = []
        for name, (address, there) in VIEWS.items():
            page.goto("about:blank")
            page.goto(at(service, address))
            expect(page.locator(there.split()[0]).first).to_be_visible()
            if there.endswith("canvas"):
                expect(page.locator("#charts figure").first).to_be_visible()
            for figure in page.locator("figure").all():
                figure.scroll_into_view_if_needed()  # charts are drawn when they are in sight
                expect(figure.locator("canvas")).to_be_visible()
            page.evaluate("scrollTo(0, 0)")
            expect(page.locator("#status")).not_to_have_text("loading …")
            if name == "overview":
                page.get_by_label("Refresh").select_option("1000")
                for count in RATES:
                    more = {"time": [10_000_000] * count + [1], "value": [1.0] * (count + 1)}
                    with page.expect_response("**/v1/windows"):
                        service.http().post("/v1/windows/requests/bulk-insert", json=more)
                expect(page.locator(".tile svg").first).to_be_visible()
            if THOROUGH:
                keep(page.screenshot(full_page=True), PICTURES / f"{name}-{look}.png")
            if page.locator(".tabs").count():  # which scroll on a phone
                expect(page.locator(".tabs [aria-current]")).to_be_in_viewport(ratio=1)
            # What is wider than the page scrolls in a place of its own.
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, look)
            if look.startswith("phone"):
                continue
            # Only colors differ in the dark, and all rules take ten times as long as theirs. To list what each element
            # passes takes longer than the rules.
            rules = {"runOnly": ["color-contrast"]} if look == "dark" else {}
            found = Axe().run(page, options=rules | {"resultTypes": ["violations"]})
            wrong += [f"{name}: {found.generate_report()}"] if found.violations_count else []
        assert not wrong, "\n".join(wrong)


def test_the_first_view_is_small(service, page):
    sizes = {}
    page.on("requestfinished", lambda request: sizes.update({request.url: request.sizes()["responseBodySize"]}))
    page.goto(at(service))
    expect(page.locator("#windows")).to_be_visible()
    page.wait_for_load_state("networkidle")
    files = {url: size for url, size in sizes.items() if "/v1/" not in url}
    assert len(files) > 20
    print(f"the first view: {sum(files.values()):,} bytes in {len(files)} files")
    assert sum(files.values()) <= BUDGET, files


def test_the_first_view_takes_three_round_trips(service, browser):
    """The page; what it imports, beside who calls; the answers. A browser asks for six files at once."""
    with a_page(browser, **PHONE, **TOUCHED) as page:
        phone = page.context.new_cdp_session(page)
        phone.send("Network.enable")
        phone.send("Network.emulateNetworkConditions", SLOW_PHONE)
        phone.send("Emulation.setCPUThrottlingRate", {"rate": 4})
        page.add_init_script(WHEN_SHOWN)
        page.goto(at(service))
        expect(page.locator("#windows")).to_be_visible()
        print(f"the first view on a slow phone: {page.evaluate('shownAt'):.0f} ms, load {os.getloadavg()[0]:.1f}")
        asked = page.evaluate(
            "performance.getEntriesByType('resource').filter((each) => each.startTime < shownAt)"
            ".map((each) => each.name.slice(location.origin.length))"
        )
    imported, wanted = set(), ["page.js", "views/overview.js"]
    while wanted:
        file = UI / wanted.pop()
        if file not in imported:
            imported.add(file)
            paths = re.findall(r'^(?:import|}) .*from "(.*)";', file.read_text(), re.M)
            wanted += [(UI.parent / path[1:] if path[0] == "/" else file.parent / path).resolve() for path in paths]
    first = {f"/ui/{file.relative_to(UI)}" for file in imported} - {"/ui/page.js"} | {"/ui/caller"}
    assert len(first) <= 6
    assert set(asked[: len(first)]) == first
    assert set(asked[len(first) :]) == {"/readyz", "/v1/windows", "/metrics", "/v1/topology"}


def test_a_picture_of_each_kind_of_focus(service, page):
    """Whoever goes by keyboard sees where they are, and comes to everything."""
    page.goto(at(service, "window=departures&tab=explore&key=JFK%7CAA"))
    expect(page.locator("#charts canvas").first).to_be_visible()
    page.get_by_label("Refresh").select_option("0")
    page.locator("h1 a").focus()
    seen = []
    for _ in range(80):
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
    for wanted in (
        "every",
        "add-key-0",
        "add-key-1",
        "add",
        "last",
        "width",
        "step",
        "live",
        "plot",
        "export-csv",
    ):
        assert wanted in names, names
