"""The page asks for a token, in a real browser: it keeps it in the tab, and shows what the token may see."""

import pytest

from sash_client import TLS, Client
from tests.support.certificates import Authority
from tests.support.playing import CHROMIUM, a_browser, a_page, expect
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def browser():
    with a_browser() as opened:
        yield opened


def log_in(page, token):
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_role("button", name="Show windows").click()


def listed(page, *names):
    expect(page.locator("#windows h3")).to_have_text(names)


@needs_chromium
def test_the_page_with_tls_and_a_token(tmp_path, browser):
    authority, ca = Authority("page"), tmp_path / "ca.pem"
    cert, key = authority.give(tmp_path)
    ca.write_bytes(authority.pem)
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}})
    # Chromium does not know the authority.
    with (
        running_service(tokens=tokens, tls_cert=cert, tls_key=key) as service,
        a_page(browser, allowed=("401",), ignore_https_errors=True) as page,
    ):
        page.goto(f"https://127.0.0.1:{service.rest_port}/")
        log_in(page, "root-token")
        expect(page.locator("#login-section")).to_be_hidden()
        with Client(service.grpc_target, token="root-token", tls=TLS(ca=ca)) as client:
            client.create_window({"name": "made", "aggregates": {"n": {"function": "count"}}})
        page.reload()
        listed(page, "made")
        assert page.evaluate("location.protocol") == "https:"


@needs_chromium
def test_the_page_asks_for_a_token(service, browser):
    with a_page(browser, allowed=("401", "403")) as page:
        page.goto(service.rest_url + "/")
        expect(page.locator("#login-section")).to_be_visible()
        assert page.locator("#windows").count() == 0
        log_in(page, "wrong-token")
        expect(page.locator("#status")).to_have_text("the token is unknown")
        log_in(page, "two words")
        expect(page.locator("#status")).to_contain_text("no spaces")
        log_in(page, " reader-token ")
        listed(page, "seen")
        expect(page.locator("#login-section")).to_be_hidden()
        assert page.locator("#token").input_value() == ""
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        assert "token" not in page.url
        # It is there after a reload, and not in another tab's storage.
        page.reload()
        listed(page, "seen")
        page.get_by_role("button", name="Forget the token").click()
        expect(page.locator("#login-section")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0
        assert page.locator("#windows").count() == 0
        log_in(page, "auditor-token")
        listed(page, "hidden", "seen")


def test_the_page_is_told_what_a_token_may_do(service):
    http = service.http()
    for name, role in (("reader", "read"), ("writer", "write"), ("root", "admin")):
        found = http.get("/ui/caller", headers=bearer(name)).json()
        assert "last" in found.pop("ordered")
        assert "sum" in found.pop("functions")
        assert found == {"name": name, "role": role, "grpc_port": service.grpc_port}
    assert http.get("/ui/caller").status_code == 401
    assert http.get("/ui/caller", headers=bearer("late")).status_code == 401
    with running_service() as open_to_all:
        found = open_to_all.http().get("/ui/caller").json()
        assert "sum" not in found.pop("ordered")
        assert "last" in found.pop("functions")
        assert found == {"name": None, "role": "admin", "grpc_port": open_to_all.grpc_port}
