"""Expressions that mean the same in Sash and in Prometheus, over the windows of `test_same_as_prometheus`.

raw:v, raw:c    a gauge and a counter of keys a … e; the window has no aggregate of them
agg:v, agg:c    the same entries; the window has aggregates that answer functions of ranges
one:v           a window without keys
hard:v          keys with what floats and clocks make hard: counters at 1e18, NaN, infinities, sums that cancel, samples
                that are a millisecond apart, gaps
"""

from __future__ import annotations

_OVER_TIME = ("avg", "sum", "min", "max", "count", "stddev", "stdvar", "last", "present")
_RATES = ("rate", "increase", "irate", "delta", "idelta", "changes", "resets")
_MATH = (
    *("abs", "ceil", "floor", "exp", "ln", "log2", "log10", "sqrt", "sgn", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "deg", "rad", "round", "-"),
)
_DATES = ("minute", "hour", "day_of_week", "day_of_month", "day_of_year", "days_in_month", "month", "year")
_FOLDS = ("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar")

EXPRESSIONS = (
    # selectors
    "raw:v",
    'raw:v{key="a"}',
    'raw:v{key!="a"}',
    'raw:v{key=~"a|b"}',
    'raw:v{key!~"a|b"}',
    'raw:v{key=~".+"}',
    'raw:v{key=""}',
    'raw:v{nothing=""}',
    '{__name__="raw:v"}',
    '{__name__=~"(raw|one):v"}',
    "one:v",
    "nothing:v",
    "raw:v offset 10m",
    "raw:v offset -10m",
    "raw:v @ 1700003600",
    "raw:v @ start()",
    "raw:v @ end() offset 5m",
    "rate(raw:c[5m] @ 1700003600)",
    # functions of ranges: from entries, and from aggregates
    *(f"{name}_over_time({window}:v[10m])" for name in _OVER_TIME for window in ("raw", "agg")),
    *(f"{name}_over_time({window}:c[7m] offset 3m)" for name in _OVER_TIME for window in ("raw", "agg")),
    *(f"{name}(raw:c[{width}])" for name in _RATES for width in ("1m", "10m")),
    *(f"{name}(agg:v[6m])" for name in _RATES),
    *(f"quantile_over_time({q}, raw:v[10m])" for q in ("0", "0.5", "0.99", "1", "-1", "2", "scalar(one:v) / 1000")),
    "sum_over_time(one:v[1h])",
    # the same of what is hard; only sums of it are exact in both
    *(
        f'{name}(hard:v{{key=~"resets|same"}}[{width}])'
        for name in ("rate", "increase")
        for width in ("1m", "7m", "1h")
    ),
    *(f"{name}(hard:v[{width}])" for name in (*_RATES[2:], "deriv") for width in ("1m", "7m", "1h")),
    *(f"{name}_over_time(hard:v[{width}])" for name in ("sum", "min", "max") for width in ("1m", "7m", "1h")),
    'avg_over_time(hard:v{key!="cancels"}[7m])',
    *(f'{name}_over_time(hard:v{{key!="large"}}[7m])' for name in ("stddev", "stdvar")),
    # trends
    *(f"deriv(raw:{field}[{width}])" for field in "vc" for width in ("1m", "10m")),
    "deriv(one:v[10m] offset 5m)",
    "deriv(raw:v[10m] @ end())",
    *(f"predict_linear(raw:v[10m], {ahead})" for ahead in ("0", "600", "-60", "scalar(one:v)", "time() / 1e9")),
    *(f"predict_linear(hard:v[{width}] offset 7m, 3600)" for width in ("1m", "1h")),
    *(f"double_exponential_smoothing(raw:v[10m], {factors})" for factors in ("0.5, 0.5", "0.01, 0.99", "0.9, 0.1")),
    "double_exponential_smoothing(hard:v[1h], 0.3, scalar(one:v) * 0 + 0.6)",
    'rate(raw:c{key="none"}[5m])',
    # functions of values
    *(f"{name}(raw:v)" for name in _MATH),
    *(f"{name}(raw:c * 1000)" for name in _DATES),
    *(f"{name}()" for name in _DATES),
    "round(raw:v, 5)",
    "round(raw:v, 0.3)",
    "clamp(raw:v, -20, 20)",
    "clamp(raw:v, 20, -20)",
    "clamp_min(raw:v, 0)",
    "clamp_max(raw:v, 0)",
    "timestamp(raw:v)",
    "timestamp(raw:v * 1)",
    "absent(raw:v)",
    'absent(raw:v{key="none"})',
    'absent(raw:v{key="none", key=~"x"})',
    'absent(raw:v{key="d"})',
    'absent_over_time(raw:v{key="d"}[10m])',
    'absent(sum(raw:v{key="none"}))',
    "scalar(one:v)",
    "scalar(raw:v)",
    "vector(1)",
    "vector(time())",
    "time()",
    "pi()",
    "1",
    "-2 ^ 2",
    "2 ^ 3 ^ 2",
    "7 % 3 - -7 % 3",
    "1 / 0",
    "0 / 0",
    "1 > bool 2",
    "5 atan2 3",
    'label_replace(raw:v, "other", "$1-$1", "key", "(.*)")',
    'label_replace(raw:v, "other", "${first}x", "key", "(?P<first>[ab])")',
    'label_replace(raw:v, "key", "", "key", "none")',
    'label_replace(raw:v, "__name__", "renamed", "key", ".*")',
    'label_join(raw:v, "other", "-", "key", "key", "nothing")',
    'label_join(one:v, "key", "", "nothing")',
    "sort(raw:v)",
    "sort_desc(raw:v)",
    # aggregations
    *(f"{name}(raw:c)" for name in _FOLDS),
    *(f"{name} by (key) (raw:c)" for name in ("sum", "count")),
    *(f"{name} without (key) (raw:c)" for name in ("sum", "max")),
    *(f"{name} without () (raw:c)" for name in ("sum", "avg")),
    *(f"{name} by (nothing) (raw:c)" for name in ("min", "stdvar")),
    *(f"quantile({q}, raw:c)" for q in ("0.5", "0.9", "1", "-1", "2")),
    *(f"{name}({k}, raw:c)" for name in ("topk", "bottomk") for k in ("1", "2", "100", "0", "-1")),
    "topk(1, raw:v) by (key)",
    "topk(time() / 300 % 4, raw:c)",
    "sum(rate(raw:c[5m])) by (key)",
    'avg by (other) (label_replace(raw:c, "other", "x", "key", "a|b"))',
    # operators
    *(f"raw:v {operator} 3" for operator in ("+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=")),
    "(raw:v atan2 3) + 0",  # this version of Prometheus keeps the name of the metric
    "(raw:v atan2 raw:c) + 0",
    *(f"3 {operator} raw:v" for operator in ("+", "-", "*", "/", "%", "^", ">", "<=")),
    *(f"raw:v {operator} bool 3" for operator in ("==", "!=", ">", "<", ">=", "<=")),
    *(f"raw:v {operator} raw:c" for operator in ("+", "-", "*", "/", "%", ">", "<", "==")),
    *(f"raw:v {operator} bool raw:c" for operator in (">", "!=")),
    *(f'raw:v {operator} raw:c{{key=~"a|b"}}' for operator in ("and", "or", "unless")),
    "raw:v and on () one:v",
    "raw:v unless on (key) raw:c > 100",
    "raw:v or on () one:v",
    "one:v or raw:v",
    "raw:v > 0 or raw:c",
    "raw:v / on (key) raw:c",
    "raw:v / ignoring (nothing) raw:c",
    "raw:v > on (key) raw:c",
    "raw:v - on () group_left one:v",
    "one:v - on () group_right raw:v",
    'raw:v * on (key) group_left (other) label_replace(raw:c, "other", "y", "key", ".*")',
    "raw:v > on () group_left one:v",
    # what is empty matches nothing, whatever the other side is
    'raw:v{key="none"} / on (nothing) group_left raw:v',
    'raw:v / on (nothing) group_right raw:v{key="none"}',
    'raw:v / on (nothing) group_left raw:v{key="none"}',
    'raw:v{key="none"} / on (nothing) raw:v',
    "(raw:v > 1e9) * on (nothing) group_left raw:v",
    "raw:v * on (nothing) group_left () (raw:v > 1e9)",
    'raw:v * on () group_left (other) label_replace(topk(1, raw:v), "other", "$1", "key", "(.*)")',
    'raw:v > on () group_left (other) label_replace(topk(1, raw:c), "other", "$1", "key", "(.*)")',
    'label_replace(topk(1, raw:v), "other", "$1", "key", "(.*)") > on () group_right (other) raw:c',
    "topk(1, raw:v) + on () topk(1, raw:c)",
    "raw:c - raw:c offset 5m",
    "rate(raw:c[5m]) / rate(agg:c[5m])",
    "sum(raw:v) / count(raw:v) - avg(raw:v)",
    "-raw:v + 2 * -3",
    "(raw:v + raw:c) * 2 > 100",
    "raw:v == raw:v",
    "raw:v != raw:v",
    "sum(raw:v > 0) or vector(0)",
)

