"""Windows are created from a form and from YAML, with errors at the fields; entries are sent; windows are evicted."""

import pytest

from tests.support.playing import a_page, at, create, expect

COUNT = {"n": {"function": "count"}}
# 404: the page may ask for the window that it has just deleted.
REFUSED = ("400 (Bad Request)", "404 (Not Found)", "409 (Conflict)", "429")


@pytest.fixture
def page(browser):
    with a_page(browser, allowed=REFUSED) as opened:
        yield opened


def made(service, name):
    return service.http().get(f"/v1/windows/{name}").json()


def test_a_window_from_the_form(service, page):
    page.goto(at(service, "create"))
    page.locator("#name").fill("from-form")
    page.get_by_label("Keys", exact=True).select_option("parts")
    page.get_by_label("Parts of a key").fill("region, endpoint")
    page.get_by_role("button", name="Add an aggregate").click()
    row = page.locator("fieldset", has_text="Aggregates").locator(".row").last
    row.get_by_label("Name").fill("tail")
    row.get_by_label("Function").fill("quantile")
    row.get_by_label("Field").fill("value")
    row.get_by_label("Options").fill("q: [0.5, 0.99], k: 400")
    expect(page.locator("#functions option[value=time_weighted_mean]")).to_be_attached()
    page.get_by_label("Keep at most").fill("1000")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="from-form")).to_be_visible()
    spec = made(service, "from-form")["spec"]
    assert spec["keys"] == ["region", "endpoint"]
    assert spec["aggregates"]["tail"] == {"function": "quantile", "field": "value", "q": [0.5, 0.99], "k": 400}
    assert spec["aggregates"]["mean"] == {"function": "mean", "field": "value"}
    assert spec["slide"]["max_age"] == "1h"
    assert spec["slide"]["max_count"] == 1000


@pytest.mark.parametrize(
    ("label", "text", "said"),
    [
        ("Name", "no name", "is not a name"),
        ("Keep for", "soon", "slide.max_age"),
        ("Granularity", "1 fortnight", "granularity"),
    ],
)
def test_errors_are_at_the_fields_of_the_form(service, page, label, text, said):
    page.goto(at(service, "create"))
    page.locator("#name").fill("never")
    control = page.get_by_label(label, exact=True).first
    control.fill(text)
    page.get_by_role("button", name="Create").click()
    expect(control).to_have_attribute("aria-invalid", "true")
    expect(control).to_be_focused()
    expect(page.locator(f"#{control.get_attribute('aria-errormessage')}")).to_contain_text(said)
    assert service.http().get("/v1/windows/never").status_code == 404


@pytest.mark.parametrize(
    ("column", "text"), [("Function", "no-such"), ("Field", "no-field"), ("Options", "q: 7"), ("Name", "a b")]
)
def test_errors_are_at_the_row_of_an_aggregate(service, page, column, text):
    page.goto(at(service, "create"))
    page.locator("#name").fill("never")
    row = page.locator("fieldset", has_text="Aggregates").locator(".row").last
    row.get_by_label("Function").fill("quantile")
    row.get_by_label(column).fill(text)
    page.get_by_role("button", name="Create").click()
    expect(row.get_by_label(column)).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".at-field")).to_have_count(1)


def test_a_window_from_yaml_with_errors_at_its_lines(service, page):
    page.goto(at(service, "create=yaml"))
    text = page.locator("#yaml")
    good = text.input_value()
    text.fill(good.replace("function: mean", "function: maen"))
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".at-field")).to_contain_text("line 7: ")
    expect(page.locator(".at-field")).to_contain_text("maen")
    expect(text).to_be_focused()
    assert text.evaluate("box => box.value.slice(box.selectionStart, box.selectionEnd)").startswith("  mean:")
    text.fill(good + "  : :\n - x")
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".at-field")).to_contain_text("line")
    text.fill(good)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="requests")).to_be_visible()
    assert made(service, "requests")["spec"]["keys"] == ["region", "endpoint"]


def test_the_form_is_shown_as_yaml_and_a_spec_is_taken_over(service, page):
    page.goto(at(service, "create"))
    page.locator("#name").fill("as-yaml")
    page.get_by_role("button", name="Show as YAML").click()
    expect(page.locator("#yaml")).to_have_value(
        "name: as-yaml\ntime_unit: ms\nfields:\n  value: float64\naggregates:\n  count: {function: count}\n"
        "  mean: {function: mean, field: value}\nslide: {max_age: 1h}\n"
    )
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="as-yaml")).to_be_visible()
    page.get_by_role("link", name="Spec and admin").click()
    page.get_by_role("link", name="Create one like this").click()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="as-yaml-2")).to_be_visible()
    old, new = made(service, "as-yaml")["spec"], made(service, "as-yaml-2")["spec"]
    assert {**old, "name": ""} == {**new, "name": ""}


