"""Messages of gRPC as plain values, as REST says them."""

import base64

import numpy as np

from sash_engine.monoids import catalogue

COUNTS = ("inserted", "late", "evicted", "duplicates", "ahead")
CHANGES = ("retracted", "corrected")
TEXTS = ("idle_expiry", "identity", "granularity", "durability")
SPECIALS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
FIELDS = {"f": "float64", "i": "int64", "s": "string", "b": "bool"}

AGGREGATES = {
    "n": {"function": "count"},
    "mean": {"function": "mean", "field": "f"},
    "total": {"function": "sum", "field": "i"},
    "all": {"function": "collect", "field": "f"},
    "words": {"function": "collect", "field": "s"},
    "last": {"function": "last", "field": "b"},
    "worst": {"function": "arg_max", "field": "i", "returns": "s"},
}
ADDED = {"low": {"function": "min", "field": "i"}, "mean": {"function": "mean", "field": "f"}}


def plain(value):
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list":
        return [plain(item) for item in value.list.items]
    if kind == "integer":
        return int.from_bytes(value.integer, "little", signed=True)
    return shown(getattr(value, kind))


def shown(found):
    for name, special in SPECIALS.items():
        if isinstance(found, float) and repr(found) == repr(special):
            return name
    return found


def optional(message, field):
    return getattr(message, field) if message.HasField(field) else None


def bulk_shown(bulk):
    columns = {name: column_shown(column, column.WhichOneof("data")) for name, column in bulk.fields.items()}
    keys = {"key": texts(bulk.key)} if bulk.HasField("key") else {}
    return {"time": np.frombuffer(bulk.time, "<i8").tolist(), **keys, "fields": columns}


def column_shown(column, kind):
    if kind == "string":
        return texts(column.string)
    types = {"float64": "<f8", "int64": "<i8", "bool": np.bool_}
    return [shown(value) for value in np.frombuffer(getattr(column, kind), types[kind]).tolist()]


def texts(column):
    return [column.dictionary[code] for code in np.frombuffer(column.codes, "<u4").tolist()]


def partials_shown(message, name):
    function = (AGGREGATES | ADDED)[name]["function"]
    columns = message.partials[name].columns
    if [column.WhichOneof("data") for column in columns] == ["blob"]:
        return {"blob": [base64.b64encode(item).decode() for item in columns[0].blob.items]}
    return {
        part: column_shown(column, column.WhichOneof("data"))
        for part, column in zip(catalogue()[function].parts, columns, strict=True)
    }


def answer(message):
    given = {"partials": {name: partials_shown(message, name) for name in message.partials}} if message.partials else {}
    given |= parts(message)
    return {
        "key": optional(message, "key"),
        "lookback": message.lookback or None,
        "start": optional(message, "start"),
        "end": optional(message, "end"),
        "entries": message.entries,
        "aggregates": {name: plain(value) for name, value in message.aggregates.items()},
        **given,
    }


def answers(message):
    return [answer(each) for each in message.answers]


def parts(message):
    return {"parts": dict(message.parts)} if message.parts else {}


def page(message, document):
    return document | ({"next": message.next} if message.HasField("next") else {})


def range_answer(message):
    return page(message, {"groups": [answer(each) for each in message.groups]}) if message.groups else answer(message)


def admitted(message):
    after = [None if each < 0 else each for each in message.retry_after] or [None] * len(message.admitted)
    limits = [
        {"answers": [*map(plain, each.answers)], "remaining": [*map(plain, each.remaining)], "holds": list(each.holds)}
        for each in message.limits
    ]
    decided = {} if message.already_applied else {"retry_after": after, "limits": limits}
    counts = {name: getattr(message, name) for name in ("refused", "inserted", "late", "evicted", "ahead")}
    return {"admitted": list(message.admitted)} | decided | counts | given_to(message)


def series(message):
    if message.groups:
        groups = [one_series(each) | parts(each) for each in message.groups]
        whole = {"time": np.frombuffer(message.time, "<i8").tolist(), "width": message.width, "groups": groups}
        return page(message, whole)
    return one_series(message)


def answers_at(message):
    return [
        {"lookback": each.lookback or None, "entries": np.frombuffer(each.entries, "<i8").tolist(), **columns_of(each)}
        for each in message.answers
    ]


def columns_of(message):
    columns = {}
    for name, column in message.aggregates.items():
        if column.HasField("values"):
            columns[name] = [plain(item) for item in column.values.items]
            continue
        numbers = np.frombuffer(column.float64 or column.int64, "<f8" if column.float64 else "<i8").tolist()
        there = column.valid or bytes([1]) * len(numbers)
        columns[name] = [shown(each) if valid else None for each, valid in zip(numbers, there, strict=True)]
    return {"aggregates": columns}


def one_series(message):
    return {
        "key": optional(message, "key"),
        "width": message.width,
        "time": np.frombuffer(message.time, "<i8").tolist(),
        **({"last": np.frombuffer(message.last, "<i8").tolist()} if message.last else {}),
        "entries": np.frombuffer(message.entries, "<i8").tolist(),
        **columns_of(message),
    }


def written(message):
    answered = {"answers": answers(message)} if message.answers else {}
    return {name: getattr(message, name) for name in COUNTS} | given_to(message) | answered


def changed(message):
    names = ("retracted", "corrected", "missing", "evicted")
    return {name: getattr(message, name) for name in names} | given_to(message)


def given_to(message):
    return {"durability": message.durability} | ({"already_applied": True} if message.already_applied else {})


def window(message):
    spec = message.spec
    return {
        "spec": {
            "name": spec.name,
            "time_unit": spec.time_unit,
            "keyed": spec.keyed,
            **({"keys": list(spec.keys)} if spec.keys else {}),
            "fields": dict(spec.fields),
            "aggregates": {
                name: {
                    option: getattr(each, option)
                    for option in ("function", "field", "returns")
                    if getattr(each, option)
                }
                | {option: plain(value) for option, value in each.parameters.items()}
                for name, each in spec.aggregates.items()
            },
            "slide": (
                ({"max_count": spec.slide.max_count} if spec.slide.HasField("max_count") else {})
                | ({"max_age": spec.slide.max_age} if spec.slide.max_age else {})
                | {"clock": spec.slide.clock}
                | ({"when": spec.slide.when} if spec.slide.when else {})
            ),
            "order": {
                name: getattr(spec.order, name)
                for name in ("out_of_order", "late", "equal_times", "ahead", "too_far_ahead")
                if getattr(spec.order, name)
            },
            **{name: value for name in TEXTS if (value := getattr(spec, name))},
            **({"rollups": [list(each.parts) for each in spec.rollups]} if spec.rollups else {}),
            **(
                {"from": {"window": getattr(spec, "from").window, "granularity": getattr(spec, "from").granularity}}
                if spec.HasField("from")
                else {}
            ),
        },
        "entries": message.entries,
        "keys": message.keys,
        "oldest": optional(message, "oldest"),
        "newest": optional(message, "newest"),
        "high_water_mark": optional(message, "high_water_mark"),
        **({"evicted_through": message.evicted_through} if message.HasField("evicted_through") else {}),
        "counts": {name: getattr(message.counts, name) for name in (*COUNTS, *(CHANGES if spec.identity else ()))},
        "durability": message.durability,
        "problem": message.problem if message.HasField("problem") else None,
    }
