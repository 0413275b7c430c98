"""The page asks for a token, in a real browser: it keeps it in the tab, and shows what the token may see."""

import pytest

from tests.support.browser import CHROMIUM, open_page

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
    pytest.mark.timeout(120),
]

LISTED = "[...document.querySelectorAll('#windows tbody td.name')].map((cell) => cell.textContent).join()"
ASKS = "!document.getElementById('login-section').hidden"


def log_in(page, token):
    page(f"document.getElementById('token').value = {token!r}; document.querySelector('#login button').click()")


def status(page):
    return page("document.getElementById('status').textContent")


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
        page("location.reload()")
        page.wait(f"document.readyState === 'complete' && ({LISTED}) === 'seen'")
        page("document.getElementById('leave').click()")
        page.wait(ASKS)
        assert page("sessionStorage.length") == 0
        assert page(LISTED) == ""
        log_in(page, "auditor-token")
        page.wait(f"({LISTED}) === 'hidden,seen'")