AT_INSTANTS = (
    *(f"predict_linear(raw:v[10m] @ {at}, 600)" for at in ("1700003600", "end()")),
    "quantile_over_time(scalar(one:v) / 1000, raw:v[10m] @ 1700003600)",
    "double_exponential_smoothing(raw:v[10m] @ 1700003600, 0.3, scalar(one:v) * 0 + 0.6)",
)
"""In a range query, this version of Prometheus moves the range that `@` fixes, where another argument may change."""

_AGGREGATES = {"mean": "avg", "total": "sum", "low": "min", "high": "max", "n": "count", "deviation": "stddev"}

LOOKBACKS = (
    *(
        (f'agg:{aggregate}{{__lookback__="{width}",key!="e"}}', f'{function}_over_time(agg:v{{key!="e"}}[{width}])')
        for aggregate, function in _AGGREGATES.items()
        for width in ("5m", "20m")
    ),
    (
        'sum(agg:total{__lookback__="10m"}) / sum(agg:n{__lookback__="10m"})',
        "avg(sum_over_time(agg:v[10m])) / avg(count_over_time(agg:v[10m]))",
    ),
    ("rate(agg:n[10m])", "count_over_time(agg:v[10m]) / 600"),
    ("increase(agg:total[10m])", "sum_over_time(agg:v[10m])"),
    ("agg:n offset 15m", "count_over_time(agg:v[10h] offset 15m)"),
    ('agg:last{__lookback__="10m",key="a"} ', 'last_over_time(agg:v{key="a"}[10m])'),
    ('topk(2, agg:high{__lookback__="10m",key!="e"})', 'topk(2, max_over_time(agg:v{key!="e"}[10m]))'),
)
"""Aggregates of a window, and how Prometheus says the same. Names of metrics differ, and are left out.

Key e has a NaN, which the aggregates `min` and `max` answer, and Prometheus leaves out.
"""
