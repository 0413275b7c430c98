"""A real browser that a test talks to: Chromium, over a pair of pipes (the DevTools protocol)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

__all__ = ["CHROMIUM", "Page", "open_page"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class _Moved(Exception):
    """The page that was asked is gone."""


class Page:
    """A page that is open."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = os.fdopen(read, "rb"), os.fdopen(write, "wb")
        self._number = 0
        self._session: dict[str, str] = {}

    def attach(self) -> None:
        """Choose the browser's first page."""
        found: list[Any] = []

        def pages() -> bool:
            targets = self._call("Target.getTargets")["targetInfos"]
            found[:] = [target for target in targets if target["type"] == "page"]
            return bool(found)

        wait_until(pages)
        target = {"targetId": found[0]["targetId"], "flatten": True}
        self._session = {"sessionId": self._call("Target.attachToTarget", **target)["sessionId"]}
        self._call("Page.enable")

    def go(self, url: str) -> None:
        """Open an address."""
        self._call("Page.navigate", url=url)

    def reload(self) -> None:
        """Load the page again; return when its new document is there."""
        self("window.isOld = true; location.reload()")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def __call__(self, script: str) -> Any:
        """Evaluate JavaScript; return its value."""
        try:
            answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        except _Moved:
            return None  # the page made way for another one
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a condition in JavaScript holds. While a page loads, its parts are not there yet."""
        wait_until(lambda: self(f"(() => {{ try {{ return {condition}; }} catch {{ return false; }} }})()"))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        call = {"id": self._number, "method": method, "params": parameters, **self._session}
        self._write.write(json.dumps(call).encode() + b"\0")
        self._write.flush()
        while True:
            text = bytearray()
            while (byte := self._read.read(1)) != b"\0":
                assert byte, "the browser ended"
                text += byte
            answer = json.loads(bytes(text))
            if answer.get("id") == self._number:
                if "context" in answer.get("error", {}).get("message", ""):
                    raise _Moved
                assert "error" not in answer, answer
                return answer["result"]


@contextmanager
def open_page(profile: Path, *more_flags: str) -> Iterator[Page]:
    """Start a browser with an empty page.

    Args:
        profile: an empty directory, which becomes the browser's own.
        more_flags: flags of the command line, after those that every test needs.
    """
    assert CHROMIUM is not None
    to_read, from_browser = os.pipe()
    from_test, to_write = os.pipe()

    def as_chromium_has_them() -> None:
        os.dup2(from_test, 103)
        os.dup2(from_browser, 104)
        os.dup2(103, 3)
        os.dup2(104, 4)

    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += ["--disable-background-networking", "--no-proxy-server"]
    process = subprocess.Popen(
        [CHROMIUM, *flags, *more_flags, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
        close_fds=False,
        preexec_fn=as_chromium_has_them,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(from_browser)
    os.close(from_test)
    try:
        page = Page(to_read, to_write)
        page.attach()
        yield page
    finally:
        process.kill()
        process.wait()
        page._read.close()
        page._write.close()
