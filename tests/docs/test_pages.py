"""The code of README and docs runs, and prints what the page says: all pages on one service, whatever their order.

Pages with Spark in them run with the other tests of Spark.
"""

import json
import random
from contextlib import nullcontext

import pytest

from sash_client import Client
from sash_client.local import local_service
from tests.support.mqtt import mqtt_broker
from tests.support.notebooks import outputs_of, run
from tests.support.pages import ROOT, Reader, blocks_of, needs_spark, pages
from tests.support.profile import THOROUGH

PAGES = [page for page in pages() if not any(map(needs_spark, blocks_of(page.read_text())))]
if THOROUGH:
    random.Random(1).shuffle(PAGES)  # else in the order of reading
MQTT = "127.0.0.1:1883"
"""Where pages look for a broker."""


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """With the limits of the page about Envoy."""
    limits = tmp_path_factory.mktemp("limits") / "limits.yaml"
    page = ROOT / "docs" / "howto" / "envoy.md"
    limits.write_text(next(block.code for block in blocks_of(page.read_text()) if block.code.startswith("domain: ")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SASH_RATE_LIMITS", str(limits))
        with local_service(data=str(tmp_path_factory.mktemp("data")), wait_s=600) as service:
            yield service


@pytest.fixture(scope="module")
def client(service):
    with Client(service.target) as client:
        yield client


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_runs(page, service, client, tmp_path):
    """And leaves the windows of other pages as they are: so pages may be read in any order."""
    text, reader = page.read_text(), Reader(page, service, tmp_path)
    before = client.list_windows()
    with mqtt_broker() if MQTT in text else nullcontext() as broker:
        for block in blocks_of(text):
            block.code = block.code.replace(MQTT, broker or MQTT)
            reader.run(block)
    after = {window.name: window for window in client.list_windows()}
    assert not [window.name for window in before if after.get(window.name) != window], "windows of another page"


def test_the_notebook_shows_what_its_cells_answer(service):
    notebook = json.loads((ROOT / "docs" / "howto" / "notebook.ipynb").read_text())
    shown = run(notebook, lambda code: code.replace("127.0.0.1:7070", service.target))
    assert shown == outputs_of(notebook)
    assert sum(any("text/html" in each.get("data", ()) for each in outputs) for outputs in shown) >= 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\nassert 1 == 2\n```", None),
        ("```python\nprint(1)\n```\n\n```text\n2\n```", "page.md:1: it prints"),
        ("```python\nprint(1)\n```\nIt prints\n\n```text\n1\n```", "does not show what"),
        ("```python\nprint(1)\n```", "does not show what"),
        ("\n```sh\nfalse\ntrue\n```", "page.md:2"),
        ("```sh\necho one; echo two\n```\n```text\none\n```", "it prints"),
        ("```sh\necho one; echo two\n```\n```text\n…\none\n```", "it prints"),
        ('```sh\necho \'{"a": 1, "b": 2}\'\n```\n```json\n{"a": 1}\n```', "it prints"),
        ('```sh\necho \'{"a": [1, 2]}\'\n```\n```json\n{"a": [1, "…", 2]}\n```', "it prints"),
        ("```sh\ncurl -s http://127.0.0.1:7071/v1/windows/nope\n```", "NotFound|not found|no window|404"),
        ("```sh\nsash query nope\n```", "page.md:1: sash: .*nope"),
        ("```cobol\nSTOP RUN.\n```", "nobody runs cobol"),
        ("```toml\n[project\n```", None),
    ],
)
def test_a_block_that_is_wrong_is_found(service, tmp_path, text, says):
    page = tmp_path / "page.md"
    (block,) = blocks_of(text)[:1]
    with pytest.raises((AssertionError, ValueError), match=says):
        Reader(page, service, tmp_path).run(block)


@pytest.mark.parametrize(
    "text",
    [
        "```sh\necho one; echo two\n```\n\n```text\no…\n```",
        "```sh\necho head; echo 'mine  1'; echo 'yours 2'\n```\n\n```text\nhead\n…\nmine 1\n…\n```",
        '```sh\necho \'{"a": 1, "b": {"c": 2}}\'\n```\n\n```json\n{"b": "…", "…": 0}\n```',
        "```sh\ndocker run \\\n    --rm nothing\necho 1\n```\n\n```text\n1\n```",
        "```python\nprint(1)\n```\n\n```text\n1\n```",
    ],
)
def test_a_block_that_is_right_is_taken(service, tmp_path, text):
    (block,) = blocks_of(text)
    Reader(tmp_path / "page.md", service, tmp_path).run(block)
