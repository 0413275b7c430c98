"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

__all__ = ["CHROMIUM", "a_browser", "a_page", "at", "create", "expect"]

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first has no window to draw: a page takes a third of the processor time that it takes in the others."""

CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
WAIT_MS = 120_000
expect.set_options(timeout=WAIT_MS)


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Start a browser; pages of it share nothing."""
    assert CHROMIUM is not None
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def a_page(browser: Browser, allowed: tuple[str, ...] = (), **options: Any) -> Iterator[Page]:
    """Open an empty page, and check at its end that no script failed and that nothing was against the policy.

    Args:
        allowed: parts of messages that may be logged, such as the statuses of refused calls.
        options: of the context, such as `color_scheme`.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **options})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    try:
        yield page
        found = [text for text in wrong if not any(each in text for each in allowed)]
        assert not found, found
    finally:
        context.close()


def create(service: Any, spec: dict[str, Any], bulk: dict[str, Any] | None = None) -> None:
    """Create a window over REST, and insert entries."""
    http = service.http()
    created = http.post("/v1/windows", json=spec)
    assert created.status_code == 201, created.text
    if bulk is not None:
        inserted = http.post(f"/v1/windows/{spec['name']}/bulk-insert", json=bulk)
        assert inserted.status_code == 200, inserted.text


def at(service: Any, address: str = "") -> str:
    """The address of a view."""
    return f"{service.rest_url}/#{address}"
