"""A window all of whose fields may be null, with rows and the answers of key "a"."""

FIELDS = {"x": "float64", "n": "int64", "s": "string", "b": "bool"}
AGGREGATES = {
    "entries": {"function": "count"},
    "sum": {"function": "sum", "field": "x"},
    "max": {"function": "max", "field": "n"},
    "values": {"function": "count", "field": "x"},
    "texts": {"function": "collect", "field": "s"},
    "flags": {"function": "collect", "field": "b"},
}
SPEC = {"name": "w", "time_unit": "ms", "keyed": True, "fields": FIELDS, "aggregates": AGGREGATES}
ROWS = {
    "time": [1, 2, 3],
    "key": ["a", "a", "b"],
    "x": [1.5, None, None],
    "n": [None, 7, None],
    "s": ["p", None, ""],
    "b": [None, True, False],
}
A = {"entries": 2, "sum": 1.5, "max": 7, "values": 1, "texts": ["p"], "flags": [True]}
