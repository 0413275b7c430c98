"""Sash's engine: sliding-window aggregates in process, without a server."""
