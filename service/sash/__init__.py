"""Sash: sliding-window aggregates as a service."""
