"""The page asks for a token, in a real browser: it keeps it in the tab, and shows what the token may see."""

import pytest

from sash_client import TLS, Client
from tests.support.browser import CHROMIUM, open_page
from tests.support.certificates import Authority
from tests.support.servers import running_service
from tests.support.tokens import write_tokens

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
    pytest.mark.timeout(120),
]

LISTED = "[...document.querySelectorAll('#windows tbody th.name')].map((cell) => cell.textContent).join()"
ASKS = "!document.getElementById('login-section').hidden"


def log_in(page, token):
    page(f"document.getElementById('token').value = {token!r}; document.querySelector('#login button').click()")


def status(page):
    return page("document.getElementById('status').textContent")


def test_the_page_with_tls_and_a_token(tmp_path):
    authority, ca = Authority("page"), tmp_path / "ca.pem"
    cert, key = authority.give(tmp_path)
    ca.write_bytes(authority.pem)
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}})
    # Chromium does not know the authority.
    with (
        running_service(tokens=tokens, tls_cert=cert, tls_key=key) as service,
        open_page(tmp_path / "profile", "--ignore-certificate-errors") as page,
    ):
        page.go(f"https://127.0.0.1:{service.rest_port}/")
        page.wait(ASKS)
        log_in(page, "root-token")
        page.wait(f"!({ASKS})")
        with Client(service.grpc_target, token="root-token", tls=TLS(ca=ca)) as client:
            client.create_window({"name": "made", "aggregates": {"n": {"function": "count"}}})
        page.reload()
        page.wait(f"!({ASKS}) && ({LISTED}) === 'made'")
        assert page("location.protocol") == "https:"


def test_the_page_asks_for_a_token(service, tmp_path):
    with open_page(tmp_path) as page:
        page.go(service.rest_url + "/")
        page.wait(ASKS)
        assert page(LISTED) == ""
        log_in(page, "wrong-token")
        page.wait("document.getElementById('status').textContent === 'the token is unknown'")
        log_in(page, "two words")
        page.wait("document.getElementById('status').textContent.includes('no spaces')")
        log_in(page, " reader-token ")
        page.wait(f"!({ASKS}) && ({LISTED}) === 'seen'")
        assert page("document.getElementById('token').value") == ""
        assert page("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        assert "token" not in page("location.href")
        # It is there after a reload, and not in another tab's storage.
        page.reload()
        page.wait(f"({LISTED}) === 'seen'")
        page("document.getElementById('leave').click()")
        page.wait(ASKS)
        assert page("sessionStorage.length") == 0
        assert page(LISTED) == ""
        log_in(page, "auditor-token")
        page.wait(f"({LISTED}) === 'hidden,seen'")
