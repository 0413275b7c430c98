"""Names in any case, as Spark's analyser finds them: an exact name comes first.

names    At  key  KEY

"At"     At
"AT"     At             the only one that differs in case only
"Key"    key, KEY       several: the caller refuses them
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from sash_wire.mapping import quoted


def named(name: str) -> Column:
    """Return the column of that name."""
    return F.col(quoted(name))


def meant(name: str, names: Iterable[str]) -> list[str]:
    """Return the name if it is one of the names, or else those that differ from it in case only."""
    known = list(names)
    return [name] if name in known else [each for each in known if each.lower() == name.lower()]
