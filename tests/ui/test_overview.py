"""The overview: no windows, rates, what is late, order and search, a thousand windows, a service that goes away."""

import re
import time

import pytest

from sash_engine.windows.spec.window import WindowSpec
from tests.support.pictured import HOSTILE
from tests.support.playing import a_page, at, expect
from tests.support.ports import free_port
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens

COUNT = {"n": {"function": "count"}}


def names(page):
    return page.locator("#windows h3").all_inner_texts()


def test_no_windows(page):
    with running_service() as service:
        page.goto(at(service))
        expect(page.locator("#no-windows")).to_contain_text("There is no window yet.")
        expect(page.locator("#status")).to_have_text("0 windows")
        page.get_by_role("link", name="Create one").click()
        expect(page.get_by_role("heading", name="New window")).to_be_focused()


def test_rates_late_entries_and_latencies(page, tmp_path):
    with running_service(data=str(tmp_path / "data")) as service:
        http = service.http()
        spec = {"name": "w", "time_unit": "s", "aggregates": COUNT, "slide": {"max_age": "10s"}}
        http.post("/v1/windows", json=spec)
        http.post("/v1/windows/w/bulk-insert", json={"time": [1000], "value": [1.0]})
        page.goto(at(service))
        page.get_by_label("Refresh").select_option("1000")
        expect(page.locator(".tile", has_text="Tier")).to_contain_text("lmdb")
        expect(page.locator(".tile", has_text="Memory")).to_contain_text("of ")
        http.post("/v1/windows/w/bulk-insert", json={"time": [1001] * 50 + [1] * 7, "value": [1.0] * 57})
        row = page.locator("#windows li")
        expect(row.locator("dd.bad")).to_have_text(re.compile(r"^7 \([\d.]+/s\)$"))
        expect(row).to_contain_text("7")
        expect(row.locator("svg.spark polygon")).to_be_attached()
        expect(page.locator(".tile.bad", has_text="Late")).to_be_attached()
        expect(page.locator("#latencies")).to_contain_text("bulk_insert")
        expect(page.get_by_role("heading", name="Processes")).to_have_count(0)  # one shard has one process
        expect(page.locator("#latencies td").nth(4)).to_have_text(re.compile(r"^[\d.]+ (µs|ms|s)$"))


def test_a_thousand_windows(browser):
    with running_service(max_windows=2000) as service, a_page(browser) as page:
        http = service.http()
        specs = [WindowSpec.parse({"name": f"w{i:04}", "aggregates": COUNT}) for i in range(1000)]

        async def create():
            for spec in specs:
                await service.plane.create(spec)

        service.on_loop(create)
        http.post("/v1/windows/w0777/insert", json={"time": 5, "value": 1})
        page.goto(at(service))
        expect(page.locator("#found")).to_have_text("50 of 1,000 windows")
        assert names(page)[0] == "w0000"
        expect(page.locator("#windows li").first.locator("dl div", has_text="Newest")).to_have_text("Newest–")
        page.get_by_role("button", name="Show more windows").click()
        expect(page.locator("#found")).to_have_text("200 of 1,000 windows")
        page.get_by_label("Order by").select_option("entries")
        expect(page.locator("#windows h3").first).to_have_text("w0777")
        page.get_by_label("Find").fill("W099")
        expect(page.locator("#found")).to_have_text("10 of 10 windows")
        page.reload()
        expect(page.locator("#windows li")).to_have_count(10)
        page.get_by_label("Find").fill("no such")
        expect(page.locator("#found")).to_have_text("No name contains this.")


def test_a_service_that_goes_away_and_comes_back(browser):
    with a_page(
        browser, allowed=("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", "503")
    ) as page:
        with running_service(rest_port=free_port()) as service:
            port = service.rest_port
            service.http().post("/v1/windows", json={"name": "before", "aggregates": COUNT})
            page.goto(at(service))
            page.get_by_label("Refresh").select_option("1000")
            expect(page.locator("#windows")).to_contain_text("before")
        expect(page.locator("#status")).to_contain_text("no answer from the service")
        expect(page.locator("#windows")).to_contain_text("before")
        with running_service(rest_port=port) as service:
            service.http().post("/v1/windows", json={"name": "after", "aggregates": COUNT})
            expect(page.locator("#windows")).to_contain_text("after")
            expect(page.locator("#status")).to_have_text("1 window")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens.yaml"
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    tokens = {
        "reader": {"role": "read", "windows": ["seen*"]},
        "root": {"role": "admin", "windows": ["*"]},
        "guest": {"role": "read", "windows": ["*"], "expires": soon},
    }
    with running_service(tokens=write_tokens(path, tokens)) as service:
        http = service.http()
        for name in ("seen", "hidden"):
            http.post("/v1/windows", json={"name": name, "aggregates": COUNT}, headers=bearer("root"))
        yield service, path, tokens


def log_in(page, name):
    page.get_by_label("Token", exact=True).fill(f"{name}-token")
    page.get_by_role("button", name="Show windows").click()


