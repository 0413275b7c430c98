"""Readers of answers that are sketches or models."""
