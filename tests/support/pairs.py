"""Entries with fields of all types, every aggregate over them, and answers that are equal only bit by bit."""

import struct

from sash_engine.monoids import BUILT_IN
from tests.support.aggregates import PARAMETERS

FIELDS = {"v": "float64", "i": "int64", "s": "string", "b": "bool"}


def every_aggregate():
    """Each built-in aggregate, for each type of its first field."""
    found = {}
    for kind in BUILT_IN:
        function, reads = kind.function, [read for read in kind.reads if read.option != "time"]
        for type_ in reads[0].accepts if reads else ("float64",):
            document = {"function": function, **PARAMETERS.get(function, [dict(kind.example)])[0]}
            for read in reads:
                accepted = type_ if type_ in read.accepts else read.accepts[0]
                name = next(name for name, known in FIELDS.items() if known == accepted)
                document[read.option] = [name] if read.many else name
            found[f"{function}_{type_}"] = document
    return found


def columns_of(values, nullable=()):
    """The fields of entries, made of a whole number each; of those that may be null each third is."""
    columns = {
        "v": [v / 7 for v in values],
        "i": list(values),
        "s": [f"{v:x}" for v in values],
        "b": [v % 2 == 0 for v in values],
    }
    for name in nullable:
        columns[name] = [None if v % 3 == 0 else each for v, each in zip(values, columns[name], strict=True)]
    return columns


def bits(answer):
    """An answer as something that is equal only to the same bits; all NaN are one."""
    if isinstance(answer, float):
        return "nan" if answer != answer else struct.pack("<d", answer)
    if isinstance(answer, list | tuple):
        return [bits(each) for each in answer]
    if isinstance(answer, dict):
        return {name: bits(each) for name, each in answer.items()}
    return type(answer).__name__, answer
