"""The entries of a key, the newest first, page by page; also where many have the same time."""

import pytest

from tests.support.playing import at, create, expect
from tests.support.servers import running_service

COUNT = {"n": {"function": "count"}}


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        spec = {"name": "w", "time_unit": "ns", "keys": ["a"], "fields": {"x": "float64", "s": "string"}}
        start = 1_795_000_000_000_000_001
        times = [start] * 70 + [start + i for i in range(1, 51)]
        bulk = {
            "time": times,
            "a": ["k"] * 120,
            "x": [i + 1 / 3 for i in range(120)],
            "s": [f"s{i}" for i in range(120)],
        }
        create(running, {**spec, "aggregates": COUNT}, bulk)
        panes = {"name": "panes", "time_unit": "s", "granularity": "1m", "aggregates": COUNT}
        create(running, panes, {"time": [60, 61, 130], "value": [1.0] * 3})
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


def test_what_is_known_of_entries(service, page):
    http = service.http()
    spec = {"name": "known", "time_unit": "s", "keyed": True, "fields": {"x": "float64", "id": "int64"}}
    spec |= {"aggregates": COUNT, "identity": "id", "known": "arrival"}
    create(service, spec)

    def write(how, time, x, id):
        body = {"time": [time], "key": ["k"], "id": [id]} | ({} if how == "retract" else {"x": [x]})
        assert http.post(f"/v1/windows/known/{how}", json=body).status_code == 200

    for time in range(100, 160):
        write("bulk-insert", time, float(time), time)
    write("bulk-insert", 109, 1.0, 1)
    write("bulk-insert", 155, 2.0, 2)
    write("update", 155, 3.0, 2)
    write("update", 155, 4.0, 2)
    write("retract", 157, None, 157)
    for time in (101, 110):  # 110 is the last time of the first page
        write("bulk-insert", time, 5.0, 5)
        write("retract", time, None, 5)
    write("update", 158, 158.5, 158)
    page.goto(at(service, "window=known&tab=entries"))
    expect(page.locator("#told")).to_have_text("50 entries, the newest first, and 5 that were retracted or corrected")
    expect(page.locator("#entries thead th")).to_have_text(["Time", "x", "id", "Arrival", "Known"])

    def rows(count):
        return [row.split("\t")[1:] for row in page.locator("#entries tbody tr").all_inner_texts()[:count]]

    assert rows(10) == [
        ["159", "159", "60", ""],
        ["158.5", "158", "70", "corrected"],  # as late as it is, it corrects what came in order
        ["158", "158", "59", "until corrected"],
        ["157", "157", "58", "retracted"],
        ["156", "156", "57", ""],
        ["4", "2", "64", "corrected, out of order"],
        ["155", "155", "56", ""],
        ["3", "2", "63", "until corrected, out of order"],
        ["2", "2", "62", "until corrected, out of order"],
        ["154", "154", "55", ""],
    ]
    expect(page.locator("#entries tr.gone")).to_have_count(5)
    page.get_by_role("button", name="Older").click()
    expect(page.locator("#told")).to_have_text("11 entries, the newest first, and 1 that were retracted or corrected")
    # An earlier page had entries that came before this one.
    assert rows(1)[0] == ["1", "1", "61", "out of order"]
    page.reload()
    expect(page.locator("#told")).to_have_text("11 entries, the newest first, and 1 that were retracted or corrected")
    assert rows(1)[0] == ["1", "1", "61", "out of order"]
    page.get_by_role("button", name="Newest").click()
    expect(page.locator("#told")).to_have_text("50 entries, the newest first, and 5 that were retracted or corrected")
