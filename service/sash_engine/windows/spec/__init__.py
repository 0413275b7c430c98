"""Specs of windows: read from text, checked, written back."""
