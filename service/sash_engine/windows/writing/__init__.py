"""Writes to a window: their order, what they change."""
