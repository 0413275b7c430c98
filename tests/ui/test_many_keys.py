"""Many keys in the browser: a page of them, search, groups and the first of all. With the profile `soak`, a million."""

import numpy as np
import pytest

from sash_client import Client
from tests.support.playing import at, expect
from tests.support.profile import THOROUGH
from tests.support.servers import running_service

KEYS = 1_000_000 if THOROUGH else 50_000
REGIONS, CHUNK = 100, 50_000
WAIT_MS = 120_000


@pytest.fixture(scope="module")
def service():
    with running_service(max_entries_per_write=CHUNK) as running, Client(running.grpc_target) as sash:
        spec = {"name": "big", "time_unit": "s", "keys": ["region", "user"], "fields": {"x": "float64"}}
        window = sash.create_window({**spec, "aggregates": {"n": {"function": "count"}, "most": {"function": "max"}}})
        for begin in range(0, KEYS, CHUNK):
            numbers = range(begin, begin + CHUNK)
            keys = {"region": [f"region-{i % REGIONS:02}" for i in numbers], "user": [f"user-{i:07}" for i in numbers]}
            window.bulk_insert(np.full(CHUNK, 100), {"x": np.arange(begin, begin + CHUNK, dtype=float)}, keys=keys)
        yield running


@pytest.mark.timeout(1800)
def test_many_keys(service, page):
    def told(text):
        expect(page.locator("#told")).to_have_text(f"{text} · {KEYS:,} keys in the window", timeout=WAIT_MS)

    page.goto(at(service, "window=big&tab=keys"))
    told("50 keys, and there are more")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#keys tbody tr").first).to_contain_text("user-0000050")
    page.get_by_label("user", exact=True).first.fill("0047777")
    told("1 key")
    expect(page.locator("#keys tbody tr").first).to_contain_text("47,777")
    page.get_by_label("user", exact=True).first.fill("")
    page.get_by_role("checkbox", name="region").check()
    told("50 groups, and there are more")
    expect(page.locator("#keys tbody tr").first).to_contain_text(f"{KEYS // REGIONS:,}")
    page.get_by_role("checkbox", name="region").uncheck()
    page.get_by_label("Order").select_option("most")
    page.get_by_label("How many").fill("3")
    told("3 keys")
    expect(page.locator("#keys tbody tr")).to_have_count(3)
    expect(page.locator("#keys tbody tr").first).to_contain_text(f"user-{KEYS - 1:07}")
    page.goto(at(service, "window=big"))
    expect(page.locator("#answers tbody tr").first).to_contain_text("1")
    page.get_by_label("user", exact=True).fill("user-00123")
    # What fits is offered.
    expect(page.locator("#key-offered-1 option").first).to_have_attribute("value", "user-0012300")
