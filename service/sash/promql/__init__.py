"""PromQL over a port: expressions are evaluated here, and a `Queryable` answers their selectors.

parsing, matchers ──▶ evaluate ──▶ Queryable
                         └─▶ operators, aggregations, functions, ranges      over columns of values (values) at times

Nothing here knows windows, their specs or their aggregates: `sash.prometheus` does.
"""