def test_entries_are_sent(service, page):
    fields = {"x": "float64", "n": "int64", "s": "string", "b": "bool"}
    count = {"n_": {"function": "count"}, "last": {"function": "last", "field": "s"}}
    create(service, {"name": "sent", "time_unit": "s", "keys": ["a", "b_"], "fields": fields, "aggregates": count})
    page.goto(at(service, "window=sent&tab=send"))
    form = page.locator("#one")
    form.get_by_label("Time").fill("2026-01-02T03:04:05Z")
    form.get_by_label("a", exact=True).fill("J|K")
    form.get_by_label("x (float64)").fill("1.5")
    form.get_by_label("n (int64)").fill("many")
    form.get_by_label("s (string)").fill("<b>")
    form.get_by_role("button", name="Insert").click()
    expect(form.get_by_label("n (int64)")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#sent")).to_contain_text("n must be")
    form.get_by_label("n (int64)").fill("7")
    form.get_by_role("button", name="Insert").click()
    expect(page.locator("#sent")).to_have_text("1 inserted; memory")
    (bulk,) = service.http().get("/v1/windows/sent/entries?all_keys=true").json()["bulks"]
    assert bulk["key"] == {"a": ["J|K"], "b_": [""]}
    assert (bulk["time"], bulk["fields"]) == (
        [1767323045],
        {"x": [1.5], "n": [7], "s": ["<b>"], "b": [True]},
    )
    lines = page.locator("#many")
    lines.get_by_label("Lines").fill("time,a,b_,x,n,s,b\n1767323046,p,q,2,3,t,false\n1767323047,p,q,oops,3,t,false\n")
    lines.get_by_role("button").click()
    expect(page.locator("#sent")).to_contain_text("oops")
    lines.get_by_label("Lines").fill("time,a,b_,x,n,s,b\n1767323046,p,q,2,3,t,false\n")
    lines.get_by_role("button").click()
    expect(page.locator("#sent")).to_have_text("1 inserted; memory")


def test_times_in_nanoseconds_are_exact(service, page):
    create(service, {"name": "exact", "time_unit": "ns", "aggregates": COUNT})
    first, last = 1_795_000_000_123_456_789, 1_795_000_000_123_456_790
    page.goto(at(service, "window=exact&tab=send"))
    form = page.locator("#one")
    form.get_by_label("value (float64)").fill("1")
    for each in (str(first), "2026-11-18 11:06:40.123456790Z"):
        form.get_by_label("Time").fill(each)
        form.get_by_role("button", name="Insert").click()
        expect(page.locator(".facts")).to_contain_text(f"Entries{1 if each == str(first) else 2}")
    (bulk,) = service.http().get("/v1/windows/exact/entries").json()["bulks"]
    assert bulk["time"] == [first, last]
    page.goto(at(service, "window=exact&tab=manage"))
    page.get_by_label("Up to and including").fill(str(first))
    page.locator("#evict").get_by_role("button").click()
    expect(page.locator("#managed")).to_have_text("1 entry evicted; memory")
    assert made(service, "exact")["oldest"] == last


def test_test_entries_are_sent(service, page):
    create(service, {"name": "tried", "time_unit": "ms", "keys": ["a", "b"], "aggregates": COUNT})
    create(service, {"name": "logical", "time_unit": "none", "aggregates": COUNT})
    page.goto(at(service, "window=tried&tab=send"))
    form = page.locator("#made")
    form.get_by_label("How many").fill("1e9")
    form.get_by_role("button").click()
    expect(form.get_by_label("How many")).to_have_attribute("aria-invalid", "true")
    form.get_by_label("How many").fill("250")
    form.get_by_role("button").click()
    expect(page.locator("#sent")).to_contain_text("250 inserted")
    assert made(service, "tried")["keys"] > 3
    page.goto(at(service, "window=logical&tab=send"))
    page.locator("#made").get_by_role("button").click()
    expect(page.locator("#sent")).to_contain_text("100 inserted")


def test_entries_are_evicted_and_a_window_is_deleted(service, page):
    bulk = {"time": [10, 20, 30], "key": ["k", "k", "l"], "value": [1.0] * 3}
    create(service, {"name": "going", "time_unit": "s", "keyed": True, "aggregates": COUNT}, bulk)
    page.goto(at(service, "window=going&tab=manage"))
    form = page.locator("#evict")
    form.get_by_label("Up to and including").fill("yesterday")
    form.get_by_role("button").click()
    expect(form.get_by_label("Up to and including")).to_have_attribute("aria-invalid", "true")
    form.get_by_label("Up to and including").fill("1970-01-01T00:00:15Z")
    form.get_by_role("button").click()
    expect(page.locator("#managed")).to_have_text("1 entry evicted; memory")
    form.get_by_label("Up to and including").fill("99")
    form.get_by_label("Key").fill("k")
    form.get_by_role("button").click()
    expect(page.locator("#managed")).to_have_text("1 entry evicted; memory")
    assert made(service, "going")["entries"] == 1
    page.get_by_label("Write its name to delete it").fill("goin")
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("#delete")).to_contain_text("Write going to delete it.")
    page.get_by_label("Write its name to delete it").fill("going")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Windows")).to_be_visible()
    assert service.http().get("/v1/windows/going").status_code == 404
