"""The HTTP API of Prometheus: its queries in PromQL, answered by windows, and its remote write.

app ──▶ parameters ──▶ evaluate ──▶ selectors ──▶ Plane
  │                        └─▶ operators, aggregations, functions      over columns of values (values)
  ├───▶ metadata ─────────────────▶ Plane                              labels, series, names
  └───▶ remote_write ──▶ mapping ─▶ Plane
"""
