"""Keys of several columns for `sliding_aggregate`: one text with all of them, as JSON, inside the operator.

    airport  carrier        key                                  airport  carrier
    JFK      AA        ──▶  {"airport":"JFK","carrier":"AA"} ──▶ JFK      AA
    JFK      null           {"airport":"JFK"}                    JFK      null

Rows are grouped by the text, so a type must write equal values alike. Floats and timestamps do not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, DecimalType, IntegralType, StringType, StructType

from sash_spark.names import meant, named
from sash_spark.sliding.plan import OWN_COLUMNS, is_plain, refused


def exact(schema: StructType, name: Any) -> Any:
    """Return the exact name of a column, or of each of several; other values, and unknown names, as they are.

    Raises:
        InvalidArgument: several columns differ from the name in case only.
    """
    if isinstance(name, list | tuple):
        return [exact(schema, each) for each in name]
    found = meant(name, schema.names) if isinstance(name, str) else []
    if len(found) > 1:
        raise refused(f"column {name!r} is one of {', '.join(found)}", name)
    return found[0] if found else name


@dataclass(frozen=True)
class KeyColumns:
    """Several columns that are a key together.

    Args:
        name: a column with all of them, which the frame does not have.
        columns: their names and types.
    """

    name: str
    columns: StructType

    @classmethod
    def of(cls, schema: StructType, names: Sequence[str], taken: Collection[str]) -> KeyColumns:
        """Check them.

        Args:
            schema: the frame's.
            names: of the columns.
            taken: the names of the aggregates.

        Raises:
            InvalidArgument: there is no such column, it is of a wrong type, or its name is taken.
        """
        if not names or len(set(names)) < len(names):
            raise refused("key is a column, or several different columns", "key")
        known = {field.name: field for field in schema}
        for name in names:
            if name not in known:
                raise refused(f"no column {name!r}; there are {', '.join(known)}", name)
            if name in taken or name in OWN_COLUMNS:
                raise refused(f"{name!r} is a column of the result already", name)
            kind = known[name].dataType
            if not is_plain(kind) or not isinstance(
                kind, StringType | IntegralType | BooleanType | DecimalType | DateType
            ):
                raise refused(f"column {name!r} is a {kind.simpleString()}: cast the key to a string", name)
        longer = "_" * (1 + max(map(len, known)))  # than the name of every column
        return cls(longer + "key", StructType([known[name] for name in names]))

    def joined(self, frame: DataFrame) -> DataFrame:
        """Add the column with all of them to a frame."""
        columns = F.struct(*map(named, self.columns.names))
        return frame.withColumn(self.name, F.to_json(columns, {"ignoreNullFields": "true"}))

    def split(self, answers: DataFrame) -> DataFrame:
        """Put the columns, as they were, in the place of the one with all of them."""
        rest = [F.col(name) for name in answers.columns[1:]]
        return answers.select(F.from_json(self.name, self.columns).alias(self.name), *rest).select(
            f"{self.name}.*", *rest
        )
