"""One browser for a file of tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.playing import CHROMIUM, a_browser, a_page


def pytest_collection_modifyitems(items):
    for item in items:
        if "/ui/" in str(item.fspath):
            item.add_marker(pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"))
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as opened:
        yield opened


@pytest.fixture
def page(browser):
    with a_page(browser) as opened:
        yield opened
