"""The site is built without a warning: every link leads somewhere. It loads nothing from other servers."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from tests.support.pages import DOCS, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return built


class Page(HTMLParser):
    """What a page loads, its drawings and its images."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.drawings, self.images = [], 0, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon", "preconnect"):
            self.loaded.append(given["href"])
        if tag == "img":
            self.images.append(given)
        if tag == "svg" and "drawing" in given.get("class", ""):
            self.drawings += 1
            assert given["aria-label"], "a drawing says in words what it shows"


def test_every_page_is_there(site):
    for page in DOCS.glob("**/*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).exists(), page


def test_pages_have_lists_and_drawings_and_load_nothing_from_elsewhere(site):
    drawings = 0
    for file in site.glob("**/*.html"):
        text = file.read_text()
        assert not re.search(r"<p>\{\{ \w+ \}\}</p>", text), file
        page = Page(text)
        drawings += page.drawings
        assert all(image["alt"] for image in page.images), file
        assert page.loaded
        assert not [each for each in page.loaded if re.match(r"(https?:)?//", each)], file
    assert drawings >= 7


@pytest.mark.parametrize("word", ["ttl", "timezone", "rename", "sliding window", "retention", "upsert"])
def test_search_finds_words_of_other_systems(site, word):
    documents = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert [each["location"] for each in documents if word in each["text"].lower()]


def test_images_are_small():
    for image in (DOCS / "images").iterdir():
        assert image.stat().st_size < 150_000, image