def test_a_token_for_some_windows_sees_no_metrics(guarded, browser):
    with a_page(browser, allowed=("401", "403")) as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
        page.goto(at(guarded[0]))
        page.get_by_label("Refresh").select_option("1000")
        log_in(page, "reader")
        expect(page.locator("#windows h3")).to_have_text(["seen"])
        while asked.count("windows") < 3:
            page.wait_for_timeout(50)
        assert asked.count("metrics") == 1  # a refusal is in the audit log
        expect(page.locator("body")).to_contain_text("a token that may read every window")
        page.goto(at(guarded[0], "create"))
        expect(page.locator("#created")).to_contain_text("needs the role admin")
        page.goto(at(guarded[0], "window=seen&tab=manage"))
        expect(page.locator("#no-admin")).to_be_visible()
        expect(page.locator("#delete")).to_have_count(0)
        page.goto(at(guarded[0], "window=seen&tab=send"))
        expect(page.locator("#told")).to_contain_text("needs the right write")
        page.goto(at(guarded[0], "window=hidden"))
        expect(page.locator("#status")).to_contain_text("no right")


def test_a_token_that_expires(guarded, browser):
    service, path, tokens = guarded
    with a_page(browser, allowed=("401",)) as page:
        page.goto(at(service, "window=hidden"))
        page.get_by_label("Refresh").select_option("1000")
        log_in(page, "guest")
        expect(page.get_by_role("heading", name="hidden")).to_be_visible()
        write_tokens(path, {**tokens, "guest": {**tokens["guest"], "expires": "2020-01-01T00:00:00Z"}})
        expect(page.locator("#login-section")).to_be_visible()
        expect(page.locator("#status")).to_contain_text("token")
        # What was seen is not left on the page, and the address still says what to show.
        assert "hidden" not in page.locator("main").inner_text()
        log_in(page, "root")
        expect(page.get_by_role("heading", name="hidden")).to_be_visible()
        page.get_by_role("button", name="Forget the token").click()
        expect(page.locator("#login-section")).to_be_visible()


def test_texts_from_the_service_are_no_markup(browser):
    with running_service() as service, a_page(browser, allowed=("404",)) as page:
        http = service.http()
        spec = {"name": "w", "time_unit": "s", "keys": ["a", "b"], "fields": {"s": "string"}}
        spec["aggregates"] = {
            "top": {"function": "frequent_items", "field": "s"},
            "all": {"function": "collect_distinct", "field": "s"},
        }
        assert http.post("/v1/windows", json=spec).status_code == 201
        entry = {"time": 1, "key": {"a": HOSTILE, "b": '"|\\'}, "fields": {"s": HOSTILE}}
        assert http.post("/v1/windows/w/insert", json=entry).status_code == 200
        dialogs = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        for tab, where in (
            ("answers", "#answers"),
            ("keys", "#keys"),
            ("explore", "#charts"),
            ("send", "#one"),
            ("manage", "#spec"),
        ):
            page.goto(at(service, f"window=w&tab={tab}"))
            expect(page.locator(where)).to_be_visible()
            if tab in ("answers", "keys"):
                expect(page.locator(where)).to_contain_text(HOSTILE)
            assert page.locator("main img").count() == 0
        page.goto(at(service, "window=w&tab=keys"))
        page.locator("#keys tbody a").first.click()
        expect(page.locator("#answers")).to_be_visible()
        expect(page.get_by_label("a", exact=True)).to_have_value(HOSTILE)
        expect(page.get_by_label("b", exact=True)).to_have_value('"|\\')
        page.goto(at(service, "window=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"))
        expect(page.locator("#problem")).to_have_text('There is no window "<img src=x onerror=alert(1)>".')
        page.goto(at(service, "window=w"))
        expect(page.locator("#answers")).to_be_visible()
        assert http.delete("/v1/windows/w").status_code == 200
        expect(page.locator("#problem")).to_have_text("This window was deleted.")
        assert dialogs == []


def test_processes_and_their_shards(page, tmp_path):
    with running_service(data=str(tmp_path), shards=5) as service:
        http = service.http()
        http.post("/v1/windows", json={"name": "w", "keyed": True, "aggregates": COUNT})
        http.post(
            "/v1/windows/w/bulk-insert", json={"time": [1] * 40, "key": [str(i) for i in range(40)], "value": [1] * 40}
        )
        answer = http.get("/v1/topology").json()
        page.goto(at(service))
        page.get_by_label("Refresh").select_option("1000")
        rows = page.locator("#processes tbody tr")
        expect(rows.locator("th, td")).to_have_text(["0", "up", "–", "0–4", "40", "0 B"])
        expect(page.locator(".tile", has_text="Shards")).to_contain_text("in 1 process")
        expect(page.locator("#taken")).to_have_count(0)
        # Another process takes two shards over, and the first one goes.
        (one,) = answer["processes"]
        two = {**one, "number": 1, "shards": [1, 3], "sizes": []}
        answer["processes"] = [{**one, "shards": [0, 2, 4]}, two]
        page.route("**/v1/topology", lambda route: route.fulfill(json=answer))
        expect(page.locator("#taken li")).to_have_text(
            [re.compile(r"^\d\d:\d\d:\d\dZ: shard 3 went from process 0 to 1$"), re.compile("shard 1 went")]
        )
        expect(rows.nth(1).locator("td").nth(2)).to_have_text("1, 3")
        answer["processes"][0]["up"] = False
        expect(page.locator(".tile.bad", has_text="Shards")).to_contain_text("3 without a process")
        expect(rows.nth(0).locator("td.bad")).to_have_text("down")
        expect(page.locator("#taken li")).to_have_count(2)
