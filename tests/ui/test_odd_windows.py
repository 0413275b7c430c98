"""Windows of all sorts: each view shows them without an error, and the YAML of their specs makes them anew."""

import pytest

from tests.support.playing import at, create, expect
from tests.support.servers import running_service

N = {"n": {"function": "count"}}
MEAN = {"mean": {"function": "mean"}, "when": {"function": "arg_max"}}
SPECS = {
    "panes": {"time_unit": "s", "keyed": True, "granularity": "1m", "aggregates": N, "slide": {"max_age": "1h"}},
    "logical": {"time_unit": "none", "aggregates": N, "slide": {"max_count": 100}, "order": {"late": "reject"}},
    "nano": {"time_unit": "ns", "aggregates": MEAN, "order": {"equal_times": "last"}},
    "steps": {"time_unit": "s", "aggregates": N, "slide": {"max_age": "1h", "every": "5m"}},
    "session": {"time_unit": "ms", "keys": ["who"], "aggregates": MEAN, "slide": {"max_gap": "10m"}},
    "expiring": {"keyed": True, "aggregates": N, "idle_expiry": "30d", "durability": "memory"},
    "named": {"fields": {"id": "int64", "on": "bool", "yes": "string"}, "aggregates": N, "identity": "id"},
    "__proto__": {"fields": {"__proto__": "float64"}, "aggregates": {"constructor": {"function": "sum"}}},
    "rolled": {"keys": ["a", "b"], "aggregates": N, "rollups": [["a"], []]},
    "when": {"aggregates": N, "slide": {"when": "old.n > 3"}},
    "adaptive": {"fields": {"x": "float64"}, "aggregates": N, "slide": {"adaptive": {"field": "x", "delta": 0.01}}},
}
TABS = {
    "answers": "#answers",
    "explore": "#charts",
    "keys": "#told",
    "entries": "#told",
    "send": "#one",
    "manage": "#spec",
}


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        for name, spec in SPECS.items():
            create(running, {"name": name, **spec})
        yield running


def test_each_view_of_each_window(service, page):
    http = service.http()
    for name in SPECS:
        page.goto(at(service, f"window={name}&tab=send"))
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        page.locator("#made").get_by_role("button").click()
        expect(page.locator("#sent")).to_contain_text("inserted")
        for tab, there in TABS.items():
            page.locator(f".tabs a[data-tab={tab}]").click()
            expect(page.locator(there)).to_be_visible()
            expect(page.locator(".note.bad, #status.bad"), name).to_have_count(0)
        page.get_by_role("link", name="Create one like this").click()
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("heading", name=f"{name}-2")).to_be_visible()
        old, new = (http.get(f"/v1/windows/{each}").json()["spec"] for each in (name, f"{name}-2"))
        assert {**old, "name": ""} == {**new, "name": ""}
