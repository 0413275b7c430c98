"""Metrics of OpenTelemetry, over gRPC and HTTP: points become entries of windows."""

from __future__ import annotations

__all__: list[str] = []
