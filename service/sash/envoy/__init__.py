"""Envoy's rate limit service, over gRPC: a request of Envoy is an entry of a window, if its limits admit it."""

from __future__ import annotations

__all__: list[str] = []
