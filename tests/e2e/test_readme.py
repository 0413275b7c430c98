"""The README's code runs, in the order in which a reader meets it, and prints what it says.

The blocks that need Spark run with the other tests of Spark.
"""

import pytest

from sash_client.local import local_service
from tests.support.readme import Reader, blocks_of, needs_spark, readme_blocks


@pytest.fixture(scope="module")
def service():
    with local_service() as service:
        yield service


@pytest.fixture
def reader(service, tmp_path):
    return Reader(service, tmp_path)


def test_every_block_runs(reader):
    for block in readme_blocks():
        if not needs_spark(block):
            reader.run(block)
    assert reader.ran == {"sh", "python", "yaml"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\nassert 1 == 2\n```", None),
        ("```python\nprint(1)\n```\nprints `2`.", "line 1"),
        ("```python\nprint(1)\n```", "line 1"),
        ("\n```sh\nfalse\ntrue\n```", "line 2"),
        ("```sh\ncurl -s http://127.0.0.1:7071/v1/windows/nope\n```", "NotFound|not found|no window|404"),
        ("```cobol\nSTOP RUN.\n```", "nobody knows"),
    ],
)
def test_a_block_that_is_wrong_is_found(reader, text, says):
    (block,) = blocks_of(text)
    with pytest.raises(AssertionError, match=says):
        reader.run(block)
