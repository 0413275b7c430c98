"""What Spark forks its Python workers from, where tests run: it has imported what each of them took a second to import.

Spark's own imports nothing before it forks, because some packages start threads as they are imported. These do not.
"""

import pandas  # noqa: F401
import pyarrow.compute  # noqa: F401
from pyspark import daemon
from pyspark.sql.worker import write_into_data_source  # noqa: F401

from sash_engine.windows import window  # noqa: F401
from sash_spark import source  # noqa: F401
from sash_spark.sliding import stream  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
