"""The HTTP API of Prometheus: its queries in PromQL, answered by windows, and its remote write.

app ──▶ requests ──▶ promql.evaluate ──▶ queryable ──▶ series ──▶ Plane       the windows as what PromQL asks
  ├───▶ metadata ────────────────────────────────────▶ series ──▶ Plane       labels, series, names
  └───▶ remote_write ────────────────────────────────────────────▶ Plane
"""
