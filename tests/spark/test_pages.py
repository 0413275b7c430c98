"""The pages with Spark in them run on a local one, and print what they say."""

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.conftest import service_here, set_in
from tests.support.pages import Reader, blocks_of, needs_spark, pages
from tests.support.spark_streams import began_too_late

pytestmark = pytest.mark.spark

PAGES = [page for page in pages() if any(map(needs_spark, blocks_of(page.read_text())))]


@pytest.fixture
def service(tmp_path):
    with service_here(data=str(tmp_path / "data")) as service:
        yield service


@pytest.fixture
def as_it_was(spark):
    """What a page sets stays with the page."""
    store = "spark.sql.streaming.stateStore"
    names = [f"{store}.providerClass", f"{store}.rocksdb.changelogCheckpointing.enabled", "spark.sql.session.timeZone"]
    with set_in(spark, dict.fromkeys(names) | {"spark.sql.shuffle.partitions": "1"}):
        yield


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs(page, spark, as_it_was, service, tmp_path):
    assert "python" in ran(page, service, tmp_path)
    assert not spark.streams.active


def ran(page, service, directory, attempts=5):
    """Run a page, and again from its beginning where Spark did not wait for a Python worker; return what ran."""
    for attempt in range(attempts):
        (scratch := directory / f"run-{attempt}").mkdir()
        reader = Reader(page, service, scratch)
        try:
            for block in blocks_of(page.read_text()):
                reader.run(block)
        except StreamingQueryException as error:
            if not began_too_late(error):
                raise
        else:
            return reader.ran
    raise AssertionError("Spark never waited for its worker")
